"""The event log in memory: plain dicts, a row at a time. The twin of the log on disk in tests, and a stand-in.

Source: style ("one contract test suite per store, run on the memory twin and on the real one").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.errors import BardoError, ForkError, RegressionError, SignatureError, StoreError
from bardo_pipeline.events.custody.hash_chain import (
    KeyRing,
    Payloads,
    Signature,
    Tip,
    check_rings,
    content_of,
    link_of,
    rings_after,
    slice_contents,
)
from bardo_pipeline.events.custody.sealing import unsealed
from bardo_pipeline.events.life.events import LifeEvent
from bardo_pipeline.events.life.life_schema import LIFE_SCHEMA
from bardo_pipeline.events.life.override_events import OVERRIDES
from bardo_pipeline.events.life.thanatopsis_events import PHASES_OF_DYING, check_dying, drop_repeated_deaths
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA, to_table
from bardo_pipeline.events.record.model import DecisionCycleRecord
from bardo_pipeline.events.record.row_digest import digest_column, row_digests
from bardo_pipeline.events.record.validate import Examined, check_table
from bardo_pipeline.retrieval.embedder_interface import EmbedderIdentity
from bardo_pipeline.storage.home import bucket_of
from bardo_pipeline.storage.log.admission import check_lives
from bardo_pipeline.storage.log.batch import Stamp
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.protocol import (
    CYCLES_SCHEMA,
    LIFE_LOG_SCHEMA,
    VECTORS_SCHEMA,
    Admitted,
    Appended,
    check_events,
    check_transaction,
    check_vectors,
    utc,
)
from bardo_pipeline.storage.log.stream_heads import HEADS_SCHEMA, TickRange, past_death

Row = dict[str, Any]


@dataclass
class _Stream:
    """One golem: its cycles by tick, and the ticks that were accepted as lost."""

    cycles: dict[int, Row] = field(default_factory=dict)
    accepted: list[tuple[int, int]] = field(default_factory=list)

    def lost(self, tick: int) -> bool:
        return any(first <= tick <= last for first, last in self.accepted)

    def highest(self) -> int:
        return max(self.cycles, default=0)

    def missing(self) -> set[int]:
        return {t for t in range(1, self.highest() + 1) if t not in self.cycles and not self.lost(t)}

    def contiguous(self) -> int:
        tick = 0
        while tick + 1 in self.cycles or self.lost(tick + 1):
            tick += 1
        return tick


class _Judged(NamedTuple):
    """New rows, the new row that each accepted row repeats or is, and the error of each refused row."""

    news: dict[int, Row]
    first: dict[int, int]
    wrong: dict[int, BardoError]


class MemoryEventLog:
    """The log in memory. See `EventLog` for the contract of each method."""

    def __init__(self, bucket_count: int = 16) -> None:
        self._bucket_count = bucket_count
        self._streams: dict[str, _Stream] = {}
        self._segments: dict[str, int] = {}
        self._events: dict[str, Row] = {}
        self._deaths: dict[str, int] = {}
        self._causes: dict[str, str] = {}
        self._dying: dict[str, int] = {}
        self._sealing: set[str] = set()
        self._tips: dict[str, Tip] = {}
        self._new_tips: dict[str, Tip] = {}
        self._rings: dict[str, KeyRing] = {}
        self._vectors: dict[tuple[str, str], Row] = {}
        self._version = self._life_version = 0

    def append(
        self,
        records: pa.Table,
        *,
        writer: str,
        segment: int,
        recorded_at: datetime,
        signatures: Mapping[str, Signature] | None = None,
    ) -> Appended:
        """Append a batch, whole or not at all, each (golem, tick) once."""
        utc(recorded_at, "recorded_at")
        check_transaction(writer, segment)
        check_table(records, DecisionCycleRecord, RECORD_SCHEMA)
        judged = self._judged(records.to_pylist(), set())
        chained, unsigned = self._sliced(judged, records, signatures or {})
        if wrong := judged.wrong or unsigned:
            raise wrong[min(wrong)]
        return self._commit(chained, len(records), recorded_at, writer, segment)

    def admit(
        self,
        examined: Examined,
        stamp: Stamp,
        *,
        payloads: Payloads | None = None,
        signatures: Mapping[str, Signature] | Sequence[Signature | None] | None = None,
        leased_golems: frozenset[str] = frozenset(),
    ) -> Admitted:
        """Append the valid rows of a batch, and return a reason for each other row. Leases are not simulated."""
        records, refused = examined.records, dict[int, BardoError](examined.errors())
        rows, left_out = records.to_pylist(), set(refused)
        if payloads is None:
            assert not isinstance(signatures, Sequence), "an Arrow batch is signed golem by golem"
            judged = self._judged(rows, left_out)
            chained, unsigned = self._sliced(judged, records, signatures or {})
        else:
            assert not isinstance(signatures, Mapping), "lines are signed one by one"
            lines, each = payloads.lines.to_pylist(), signatures or [None] * len(rows)
            judged, unsigned = self._judged(rows, left_out, lines, each), {}
            chained = self._chained(judged.news, lines, each)
        refused |= judged.wrong | unsigned
        appended = self._commit(chained, len(records) - len(refused), stamp.recorded_at, stamp.writer, stamp.segment)
        return Admitted(appended, dict(sorted(refused.items())))

    def _judged(
        self,
        rows: list[Row],
        left_out: set[int],
        lines: Sequence[bytes] = (),
        signatures: Sequence[Signature | None] = (),
    ) -> _Judged:
        """Return new rows, and the error of each refused row. lines, signatures: of rows received as JSON."""
        self._new_tips.clear()
        judged = _Judged({}, {}, {})
        first: dict[tuple[str, int], int] = {}
        for at, row in enumerate(rows):
            if at in left_out:
                continue
            golem_id, tick = row["golem_id"], row["tick"]
            stream = self._streams.get(golem_id, _Stream())
            try:
                if tick in stream.cycles:
                    if not _same(stream.cycles[tick], row):
                        raise ForkError(golem_id, tick, "is already on record with different content")
                    continue
                self._check(row, stream)
                if lines:
                    self._ring(golem_id).check(tick, content_of(lines[at]), signatures[at])
                original = first.setdefault((golem_id, tick), at)
                if not _same(rows[original], row):
                    raise ForkError(golem_id, tick, "comes twice in the batch, with different content")
            except BardoError as error:
                judged.wrong[at] = error
                continue
            if original == at:
                judged.news[at] = row
            judged.first[at] = original
        return judged

    def _check(self, row: Row, stream: _Stream) -> None:
        golem_id, tick = row["golem_id"], row["tick"]
        if stream.lost(tick):
            raise RegressionError(golem_id, tick, "comes after its gap was accepted as lost")
        if tick > self._deaths.get(golem_id, tick):
            raise past_death(golem_id, tick, self._deaths[golem_id], self._causes.get(golem_id))
        if golem_id in self._sealing and _is_plain(row):
            raise unsealed(golem_id, tick)

    def _sliced(
        self, judged: _Judged, records: pa.Table, signatures: Mapping[str, Signature]
    ) -> tuple[list[Row], dict[int, BardoError]]:
        """Return the new rows with one link per golem."""
        news = judged.news
        chained: list[Row] = []
        wrong: dict[int, BardoError] = {}
        for golem_id in sorted({row["golem_id"] for row in news.values()}):
            own = sorted(
                (at for at, row in news.items() if row["golem_id"] == golem_id), key=lambda at: news[at]["tick"]
            )
            content = slice_contents(records.take(pa.array(own)), [0, len(own)])[0]
            signature = signatures.get(golem_id)
            try:
                sent = sum(g == golem_id for g in records["golem_id"].to_pylist())
                if signature is not None and len(own) < sent:
                    raise SignatureError(
                        f"golem {golem_id}: part of its signed slice is already in the log or is refused"
                    )
                for end in (own[0], own[-1]):
                    self._ring(golem_id).check(news[end]["tick"], content, signature)
            except SignatureError as error:
                wrong |= {at: error for at, original in judged.first.items() if original in own}
                continue
            link = self._next(golem_id, content, signature)
            chained += [news[at] | {"link": link, "payload": None} for at in own]
        return chained, wrong

    def _chained(
        self, news: dict[int, Row], lines: Sequence[bytes], signatures: Sequence[Signature | None]
    ) -> list[Row]:
        """Return the new rows with one link per record."""
        return [
            row | {"link": self._next(row["golem_id"], content_of(lines[at]), signatures[at]), "payload": lines[at]}
            for at, row in news.items()
        ]

    def _next(self, golem_id: str, content: bytes, signature: Signature | None) -> Row:
        tip = self._new_tips.get(golem_id) or self._tips.get(golem_id, Tip())
        self._new_tips[golem_id] = Tip(tip.number + 1, link_of(golem_id, tip.number + 1, tip.hash, content))
        key_id, value = signature or (None, None)
        return {
            "number": tip.number + 1,
            "previous": tip.hash,
            "hash": self._new_tips[golem_id].hash,
            "key_id": key_id,
            "signature": value,
        }

    def _ring(self, golem_id: str) -> KeyRing:
        return self._rings.get(golem_id, KeyRing(golem_id))

    def _commit(self, rows: Sequence[Row], given: int, recorded_at: datetime, writer: str, segment: int) -> Appended:
        if not rows:
            return Appended(self._version, 0, given, (), ())
        kept = pa.Table.from_pylist(list(rows), schema=RECORD_SCHEMA)
        hashes = digest_column(row_digests(kept)).to_pylist()
        news = {(row["golem_id"], row["tick"]): row | {"content_hash": h} for row, h in zip(rows, hashes, strict=True)}
        if self._segments.get(writer, -1) >= segment:
            raise StoreError(f"writer {writer}: segment {segment} or a later one is on record, without these records")
        before = {golem_id: self._streams.setdefault(golem_id, _Stream()).missing() for golem_id, _ in news}
        self._version += 1
        self._segments[writer] = segment
        self._tips |= self._new_tips
        for (golem_id, tick), row in news.items():
            row |= {"bucket": bucket_of(golem_id, self._bucket_count), "recorded_at": recorded_at}
            row |= {"writer": writer, "segment": segment, "committed": self._version, "version": self._version}
            self._streams[golem_id].cycles[tick] = row
        after = {golem_id: self._streams[golem_id].missing() for golem_id in before}
        gaps = [r for g in sorted(before) for r in _ranges(g, after[g] - before[g])]
        late = [r for g in sorted(before) for r in _ranges(g, before[g] - after[g])]
        return Appended(self._version, len(news), given - len(news), tuple(gaps), tuple(late))

    def record(
        self, events: Sequence[LifeEvent], recorded_at: datetime, leased_golems: frozenset[str] = frozenset()
    ) -> int:
        """Append those events whose id is not on record; returns how many were new."""
        utc(recorded_at, "recorded_at")
        check_events(events)
        given = {event.event_id: event for event in events if event.event_id not in self._events}
        dead = self._deaths.__contains__
        fresh = {
            event.event_id: event for event in drop_repeated_deaths(given.values(), is_dead=dead, passed=self._passed)
        }
        if not fresh:
            return 0
        check_dying(list(fresh.values()), is_dead=dead, passed=self._passed)
        check_rings(fresh.values(), self._rings)
        check_lives(
            list(fresh.values()),
            highest=lambda golem_id: self._streams.get(golem_id, _Stream()).highest(),
            contiguous=lambda golem_id: self._streams.get(golem_id, _Stream()).contiguous(),
            death=self._deaths.get,
            overrides=lambda golem_id: sum(
                row["golem_id"] == golem_id and row["kind"] in OVERRIDES for row in self._events.values()
            ),
        )
        table = to_table(fresh.values(), LIFE_SCHEMA)
        check_table(table, LifeEvent, LIFE_SCHEMA)
        self._life_version += 1
        for row in table.to_pylist():
            self._events[row["event_id"]] = {**row, "recorded_at": recorded_at, "committed": self._life_version}
            if row["gap"] is not None:
                span = (row["gap"]["tick_from"], row["gap"]["tick_to"])
                self._streams.setdefault(row["golem_id"], _Stream()).accepted.append(span)
            if row["died"] is not None:
                tick = row["died"]["tick"]
                self._deaths[row["golem_id"]], self._causes[row["golem_id"]] = tick, row["died"]["cause"]
            if row["kind"] in PHASES_OF_DYING:
                self._dying[row["golem_id"]] = PHASES_OF_DYING.index(row["kind"]) + 1
            if row["seal_key_made"] is not None:
                self._sealing.add(row["golem_id"])
        self._rings |= rings_after(fresh.values(), self._rings)
        return len(fresh)

    def _passed(self, golem_id: str) -> int:
        return self._dying.get(golem_id, 0)

    def record_vectors(self, vectors: pa.Table) -> int:
        """Append those vectors whose (embedder, text_hash) is not on record; returns how many."""
        check_vectors(vectors)
        before = len(self._vectors)
        for row in vectors.to_pylist():
            self._vectors.setdefault((row["embedder"], row["text_hash"]), row)
        return len(self._vectors) - before

    def heads(self) -> pa.Table:
        """Return each golem's last ticks (HEADS_SCHEMA), by id."""
        rows = [
            {
                "golem_id": golem_id,
                "contiguous": stream.contiguous(),
                "highest": stream.highest(),
                "missing_count": len(stream.missing()),
            }
            for golem_id, stream in sorted(self._streams.items())
        ]
        return pa.Table.from_pylist(rows, schema=HEADS_SCHEMA)

    def gaps(self) -> tuple[TickRange, ...]:
        """Every run of ticks that is missing and not accepted as lost."""
        return tuple(r for g in sorted(self._streams) for r in _ranges(g, self._streams[g].missing()))

    def read_cycles(
        self,
        columns: Sequence[str] | None = None,
        since_version: int | None = None,
        golems: Sequence[str] | None = None,
    ) -> pa.Table:
        """Cycles, all or those after a version, of all golems or of these."""
        rows = [
            row
            for golem_id, stream in self._streams.items()
            if golems is None or golem_id in golems
            for row in stream.cycles.values()
        ]
        return _columns(pa.Table.from_pylist(_after(rows, since_version), schema=CYCLES_SCHEMA), columns)

    @property
    def version(self) -> int:
        """The newest version of the cycles."""
        return self._version

    def life(self, kind: str | None = None, since_version: int | None = None) -> pa.Table:
        """Life events of one kind, or of all."""
        rows = [row for row in self._events.values() if kind is None or row["kind"] == kind]
        return pa.Table.from_pylist(_after(rows, since_version), schema=LIFE_LOG_SCHEMA)

    @property
    def life_version(self) -> int:
        """The newest version of the life events."""
        return self._life_version

    def vectors(self, embedder: str, hashes: Sequence[str]) -> pa.Table:
        """The vectors that are on record for these texts (columns text_hash, vector), by text_hash."""
        rows = [self._vectors[embedder, h] for h in sorted(set(hashes)) if (embedder, h) in self._vectors]
        return pa.Table.from_pylist(rows, schema=VECTORS_SCHEMA).select(["text_hash", "vector"])

    def vector_parts(self, embedder: str) -> Iterator[pa.Table]:
        """All vectors of an embedder (columns text_hash, vector)."""
        yield self.vectors(embedder, [text_hash for key, text_hash in self._vectors if key == embedder])

    def count_vectors(self, embedder: str, since: datetime | None = None) -> int:
        """How many vectors of an embedder are on record, all or those made after a moment."""
        leased_golems = [row for (key, _), row in self._vectors.items() if key == embedder]
        return sum(since is None or row["created_at"] > since for row in leased_golems)

    def identities(self) -> dict[str, EmbedderIdentity]:
        """Every embedder that has vectors on record, by its key."""
        names = [item.name for item in fields(EmbedderIdentity)]
        return {key: EmbedderIdentity(**{n: row[n] for n in names}) for (key, _), row in self._vectors.items()}

    def close(self) -> None:
        """Do nothing: no file is open."""

    def __enter__(self) -> Self:
        """The log itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close it."""


