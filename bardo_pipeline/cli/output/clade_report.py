"""Prints what the siblings of a clade told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bardo_pipeline.cli.output.tables import as_moment, print_records, say


def show_notes(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the received notes, one row each; of a page the first line."""
    if not rows:
        say("no sibling told anything; `bardo clade sync OWNER` exchanges")
        return
    shown = [
        {
            "at": f"{as_moment(row['at']):%Y-%m-%d %H:%M}", "from": row["from_golem_id"], "about": row["about"],
            "text": row["text"].strip().splitlines()[0],
        }
        for row in rows
    ]  # fmt: skip
    print_records(None, shown)
