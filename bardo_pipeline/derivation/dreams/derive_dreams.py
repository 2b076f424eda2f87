"""Dreams of golems at the close of idle cycles, and the fate of their hypotheses.

A dream waits until its cycle is curated. It depends only on its golem's records, decisions and earlier dreams, so the
order and the batches in which records arrive do not matter. Source: TOOLS (Dream cycle integration), KAT, MEM-16,
MEM-23.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.dreams.derive_lessons import update_lessons
from bardo_pipeline.derivation.dreams.dream_state_cache import DreamState, load_dream_state, save_dream_state
from bardo_pipeline.derivation.incremental import record_queries as queries
from bardo_pipeline.derivation.incremental.cycle_reader import CycleReader
from bardo_pipeline.derivation.incremental.incremental_projection import IncrementalProjection, Retraction
from bardo_pipeline.derivation.incremental.retraction_tracking import RetractionCursor
from bardo_pipeline.dreams.dream_cycle import DREAM_COLUMNS, DREAM_SCHEMA, DreamInputs, dream
from bardo_pipeline.dreams.hypothesis_table import HYPOTHESIS_SCHEMA, load_hypotheses, newest_rows
from bardo_pipeline.dreams.lessons import lesson_id, revision_of
from bardo_pipeline.dreams.lived_lessons import LESSON_COLUMNS, LivedLessons
from bardo_pipeline.dreams.recorded_market import RATES
from bardo_pipeline.dreams.replay_selection import DROWSY_COLUMNS, IMPORT, TAG, Due, LastDream, cycles_of, dreams_due
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.events.record.arrow_columns import rows_of_golems
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta.table_digest import Written
from bardo_pipeline.storage.projections.projections import GrowingTable

DREAM_TABLES = ("hypotheses", "dreams")
"""The tables of a commit in order. A dream's row is written last, so its hypotheses are then complete."""


@dataclass(frozen=True)
class DreamResult:
    """Rows of new dreams.

    last: golem id to the cycle of its newest dream. decisions: those that state what the dreaming golems knew.
    """

    dreams: pa.Table
    hypotheses: pa.Table
    last: dict[str, int]
    decisions: pa.Table


class _Dreams(IncrementalProjection):
    name, sources, by_golem = "dreams", ("curation",), True

    def retract(self, context: DerivationContext, retraction: Retraction) -> list[Written]:
        """Dream the derived cycles of touched golems again, from the dream before the first touched cycle."""
        left_out, done = retraction.left_out, {g: _done(context, DREAM_TABLES, g) for g in retraction.first}
        first = {g: cycle for g, cycle in retraction.first.items() if (last := done[g]) is not None and last >= cycle}
        if not first:
            return []
        past = load_dream_state(context, first, first, left_out)
        records = _records_since(context, past.last, first, left_out)
        result = _dream(context, records, past, left_out)
        written = []
        for name, rows in zip(DREAM_TABLES, (result.hypotheses, result.dreams), strict=True):
            table = context.projections.growing(name)
            wanted = _already_derived(table, rows, first)
            written.append(retraction.correct(table, retraction.touched_rows(table, first), wanted))
        CycleReader(context, self.name, DROWSY_COLUMNS, left_out).add_waiting(records)
        return written

    def derive(self, context: DerivationContext, left_out: LeftOut) -> list[Written]:
        """Append the dreams due in newly curated cycles."""
        closed = _closed_and_curated(context)
        moving = {g: c for g, c in closed.items() if c > (_done(context, DREAM_TABLES[-1:], g) or 0)}
        if not moving:
            return []
        past = load_dream_state(context, moving, {}, left_out)
        reader = CycleReader(context, self.name, DROWSY_COLUMNS, left_out)
        batch = reader.next_batch(past.last.get, closed.get)
        result = _dream(context, rows_of_golems(batch.records, moving), past, left_out)
        written = [
            context.projections.growing(name).append(rows, moving)
            for name, rows in zip(DREAM_TABLES, (result.hypotheses, result.dreams), strict=True)
        ]
        save_dream_state(context, past, moving, left_out, **vars(result))
        waiting = _records_since_dream(context, batch.records, result.last, closed)
        waiting = pa.concat_tables([waiting, batch.waiting.select(waiting.column_names)])
        reader.advance(replace(batch, waiting=waiting))
        return written


