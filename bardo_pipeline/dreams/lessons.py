"""Lessons: what dreams suggested and life confirmed, as decisions about entries and as the entries they leave. Pure.

A hypothesis that live outcomes confirmed is knowledge of its golem's own, from that dream on: they reinforce and
contradict it, it fades at half its class's rate, and is forgotten below what earns a place. As long as nothing has
confirmed it, there is no entry. Lessons are the fold of these decisions as a grimoire is the fold of the curator's.
Source: KAT (Loop 3, demurrage), MEM (shared constants), canon 1, 4, 5, 50; MEM-16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.decision_log import CONTRADICTED as OPPOSED
from bardo_pipeline.curator.state.decision_log import (
    CREATED,
    DECISION_SCHEMA,
    NOTED,
    OPERATIONS,
    PRUNED,
    REASONS,
    REINFORCED,
    STAGED,
    fold,
)
from bardo_pipeline.curator.state.grimoire_state import entry_id
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.dreams.hypotheses import STATES
from bardo_pipeline.dreams.hypothesis_table import HYPOTHESIS_SCHEMA, SITUATED, text_of
from bardo_pipeline.dreams.lesson_overrides import obeyed
from bardo_pipeline.events.life.override_events import Order
from bardo_pipeline.grimoire.entries import COUNTED_FIELDS, DREAMT, ENTRY_SCHEMA, MOMENT
from bardo_pipeline.grimoire.entry_columns import with_columns
from bardo_pipeline.inheritance.weismann import with_fade_time
from bardo_pipeline.policy import Policy

MEANING = {
    "imagined": (STAGED, "a failure went better in a dream, not often enough to say so"),
    "staged": (STAGED, "failures went better in dreams; outcomes since must bear it out"),
    "gathered": (STAGED, "outcomes since the dream, not yet decisive"),
    "confirmed": (CREATED, "outcomes since the dream bear it out"),
    "reinforced": (REINFORCED, REASONS[REINFORCED]),
    "contradicted": (OPPOSED, REASONS[OPPOSED]),
    "pushed": (NOTED, "sure enough to be offered to the clade"),
    "faded": (PRUNED, REASONS[PRUNED]),
}
"""What each operation of a hypothesis that was confirmed is as a decision about its entry, and why, in words."""

_STATUS = {"imagined": "candidate", "staged": "candidate", "confirmed": "active", "gone": "pruned"}


def lessons_of(hypotheses: pa.Table, orders: Sequence[Order], policy: Policy) -> pa.Table:
    """What these hypotheses (HYPOTHESIS_SCHEMA) have taught: ENTRY_SCHEMA, sorted by golem and entry.

    orders: what owners said of entries, in cycles that have closed.
    """
    return fold(lesson_decisions(hypotheses, orders, policy))


def lesson_decisions(
    hypotheses: pa.Table, orders: Sequence[Order], policy: Policy, before: pa.Table | None = None
) -> pa.Table:
    """What was decided about entries in dreams: DECISION_SCHEMA, in the order of its key.

    hypotheses: all that was told of some golems' hypotheses, up to some moment. Those that nothing had confirmed by
    then have no decisions; of the others the first name the failures that suggested them. orders: as of `lessons_of`.
    before: the lessons of these golems (ENTRY_SCHEMA) as they were before anything of this was told, where it is not
    all; then without orders.
    """
    told = hypotheses.sort_by([(n, "ascending") for n in ("golem_id", "hypothesis_id", "cycle", "seq")])
    sure = told.filter(pc.or_(pc.equal(told["state"], "confirmed"), pc.equal(told["operation"], "faded")))
    told = told.filter(pc.is_in(told["hypothesis_id"], value_set=sure["hypothesis_id"].combine_chunks()))
    told = told.combine_chunks()
    count = told.num_rows
    if not count:
        return DECISION_SCHEMA.empty_table()
    meant = [MEANING[operation] for operation in told["operation"].to_pylist()]
    columns: dict[str, Any] = {name: told[name] for name in HYPOTHESIS_SCHEMA.names if name in DECISION_SCHEMA.names}
    columns |= {f.name: np.zeros(count, np.int64) for f in COUNTED_FIELDS if f.name not in columns}
    columns |= _about(told, policy) | _evidence(told)
    columns |= _history(told, columns["entry_id"], ENTRY_SCHEMA.empty_table() if before is None else before)
    columns |= {
        "revision": np.zeros(count, np.int64),
        "operation": [OPERATIONS[operation] for operation, _ in meant],
        "reason": _reasons(told, [why for _, why in meant]),
        "cause_bundle": pa.nulls(count, pa.string()),
        "cause_event": pa.nulls(count, pa.string()),
        "kind": ["insight"] * count,
        "status": [_STATUS[state] for state in told["state"].to_pylist()],
        "provenance": [DREAMT] * count,
        "origin_golem_id": told["golem_id"],
        "is_anti_knowledge": [False] * count,
        "is_bloodstain": [False] * count,
        "fades_at": pa.nulls(count, MOMENT),
    }
    table = pa.table({n: columns[n] for n in DECISION_SCHEMA.names}).cast(DECISION_SCHEMA)
    if orders:
        table = obeyed(table, told["hypothesis_id"].to_pylist(), orders, policy)
    table = with_columns(table, fades_at=with_fade_time(table.select(ENTRY_SCHEMA.names), policy)["fades_at"])
    return table.sort_by([(n, "ascending") for n in ("golem_id", "cycle", "seq")])


def lesson_of(situation: Structure, change: str) -> Structure:
    """What a lesson is about: a situation in which was decided, and the one thing that is changed."""
    return situation._replace(source="dream", cause=change)


def lesson_id(row: Mapping[str, Any]) -> str:
    """The entry that a hypothesis (a row of HYPOTHESIS_SCHEMA) is known as once it is confirmed."""
    situation = Structure("pattern", **{n: row[n] for n in SITUATED})
    return entry_id(row["golem_id"], lesson_of(situation, row["change"]).key)


def _about(told: pa.Table, policy: Policy) -> dict[str, Any]:
    """Structure, id and text of each row's entry; equal structures are named once."""
    coded = told["hypothesis_id"].combine_chunks().dictionary_encode()
    place = coded.indices.to_numpy(zero_copy_only=False)
    first = np.unique(place, return_index=True)[1]
    rows = told.take(pa.array(first)).select(["golem_id", "change", *SITUATED]).to_pylist()
    situations = [Structure("pattern", **{n: row[n] for n in SITUATED}) for row in rows]
    about = [lesson_of(where, row["change"]) for where, row in zip(situations, rows, strict=True)]
    ids = [entry_id(row["golem_id"], one.key) for row, one in zip(rows, about, strict=True)]
    named: dict[str, Any] = {name: [getattr(one, name) for one in about] for name in Structure._fields}
    named |= {"structure": [one.key for one in about], "entry_id": ids}
    named |= {name: [getattr(one, name) for one in about] for name in ("category", "domain")}
    take = pa.array(place, pa.int64())
    columns: dict[str, Any] = {
        name: pa.array(values, DECISION_SCHEMA.field(name).type).take(take) for name, values in named.items()
    }
    mean = _side(told, "mean_ppm")
    said = zip(place.tolist(), told["sign"].to_pylist(), mean.tolist(), strict=True)
    columns["text"] = [text_of(situations[i], about[i].cause or "", sign, size) for i, sign, size in said]
    return columns


