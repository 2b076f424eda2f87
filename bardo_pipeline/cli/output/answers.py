"""Prints answers of asks and searches from their documents, equal for a local answer and for one of a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.markup import escape

from bardo_pipeline.cli.output.tables import out, print_table, say

_PPM = 1_000_000
_OWN_LAYER = "vault"


def show_answer(facts: Mapping[str, Any]) -> None:
    """Print the golem's situation, the hits by factor, its own retrieval decision, and the cycle they are from.

    Parameters
    ----------
    facts : document of `answer_facts`; its moments may be texts
    """
    situation, as_of, hits, factors = facts["situation"], facts["as_of"], facts["hits"], list(facts["weights"])
    mood = ", ".join(f"{part:+.2f}" for part in situation["mood"])
    turn = "; contrarian: entries of the opposite mood score higher" if facts["contrarian"] else ""
    dead = "" if facts["died_at_tick"] is None else ", its last"
    say(
        f"{facts['golem_id']} at tick {situation['tick']}{dead}, regime {situation['regime'] or 'none'}, "
        f"mood ({mood}){turn}"
    )
    if hits:
        rows = [_hit_cells(hit, factors) for hit in hits]
        print_table(None, ["#", "score", *factors, "awake", "trust", "foretells"], rows)
        for hit in hits:
            out.print(f"{hit['rank']}. [bold]{hit['entry_id'][:10]}[/] {_hit_text(hit)}")
        out.print()
        say(
            "foretells: share of later verdicts that agreed with entries of this kind and trust; - without any verdict."
        )
    else:
        say("no entry was retrieved")
    would = "skipped retrieval" if facts["decision"]["skipped"] else "retrieved"
    say(f"The golem itself would have {would}: {facts['decision']['reason']}.")
    say(f"{facts['awake']} entries were awake; {facts['asleep']} of other regimes were asleep.")
    at = as_of["at"]
    closed = (
        f"closed at {_moment(at):%Y-%m-%d %H:%M} with tick {as_of['tick']}"
        if at
        else "no cycle is derived yet: `bardo derive` derives the closed ones"
    )
    say(
        f"As of cycle {as_of['cycle']} ({closed}; newest tick {as_of['head_tick']}), log version "
        f"{as_of['log_version']}."
    )


def show_hits(hits: Sequence[Mapping[str, Any]], newest_event_us: int, log_version: int) -> None:
    """Print the texts that a search found, and the time they are from.

    Parameters
    ----------
    newest_event_us : newest derived event time in UTC microseconds; 0 before the first
    """
    if hits:
        cells = [
            (hit["rank"], f"{hit['score']:.4f}", f"{hit['retained']:.0%}", hit["holders"], hit["id"][:16],
             f"({hit['kind']}) {hit['text']}")
            for hit in hits
        ]  # fmt: skip
        print_table(None, ["#", "score", "kept", "held by", "id", "text"], cells)
    else:
        out.print("no text was found")
    if newest_event_us:
        moment = datetime.fromtimestamp(newest_event_us / 1e6, UTC)
        out.print(f"As of {moment:%Y-%m-%d %H:%M}, log version {log_version}.")
    else:
        out.print("No cycle is derived yet: `bardo derive` derives the closed ones.")


def show_warning(warning: str | None) -> None:
    """Print a warning below an answer; nothing without one."""
    if warning is not None:
        out.print(warning, style="yellow", soft_wrap=True)


def _hit_cells(hit: Mapping[str, Any], factors: Sequence[str]) -> tuple[Any, ...]:
    """Return a table row of a hit: each factor's raw value and its part of the score."""
    parts = [f"{hit[name]:.2f}→{hit[f'{name}_ppm'] / _PPM:.3f}" for name in factors]
    score, awake, trust = hit["score_ppm"] / _PPM, hit["wakefulness"], hit["confidence_ppm"] / _PPM
    foretells = f"{hit['foretold_ppm'] / _PPM:.0%}" if hit["witnesses"] else "-"
    return (hit["rank"], f"{score:.3f}", *parts, f"{awake:.0%}", f"{trust:.0%}", foretells)


def _hit_text(hit: Mapping[str, Any]) -> str:
    marks = [hit["kind"], *(["bloodstain"] if hit["is_bloodstain"] else [])]
    if hit["layer"] != _OWN_LAYER:
        marks.append(f"{hit['layer']} x {hit['discount']:g}, of {hit['golem_id']}")
    return escape(f"({', '.join(marks)}) {hit['text']}")


def _moment(value: datetime | str) -> datetime:
    return datetime.fromisoformat(value) if isinstance(value, str) else value
