"""Prints scars and bloodstains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bardo_pipeline.cli.output.tables import out, percent, print_table, say


def show_scars(failures: Sequence[Mapping[str, Any]]) -> None:
    """Print failures with their scars (rows of `failures_with_scars`)."""
    if not failures:
        say("no scars on record")
    for row in failures:
        say(f"{row['scar_id']}, {_scar_state(row)}: {row['causal_narrative']}")


def _scar_state(row: Mapping[str, Any]) -> str:
    if not row["is_scar"]:
        return f"no scar ({row['because']})"
    repeats = f", seen {row['seen_count']} times" if row["seen_count"] > 1 else ""
    kind = "bloodstain" if row["is_bloodstain"] else "scar"
    return f"{kind} of {percent(row['confidence_now_ppm'])}, {row['emotion'].lower()}{repeats}"


def show_bloodstain(stain: Mapping[str, Any]) -> None:
    """Print the bloodstain of a death, or only its echo."""
    if "bloodstain_id" not in stain:
        _show_echo(stain)
        return
    unpublished = "" if stain["bundle_published"] else " (not published)"
    facts = {
        "bloodstain": stain["bloodstain_id"],
        "golem": f"{stain['golem_id']}, generation {stain['generation']}, of {stain['owner_id']}",
        "died": f"at tick {stain['tick']}, {stain['died_at']} ({stain['cause']})",
        "market": _market(stain["conditions"]),
        "testament": stain["testament_hash"] or "not written yet",
        "bundle": f"{stain['bundle_hash']}{unpublished}" if stain["bundle_hash"] else "not made yet",
    }
    for name, value in facts.items():
        say(f"{name:12}{value}")
    for scar in stain["scars"]:
        out.print(f"\n{scar['scar_id']} ({scar['emotion'].lower()}): {scar['causal_narrative']}", markup=False)
    out.print()
    votes = [(v["claim"], percent(v["confidence_ppm"]), v["weight"]) for v in stain["death_votes"]]
    if votes:
        print_table("Last words", ["claim", "believed", "weight"], votes)
    else:
        out.print("no last votes: it held no claim that may be published")


def _show_echo(echo: Mapping[str, Any]) -> None:
    say(f"{'market':12}{_market(echo['conditions'])}")
    out.print(f"{'last words':12}{echo['death_vote_count']}", markup=False)
    out.print(f"{'testament':12}{echo['testament_hash'] or 'not written yet'}", markup=False)
    for pattern in echo["failure_patterns"]:
        say(pattern)


def _market(conditions: Mapping[str, Any] | None) -> str:
    if conditions is None:
        return "unknown: its last record was struck"
    venue = f"{conditions['pair']} on {conditions['protocol']}, {conditions['chain']}"
    return f"{venue}: {conditions['regime']} ({conditions['market_regime']}), gas {conditions['gas_band']}"
