"""Lessons: entries that outcomes confirmed after a dream proposed them.

Lessons follow from hypotheses alone, and hypotheses from records, so the curator never waits for a dream. Queries read
the tables of lessons and the grimoire together. Source: KAT (Loop 3), MEM, MEM-16.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.decision_log import fold
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.dreams.playbook_pages import add_missing_sections, write_changed_sections
from bardo_pipeline.derivation.incremental import record_queries as queries
from bardo_pipeline.derivation.incremental.incremental_projection import RecomputedProjection
from bardo_pipeline.dreams.hypothesis_table import HYPOTHESIS_SCHEMA
from bardo_pipeline.dreams.lessons import lesson_decisions, lessons_of
from bardo_pipeline.events.life.override_events import Order
from bardo_pipeline.events.record.arrow_columns import rows_of_other_golems
from bardo_pipeline.grimoire.entries import MOMENT
from bardo_pipeline.grimoire.entry_columns import sorted_by
from bardo_pipeline.storage.delta.replaceable_table import ReplaceableTable
from bardo_pipeline.storage.delta.table_digest import Written


class _Lessons(RecomputedProjection):
    by_golem = True

    def write(self, context: DerivationContext) -> list[Written]:
        """Replace the lessons in the buckets with new or retracted hypotheses or new orders about lessons.

        New hypothesis rows are applied to the standing lessons. The lessons of a golem are made again from all its
        hypotheses after a retraction, or after an owner's order about a lesson. Pages of playbooks follow the lessons.
        """
        table, hypotheses = context.projections.replaceable("lessons"), context.projections.growing("hypotheses")
        key = f"version{context.part}"
        seen, version = table.noted("hypotheses").get(key), hypotheses.table.version
        since, noted_orders = None if seen is None else int(seen), table.noted("orders")
        new_rows, remade = HYPOTHESIS_SCHEMA.empty_table(), set()
        if since != version:
            new_rows = queries.rows_derived(context, hypotheses.read(since_version=since)).cast(HYPOTHESIS_SCHEMA)
            retracted = queries.rows_derived(context, hypotheses.taken_back(["golem_id"], since))
            remade = set(retracted["golem_id"].to_pylist())
        if orders := context.overrides().events:
            lesson_ids = set(table.read(only={order.golem_id for order in orders})["entry_id"].to_pylist())
            new_orders = {
                order.event_id: order.golem_id
                for order in applied_orders(context)
                if order.entry_id in lesson_ids and order.event_id not in noted_orders and context.holds(order.golem_id)
            }
            remade |= set(new_orders.values())
            noted_orders |= new_orders
        upto = queries.last_cycle_by_golem(new_rows)
        if not upto and not remade:
            return []
        remade |= _out_of_order(table, new_rows, since)
        buckets = table.buckets({*upto, *remade})
        rows = _lessons_after(context, table.read(buckets), new_rows, remade)
        write_changed_sections(context, {*upto, *remade}, rows)
        advancing = {g: cycle for g, cycle in upto.items() if cycle > (table.done(g) or 0)}
        note = {"hypotheses": {key: str(version)}, "orders": noted_orders}
        return [table.replace(rows, buckets, upto=advancing, note=note)]


def update_lessons(context: DerivationContext) -> list[Written]:
    """Update the lessons to the hypotheses and the owners' orders."""
    if context.bucket is None:
        add_missing_sections(context)
    return _Lessons().update(context)


def _out_of_order(table: ReplaceableTable, new_rows: pa.Table, since: int | None) -> set[str]:
    """Return the golems whose new rows do not all come after the cycles that their lessons cover."""
    if since is None:
        return set()
    oldest = new_rows.group_by("golem_id", use_threads=False).aggregate([("cycle", "min")])
    first = queries.values_by_golem(oldest, "cycle_min")
    return {g for g, cycle in first.items() if (done := table.done(g)) is None or cycle <= done}


def _lessons_after(context: DerivationContext, standing: pa.Table, new_rows: pa.Table, remade: set[str]) -> pa.Table:
    """Return the lessons of some buckets after new hypothesis rows.

    standing: the lessons of these buckets now. remade: golems whose lessons are made again from all their hypotheses.
    """
    new_rows = rows_of_other_golems(new_rows, remade)
    decisions = lesson_decisions(new_rows, (), context.policy, standing)
    ids = {*standing["entry_id"].to_pylist(), *decisions["entry_id"].to_pylist()}
    ordered = {order.golem_id for order in context.overrides().events if order.entry_id in ids}
    remade = remade | (ordered & set(new_rows["golem_id"].to_pylist()))
    changed = fold(rows_of_other_golems(decisions, remade))
    is_changed = pc.is_in(standing["entry_id"], value_set=changed["entry_id"].combine_chunks())
    parts = [rows_of_other_golems(standing.filter(pc.invert(is_changed)), remade), changed]
    if remade:
        hypotheses = context.projections.growing("hypotheses").read(golems=sorted(remade))
        parts.append(lessons_of(hypotheses, applied_orders(context, remade), context.policy))
    return pa.concat_tables(parts)


