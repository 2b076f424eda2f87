"""The log as one owner sees it: its golems' records and life events, its own events, and those of the home.

The life events that it records are limited likewise; records come by writers and the spool. Vectors are shared: they
are keyed by the hash of a text, so only a reader who has the text gets its vector. Source: X-12; ADR 0065.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.custody.authority import Door, Proof
from bardo_pipeline.events.custody.hash_chain import KeyRing, Tip
from bardo_pipeline.events.life.events import FREQUENT, LifeEvent
from bardo_pipeline.events.life.ownership import DECIDING_OWNERS, Ownership, is_of_owner, visible_events
from bardo_pipeline.events.record.arrow_columns import rows_of_golems
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta.append_only_table import Part
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import TEXT_COLUMNS, EventLog
from bardo_pipeline.storage.log.stream_heads import Head, TickRange


def require_visible(log: EventLog, golem_id: str) -> None:
    """Raise QueryError for a golem of another owner than that of the log's view."""
    if isinstance(log, LogOfOwner) and golem_id not in log.golems:
        raise QueryError(f"golem {golem_id}: owner {log.owner!r} has no golem of this name: `bardo graveyard` and "
                         '`bardo sql "from dim_golem"` list its golems')  # fmt: skip


def golems_in_view(log: EventLog, golem_ids: Iterable[str] | None) -> Collection[str] | None:
    """Return these golems without those of other owners; all of the view for None; None for the whole log."""
    if not isinstance(log, LogOfOwner):
        return None if golem_ids is None else set(golem_ids)
    return log.golems if golem_ids is None else log.golems.intersection(golem_ids)


class _Seen(NamedTuple):
    """The owners, the owner's golems and the life events that the owner may see, at a version of the life events."""

    version: int
    ownership: Ownership
    golems: frozenset[str]
    events: pa.Table


