"""Dreams: what golems dream at the close of idle cycles, and what becomes of their hypotheses, from what is new.

A dream waits until its cycle is curated, and rests on its golem's records, decisions and earlier dreams alone, so that
no order and no cut of the stream shows. Source: TOOLS (Dream cycle integration), KAT, MEM-16, MEM-23.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.dreams.derive_lessons import renew_lessons
from bardo_pipeline.derivation.dreams.dream_state_cache import DreamState, load_dream_state, save_dream_state
from bardo_pipeline.derivation.incremental.cycle_reader import CycleReader
from bardo_pipeline.derivation.incremental.record_queries import (
    closed_records,
    closed_through,
    curated_through,
    cycle_of,
    records_between,
)
from bardo_pipeline.derivation.incremental.retraction_tracking import (
    RetractionCursor,
    first_touched_cycles,
    is_from_cycle,
    retraction_event_ids,
    without_retracted,
)
from bardo_pipeline.derivation.repair.strikes_and_reorgs import last_moment
from bardo_pipeline.dreams.dream_cycle import DREAM_COLUMNS, DREAM_SCHEMA, Asleep, dream
from bardo_pipeline.dreams.hypothesis_table import HYPOTHESIS_SCHEMA, recalled, standing
from bardo_pipeline.dreams.lessons import lesson_id
from bardo_pipeline.dreams.recorded_market import RATES
from bardo_pipeline.dreams.replay_selection import DROWSY_COLUMNS, IMPORT, TAG, Bed, Due, cycles_of, dreams_due
from bardo_pipeline.events.life.retractions import Cause, LeftOut
from bardo_pipeline.storage.delta.table_digest import Written
from bardo_pipeline.storage.projections.projections import GrowingTable

DREAM_TABLES = ("hypotheses", "dreams")
"""The tables of a dream's commit, in its order: the dream comes last and says that its hypotheses are there."""


@dataclass(frozen=True)
class DreamResult:
    """What golems dreamt, the cycle of each one's newest dream, and the decisions that said what they knew."""

    dreams: pa.Table
    hypotheses: pa.Table
    last: dict[str, int]
    known: pa.Table


def derive_dreams(context: DerivationContext) -> list[Written]:
    """Dream what is due at the close of curated cycles, and dream again what rests on something that is left out since.

    What life confirmed of it is known from then on. Returns what was written, nothing if no cycle closed and nothing is
    to be repaired.
    """
    with context.deriving():
        left, heeded = context.left_out(), RetractionCursor(context, "dreams")
        causes = heeded.pending(left, after=["curation"])
        closed = _closed(context)
        moving = {g: c for g, c in closed.items() if c > (_done(context, DREAM_TABLES[-1:], g) or 0)}
        first = _first(context, causes)
        if not moving and not first:
            written = renew_lessons(context)
            heeded.mark_handled(cause.event_id for cause in causes)
            return written
        past = load_dream_state(context, {*moving, *first}, first, left)
        reader = CycleReader(context, "dreams", DROWSY_COLUMNS, left)
        fresh = reader.next_batch(past.last.get, closed.get)
        drowsy = _of_others(fresh.records, first)
        again = {g: past.last.get(g, 0) + 1 for g in first}
        records = without_retracted(closed_records(context, DROWSY_COLUMNS, again, {g: closed[g] for g in first}), left)
        drowsy = pa.concat_tables([drowsy, records])
        made = _dreamt(context, _only(drowsy, {*moving, *first}), past, left)
        written = _write(context, made, moving, first, causes)
        save_dream_state(context, past, {*moving, *first}, left, **vars(made))
        written += renew_lessons(context)
        reader.advance(replace(fresh, waiting=_waiting(context, drowsy, fresh.waiting, made.last, closed)))
        heeded.mark_handled(cause.event_id for cause in causes)
        return written