def derive_dreams(context: DerivationContext) -> list[Written]:
    """Derive the dreams due at the close of curated cycles, those that a retraction touches, and the lessons."""
    return _Dreams().update(context) + update_lessons(context)


def _records_since(
    context: DerivationContext, last: Mapping[str, int], golem_ids: Iterable[str], left_out: LeftOut
) -> pa.Table:
    """Return the records (DROWSY_COLUMNS) of golems after the cycle `last` up to their last derived cycle."""
    upto = {g: done for g in golem_ids if (done := _done(context, DREAM_TABLES, g)) is not None}
    return queries.closed_records(context, DROWSY_COLUMNS, {g: last.get(g, 0) + 1 for g in upto}, upto, left_out)


def dream_again(context: DerivationContext, golem_ids: Iterable[str], left_out: LeftOut) -> DreamResult:
    """Return all dreams up to each golem's last derived cycle, without retracted records; save nothing."""
    return _dream(context, _records_since(context, {}, golem_ids, left_out), DreamState.empty(), left_out)


def lived_lessons(context: DerivationContext, upto: Mapping[str, int], left_out: LeftOut) -> LivedLessons:
    """Return the lessons that golems' dreams gave them in their cycles up to `upto`, from their records."""
    lived = LivedLessons(context.policy)
    for golem_id, born in sorted(_births(context, sorted(upto)).items()):
        width = born["traits"]["range_half_width_ticks"]
        lived.begin(golem_id, width, born["at_us"], has_bundle=born["bundle_hash"] is not None)
    lived.close(queries.closed_records(context, LESSON_COLUMNS, dict.fromkeys(upto, 1), upto, left_out))
    return lived


def _closed_and_curated(context: DerivationContext) -> dict[str, int]:
    """Return each golem's last closed cycle that is curated."""
    return {
        g: min(last, queries.curated_through(context, g) or 0) for g, last in queries.closed_through(context).items()
    }


def _done(context: DerivationContext, names: Iterable[str], golem_id: str) -> int | None:
    """Return a golem's last derived cycle in any of these tables."""
    cycles = [context.projections.growing(name).done(golem_id) for name in names]
    return max((cycle for cycle in cycles if cycle is not None), default=None)


@dataclass(frozen=True)
class _DueDreams:
    """Due dreams (golems by place in `golems`), with the births and newest dreams of the golems by id."""

    golems: list[str]
    due: Due
    births: Mapping[str, Mapping[str, Any]]
    newest: Mapping[str, Mapping[str, int]]


def _due_dreams(context: DerivationContext, records: pa.Table, past: DreamState) -> _DueDreams:
    """Find the dreams due at the ends of cycles. records: DROWSY_COLUMNS since each golem's last dream."""
    records = records.sort_by([("golem_id", "ascending"), ("tick", "ascending")])
    golems = sorted(set(records["golem_id"].to_pylist()))
    births, newest = _births(context, golems), _newest_dreams(past.dreams)
    last_dreams = {
        i: LastDream(newest[g]["cycle"], newest[g]["at_us"], False) if g in newest
        else LastDream(0, births[g]["at_us"], births[g]["bundle_hash"] is not None)
        for i, g in enumerate(golems)
    }  # fmt: skip
    cycle = queries.cycle_of(records["tick"].to_numpy(), context.policy.curator.cycle_ticks)
    cycles = cycles_of(records, _codes(records, golems), cycle, context.policy)
    return _DueDreams(golems, dreams_due(cycles, last_dreams, context.policy.dreams), births, newest)


