"""Prints what siblings and strangers told."""

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


def show_beliefs(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the consensus of received votes, one row for each claim."""
    if not rows:
        say("no vote was received; `bardo clade sync OWNER` exchanges with a relay's public board")
        return
    shown = [
        {
            "claim": row["claim"], "confidence": f"{row['confidence']:.2f}", "votes": row["vote_count"],
            "state": "contradicted" if row["contradicted"] else "quorum" if row["quorum_met"] else "too few votes",
            "last vote": f"{as_moment(row['last_vote_at']):%Y-%m-%d}",
        }
        for row in rows
    ]  # fmt: skip
    print_records(None, shown)


def show_pheromones(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the pheromones of each market."""
    if not rows:
        say("no pheromone was received; `bardo clade sync OWNER` exchanges with a relay's public board")
        return
    shown = [
        {
            "pair": row["pair"], "protocol": row["protocol"], "chain": row["chain"], "sort": row["sort"],
            "intensity": f"{row['intensity']:.2f}", "deposits": row["deposit_count"],
            "last deposit": f"{as_moment(row['last_deposit_at']):%Y-%m-%d %H:00}",
        }
        for row in rows
    ]  # fmt: skip
    print_records(None, shown)