def dream_again(context: DerivationContext, golem_ids: Iterable[str], left: LeftOut) -> DreamResult:
    """What these golems dream from birth on, without what is left out, as far as they are derived; nothing is kept."""
    upto = {g: done for g in golem_ids if (done := _done(context, DREAM_TABLES, g)) is not None}
    records = without_retracted(closed_records(context, DROWSY_COLUMNS, dict.fromkeys(upto, 1), upto), left)
    return _dreamt(context, records, DreamState.none(), left)


def _closed(context: DerivationContext) -> dict[str, int]:
    """The last closed cycle of each golem that is curated, too."""
    return {g: min(last, curated_through(context, g) or 0) for g, last in closed_through(context).items()}


def _done(context: DerivationContext, names: Iterable[str], golem_id: str) -> int | None:
    """The last cycle of a golem that any of these tables was derived to."""
    found = [context.projections.growing(name).done(golem_id) for name in names]
    return max((done for done in found if done is not None), default=None)


def _first(context: DerivationContext, causes: Iterable[Cause]) -> dict[str, int]:
    """Golem to the first cycle that is to be dreamt again, of golems that were dreamt so far."""
    wanted = first_touched_cycles(causes, context.policy.curator.cycle_ticks)
    done = {g: _done(context, DREAM_TABLES, g) for g in wanted}  # none of who has not lived a cycle yet
    return {g: cycle for g, cycle in wanted.items() if (last := done[g]) is not None and last >= cycle}


@dataclass(frozen=True)
class _Bedtime:
    """Golems at the ends of their cycles: which dreams are due (golems by place), their births, their newest dreams."""

    golems: list[str]
    due: Due
    births: Mapping[str, Mapping[str, Any]]
    before: Mapping[str, Mapping[str, int]]


def _bedtime(context: DerivationContext, drowsy: pa.Table, past: DreamState) -> _Bedtime:
    """What is due at the ends of these cycles. drowsy: DROWSY_COLUMNS from each one's last dream on, in any order."""
    drowsy = drowsy.sort_by([("golem_id", "ascending"), ("tick", "ascending")])
    golems = sorted(set(drowsy["golem_id"].to_pylist()))
    births, before = _births(context, golems), _newest(past.dreams)
    beds = {
        i: Bed(before[g]["cycle"], before[g]["at_us"], False) if g in before
        else Bed(0, births[g]["at_us"], births[g]["bundle_hash"] is not None)
        for i, g in enumerate(golems)
    }  # fmt: skip
    cycle = cycle_of(drowsy["tick"].to_numpy(), context.policy.curator.cycle_ticks)
    cycles = cycles_of(drowsy, _codes(drowsy, golems), cycle, context.policy)
    return _Bedtime(golems, dreams_due(cycles, beds, context.policy.dreams), births, before)


def _dreamt(context: DerivationContext, drowsy: pa.Table, past: DreamState, left: LeftOut) -> DreamResult:
    """What golems dream at the ends of these cycles."""
    bedtime = _bedtime(context, drowsy, past)
    codes, place = np.unique(bedtime.due.golem, return_inverse=True)
    if not len(codes):
        nobody = past.known_to(context, [])
        return DreamResult(DREAM_SCHEMA.empty_table(), HYPOTHESIS_SCHEMA.empty_table(), past.last, nobody)
    sleepers, due = [bedtime.golems[g] for g in codes.tolist()], replace(bedtime.due, golem=place)
    asleep = _asleep(sleepers, bedtime.births, bedtime.before, past.dreams)
    records = records_between(context, DREAM_COLUMNS, _needed(asleep, due, context), left)
    known = past.known_to(context, sleepers)
    state = recalled(_only(past.hypotheses, set(sleepers)), sleepers)
    dreams, hypotheses = dream(records, _codes(records, sleepers), known, asleep, due, state, context.policy)
    newest = zip((sleepers[g] for g in due.golem.tolist()), due.cycle.tolist(), strict=True)
    return DreamResult(dreams, hypotheses, past.last | dict(newest), known)