Log = EventLog | MemoryEventLog
"""The logs on which the contract tests run."""


def _is_plain(row: Row) -> bool:
    """Whether a record carries private parts in plain text."""
    return bool(row["observation"]["positions"] or (row["deliberation"] or {}).get("reasoning_summary"))


def _same(row: Row, other: Row) -> bool:
    return all(row[name] == other[name] for name in RECORD_SCHEMA.names)


def _after(rows: Iterable[Row], version: int | None) -> list[Row]:
    return [row for row in rows if version is None or row["committed"] > version]


def _ranges(golem_id: str, ticks: Iterable[int]) -> list[TickRange]:
    rows: list[TickRange] = []
    for tick in sorted(ticks):
        if rows and rows[-1].tick_to == tick - 1:
            rows[-1] = rows[-1]._replace(tick_to=tick)
        else:
            rows.append(TickRange(golem_id, tick, tick))
    return rows


def _columns(table: pa.Table, columns: Sequence[str] | None) -> pa.Table:
    """The columns asked for; a path into structs becomes a column of that name."""
    if columns is None:
        return table
    rows: list[pa.ChunkedArray] = []
    fields: list[pa.Field] = []
    for path in columns:
        name, *inner = path.split(".")
        kind, values = table.schema.field(name), table.column(name)
        for step in inner:
            kind, values = kind.type.field(step), pc.struct_field(values, step)
        rows.append(values)
        fields.append(kind.with_name(path))
    return pa.Table.from_arrays(rows, schema=pa.schema(fields))