def _side(told: pa.Table, name: str) -> np.ndarray:
    """What each row knows: as lived where it was confirmed, as imagined before."""
    waits = pc.is_in(told["state"], value_set=pa.array(STATES[:2])).to_numpy(zero_copy_only=False)
    return np.where(waits, told[name].to_numpy(), told[f"live_{name}"].to_numpy())


def _evidence(told: pa.Table) -> dict[str, Any]:
    """The effect that each row states, and the exact sums of what was lived."""
    stated = {
        "effect_mean_ppm": "mean_ppm", "effect_low_ppm": "low_ppm", "effect_high_ppm": "high_ppm",
        "evidence_count": "count",
    }  # fmt: skip
    lived = {"own_count": "live_count", "own_sum": "live_total", "own_sumsq": "live_squares"}
    return {name: _side(told, column) for name, column in stated.items()} | {n: told[c] for n, c in lived.items()}


_COUNTED = ("validations", "contradictions", "created_cycle", "confidence_origin_ppm")
_DATED = ("created_at", "validated_at")


def _history(told: pa.Table, entries: pa.Array, before: pa.Table) -> dict[str, Any]:
    """Since when each row's entry is known and as what, how often outcomes spoke for it and against, when last for."""
    hypothesis = told["hypothesis_id"].to_numpy(zero_copy_only=False)
    first = np.flatnonzero(np.r_[True, hypothesis[1:] != hypothesis[:-1]])
    group = np.repeat(np.arange(len(first)), np.diff(np.r_[first, len(hypothesis)]))
    operation = told["operation"].to_numpy(zero_copy_only=False)
    at, row = told["at"].cast(pa.int64()).to_numpy(), np.arange(len(group))
    made = np.full(len(first), -1)
    made[group[operation == "confirmed"]] = row[operation == "confirmed"]  # each is confirmed once, here or before
    old = _known_before(entries.take(pa.array(first)), made < 0, before)

    def counted(what: str, name: str) -> np.ndarray:
        total = np.cumsum(operation == what)
        return total - (total - (operation == what))[first][group] + old[name][group]

    here, known = made[group] >= 0, row >= made[group]
    good = np.maximum.accumulate(np.where(np.isin(operation, ("confirmed", "reinforced")), row, -1))
    begun = told["begun_at"].cast(pa.int64()).to_numpy()
    created = np.where(here, at[made[group]], old["created_at"][group])
    validated = np.where(good >= first[group], at[good], old["validated_at"][group])
    confidence, cycle = (told[name].to_numpy()[made[group]] for name in ("confidence_ppm", "cycle"))
    return {
        "validations": counted("reinforced", "validations"),
        "contradictions": counted("contradicted", "contradictions"),
        "created_cycle": np.where(known, np.where(here, cycle, old["created_cycle"][group]), 0),
        "confidence_origin_ppm": np.where(known, np.where(here, confidence, old["confidence_origin_ppm"][group]), 0),
        "created_at": pa.array(np.where(known, created, begun)).cast(MOMENT),
        "validated_at": pa.array(np.where(known, validated, begun)).cast(MOMENT),
    }


def _known_before(entries: pa.Array, wanted: np.ndarray, before: pa.Table) -> dict[str, np.ndarray]:
    """What the lessons of these hypotheses said before, int64 each; zeros for those that are not wanted."""
    place = pc.index_in(entries.filter(pa.array(wanted)), value_set=before["entry_id"].combine_chunks())
    assert not place.null_count, "what was confirmed before is among the lessons"
    out = {}
    for name in (*_COUNTED, *_DATED):
        out[name] = np.zeros(len(wanted), np.int64)
        out[name][wanted] = before[name].cast(pa.int64()).take(place).to_numpy()
    return out


def _reasons(told: pa.Table, why: Sequence[str]) -> list[str]:
    """Why, and by which dream about which hypothesis, with the interval that it rests on."""
    figures = (_side(told, name).tolist() for name in ("count", "low_ppm", "high_ppm"))
    rows = zip(why, told["cycle"].to_pylist(), told["hypothesis_id"].to_pylist(), *figures, strict=True)
    return [
        f"{said}; dream of cycle {cycle}, hypothesis {name[:12]}; n={count}; interval {low} to {high}"
        for said, cycle, name, count, low, high in rows
    ]
