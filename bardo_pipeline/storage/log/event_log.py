"""The event log: cycles, life events and vectors as three append-only Delta tables of one home.

One lock file a home lets one process at a time decide what is new; so no two of them accept the same tick.
Source: architecture ("Laws", "Time and order", "Writing"); HB S6.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from bardo_pipeline.errors import LeaseError, StoreError
from bardo_pipeline.events.custody.hash_chain import KeyRing, Payloads, Signature, Tip
from bardo_pipeline.events.custody.sealing import must_be_sealed
from bardo_pipeline.events.life.events import LifeEvent
from bardo_pipeline.events.record.arrow_schema import LIFE_SCHEMA, MOMENT, to_models, to_table
from bardo_pipeline.events.record.check_batch import Examined, examine
from bardo_pipeline.events.record.thread_pool import at_once, divided, parts_of
from bardo_pipeline.events.record.validate import check_table
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.embedder_interface import EmbedderIdentity
from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable, Part
from bardo_pipeline.storage.delta.durable_commits import Added
from bardo_pipeline.storage.delta.parquet_io import scan
from bardo_pipeline.storage.disk_errors import writing_to
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal.leases import leased
from bardo_pipeline.storage.log.admission import Known, Verdicts, Wrong, judge
from bardo_pipeline.storage.log.batch import Batch, Stamp
from bardo_pipeline.storage.log.chain_links import Linked, link_lines, link_slices, slices_of, unlinked, unsigned_lines
from bardo_pipeline.storage.log.checksum_manifest import Sums
from bardo_pipeline.storage.log.protocol import (
    CYCLES_SCHEMA,
    DECIDING,
    LIFE_LOG_SCHEMA,
    VECTORS_SCHEMA,
    Admitted,
    Appended,
    Refused,
    check_events,
    check_vectors,
    utc,
)
from bardo_pipeline.storage.log.stream_heads import Head, TickRange, golem_column
from bardo_pipeline.storage.log.stream_heads_cache import load_heads, save_heads
from bardo_pipeline.storage.log.vector_table import VectorLog

_LOCK = "log"
_OF_KEYS = pa.array(["KeyRegistered", "KeyRotated", "KeyRevoked"])
_KEYS = ["golem_id", "tick", "content_hash"]
_LEARNED = ["golem_id", "tick", "link"]


class EventLog:
    """The log on disk. See `Log` in protocol.py for what each method promises.

    durable: what `append`, `admit`, `record` and `record_vectors` returned for stays when the machine loses its power.
    Without it, it stays when the program dies. chained: Arrow batches are linked into their golems' chains; without it
    nobody could tell that a record was altered, and `bardo verify` names each one that has no link.
    To be without either is for scratch homes alone, which are made again sooner than repaired.
    Every method that writes raises StoreError for what the disk refuses.
    """

    def __init__(self, home: Home, policy: Policy | None = None, *, durable: bool = True, chained: bool = True) -> None:
        self._home, self._policy, self._durable, self._chained = home, policy or Policy(), durable, chained
        self._mutex, self._index = RLock(), home.index / "heads.arrow"
        with writing_to(home.root), home.lock(_LOCK):
            self._cycles = self._table(home.cycles, CYCLES_SCHEMA, ["golem_id", "tick"])
            self._life = self._table(home.life, LIFE_LOG_SCHEMA, ["golem_id", "kind"])
            vectors = self._table(home.vectors, VECTORS_SCHEMA, ["embedder", "text_hash"])
            self._vectors = VectorLog(vectors, self._mutex)
        self._event_ids: set[str] = set()
        self._life_seen = -1
        heads, self._cycles_seen = load_heads(self._index, home.cycles)
        self._known = Known(heads)

    def _table(self, path: Path, schema: pa.Schema, stats_columns: list[str]) -> AppendOnlyTable:
        return AppendOnlyTable(
            path,
            schema,
            stats_columns,
            policy=self._policy,
            durable=self._durable,
            sums=Sums(self._home, path),
            by_version=path == self._home.cycles,
        )

    # cycles

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
        stamp, looked = Stamp(writer, segment, recorded_at), examine(records)
        looked.check()
        batch = Batch.of(stamp, looked)
        with self._writing():
            verdicts = self._judge(batch, frozenset(), _all_signed)
            linked = self._linked_slices(batch, verdicts, signatures or {})
            if wrong := verdicts.wrong or linked.wrong:
                raise wrong[min(wrong)]
            return self._write(batch, linked, len(batch.records))

    def admit(
        self,
        looked: Examined,
        *,
        writer: str,
        segment: int,
        recorded_at: datetime,
        payloads: Payloads | None = None,
        signatures: Mapping[str, Signature] | Sequence[Signature | None] | None = None,
        mine: frozenset[str] = frozenset(),
    ) -> Admitted:
        """Append the rows of a batch that may be appended, and say of each other one why not."""
        batch = Batch.of(Stamp(writer, segment, recorded_at), looked, payloads)
        with self._writing():
            if batch.payloads is None:
                assert not isinstance(signatures, Sequence), "an Arrow batch is signed golem by golem"
                verdicts = self._judge(batch, mine, _all_signed)
                linked = self._linked_slices(batch, verdicts, signatures or {})
            else:
                assert not isinstance(signatures, Mapping), "lines are signed one by one"
                each = None if signatures is None else [signatures[i] for i in batch.fit.tolist()]
                contents = batch.payloads.contents
                unsigned = partial(unsigned_lines, contents=contents, signatures=each, known=self._known)
                verdicts = self._judge(batch, mine, lambda rows: unsigned(batch.sent, rows))
                linked = link_lines(batch.sent, verdicts.news, contents, each, self._known)
            wrong = verdicts.wrong | linked.wrong
            appended = self._write(batch, linked, len(batch.records) - len(wrong))
        refused = batch.refused | {int(batch.fit[row]): error for row, error in wrong.items()}
        return Admitted(appended, tuple(Refused(row, refused[row]) for row in sorted(refused)))

    def _judge(self, batch: Batch, mine: frozenset[str], unsigned: Callable[[np.ndarray], Wrong]) -> Verdicts:
        return judge(
            batch.sent,
            self._known,
            held=lambda golem_ids: leased(self._home, golem_ids - mine),
            on_record=self._on_record,
            unsigned=unsigned,
            plain=lambda sealing: must_be_sealed(batch.records, sealing),
        )

    def _linked_slices(self, batch: Batch, verdicts: Verdicts, signatures: Mapping[str, Signature]) -> Linked:
        slices = slices_of(batch.sent.groups, verdicts.news)
        if not self._chained and not signatures and not self._known.rings:
            return unlinked(slices, len(batch.records))
        return link_slices(batch.records, slices, verdicts, signatures, self._known)

    def _write(self, batch: Batch, linked: Linked, given: int) -> Appended:
        """Commit what comes in. given: how many records were sent that are not wrong."""
        due, count = self._cycles.checkpointed_version() + 1, len(linked.rows)
        if not count:
            return Appended(self._cycles_seen, 0, given, (), ())
        stamp = batch.stamp
        if self._cycles.done({stamp.writer: stamp.segment}):
            raise StoreError(
                f"writer {stamp.writer}: segment {stamp.segment} or a later one is on record, but {count} of these "
                "records are not: number segments upwards and send one again unchanged"
            )
        rows = batch.rows(linked, self._home.bucket_count, due)
        adds = self._stored(divided(rows, parts_of(count, os.cpu_count() or 1)))
        version = self._cycles.commit(adds, transactions={stamp.writer: stamp.segment}, version=due)
        assert version == due, "whoever holds the lock of the log commits alone"
        gaps, late = self._learn_cycles(rows)
        if due == self._cycles_seen + 1:
            self._cycles_seen = due
        return Appended(due, count, given - count, gaps, late)

    def _stored(self, parts: Sequence[pa.Table]) -> list[Added]:
        """Each part in a file; if one cannot be written, none of them stays."""
        adds: list[Added] = []
        try:
            at_once(lambda rows: adds.append(self._cycles.write(rows)), parts)
        except BaseException:
            self._cycles.discard(adds)
            raise
        return adds

    def _learn_cycles(self, rows: pa.Table) -> tuple[tuple[TickRange, ...], tuple[TickRange, ...]]:
        golem_ids, link = golem_column(rows), rows.column("link")
        self._known.heads.follow(golem_ids, pc.struct_field(link, "number"), pc.struct_field(link, "hash"))
        return self._known.heads.record(golem_ids, rows.column("tick").to_numpy())

    @property
    def home(self) -> Home:
        """The home whose log this is."""
        return self._home

    def tip(self, golem_id: str) -> Tip:
        """The newest link of a golem's chain."""
        with self._mutex:
            self._refresh()
            head = self._known.heads.of.get(golem_id)
            return head.tip if head is not None else Tip()

    def last_segment(self, writer: str) -> int:
        """The highest segment of a writer that is on record; -1 for one that has none."""
        with self._mutex:
            found = self._cycles.transaction_version(writer)
            return -1 if found is None else found

    def head_of(self, golem_id: str) -> Head:
        """A copy of what is known of one golem's stream."""
        with self._mutex:
            self._refresh()
            head = self._known.heads.of.get(golem_id) or Head()
            return replace(head, missing=list(head.missing), accepted=list(head.accepted))

    def death_of(self, golem_id: str) -> int | None:
        """The tick of a golem's recorded death."""
        with self._mutex:
            self._refresh()
            return self._known.deaths.get(golem_id)

    def cause_of_death(self, golem_id: str) -> str | None:
        """What a golem died of, as its recorded death says."""
        with self._mutex:
            self._refresh()
            return self._known.causes.get(golem_id)

    def sealing(self) -> frozenset[str]:
        """Golems whose private parts are only taken sealed."""
        with self._mutex:
            self._refresh()
            return frozenset(self._known.sealing)

    def ring_of(self, golem_id: str) -> KeyRing:
        """The golem's signing keys."""
        with self._mutex:
            self._refresh()
            return self._known.ring(golem_id)

    def _on_record(self, wanted: pa.Table) -> pa.Table:
        """What the log holds for these golems and ticks (golem_id, tick, content_hash)."""
        golems, ticks = pc.min_max(wanted["golem_id"]).as_py(), pc.min_max(wanted["tick"]).as_py()
        files = self._cycles.overlapping(
            {"golem_id": (golems["min"], golems["max"]), "tick": (ticks["min"], ticks["max"])}
        )
        asked = ds.field("golem_id").isin(wanted["golem_id"].unique()) & ds.field("tick").isin(wanted["tick"].unique())
        found = scan(files, CYCLES_SCHEMA, _KEYS, asked)
        return found.group_by(["golem_id", "tick"]).aggregate([("content_hash", "min")]).rename_columns(_KEYS)

    def heads(self) -> pa.Table:
        """How far each golem has come (HEADS_SCHEMA), by id."""
        with self._mutex:
            self._refresh()
            return self._known.heads.table()

    def gaps(self) -> tuple[TickRange, ...]:
        """Every run of ticks that is missing and not accepted as lost."""
        with self._mutex:
            self._refresh()
            return self._known.heads.missing()

    @property
    def table_id(self) -> str:
        """The id of the table of cycles: another log has another."""
        return self._cycles.table_id

    @property
    def version(self) -> int:
        """The newest version of the cycles."""
        with self._mutex:
            return self._cycles.version

    def read_cycles(
        self,
        columns: Sequence[str] | None = None,
        since_version: int | None = None,
        golems: Sequence[str] | None = None,
    ) -> pa.Table:
        """Cycles, all or those after a version, of all golems or of these."""
        only = None if golems is None else ds.field("golem_id").isin(pa.array(golems, pa.string()))
        with self._mutex:
            files = self._cycles.tail(since_version)[1]
        return self._cycles.load(files, columns, only)

    def read_cycles_between(
        self,
        columns: Sequence[str] | None,
        since_version: int | None,
        until_version: int,
        golems: Sequence[str] | None = None,
    ) -> pa.Table:
        """Cycles committed after one version (from the first for None) and up to another."""
        only = None if golems is None else ds.field("golem_id").isin(pa.array(golems, pa.string()))
        with self._mutex:
            files = self._cycles.tail(since_version, until_version)[1]
        return self._cycles.load(files, columns, only)

    def cycles_in_parts(
        self,
        columns: Sequence[str],
        since_version: int | None = None,
        until_version: int | None = None,
        golems: Sequence[str] | None = None,
    ) -> Iterator[Part]:
        """Cycles as `read_cycles_between` gives them, in parts, early ticks first; at least one part."""
        only = None if golems is None else ds.field("golem_id").isin(pa.array(golems, pa.string()))
        with self._mutex:
            files = self._cycles.tail(since_version, until_version)[1]
        yield from self._cycles.load_parts(files, columns, only, by="tick")

    def read_stretch(self, columns: Sequence[str], golems: Sequence[str], tick_from: int, tick_to: int) -> pa.Table:
        """Cycles of these golems from one tick to another, read from the files alone that may hold them."""
        if not golems:
            return self._cycles.load([], columns)
        bounds = {"golem_id": (min(golems), max(golems)), "tick": (tick_from, tick_to)}
        asked = ds.field("golem_id").isin(pa.array(golems, pa.string()))
        asked &= (ds.field("tick") >= tick_from) & (ds.field("tick") <= tick_to)
        with self._mutex:
            files, near = self._cycles.tail()[1], set(self._cycles.overlapping(bounds))
        return self._cycles.load([file for file in files if file.path in near], columns, asked)

    # life

    def record(self, events: Sequence[LifeEvent], recorded_at: datetime, mine: frozenset[str] = frozenset()) -> int:
        """Append those events whose id is not on record; returns how many were new."""
        utc(recorded_at, "recorded_at")
        check_events(events)
        given = {event.event_id: event for event in events}
        with self._writing():
            fresh = [event for event_id, event in given.items() if event_id not in self._event_ids]
            fresh = self._known.unsaid(fresh)
            if not fresh:
                return 0
            deciding = {event.golem_id for event in fresh if event.kind in DECIDING} - mine
            for golem_id, why in leased(self._home, deciding).items():
                raise LeaseError(f"golem {golem_id} {why}")
            self._known.check(fresh)
            table = to_table(fresh, LIFE_SCHEMA)
            check_table(table, LifeEvent, LIFE_SCHEMA)
            moments = pa.repeat(pa.scalar(recorded_at, MOMENT), len(fresh))
            version = self._life.append(
                table.append_column(LIFE_LOG_SCHEMA.field("recorded_at"), moments), transactions={}
            )
            self._learn_life(table)
            self._known.learn_keys(fresh)
            if version == self._life_seen + 1:
                self._life_seen = version
            return len(fresh)

    def life(self, kind: str | None = None, since_version: int | None = None) -> pa.Table:
        """Life events of one kind, or of all."""
        with self._mutex:
            files = self._life.tail(since_version)[1]
        return self._life.load(files, None, None if kind is None else ds.field("kind") == kind)

    @property
    def life_version(self) -> int:
        """The newest version of the life events."""
        with self._mutex:
            return self._life.version

    def _learn_life(self, events: pa.Table) -> None:
        self._event_ids.update(events.column("event_id").to_pylist())
        self._known.learn_life(events)

    # vectors

    def record_vectors(self, vectors: pa.Table) -> int:
        """Append those vectors whose (embedder, text_hash) is not on record; returns how many."""
        check_vectors(vectors)
        with self._writing():
            return self._vectors.put(vectors)

    def vectors(self, embedder: str, hashes: Sequence[str]) -> pa.Table:
        """The vectors that are on record for these texts (columns text_hash, vector), by text_hash."""
        return self._vectors.of(embedder, hashes)

    def count_vectors(self, embedder: str, since: datetime | None = None) -> int:
        """How many vectors of an embedder are on record, all or those made after a moment."""
        return self._vectors.count(embedder, since)

    def identities(self) -> dict[str, EmbedderIdentity]:
        """Every embedder that has vectors on record, by its key."""
        return self._vectors.identities()

    # the state in memory

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._mutex, writing_to(self._home.root), self._home.lock(_LOCK):
            self._home.raise_version()
            self._refresh()
            yield

    def _refresh(self) -> None:
        """Learn what was committed since the last look, by whomever."""
        version, files = self._life.tail(self._life_seen)
        if files:
            told = self._life.load(files, ["event_id", "kind", "golem_id", "gap", "died"])
            self._learn_life(told)
            if pc.any(pc.is_in(told.column("kind"), value_set=_OF_KEYS)).as_py():
                keys = self._life.load(files, None, pc.field("kind").isin(_OF_KEYS))
                self._known.learn_keys(to_models(keys, LifeEvent))
        self._life_seen = version
        version, files = self._cycles.tail(self._cycles_seen)
        if files:
            self._learn_cycles(self._cycles.load(files, _LEARNED))
        self._cycles_seen = version

    def close(self) -> None:
        """Leave the heads for the next one to open the log."""
        with self._mutex, suppress(OSError):  # it saves time, and the rows are on record
            if self._cycles_seen >= 0:
                save_heads(self._index, self._known.heads, self._cycles.path, self._cycles_seen)

    def __enter__(self) -> Self:
        """The log itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close it."""
        self.close()


def _all_signed(rows: np.ndarray) -> Wrong:
    """An Arrow batch is signed golem by golem: its signatures are checked when its slices are linked."""
    return {}