def applied_orders(context: DerivationContext, golem_ids: Iterable[str] | None = None) -> tuple[Order, ...]:
    """Return the owners' orders that took effect in curated cycles, of all golems or of these."""
    ordered = {order.golem_id for order in context.overrides().events}
    ordered = ordered if golem_ids is None else ordered & set(golem_ids)
    upto = {golem_id: queries.curated_through(context, golem_id) or 0 for golem_id in ordered}
    return context.overrides().due({}, upto, context.policy.curator.cycle_ticks)


def known_entries(context: DerivationContext, golem_ids: Iterable[str] | None = None) -> pa.Table:
    """Return the entries of grimoire and lessons (ENTRY_SCHEMA) by golem and entry, of all golems or of these."""
    only = None if golem_ids is None else sorted(set(golem_ids))
    parts = [context.projections.replaceable(name).read(only=only) for name in ("grimoire", "lessons")]
    return _combined(parts)


def known_entries_of_buckets(context: DerivationContext, buckets: Collection[int]) -> pa.Table:
    """Return the entries of grimoire and lessons in these buckets (ENTRY_SCHEMA) by golem and entry."""
    tables = [context.projections.replaceable(name) for name in ("grimoire", "lessons")]
    return _combined([table.read(buckets) for table in tables])


def _combined(parts: list[pa.Table]) -> pa.Table:
    rows = pa.concat_tables(parts)
    return sorted_by(rows, ("golem_id", "entry_id")) if parts[1].num_rows else parts[0]


def known_entries_at(context: DerivationContext, golem_ids: list[str], moment: datetime | pa.Scalar) -> pa.Table:
    """Return the entries of these golems at a moment (ENTRY_SCHEMA) by golem and entry."""
    then = moment if isinstance(moment, pa.Scalar) else pa.scalar(moment, MOMENT)
    decisions = context.projections.growing("curation").read(golems=golem_ids)
    hypotheses = context.projections.growing("hypotheses").read(golems=golem_ids)
    orders = [order for order in applied_orders(context, golem_ids) if order.at <= then.as_py()]
    lessons = lesson_decisions(hypotheses.filter(pc.less_equal(hypotheses["at"], then)), orders, context.policy)
    return fold(pa.concat_tables([decisions.filter(pc.less_equal(decisions["at"], then)), lessons]))


def dream_decisions(
    context: DerivationContext, golem_ids: Iterable[str] | None = None, entry_ids: Collection[str] | None = None
) -> pa.Table:
    """Return the decisions about lessons (DECISION_SCHEMA), of all golems and entries or of these."""
    golems = None if golem_ids is None else sorted(set(golem_ids))
    hypotheses = context.projections.growing("hypotheses").read(golems=golems)
    rows = lesson_decisions(hypotheses, applied_orders(context, golems), context.policy)
    if entry_ids is None:
        return rows
    return rows.filter(pc.is_in(rows["entry_id"], value_set=pa.array(sorted(entry_ids), pa.string())))


def retracted_dream_decisions(context: DerivationContext) -> pa.Table:
    """Return the retracted decisions about lessons (DECISION_SCHEMA), with `because`: the id of the retraction."""
    retracted = context.projections.growing("hypotheses").taken_back()
    confirmed = retracted.filter(pc.equal(retracted["operation"], "confirmed"))["hypothesis_id"].combine_chunks()
    retracted = retracted.filter(pc.is_in(retracted["hypothesis_id"], value_set=confirmed))
    rows = lesson_decisions(retracted.select(HYPOTHESIS_SCHEMA.names), (), context.policy)
    keys, retracted_keys = (
        list(zip(*(table[n].to_pylist() for n in ("golem_id", "cycle", "seq")), strict=True))
        for table in (rows, retracted)
    )
    event_ids = dict(zip(retracted_keys, retracted["because"].to_pylist(), strict=True))
    because = [event_ids[key] for key in keys]
    return rows.append_column("because", pa.array(because, pa.string()))
