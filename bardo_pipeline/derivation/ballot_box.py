"""The ballot box: the votes on which a count can depend, kept beside the counter's place in the table of votes.

Golems vote anew every cycle, and of each voter the last vote counts: so the table grows for ever, and what counts does
not. The box only saves time: gone, it is filled again from the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.places import keep_place, kept_at, place_of
from bardo_pipeline.katabasis.consensus import decisive
from bardo_pipeline.katabasis.votes import VOTE_SCHEMA
from bardo_pipeline.storage.projections import GrowingTable


@dataclass(frozen=True)
class Fresh:
    """The propositions that were touched since the last count, the decisive votes on all, and how far they reach."""

    touched: pa.Array
    votes: pa.Table
    version: int


class BallotBox:
    """The decisive votes of one table. folder: of the counter's place."""

    def __init__(self, votes: GrowingTable, folder: Path) -> None:
        self._votes, self._folder = votes, folder

    def look(self) -> Fresh | None:
        """What came since the last count; None where nothing did."""
        since, version = place_of(self._folder), self._votes.table.version
        changed = self._votes.table.read(["proposition_id", "because"], since)
        if not changed.num_rows:
            return None
        touched = changed["proposition_id"].unique()
        kept = kept_at(self._folder, "votes")
        if kept is None or kept.rows.schema != VOTE_SCHEMA:
            return Fresh(touched, decisive(self._votes.read()), version)
        # Where a vote was taken back, the one before it may count again: it is in the table alone.
        lost = changed.filter(pc.is_valid(changed["because"]))["proposition_id"].unique()
        parts = [_without(kept.rows, lost), _without(self._votes.read(since_version=since), lost)]
        if len(lost):
            parts.append(self._votes.read(only=pc.field("proposition_id").isin(lost)))
        return Fresh(touched, decisive(pa.concat_tables(parts)), version)

    def keep(self, fresh: Fresh) -> None:
        """Keep that all this was counted."""
        keep_place(self._folder, fresh.version, votes=fresh.votes.cast(VOTE_SCHEMA))


def _without(votes: pa.Table, propositions: pa.Array) -> pa.Table:
    return votes.filter(pc.invert(pc.is_in(votes["proposition_id"], value_set=propositions)))