def _codes(rows: pa.Table, golems: list[str]) -> np.ndarray:
    known = pa.array(golems, pa.string())
    found: np.ndarray = pc.index_in(rows["golem_id"], value_set=known).to_numpy().astype(np.int64)
    return found


def _births(context: DerivationContext, golems: list[str]) -> dict[str, dict[str, Any]]:
    births = _only(context.life("GolemBorn").select(["golem_id", "observed_at", "born"]), set(golems))
    at_us = births["observed_at"].cast(pa.int64()).to_pylist()
    rows = zip(births["golem_id"].to_pylist(), births["born"].to_pylist(), at_us, strict=True)
    return {golem_id: born | {"at_us": at} for golem_id, born, at in rows}


def _newest(dreams: pa.Table) -> dict[str, dict[str, int]]:
    """The newest dream of each golem: cycle, tick, moment, RATES."""
    told = dreams.select(["golem_id", "cycle", "tick", *RATES]).append_column("at_us", dreams["at"].cast(pa.int64()))
    return {row["golem_id"]: row for row in told.sort_by("cycle").to_pylist()}


def _asleep(
    golems: list[str],
    births: Mapping[str, Mapping[str, Any]],
    before: Mapping[str, Mapping[str, int]],
    dreams: pa.Table,
) -> Asleep:
    """What these golems bring to their dreams."""
    width = [births[g]["traits"]["range_half_width_ticks"] for g in golems]
    code = {g: i for i, g in enumerate(golems)}
    replayed: dict[tuple[int, int], int] = {}
    for row in _only(dreams, set(golems)).select(["golem_id", "replayed"]).to_pylist():
        for one in row["replayed"]:
            key = (code[row["golem_id"]], one["tick"])
            replayed[key] = replayed.get(key, 0) + 1
    return Asleep(
        golems,
        np.array(width, np.int64),
        np.array([before[g]["tick"] if g in before else 0 for g in golems], np.int64),
        np.array([[before[g][n] if g in before else 0 for g in golems] for n in RATES], np.int64),
        replayed,
    )


def _needed(asleep: Asleep, due: Due, context: DerivationContext) -> dict[str, tuple[int, int]]:
    """The ticks that each golem's dreams look at: the lookback, and trials that were judged since the last dream."""
    rules, out = context.policy, {}
    for code, golem_id in enumerate(asleep.golems):
        ticks = due.tick[due.golem == code]
        since = int(asleep.last_tick[code]) - rules.prediction.check_ticks
        out[golem_id] = (max(1, min(since, int(ticks[0]) - rules.dreams.lookback_ticks)), int(ticks[-1]))
    return out


def _write(
    context: DerivationContext,
    made: DreamResult,
    moving: Mapping[str, int],
    first: Mapping[str, int],
    causes: Iterable[Cause],
) -> list[Written]:
    span, written = context.policy.curator.cycle_ticks, []
    for name, rows in zip(DREAM_TABLES, (made.hypotheses, made.dreams), strict=True):
        table = context.projections.growing(name)
        if first:
            standing = table.read(golems=first, only=pc.field("cycle") >= min(first.values()), hidden=True)
            standing = standing.filter(is_from_cycle(standing, first))
            wanted = _reached(table, rows, first)
            written.append(table.repair(standing, wanted, retraction_event_ids(standing, causes, span)))
        written.append(table.append(rows, moving))
    return written


def _reached(table: GrowingTable, rows: pa.Table, first: Mapping[str, int]) -> pa.Table:
    """Of what was dreamt again, what the table had come to before; the rest is appended."""
    done = {g: -1 if (known := table.done(g)) is None else known for g in first}
    limit = np.array([done.get(g, -1) for g in rows["golem_id"].to_pylist()], np.int64)
    return rows.filter(pa.array(rows["cycle"].to_numpy() <= limit, pa.bool_()))


