"""Consensus on propositions, recounted for propositions whose votes changed.

Source: KAT (Lethe); architecture ("Cross-golem tables are functions of sets, recomputed for the keys that were
touched").
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.checkpoints import checkpoint_of
from bardo_pipeline.derivation.incremental.incremental_projection import RecomputedProjection
from bardo_pipeline.derivation.katabasis.decisive_votes_cache import DecisiveVotesCache
from bardo_pipeline.derivation.katabasis.recorded_deaths import recorded_deaths
from bardo_pipeline.katabasis.anonymous_votes import VOTE_CAUSE_SCHEMA, backed_votes
from bardo_pipeline.katabasis.weighted_consensus import consensus
from bardo_pipeline.storage.delta.table_digest import Written


class _Consensus(RecomputedProjection):
    def recompute(self, context: DerivationContext) -> list[Written]:
        """Recount the propositions on which votes were cast or retracted since the last count."""
        cache = DecisiveVotesCache(context.projections.growing("votes"), checkpoint_of(context, "consensus"))
        changes = cache.changes()
        if changes is None:
            return []
        touched = changes.propositions
        death_vote_ids = changes.votes.filter(changes.votes["is_death_vote"])["vote_id"].unique()
        backed = backed_votes(changes.votes, _causes_of(context, death_vote_ids), recorded_deaths(context))
        counted = consensus(changes.votes, backed, context.policy.katabasis, touched)
        written = context.projections.replaceable("consensus").replace_keys(counted, touched.to_pylist())
        cache.save(changes)
        return [written]


def derive_consensus(context: DerivationContext) -> list[Written]:
    """Recount the propositions on which votes were cast or retracted since the last count."""
    return _Consensus().update(context)


def _causes_of(context: DerivationContext, vote_ids: pa.Array) -> pa.Table:
    """Return the private causes of these votes; without votes the table is not read."""
    if not len(vote_ids):
        return VOTE_CAUSE_SCHEMA.empty_table()
    return context.projections.growing("vote_causes").read(only=pc.field("vote_id").isin(vote_ids))
