"""Lessons: what dreams taught and life confirmed, kept beside the grimoires and read together with them.

Lessons follow from hypotheses alone and hypotheses from records, so that the curator waits for no dream, and no cut of
the stream shows in either. Whoever asks what a golem knows reads both. Source: KAT (Loop 3), MEM, MEM-16.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.decision_log import fold
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import curated_through
from bardo_pipeline.dreams.hypothesis_table import HYPOTHESIS_SCHEMA
from bardo_pipeline.dreams.lessons import lesson_decisions, lessons_of
from bardo_pipeline.events.life.override_events import Order
from bardo_pipeline.grimoire.entries import MOMENT
from bardo_pipeline.grimoire.entry_columns import sorted_by
from bardo_pipeline.storage.delta.replaceable_table import ReplaceableTable
from bardo_pipeline.storage.delta.table_digest import Written


def renew_lessons(context: DerivationContext) -> list[Written]:
    """Renew the lessons of the buckets in which something was told of hypotheses since, or taken back, or of entries.

    What is told goes on from the lesson as it was. All that was ever told is read again of golems of whom something was
    taken back, or whose owner spoke of a lesson.
    The caller holds `context.deriving()`. Returns what was written, nothing if nothing was told.
    """
    table, hypotheses = context.projections.replaceable("lessons"), context.projections.growing("hypotheses")
    seen, now = table.noted("hypotheses").get("version"), hypotheses.table.version
    since, heard = None if seen is None else int(seen), table.noted("orders")
    fresh, anew = HYPOTHESIS_SCHEMA.empty_table(), set()
    if since != now:
        fresh = hypotheses.read(since_version=since).cast(HYPOTHESIS_SCHEMA)
        anew = set(hypotheses.taken_back(["golem_id"], since)["golem_id"].to_pylist())
    if orders := context.overrides().orders:
        held = set(table.read(only={order.golem_id for order in orders})["entry_id"].to_pylist())
        said = [o for o in applied_orders(context) if o.entry_id in held and o.event_id not in heard]
        anew |= {order.golem_id for order in said}
        heard |= {order.event_id: order.golem_id for order in said}
    upto = _reached(fresh)
    if not upto and not anew:
        return []
    anew |= _not_gone_on(table, fresh, since)
    buckets = table.buckets({*upto, *anew})
    rows = _gone_on(context, table.read(buckets), fresh, anew)
    rising = {g: cycle for g, cycle in upto.items() if cycle > (table.done(g) or 0)}
    note = {"hypotheses": {"version": str(now)}, "orders": heard}
    return [table.replace(rows, buckets, upto=rising, note=note)]


def _reached(told: pa.Table) -> dict[str, int]:
    """The newest cycle of each golem in these rows."""
    newest = told.group_by("golem_id", use_threads=False).aggregate([("cycle", "max")])
    return dict(zip(newest["golem_id"].to_pylist(), newest["cycle_max"].to_pylist(), strict=True))


def _not_gone_on(table: ReplaceableTable, fresh: pa.Table, since: int | None) -> set[str]:
    """Golems whose lessons do not go on from what they are: the rows are not all new, or not all that was told."""
    if since is None:
        return set()
    oldest = fresh.group_by("golem_id", use_threads=False).aggregate([("cycle", "min")])
    begun = zip(oldest["golem_id"].to_pylist(), oldest["cycle_min"].to_pylist(), strict=True)
    return {g for g, cycle in begun if (done := table.done(g)) is None or cycle <= done}


def _gone_on(context: DerivationContext, before: pa.Table, fresh: pa.Table, anew: set[str]) -> pa.Table:
    """Lessons of some buckets after what was told since; of the golems that are read anew, after all that was told."""
    fresh = fresh.filter(pc.invert(_of(fresh, anew)))
    decided = lesson_decisions(fresh, (), context.policy, before)
    ids = {*before["entry_id"].to_pylist(), *decided["entry_id"].to_pylist()}
    spoken = {order.golem_id for order in context.overrides().orders if order.entry_id in ids}
    anew = anew | (spoken & set(fresh["golem_id"].to_pylist()))
    made = fold(decided.filter(pc.invert(_of(decided, anew))))
    known = pc.is_in(before["entry_id"], value_set=made["entry_id"].combine_chunks())
    parts = [before.filter(pc.invert(pc.or_(_of(before, anew), known))), made]
    if anew:
        told = context.projections.growing("hypotheses").read(golems=sorted(anew))
        parts.append(lessons_of(told, applied_orders(context, anew), context.policy))
    return pa.concat_tables(parts)


def _of(rows: pa.Table, golem_ids: Collection[str]) -> pa.ChunkedArray:
    return pc.is_in(rows["golem_id"], value_set=pa.array(sorted(golem_ids), pa.string()))


def applied_orders(context: DerivationContext, golem_ids: Iterable[str] | None = None) -> tuple[Order, ...]:
    """What owners said of entries, of all golems or of these, in cycles that are curated."""
    orders = context.overrides().orders
    spoken_of = {o.golem_id for o in orders} if golem_ids is None else {o.golem_id for o in orders} & set(golem_ids)
    upto = {golem_id: curated_through(context, golem_id) or 0 for golem_id in spoken_of}
    return context.overrides().due({}, upto, context.policy.curator.cycle_ticks)


def known_entries(context: DerivationContext, golem_ids: Iterable[str] | None = None) -> pa.Table:
    """What golems know, of all or of these: their grimoires and their lessons (ENTRY_SCHEMA), by golem and entry."""
    only = None if golem_ids is None else sorted(set(golem_ids))
    parts = [context.projections.replaceable(name).read(only=only) for name in ("grimoire", "lessons")]
    return _together(parts)


def known_entries_of_buckets(context: DerivationContext, buckets: Collection[int]) -> pa.Table:
    """What the golems of these buckets know (ENTRY_SCHEMA), by golem and entry."""
    tables = [context.projections.replaceable(name) for name in ("grimoire", "lessons")]
    return _together([table.read(buckets, trusting=True) for table in tables])


def _together(parts: list[pa.Table]) -> pa.Table:
    rows = pa.concat_tables(parts)
    return sorted_by(rows, ("golem_id", "entry_id")) if parts[1].num_rows else parts[0]


def known_entries_at(context: DerivationContext, golem_ids: list[str], moment: datetime | pa.Scalar) -> pa.Table:
    """What these golems knew at a moment (ENTRY_SCHEMA), by golem and entry."""
    then = moment if isinstance(moment, pa.Scalar) else pa.scalar(moment, MOMENT)
    decisions = context.projections.growing("curation").read(golems=golem_ids)
    told = context.projections.growing("hypotheses").read(golems=golem_ids)
    orders = [order for order in applied_orders(context, golem_ids) if order.at <= then.as_py()]
    lessons = lesson_decisions(told.filter(pc.less_equal(told["at"], then)), orders, context.policy)
    return fold(pa.concat_tables([decisions.filter(pc.less_equal(decisions["at"], then)), lessons]))


def dream_decisions(
    context: DerivationContext, golem_ids: Iterable[str] | None = None, entry_ids: Collection[str] | None = None
) -> pa.Table:
    """What was decided in dreams about entries (DECISION_SCHEMA), of all golems or of these, all entries or these."""
    golems = None if golem_ids is None else sorted(set(golem_ids))
    told = context.projections.growing("hypotheses").read(golems=golems)
    rows = lesson_decisions(told, applied_orders(context, golems), context.policy)
    if entry_ids is None:
        return rows
    return rows.filter(pc.is_in(rows["entry_id"], value_set=pa.array(sorted(entry_ids), pa.string())))


def retracted_dream_decisions(context: DerivationContext) -> pa.Table:
    """What was decided in dreams about entries, of what was taken back: DECISION_SCHEMA, and because of which event."""
    told = context.projections.growing("hypotheses").taken_back()
    confirmed = told.filter(pc.equal(told["operation"], "confirmed"))["hypothesis_id"].combine_chunks()
    told = told.filter(pc.is_in(told["hypothesis_id"], value_set=confirmed))
    rows = lesson_decisions(told.select(HYPOTHESIS_SCHEMA.names), (), context.policy)
    key = ("golem_id", "cycle", "seq")
    why = dict(zip(zip(*(told[n].to_pylist() for n in key), strict=True), told["because"].to_pylist(), strict=True))
    because = [why[row] for row in zip(*(rows[n].to_pylist() for n in key), strict=True)]
    return rows.append_column("because", pa.array(because, pa.string()))
