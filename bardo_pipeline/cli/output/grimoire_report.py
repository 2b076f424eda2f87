"""Prints entries of a golem, and episodes that are similar to a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape

from bardo_pipeline.cli.output.tables import as_moment, day, out, percent, print_nonempty, print_table, say

_PPM = 1_000_000


def show_grimoire(facts: Mapping[str, Any]) -> None:
    """Print the entries of a golem (`grimoire_document`)."""
    cells = [
        (r["entry_id"][:12], r["kind"] if r["status"] == "active" else r["status"], percent(r["confidence_now_ppm"]),
         percent(r["pinned_ppm"]) if r["pinned_ppm"] else "-", day(r["fades_at"]), r["text"])
        for r in facts["entries"]
    ]  # fmt: skip
    title = f"{facts['golem_id']} at the end of cycle {facts['cycle']}"
    print_table(title, ["entry", "kind", "trust", "pinned", "fades", "text"], cells)
    _show_waiting(facts["waiting"])


def show_entry(facts: Mapping[str, Any]) -> None:
    """Print an entry (`entry_document`)."""
    row = facts["entry"]
    out.print(f"[bold]{row['entry_id']}[/] {escape(row['text'])}", soft_wrap=True)
    about = [row["kind"], row["status"], row["category"], row["provenance"].replace("_", " ")]
    about += [f"generation {row['generation']}", row["decay_class"].replace("_", " ")]
    about += [word for word in ("is_anti_knowledge", "is_bloodstain") if row[word]]
    say(", ".join(about))
    votes = f"{row['validations']} for, {row['contradictions']} against"
    out.print(f"effect {row['effect_low_ppm']:,} to {row['effect_high_ppm']:,}, n={row['evidence_count']}; {votes}")
    if row["status"] == "active":
        _show_fading(row, facts["fading"])
    decisions = [
        (d["cycle"], d["operation"], f"{percent(d['confidence_before_ppm'])} → {percent(d['confidence_ppm'])}",
         len(d["cause_ticks"]), d["reason"])
        for d in facts["decisions"]
    ]  # fmt: skip
    print_table("Decisions", ["cycle", "what", "trust", "ticks", "why"], decisions)
    links = [(k["relation"].replace("_", " "), k["across"], k["entry_id"][:12], k["text"]) for k in facts["links"]]
    print_nonempty("Linked entries", ["how", "across", "entry", "text"], links)
    if (gate := facts["crossing"]) is not None:
        parts = ", ".join(f"{part} {ppm / _PPM:.2f}" for part, ppm in gate["parts_ppm"].items())
        verdict = "shared with other golems" if gate["crosses"] else "not shared"
        say(f"{verdict}: {gate['reason']}; admission {gate['admission_ppm'] / _PPM:.2f} ({parts})")
    for noted in facts["notes"]:
        say(f"note, {as_moment(noted['at']):%Y-%m-%d %H:%M}: {noted['note']}")
    _show_waiting(facts["waiting"])
    say(f"trace to its ticks: bardo lineage {row['entry_id'][:12]} --golem {facts['golem_id']}")


def show_similar(episodes: Sequence[Mapping[str, Any]]) -> None:
    """Print episodes (`similar_with_times`)."""
    cells = [(r["episode_id"], f"{as_moment(r['at']):%Y-%m-%d %H:%M}", r["text"], r["score"]) for r in episodes]
    print_table(None, ["episode", "when", "text", "score"], cells)


def _show_fading(row: Mapping[str, Any], fading: Sequence[Mapping[str, Any]]) -> None:
    days = "does not fade" if row["half_life_days"] is None else f"half-life {row['half_life_days']:.1f} days"
    later = ", ".join(f"{percent(each['confidence_ppm'])} in {each['days']} d" for each in fading if each["days"])
    say(f"trusted {percent(row['confidence_now_ppm'])}; {days}: {later} without new evidence")
    if row["pinned_ppm"]:
        say(f"pinned at {percent(row['pinned_ppm'])} by its owner")
    elif row["fades_at"] is not None:
        say(f"pruned after {as_moment(row['fades_at']):%Y-%m-%d %H:%M} without new evidence")


def _show_waiting(orders: Sequence[Mapping[str, Any]]) -> None:
    for order in orders:
        what = f"{order['kind']} of {order['entry_id'][:12]}, {order['why']} ({order['event_id']})"
        say(f"waits for cycle {order['cycle']}: {what}")