def _dream(context: DerivationContext, records: pa.Table, past: DreamState, left_out: LeftOut) -> DreamResult:
    """Return the dreams due at the ends of the cycles of these records (DROWSY_COLUMNS)."""
    due_dreams = _due_dreams(context, records, past)
    codes, place = np.unique(due_dreams.due.golem, return_inverse=True)
    if not len(codes):
        no_decisions = past.decisions_since(context, [])
        return DreamResult(DREAM_SCHEMA.empty_table(), HYPOTHESIS_SCHEMA.empty_table(), past.last, no_decisions)
    dreamers, due = [due_dreams.golems[g] for g in codes.tolist()], replace(due_dreams.due, golem=place)
    inputs = _dream_inputs(dreamers, due_dreams, past.dreams)
    records = queries.records_between(context, DREAM_COLUMNS, _needed_ticks(inputs, due, context.policy), left_out)
    decisions = past.decisions_since(context, dreamers)
    state = load_hypotheses(rows_of_golems(past.hypotheses, dreamers), dreamers)
    dreams, hypotheses = dream(records, _codes(records, dreamers), decisions, inputs, due, state, context.policy)
    last = zip((dreamers[g] for g in due.golem.tolist()), due.cycle.tolist(), strict=True)
    return DreamResult(dreams, hypotheses, past.last | dict(last), decisions)


def _codes(rows: pa.Table, golems: list[str]) -> Int64Array:
    index = pc.index_in(rows["golem_id"], value_set=pa.array(golems, pa.string()))
    return np.asarray(index.to_numpy().astype(np.int64))


def _births(context: DerivationContext, golems: list[str]) -> dict[str, dict[str, Any]]:
    births = context.life("GolemBorn", golems).select(["golem_id", "observed_at", "born"])
    at_us = births["observed_at"].cast(pa.int64()).to_pylist()
    rows = zip(births["golem_id"].to_pylist(), births["born"].to_pylist(), at_us, strict=True)
    return {golem_id: born | {"at_us": at} for golem_id, born, at in rows}


def _newest_dreams(dreams: pa.Table) -> dict[str, dict[str, int]]:
    """Return each golem's newest dream: cycle, tick, at_us and RATES."""
    rows = dreams.select(["golem_id", "cycle", "tick", *RATES]).append_column("at_us", dreams["at"].cast(pa.int64()))
    return {row["golem_id"]: row for row in rows.sort_by("cycle").to_pylist()}


def _dream_inputs(golems: list[str], due_dreams: _DueDreams, dreams: pa.Table) -> DreamInputs:
    """Collect the inputs of these golems' dreams from their births and earlier dreams."""
    newest = due_dreams.newest
    width = [due_dreams.births[g]["traits"]["range_half_width_ticks"] for g in golems]
    codes = {g: i for i, g in enumerate(golems)}
    replayed: dict[tuple[int, int], int] = {}
    for row in rows_of_golems(dreams, golems).select(["golem_id", "replayed"]).to_pylist():
        for episode in row["replayed"]:
            key = (codes[row["golem_id"]], episode["tick"])
            replayed[key] = replayed.get(key, 0) + 1
    return DreamInputs(
        golems,
        np.array(width, np.int64),
        np.array([newest[g]["tick"] if g in newest else 0 for g in golems], np.int64),
        np.array([[newest[g][n] if g in newest else 0 for g in golems] for n in RATES], np.int64),
        replayed,
    )


def _needed_ticks(inputs: DreamInputs, due: Due, policy: Policy) -> dict[str, tuple[int, int]]:
    """Return each golem's first and last tick that its dreams read: the lookback, and trials judged since its last."""
    needed = {}
    for code, golem_id in enumerate(inputs.golems):
        ticks = due.tick[due.golem == code]
        since = int(inputs.last_tick[code]) - policy.prediction.check_ticks
        needed[golem_id] = (max(1, min(since, int(ticks[0]) - policy.dreams.lookback_ticks)), int(ticks[-1]))
    return needed


def _already_derived(table: GrowingTable, rows: pa.Table, golem_ids: Iterable[str]) -> pa.Table:
    """Return the rows of cycles up to each golem's last derived cycle."""
    done = {g: -1 if (cycle := table.done(g)) is None else cycle for g in golem_ids}
    limit = np.array([done.get(g, -1) for g in rows["golem_id"].to_pylist()], np.int64)
    return rows.filter(pa.array(rows["cycle"].to_numpy() <= limit, pa.bool_()))


