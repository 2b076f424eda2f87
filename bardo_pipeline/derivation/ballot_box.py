"""The ballot box: the votes on which a count can depend, kept beside the counter's place in the table of votes.

Golems vote anew every cycle, and of each voter the last vote counts: so the table grows for ever, and what counts does
not. The box only saves time: gone, or of another place, it is filled again from the table.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.reading import table_place
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
        since, version = table_place(self._folder), self._votes.table.version
        changed = self._votes.table.read(["proposition_id", "because"], since)
        if not changed.num_rows:
            return None
        touched = changed["proposition_id"].unique()
        kept = self._kept(since)
        if kept is None:
            return Fresh(touched, decisive(self._votes.read()), version)
        # Where a vote was taken back, the one before it may count again: it is in the table alone.
        lost = changed.filter(pc.is_valid(changed["because"]))["proposition_id"].unique()
        parts = [_without(kept, lost), _without(self._votes.read(since_version=since), lost)]
        if len(lost):
            parts.append(self._votes.read(only=pc.field("proposition_id").isin(lost)))
        return Fresh(touched, decisive(pa.concat_tables(parts)), version)

    def _kept(self, since: int | None) -> pa.Table | None:
        try:
            place = orjson.loads((self._folder / "place.json").read_bytes())
            with pa.memory_map(str(self._folder / place["votes"])) as source, pa.ipc.open_file(source) as file:
                found = file.read_all()
        except (FileNotFoundError, KeyError, pa.ArrowInvalid):
            return None
        return found if place["version"] == since and found.schema == VOTE_SCHEMA else None

    def keep(self, fresh: Fresh) -> None:
        """Keep that all this was counted: the votes go into a file, then its name and the version into another."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"votes-{fresh.version}.arrow"
        draft = self._folder / f".{name}"
        with pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, VOTE_SCHEMA) as out:
            out.write_table(fresh.votes.cast(VOTE_SCHEMA))
        os.replace(draft, self._folder / name)
        place = self._folder / ".place.json"
        place.write_bytes(orjson.dumps({"version": fresh.version, "votes": name}))
        os.replace(place, self._folder / "place.json")
        for old in self._folder.glob("votes-*.arrow"):
            if old.name != name:
                old.unlink()


def _without(votes: pa.Table, propositions: pa.Array) -> pa.Table:
    return votes.filter(pc.invert(pc.is_in(votes["proposition_id"], value_set=propositions)))
