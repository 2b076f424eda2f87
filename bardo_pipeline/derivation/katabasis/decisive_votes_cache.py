"""Cache of the votes that can decide a count, saved with the checkpoint in the table of votes.

Golems vote every cycle, and only the last vote of each voter counts, so the table grows and the decisive votes do not.
Without a readable cache all votes are read again, which only costs time.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.incremental.checkpoints import Checkpoint
from bardo_pipeline.katabasis.anonymous_votes import VOTE_SCHEMA
from bardo_pipeline.katabasis.weighted_consensus import decisive
from bardo_pipeline.storage.projections.projections import GrowingTable


@dataclass(frozen=True)
class VoteChanges:
    """The changes since the last count.

    propositions: ids with new or retracted votes. votes: the decisive votes on them. other_votes: the decisive votes on
    all other propositions. version: of the table of votes.
    """

    propositions: pa.Array
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
        changed = self._votes.table.read(["proposition_id", "because"], since)
        if not changed.num_rows:
            return None
        touched = changed["proposition_id"].unique()
        saved = self._checkpoint.load("votes")
        if saved is None or saved.rows.schema != VOTE_SCHEMA:
            votes = decisive(self._votes.read())
            return VoteChanges(touched, _on(votes, touched), _on_others(votes, touched), version)
        parts = [_on(saved.rows, touched), self._votes.read(since_version=since)]
        # A retraction may make the voter's previous vote decisive, which only the table holds.
        retracted = changed.filter(pc.is_valid(changed["because"]))["proposition_id"].unique()
        if len(retracted):
            parts = [_on_others(part, retracted) for part in parts]
            parts.append(self._votes.read(only=pc.field("proposition_id").isin(retracted)))
        return VoteChanges(touched, decisive(pa.concat_tables(parts)), _on_others(saved.rows, touched), version)

    def save(self, changes: VoteChanges) -> None:
        """Save the decisive votes and the checkpoint after a count."""
        votes = pa.concat_tables([changes.other_votes, changes.votes]).cast(VOTE_SCHEMA).combine_chunks()
        self._checkpoint.save(changes.version, votes=votes)


def _on(votes: pa.Table, propositions: pa.Array) -> pa.Table:
    return votes.filter(pc.is_in(votes["proposition_id"], value_set=propositions))


def _on_others(votes: pa.Table, propositions: pa.Array) -> pa.Table:
    return votes.filter(pc.invert(pc.is_in(votes["proposition_id"], value_set=propositions)))
