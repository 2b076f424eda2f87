"""Prints the library of an owner, and its items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.markup import escape

from bardo_pipeline.cli.output.tables import as_moment, out, percent, print_nonempty, print_table, say


def show_library(facts: Mapping[str, Any]) -> None:
    """Print a library (`library_document`)."""
    cells = [
        (r["entry_id"][:12], _marked(r), r["kind"].removeprefix("strategy_"), percent(r["confidence_now_ppm"]),
         r["channel"], r["validator_count"], f"{r['text']} ({tags})" if (tags := _tags(r)) else r["text"])
        for r in facts["entries"]
    ]  # fmt: skip
    title = (
        f"Library of {facts['owner_id']}: {facts['total']} entries, {len(facts['playbooks'])} playbooks of dead golems"
    )
    print_table(title, ["entry", "†", "kind", "trust", "by", "borne out", "text"], cells)
    kit_rows = [
        (k["kit_id"], k["name"], "published" if k["is_published"] else "proposed", len(k["entry_ids"]),
         len(k["proposed_ids"]), len(k["golem_ids"]))
        for k in facts["kits"]
    ]  # fmt: skip
    print_nonempty("Seed kits", ["kit", "name", "state", "entries", "waiting", "golems"], kit_rows)
    for order in facts["waiting"]:
        say(f"order {order['number']}: {order['entry_count']} entries wait for the next golem, {order['why']}")


def show_library_item(item: Mapping[str, Any]) -> None:
    """Print a seed kit, a playbook or an entry (`library_item`)."""
    if "kit_id" in item:
        _show_kit(item)
    elif "markdown" in item:
        say(item["markdown"])
    else:
        _show_entry(item)


def _show_kit(kit: Mapping[str, Any]) -> None:
    state = "published" if kit["is_published"] else "proposed: waiting for golems to confirm it"
    out.print(f"[bold]{escape(kit['kit_id'])}[/] {escape(kit['name'])}, {state}", soft_wrap=True)
    say(f"learned independently by {', '.join(kit['golem_ids'])}")
    for word, names in (("entries", "entry_ids"), ("waiting", "proposed_ids")):
        say(f"{word}: {', '.join(e[:12] for e in kit[names]) or 'none'}")


def _show_entry(row: Mapping[str, Any]) -> None:
    out.print(f"{_marked(row)} [bold]{row['entry_id']}[/] {escape(row['text'])}".strip(), soft_wrap=True)
    about = [row["kind"], row["category"], row["archetype"], f"generation {row['generation']}", _tags(row)]
    say(", ".join(word for word in about if word))
    raised = "" if row["confidence_ppm"] == row["deposited_ppm"] else f", raised from {percent(row['deposited_ppm'])}"
    since = f"{percent(row['confidence_ppm'])} as of {as_moment(row['anchor_at']):%Y-%m-%d %H:%M}{raised}"
    say(f"trusted {percent(row['confidence_now_ppm'])} now ({since})")
    period = f"{as_moment(row['first_at']):%Y-%m-%d %H:%M} to {as_moment(row['last_at']):%Y-%m-%d %H:%M}"
    say(f"acquired by {', '.join(row['channels'])}, {period}, from {', '.join(row['golem_ids'])}")
    say(
        f"confirmed by {row['validator_count']} golems ({', '.join(row['validator_ids']) or 'none yet'}), "
        f"refuted by {row['refuter_count']}"
    )
    for entry_id in row["entry_ids"]:
        similar = "" if entry_id == row["entry_id"] else " (similar)"
        say(f"trace to its ticks: bardo lineage {entry_id[:12]}{similar}")


def _marked(row: Mapping[str, Any]) -> str:
    return "†" if row["is_bloodstain"] else ""


def _tags(row: Mapping[str, Any]) -> str:
    tags = [word for word in ("battle_tested", "default", "anti_knowledge") if row[f"is_{word}"]]
    return ", ".join(word.replace("_", "-") for word in tags)
