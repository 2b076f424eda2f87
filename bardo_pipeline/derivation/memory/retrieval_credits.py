"""Crediting: what became of what was retrieved, cycle by cycle, at the cost of what is new.

A verdict is set beside what the entry said when the golem decided, so a cycle is credited once it is curated.
Source: MEM-11, HB S13 (Loop 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.checkpoints import checkpoint_of
from bardo_pipeline.derivation.incremental.cycle_reader import CycleBatch, CycleReader
from bardo_pipeline.derivation.incremental.record_queries import closed_records, curated_through, cycle_of
from bardo_pipeline.derivation.incremental.retraction_tracking import (
    RetractionCursor,
    first_touched_cycles,
    is_from_cycle,
    retraction_event_ids,
    without_retracted,
)
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.retrieval.credit_rules import CREDIT_COLUMNS, SIGN_SCHEMA, credits_of, signs_of
from bardo_pipeline.storage.delta.table_digest import Written


def derive_credits(context: DerivationContext) -> list[Written]:
    """Credit the retrievals of cycles that were curated since, and again those that rest on what is left out since."""
    with context.deriving():
        left, credits = context.left_out(), context.projections.growing("credits")
        written = _repair(context, left)
        reader = CycleReader(context, "credits", CREDIT_COLUMNS, left)
        fresh = _curated_of(context, reader.fresh(credits.done))
        if fresh.upto:
            rows = credits_of(fresh.records, fresh.cycle, _signs(context), context.policy.curator)
            written.append(credits.append(rows, fresh.upto))
        reader.advance(fresh)
        return written


def _curated_of(context: DerivationContext, fresh: CycleBatch) -> CycleBatch:
    """What of this is curated; the rest waits on."""
    limit = {g: curated_through(context, g) or 0 for g in fresh.upto}
    if all(limit[g] >= cycle for g, cycle in fresh.upto.items()):
        return fresh
    bound = np.array([limit[g] for g in fresh.records["golem_id"].to_pylist()], np.int64)
    ready = fresh.cycle <= bound
    waiting = pa.concat_tables([fresh.waiting, fresh.records.filter(pa.array(~ready))])
    upto = {g: min(cycle, limit[g]) for g, cycle in fresh.upto.items() if limit[g] > 0}
    return replace(
        fresh, records=fresh.records.filter(pa.array(ready)), cycle=fresh.cycle[ready], upto=upto, waiting=waiting
    )


def _signs(context: DerivationContext) -> pa.Table:
    """From when on each entry says which side, brought up to the decisions on record."""
    checkpoint = checkpoint_of(context, "credits-signs")
    curation, kept = context.projections.growing("curation"), checkpoint.load("signs")
    version = curation.table.version
    known = SIGN_SCHEMA.empty_table() if kept is None else kept.rows
    if kept is not None and kept.version == version:
        return known
    columns = ["golem_id", "entry_id", "action_type", "cycle", "sign", "revision", "seq"]
    since = None if kept is None else kept.version
    signs = signs_of(curation.read(columns, since_version=since), known)
    checkpoint.save(version, signs=signs)
    return signs


def _repair(context: DerivationContext, left: LeftOut) -> list[Written]:
    """Credit again, from the cycle that it touches, what rests on something that is left out since."""
    heeded, span = RetractionCursor(context, "credits"), context.policy.curator.cycle_ticks
    due = heeded.due(left, after=[RetractionCursor(context, "curation")])
    credits = context.projections.growing("credits")
    written: list[Written] = []
    if due:
        checkpoint_of(context, "credits-signs").remove()
        first = {g: max(cycle, 1) for g, cycle in first_touched_cycles(due, span).items()}
        upto = {g: done for g in first if (done := credits.done(g)) is not None and done >= first[g]}
        first = {g: first[g] for g in upto}
        if first:
            late = pc.field("cycle") >= min(first.values())
            rows = credits.read(golems=first, only=late, hidden=True)
            rows = rows.filter(is_from_cycle(rows, first))
            wanted = credits_again(context, first, upto, left, _signs(context))
            written.append(credits.repair(rows, wanted, retraction_event_ids(rows, due, span)))
    heeded.keep(cause.event_id for cause in due)
    return written


def credits_again(
    context: DerivationContext, first: Mapping[str, int], upto: Mapping[str, int], left: LeftOut, signs: pa.Table
) -> pa.Table:
    """Credits of these golems' cycles, from one to another, without what is left out."""
    records = without_retracted(closed_records(context, CREDIT_COLUMNS, first, upto), left)
    cycle = cycle_of(records["tick"].to_numpy(), context.policy.curator.cycle_ticks)
    return credits_of(records, cycle, signs, context.policy.curator)
