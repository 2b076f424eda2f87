"""Prints answers, found texts and lineages from documents, equal for local ones and for those of a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.tree import Tree

from bardo_pipeline.cli.output.tables import as_moment, out, percent, print_table, say
from bardo_pipeline.clock import moment_at

_PPM = 1_000_000
_OWN_LAYER = "vault"
_SHOWN_DECISIONS = 6
_SHOWN_TICKS = 12


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
        say("foretells: chance to hold on the next day, corrected by verdicts on its kind; - without any verdict.")
    else:
        say("no entry was retrieved")
    would = "skipped retrieval" if facts["decision"]["skipped"] else "retrieved"
    say(f"The golem itself would have {would}: {facts['decision']['reason']}.")
    say(f"{facts['awake']} entries were awake; {facts['asleep']} of other regimes were asleep.")
    at = as_of["at"]
    closed = (
        f"closed at {as_moment(at):%Y-%m-%d %H:%M} with tick {as_of['tick']}"
        if at
        else "no cycle is derived: one closes after some ticks or at a death, then `bardo derive` derives it"
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
        moment = moment_at(newest_event_us)
        out.print(f"As of {moment:%Y-%m-%d %H:%M}, log version {log_version}.")
    else:
        out.print("No cycle is derived: one closes after some ticks or at a death, then `bardo derive` derives it.")


def show_lineage(holdings: Sequence[Mapping[str, Any]]) -> None:
    """Print the tree of an entry's holdings (`lineage_of`; not empty): decisions, ticks and bundles."""
    tree = Tree(f"[bold]{holdings[0]['entry_id']}[/] {escape(holdings[0]['text'])}")
    for held in holdings:
        _add_holding(tree, held)
    out.print(tree)


def _add_holding(tree: Tree, held: Mapping[str, Any]) -> None:
    origin = ", its own experience"
    if held["bundle_hash"]:
        origin = f", received from {held['from_golem_id']} in bundle {held['bundle_hash'][:12]}"
    trust = percent(held["confidence_ppm"])
    label = f"(generation {held['generation']}): {held['kind']}, {held['status']}, {trust}{origin}"
    branch = tree.add(f"[bold]{escape(held['golem_id'])}[/] {escape(label)}")
    for reason in held["because"]:
        branch.add(escape(f"withdrawn: {reason}" if held["status"] == "withdrawn" else f"derived again: {reason}"))
    decisions = branch.add(f"{len(held['decisions'])} decisions")
    for d in held["decisions"][-_SHOWN_DECISIONS:]:
        ticks = ", ".join(str(tick) for tick in d["cause_ticks"][:8]) + (", …" if len(d["cause_ticks"]) > 8 else "")
        moved = f"{d['confidence_before_ppm'] / 1e4:.0f} → {d['confidence_ppm'] / 1e4:.0f} %"
        cause = f"; ticks {ticks}" if ticks else ""
        when = f"{as_moment(d['at']):%Y-%m-%d %H:%M}" if d["cycle"] is None else f"cycle {d['cycle']}"
        decisions.add(escape(f"{when}: {d['operation']} ({moved}); {d['reason']}{cause}"))
    if held["ticks"]:
        ticks_branch = branch.add(f"{len(held['ticks'])} ticks")
        for tick in held["ticks"][:_SHOWN_TICKS]:
            effects = [f"acting vs holding: {effect:+,} ppm" for effect in tick["effects_ppm"]]
            events = "; ".join([*tick["actions"], *effects, *tick["transactions"]])
            moment = f"{as_moment(tick['observed_at']):%Y-%m-%d %H:%M}"
            facts = f"tick {tick['tick']}, {moment}, {tick['regime']}, {tick['tier']}"
            ticks_branch.add(escape(facts + (f": {events}" if events else "")))
        if len(held["ticks"]) > _SHOWN_TICKS:
            ticks_branch.add(f"… {len(held['ticks']) - _SHOWN_TICKS} more (--format json has all)")


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