class LogOfOwner(EventLog):
    """The log of a home, limited to one owner. Golems of other owners look as if they were never born.

    Raises QueryError for an owner without golem, key and credit.
    """

    def __init__(self, home: Home, policy: Policy | None = None, *, owner: str) -> None:
        super().__init__(home, policy)
        self.owner = owner
        self._seen: _Seen | None = None
        if owner not in self.ownership.owners:
            raise QueryError(
                f"no owner of this home is called {owner!r}: the operator lists the owners by "
                '`bardo sql "from dim_golem"`'
            )

    @property
    def ownership(self) -> Ownership:
        """The owners of golems and bundles, up to the newest life event."""
        return self._current().ownership

    @property
    def golems(self) -> frozenset[str]:
        """The golems of the owner."""
        return self._current().golems

    def _current(self) -> _Seen:
        version = super().life_version
        if self._seen is not None and self._seen.version != version:
            self._seen = self._seen_later(self._seen, version)
        if self._seen is None:
            events = super().life()
            ownership = Ownership.of(events)
            golems = ownership.golems_of(self.owner)
            visible = visible_events(events, self.owner, pa.array(sorted(golems), pa.string()))
            self._seen = _Seen(version, ownership, golems, visible)
        return self._seen

    def _seen_later(self, seen: _Seen, version: int) -> _Seen | None:
        """Return what the owner sees at a later version, from the new events alone; None if they change owners."""
        fresh = super().life(None, seen.version)
        if not fresh.num_rows:  # only frequent kinds were added
            return seen._replace(version=version)
        if pc.any(pc.is_in(fresh["kind"], value_set=pa.array(DECIDING_OWNERS))).as_py():
            return None
        # A compaction makes older events look new.
        fresh = fresh.filter(pc.invert(pc.is_in(fresh["event_id"], value_set=seen.events["event_id"])))
        visible = visible_events(fresh, self.owner, pa.array(sorted(seen.golems), pa.string()))
        return seen._replace(version=version, events=pa.concat_tables([seen.events, visible]).combine_chunks())

    def _visible(self, golems: Collection[str] | None) -> list[str]:
        return sorted(self.golems if golems is None else self.golems.intersection(golems))

    # reading

    def read_cycles(
        self,
        columns: Sequence[str] | None = None,
        since_version: int | None = None,
        golems: Sequence[str] | None = None,
        *,
        until_version: int | None = None,
    ) -> pa.Table:
        """Read cycles of the owner's golems, or of some of them."""
        return super().read_cycles(columns, since_version, self._visible(golems), until_version=until_version)

    def cycles_in_parts(
        self,
        columns: Sequence[str],
        since_version: int | None = None,
        until_version: int | None = None,
        golems: Sequence[str] | None = None,
    ) -> Iterator[Part]:
        """Read the cycles of `read_cycles` in parts by tick."""
        return super().cycles_in_parts(columns, since_version, until_version, self._visible(golems))

    def read_stretch(self, columns: Sequence[str], golems: Sequence[str], tick_from: int, tick_to: int) -> pa.Table:
        """Read cycles of these golems between two ticks, without those of other owners."""
        return super().read_stretch(columns, self._visible(golems), tick_from, tick_to)

    def read_ticks(self, columns: Sequence[str], ticks: Mapping[str, int]) -> pa.Table:
        """Read cycles of these golems at these ticks, without those of other owners."""
        return super().read_ticks(columns, {golem_id: ticks[golem_id] for golem_id in self._visible(sorted(ticks))})

    def life(self, kind: str | None = None, since_version: int | None = None) -> pa.Table:
        """Read the life events that the owner may see."""
        seen = self._current()
        if since_version is None and kind not in FREQUENT:
            return seen.events if kind is None else seen.events.filter(pc.equal(seen.events["kind"], kind))
        golem_ids = pa.array(sorted(seen.golems), pa.string())
        return visible_events(super().life(kind, since_version), self.owner, golem_ids)

    def texts(self, since_version: int | None = None, columns: Sequence[str] = TEXT_COLUMNS) -> tuple[int, pa.Table]:
        """Return the version of the life events, and the texts of the owner's golems. columns: include golem_id."""
        version, rows = super().texts(since_version, columns)
        return version, rows_of_golems(rows, self.golems)

    def heads(self) -> pa.Table:
        """Return the heads of the owner's golems."""
        rows = super().heads()
        return rows_of_golems(rows, self.golems)

    def gaps(self) -> tuple[TickRange, ...]:
        """Return the missing ticks of the owner's golems."""
        return tuple(gap for gap in super().gaps() if gap.golem_id in self.golems)

    def head_of(self, golem_id: str) -> Head:
        """Return the head of a golem's stream; an empty one for another owner's golem."""
        return super().head_of(golem_id) if golem_id in self.golems else Head()

    def tip(self, golem_id: str) -> Tip:
        """Return the newest link of a golem's chain; the first one for another owner's golem."""
        return super().tip(golem_id) if golem_id in self.golems else Tip()

    def death_of(self, golem_id: str) -> int | None:
        """Return the tick of the recorded death of one of the owner's golems."""
        return super().death_of(golem_id) if golem_id in self.golems else None

    def cause_of_death(self, golem_id: str) -> str | None:
        """Return the cause of the recorded death of one of the owner's golems."""
        return super().cause_of_death(golem_id) if golem_id in self.golems else None

    def sealing(self) -> frozenset[str]:
        """Return the owner's golems whose private parts must be sealed."""
        return super().sealing() & self.golems

    def ring_of(self, golem_id: str) -> KeyRing:
        """Return the signing keys of a golem; none for another owner's golem."""
        return super().ring_of(golem_id) if golem_id in self.golems else KeyRing(golem_id)

    # writing

    def record(
        self,
        events: Sequence[LifeEvent],
        recorded_at: datetime,
        leased_golems: frozenset[str] = frozenset(),
        *,
        door: Door = "home",
        proofs: Mapping[str, Proof] | None = None,
    ) -> int:
        """Append events about the owner and its golems. Raises QueryError for any other event."""
        born = {event.golem_id for event in events if event.born is not None} - self.ownership.golems.keys()
        visible = self.golems | born
        for event in events:
            if not is_of_owner(event, self.owner, visible):
                raise QueryError(
                    f"golem {event.golem_id}: {event.kind} does not concern owner {self.owner!r} or a golem of that "
                    "owner: record it without --owner and BARDO_OWNER"
                )
        return super().record(events, recorded_at, leased_golems, door=door, proofs=proofs)
