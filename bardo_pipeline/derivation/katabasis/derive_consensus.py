"""Consensus on propositions, recounted for the questions whose votes changed.

Source: KAT (Lethe); architecture ("Cross-golem tables are functions of sets, recomputed for the keys that were
touched").
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.checkpoints import Checkpoint, checkpoint_of
from bardo_pipeline.derivation.incremental.incremental_projection import RecomputedProjection
from bardo_pipeline.derivation.legacy.death_queries import recorded_deaths
from bardo_pipeline.katabasis.anonymous_votes import VOTE_CAUSE_SCHEMA, VOTE_SCHEMA, backed_votes
from bardo_pipeline.katabasis.weighted_consensus import consensus, decisive
from bardo_pipeline.storage.delta.table_digest import Written
from bardo_pipeline.storage.projections.projections import GrowingTable


class _Consensus(RecomputedProjection):
    def write(self, context: DerivationContext) -> list[Written]:
        """Recount the questions on which votes were cast or retracted since the last count."""
        cache = DecisiveVotesCache(context.projections.growing("votes"), checkpoint_of(context, "consensus"))
        changes = cache.changes()
        if changes is None:
            return []
        death_vote_ids = changes.votes.filter(changes.votes["is_death_vote"])["vote_id"].unique()
        backed = backed_votes(changes.votes, _causes_of(context, death_vote_ids), recorded_deaths(context))
        counted = consensus(changes.votes, backed, context.policy.katabasis, changes.questions)
        recounted = {*changes.propositions.to_pylist(), *changes.votes["proposition_id"].to_pylist()}
        written = context.projections.replaceable("consensus").replace_keys(counted, sorted(recounted))
        cache.save(changes)
        return [written]


def derive_consensus(context: DerivationContext) -> list[Written]:
    """Recount the questions on which votes were cast or retracted since the last count."""
    return _Consensus().update(context)


def _causes_of(context: DerivationContext, vote_ids: pa.Array) -> pa.Table:
    """Return the private causes of these votes; without votes the table is not read."""
    if not len(vote_ids):
        return VOTE_CAUSE_SCHEMA.empty_table()
    return context.projections.growing("vote_causes").read(only=pc.field("vote_id").isin(vote_ids))


@dataclass(frozen=True)
class VoteChanges:
    """The changes since the last count.

    propositions: ids with new or retracted votes. questions: the ids of their questions. votes: the decisive votes on
    these. other_votes: the decisive votes on all other questions. version: of the table of votes.
    """

    propositions: pa.Array
    questions: pa.Array
    votes: pa.Table
    other_votes: pa.Table
    version: int


class DecisiveVotesCache:
    """The decisive votes of one table, as of a checkpoint."""

    def __init__(self, votes: GrowingTable, checkpoint: Checkpoint) -> None:
        self._votes, self._checkpoint = votes, checkpoint

    def changes(self) -> VoteChanges | None:
        """Return what changed since the last count; None if nothing did."""
        since, version = self._checkpoint.version, self._votes.table.version
        changed = self._votes.table.read(["proposition_id", "question_id", "because"], since)
        if not changed.num_rows:
            return None
        touched, propositions = changed["question_id"].unique(), changed["proposition_id"].unique()
        saved = self._checkpoint.load("votes")
        if saved is None or saved.rows.schema != VOTE_SCHEMA:
            votes = decisive(self._votes.read())
            return VoteChanges(propositions, touched, _on(votes, touched), _on_others(votes, touched), version)
        parts = [_on(saved.rows, touched), self._votes.read(since_version=since)]
        # A retraction may make the voter's previous vote decisive, which only the table holds.
        retracted = changed.filter(pc.is_valid(changed["because"]))["question_id"].unique()
        if len(retracted):
            parts = [_on_others(part, retracted) for part in parts]
            parts.append(self._votes.read(only=pc.field("question_id").isin(retracted)))
        votes, others = decisive(pa.concat_tables(parts)), _on_others(saved.rows, touched)
        return VoteChanges(propositions, touched, votes, others, version)

    def save(self, changes: VoteChanges) -> None:
        """Save the decisive votes and the checkpoint after a count."""
        votes = pa.concat_tables([changes.other_votes, changes.votes]).cast(VOTE_SCHEMA).combine_chunks()
        self._checkpoint.save(changes.version, votes=votes)


def _on(votes: pa.Table, questions: pa.Array) -> pa.Table:
    return votes.filter(pc.is_in(votes["question_id"], value_set=questions))


def _on_others(votes: pa.Table, questions: pa.Array) -> pa.Table:
    return votes.filter(pc.invert(pc.is_in(votes["question_id"], value_set=questions)))
