"""The ballot box: the votes on which a count can depend, kept beside the counter's place in the table of votes.

Golems vote anew every cycle, and of each voter the last vote counts: so the table grows for ever, and what counts does
not. The box only saves time: gone, it is filled again from the table.
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
    """The propositions touched since the last count, the decisive votes on them and on others, and how far it goes."""

    touched: pa.Array
    votes: pa.Table
    others: pa.Table
    version: int


class DecisiveVotesCache:
    """The decisive votes of one table. checkpoint: the counter's."""

    def __init__(self, votes: GrowingTable, checkpoint: Checkpoint) -> None:
        self._votes, self._checkpoint = votes, checkpoint

    def look(self) -> VoteChanges | None:
        """What came since the last count; None where nothing did."""
        since, version = self._checkpoint.version, self._votes.table.version
        changed = self._votes.table.read(["proposition_id", "because"], since)
        if not changed.num_rows:
            return None
        touched = changed["proposition_id"].unique()
        kept = self._checkpoint.load("votes")
        if kept is None or kept.rows.schema != VOTE_SCHEMA:
            every = decisive(self._votes.read())
            return VoteChanges(touched, _on(every, touched), _on(every, touched, those=False), version)
        parts = [_on(kept.rows, touched), self._votes.read(since_version=since)]
        # Where a vote was taken back, the one before it may count again: it is in the table alone.
        lost = changed.filter(pc.is_valid(changed["because"]))["proposition_id"].unique()
        if len(lost):
            parts = [_on(part, lost, those=False) for part in parts]
            parts.append(self._votes.read(only=pc.field("proposition_id").isin(lost)))
        return VoteChanges(touched, decisive(pa.concat_tables(parts)), _on(kept.rows, touched, those=False), version)

    def keep(self, fresh: VoteChanges) -> None:
        """Keep that all this was counted."""
        votes = pa.concat_tables([fresh.others, fresh.votes]).cast(VOTE_SCHEMA).combine_chunks()
        self._checkpoint.save(fresh.version, votes=votes)


def _on(votes: pa.Table, propositions: pa.Array, *, those: bool = True) -> pa.Table:
    """The votes on those propositions, or on all others."""
    found = pc.is_in(votes["proposition_id"], value_set=propositions)
    return votes.filter(found if those else pc.invert(found))