def _waiting(
    context: DerivationContext, drowsy: pa.Table, waiting: pa.Table, last: Mapping[str, int], closed: Mapping[str, int]
) -> pa.Table:
    """What the next dreams begin from: records since each golem's last, without those of golems that dream no more."""
    died = set(context.life("DeathDeclared")["golem_id"].to_pylist())
    ends = closed_through(context)
    floor = {g: 2**62 if g in died and closed.get(g) == ends.get(g) else last.get(g, 0) for g in closed}
    cycle = cycle_of(drowsy["tick"].to_numpy(), context.policy.curator.cycle_ticks)
    limit = np.array([floor.get(g, 0) for g in drowsy["golem_id"].to_pylist()], np.int64)
    return pa.concat_tables([drowsy.filter(pa.array(cycle > limit, pa.bool_())), waiting.select(drowsy.column_names)])


def _only(rows: pa.Table, golems: set[str]) -> pa.Table:
    return rows.filter(pc.is_in(rows["golem_id"], value_set=pa.array(sorted(golems), pa.string())))


def _of_others(rows: pa.Table, golems: Mapping[str, int]) -> pa.Table:
    return rows.filter(pc.invert(pc.is_in(rows["golem_id"], value_set=pa.array(sorted(golems), pa.string()))))


def early_dreams(context: DerivationContext) -> str | None:
    """Which dreams are due before their time, in a few words: for tagged episodes, for imports; None for none."""
    closed, left = _closed(context), context.left_out()
    moving = {g for g, c in closed.items() if c > (_done(context, DREAM_TABLES[-1:], g) or 0)}
    if not moving:
        return None
    past = load_dream_state(context, moving, {}, left)
    fresh = CycleReader(context, "dreams", DROWSY_COLUMNS, left).next_batch(past.last.get, closed.get)
    began = _bedtime(context, _only(fresh.records, moving), past).due.began_by.tolist()
    told = [f"{began.count(why)} for {what}" for why, what in ((TAG, "tagged episodes"), (IMPORT, "imports"))]
    return "dreams are due: " + ", ".join(told) if TAG in began or IMPORT in began else None


def pending_dream_work(context: DerivationContext) -> str | None:
    """What the dream job would look at, in a few words; None if no cycle closed since and nothing is to be repaired."""
    moving = {g: c for g, c in closed_through(context).items() if c > (_done(context, DREAM_TABLES[-1:], g) or 0)}
    if moving:
        return f"closed cycles of {len(moving)} golems"
    due = RetractionCursor(context, "dreams").pending(context.left_out())
    return f"{len(due)} strikes, reorgs or withdrawals to heed" if due else None


def dreams_and_hypotheses(
    context: DerivationContext, golem_id: str | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Dreams by moment, and hypotheses as they stand, surest first, of a golem or of all.

    A hypothesis has beside its columns its confidence at the golem's newest tick (confidence_now_ppm), its fate: its
    state, or what is true already though no dream has said so yet; and, confirmed, the entry that it is known as.
    """
    only = None if golem_id is None else [golem_id]
    dreams = context.projections.growing("dreams").read(golems=only)
    rows = standing(context.projections.growing("hypotheses").read(golems=only))
    golems = sorted(set(rows["golem_id"].to_pylist()))
    now = {g: last_moment(context, g) for g in golems}
    told = rows.to_pylist()
    for row in told:
        at, age = now[row["golem_id"]], now[row["golem_id"]] - row["anchor_at"]
        faded = 2.0 ** -(age / timedelta(days=row["half_life_days"])) if row["state"] == "confirmed" else 1.0
        row["confidence_now_ppm"] = round(row["confidence_ppm"] * faded)
        confirmed = row["state"] == "confirmed"
        row["entry_id"] = lesson_id(row) if confirmed else None
        late = row["state"] == "staged" and at >= row["expires_at"]
        row["fate"] = "expired" if late else row["operation"] if row["state"] == "gone" else row["state"]
    ordered = dreams.sort_by([("at", "ascending"), ("golem_id", "ascending")]).to_pylist()
    return ordered, sorted(told, key=lambda r: (-r["confidence_now_ppm"], r["golem_id"], r["hypothesis_id"]))
