"""Prints dreams and hypotheses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bardo_pipeline.cli.output.tables import ROWS_SHOWN, as_moment, out, percent, print_records, say

FATES = ("confirmed", "staged", "gone")


def show_dreams(facts: Mapping[str, Any], *, limit: int = ROWS_SHOWN) -> None:
    """Print the newest dreams, and the hypotheses by their fate.

    Parameters
    ----------
    facts : document of `dreams_and_hypotheses`
    limit : maximum rows per table
    """
    golem, hypotheses = facts["golem_id"], facts["hypotheses"]
    if not facts["dreams"]:
        subject = f"golem {golem} has not" if golem else "no golem has"
        say(f"{subject} dreamt yet: dreams run while idle, every four hours of a golem's time; `bardo ui` runs them")
        return
    shown = [_dream_row(row, golem) for row in facts["dreams"][-limit:]]
    print_records("Dreams (s: hypotheses staged, c: confirmed, g: gone)", shown)
    for fate in FATES:
        for hypothesis in [h for h in hypotheses if h["state"] == fate][:limit]:
            out.print(_hypothesis_text(hypothesis, golem), markup=False)
    waiting = sum(h["state"] == "imagined" for h in hypotheses)
    out.print(f"{waiting} more have too little evidence to be staged")


def _dream_row(row: Mapping[str, Any], golem: str | None) -> dict[str, Any]:
    return ({} if golem else {"golem": row["golem_id"]}) | {
        "cycle": row["cycle"],
        "when": f"{as_moment(row['at']):%m-%d %H:%M}",
        "by": row["began_by"],
        "replays": len(row["replayed"]) + len(row["scars"]),
        "branches": row["branch_count"],
        "s": row["staged_count"],
        "c": row["confirmed_count"],
        "g": row["gone_count"],
    }


def _hypothesis_text(row: Mapping[str, Any], golem: str | None) -> str:
    prefix = "" if golem else f"{row['golem_id']}: "
    lines = [f"{prefix}{row['fate']}, {percent(row['confidence_now_ppm'])}: {row['text']}"]
    if row["entry_id"]:
        offered = ", offered to the clade" if row["pushed"] else ""
        lines.append(f"    known as entry {row['entry_id'][:12]}{offered}")
    if row["revision"]:
        lines.append(f"    staged revision of the playbook: {row['revision']}")
    for side, source in (("", "in imagined failures"), ("live_", "in later decisions")):
        if row[f"{side}count"]:
            mean, low, high = (row[f"{side}{n}_ppm"] for n in ("mean", "low", "high"))
            lines.append(f"    {source} n={row[f'{side}count']}: {mean:+,} ppm ({low:+,} to {high:+,})")
    return "\n".join(lines)
