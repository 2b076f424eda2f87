"""Derives credits of retrieved entries, cycle by cycle, incrementally.

A credit compares the outcome with the entry's statement at the decision, so a cycle is credited after its curation.
Source: MEM-11, HB S13 (Loop 1).
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.checkpoints import checkpoint_of
from bardo_pipeline.derivation.incremental.cycle_reader import CycleBatch
from bardo_pipeline.derivation.incremental.incremental_projection import RederivedProjection
from bardo_pipeline.derivation.incremental.record_queries import closed_records, cycle_of, rows_derived
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.retrieval.credit_rules import CREDIT_COLUMNS, SIGN_SCHEMA, credits_of, signs_of
from bardo_pipeline.storage.delta.table_digest import Written


class _Credits(RederivedProjection):
    name, sources, columns, caches = "credits", ("curation",), CREDIT_COLUMNS, ("credits-signs",)

    def rows(self, context: DerivationContext, batch: CycleBatch, left_out: LeftOut) -> pa.Table:
        return credits_of(batch.records, batch.cycle, _signs(context), context.policy.curator)

    def rows_again(
        self, context: DerivationContext, first: Mapping[str, int], upto: Mapping[str, int], left_out: LeftOut
    ) -> pa.Table:
        return rederive_credits(context, first, upto, left_out, _signs(context))


def derive_credits(context: DerivationContext) -> list[Written]:
    """Credit the retrievals of newly curated cycles, and of cycles touched by a retraction."""
    return _Credits().update(context)


def _signs(context: DerivationContext) -> pa.Table:
    """The side that each entry supports and since which decision (SIGN_SCHEMA), cached by the curation version."""
    checkpoint = checkpoint_of(context, "credits-signs")
    curation, cached = context.projections.growing("curation"), checkpoint.load("signs")
    version = curation.table.version
    cached_signs = SIGN_SCHEMA.empty_table() if cached is None else cached.rows
    if cached is not None and cached.version == version:
        return cached_signs
    columns = ["golem_id", "entry_id", "action_type", "cycle", "sign", "revision", "seq"]
    since = None if cached is None else cached.version
    signs = signs_of(rows_derived(context, curation.read(columns, since_version=since)), cached_signs)
    checkpoint.save(version, signs=signs)
    return signs


def rederive_credits(
    context: DerivationContext, first: Mapping[str, int], upto: Mapping[str, int], left: LeftOut, signs: pa.Table
) -> pa.Table:
    """Return the credits of golems' cycles from `first` to `upto`, without retracted records."""
    records = closed_records(context, CREDIT_COLUMNS, first, upto, left)
    cycle = cycle_of(records["tick"].to_numpy(), context.policy.curator.cycle_ticks)
    return credits_of(records, cycle, signs, context.policy.curator)
