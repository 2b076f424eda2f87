"""Prints deaths, notices about them, and successions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape

from bardo_pipeline.cli.output.tables import ROWS_SHOWN, as_moment, out, print_records, print_table, say


def show_graveyard(graves: Sequence[Mapping[str, Any]], *, limit: int = ROWS_SHOWN) -> None:
    """Print the latest deaths (documents of `Grave`)."""
    if not graves:
        out.print("no golem has died yet")
        return
    rows = [
        (g["golem_id"], g["generation"], g["owner_id"], f"{as_moment(g['died_at']):%m-%d %H:%M}", g["cause"],
         g["ticks"], f"{g['earned_micros'] / 1e6:+,.2f}", g["entry_count"], (g["bundle_hash"] or "none")[:12],
         g["heir_id"] or g["succession"] or "-")
        for g in graves[:limit]
    ]  # fmt: skip
    names = ["golem", "gen", "owner", "died", "cause", "ticks", "earned $", "left", "bundle", "heir"]
    print_table(None, names, rows)
    for grave in graves[:limit]:
        if grave["last_words"]:
            say(f"{grave['golem_id']}: “{grave['last_words']}”")
    say(
        f"{len(graves)} dead; `bardo golem show GOLEM` opens a testament, `bardo golem successor GOLEM` summons "
        "an heir, `bardo golem found --like GOLEM` starts fresh"
    )


def show_death(facts: Mapping[str, Any]) -> None:
    """Print the phases of a death (`death_document`)."""
    rows = [
        (p["phase"], _result(p), f"${p['payload']['cost_micros'] / 1e6:.4f}",
         f"${(p['payload']['reserve_micros'] - p['payload']['spent_micros']) / 1e6:.4f}")
        for p in facts["phases"]
    ]  # fmt: skip
    print_table(f"How {facts['golem_id']} died", ["phase", "what it did", "cost", "left of the reserve"], rows)
    if facts["waits_for"] is not None:
        say(f"the death is not completed: {facts['waits_for']}")


def _result(phase: Mapping[str, Any]) -> str:
    payload = phase["payload"]
    match phase["kind"]:
        case "DeathAccepted":
            return f"dies at tick {payload['tick']:,} ({payload['cause']}); means for the {payload['means']} death"
        case "AffairsSettled":
            count = payload["position_count"]
            positions = "sealed positions" if count is None else f"{count} open position{'s' * (count != 1)}"
            return f"{positions} valued as last seen, ${payload['capital_micros'] / 1e6:,.2f} in all"
        case "LifeReflected":
            extent = f"{payload['statement_count']} statements over {payload['entry_count']} entries"
            return f"testament {payload['testament_hash'][:12]}, {extent}"
        case _:
            bundle = f"bundle {payload['bundle_hash'][:12]}" + ("" if payload["published"] else " (refused)")
            content = f"{payload['entry_count']} entries, {payload['episode_count']} episodes"
            pushed = len(payload["pushed_entry_ids"])
            return f"{bundle}: {content}; {payload['vote_count']} last votes; {pushed} insights pushed"


def show_notices(notices: Sequence[Mapping[str, Any]]) -> None:
    """Print notices to owners (`notice_rows`)."""
    for notice in notices:
        mark = " (posted)" if notice["posted"] else ""
        say(f"{as_moment(notice['at']):%Y-%m-%d %H:%M} {notice['owner_id']}: {notice['text']}{mark}")


def show_due(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print due succession steps, each with its state."""
    if rows:
        print_table("Due", ["dead golem", "why", "now"], [(row["golem"], row["why"], row["state"]) for row in rows])
    else:
        out.print("nothing is due")


def show_successions(facts: Mapping[str, Any]) -> None:
    """Print successions and the credit of owners (`successions_document`)."""
    if facts["successions"]:
        print_records("Successions", facts["successions"])
    else:
        say("no succession was started: use `bardo golem successor DEAD`, or `auto = true` under [succession]")
    for owner, micros in facts["credit_micros"].items():
        out.print(f"owner {escape(owner)}: ${micros / 1e6:,.2f} of credit is committed to heirs")