def _records_since_dream(
    context: DerivationContext, records: pa.Table, last: Mapping[str, int], closed: Mapping[str, int]
) -> pa.Table:
    """Return the records after each golem's last dream, without those of dead golems whose last cycle is derived."""
    dead = set(context.life("DeathDeclared")["golem_id"].to_pylist())
    ends = queries.closed_through(context)
    floor = {g: 2**62 if g in dead and closed.get(g) == ends.get(g) else last.get(g, 0) for g in closed}
    cycle = queries.cycle_of(records["tick"].to_numpy(), context.policy.curator.cycle_ticks)
    limit = np.array([floor.get(g, 0) for g in records["golem_id"].to_pylist()], np.int64)
    return records.filter(pa.array(cycle > limit, pa.bool_()))


def early_dreams(context: DerivationContext) -> str | None:
    """Describe the dreams that tagged episodes or imports make due early; None without any."""
    triggers = [trigger for part in context.by_bucket() for trigger in _triggers(part)]
    counts = [f"{triggers.count(code)} for {name}" for code, name in ((TAG, "tagged episodes"), (IMPORT, "imports"))]
    return "dreams are due: " + ", ".join(counts) if TAG in triggers or IMPORT in triggers else None


def _triggers(context: DerivationContext) -> list[int]:
    """Return the trigger of each due dream, by code."""
    closed, left_out = _closed_and_curated(context), context.left_out()
    moving = {g for g, c in closed.items() if c > (_done(context, DREAM_TABLES[-1:], g) or 0)}
    if not moving:
        return []
    past = load_dream_state(context, moving, {}, left_out)
    batch = CycleReader(context, "dreams", DROWSY_COLUMNS, left_out).next_batch(past.last.get, closed.get)
    due = _due_dreams(context, rows_of_golems(batch.records, moving), past).due
    return list(map(int, due.began_by))


def pending_dream_work(context: DerivationContext) -> str | None:
    """Describe the work of the dream job; None without newly closed cycles and pending retractions."""
    moving = {
        g: c for g, c in queries.closed_through(context).items() if c > (_done(context, DREAM_TABLES[-1:], g) or 0)
    }
    if moving:
        return f"closed cycles of {len(moving)} golems"
    pending = RetractionCursor(context, "dreams").pending(context.left_out())
    return f"{len(pending)} strikes, reorgs or withdrawals to handle" if pending else None


def dreams_and_hypotheses(context: DerivationContext, golem_id: str | None) -> dict[str, Any]:
    """Return the `dreams` by time and the current `hypotheses` by confidence, of one golem or of all.

    A hypothesis also has confidence_now_ppm, at its golem's newest tick; `fate`, which is its state, its last operation
    or "expired"; the entry_id of its lesson if it is confirmed; and the revision of the playbook that it stages.
    Raises UnknownGolemError for an unknown golem.
    """
    if golem_id is not None:
        queries.require_born(context, golem_id)
    only = None if golem_id is None else [golem_id]
    dreams = context.projections.growing("dreams").read(golems=only)
    rows = newest_rows(context.projections.growing("hypotheses").read(golems=only))
    hypotheses, golems = rows.to_pylist(), rows["golem_id"].unique().to_pylist()
    last = queries.last_records(context, ("golem_id", "tick", "observed_at"), golems)
    now = queries.values_by_golem(last, "observed_at")
    for row in hypotheses:
        at, age = now[row["golem_id"]], now[row["golem_id"]] - row["anchor_at"]
        is_confirmed = row["state"] == "confirmed"
        decay = 2.0 ** -(age / timedelta(days=row["half_life_days"])) if is_confirmed else 1.0
        row["confidence_now_ppm"] = round(row["confidence_ppm"] * decay)
        row["entry_id"] = lesson_id(row) if is_confirmed else None
        row["revision"] = revision_of(row, row["confidence_now_ppm"])
        is_expired = row["state"] == "staged" and at >= row["expires_at"]
        row["fate"] = "expired" if is_expired else row["operation"] if row["state"] == "gone" else row["state"]
    hypotheses.sort(key=lambda row: (-row["confidence_now_ppm"], row["golem_id"], row["hypothesis_id"]))
    ordered = dreams.sort_by([("at", "ascending"), ("golem_id", "ascending")]).to_pylist()
    return {"golem_id": golem_id, "dreams": ordered, "hypotheses": hypotheses}
