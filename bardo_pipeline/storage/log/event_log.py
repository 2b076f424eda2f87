"""The event log: cycles, life events and vectors in three append-only Delta tables of a home.

A lock file of the home serialises writers, so two processes never accept the same tick.
Source: architecture ("Laws", "Time and order", "Writing"); HB S6.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.errors import LeaseError, RecordError, StoreError
from bardo_pipeline.events.custody.authority import INDEPENDENT, OWNER_KINDS, Door, Proof, check_authority, check_clock
from bardo_pipeline.events.custody.hash_chain import KeyRing, Payloads, Signature, Tip
from bardo_pipeline.events.custody.sealing import must_be_sealed
from bardo_pipeline.events.life.events import ATTRIBUTE_OF, FREQUENT, TEXTS, LifeEvent
from bardo_pipeline.events.life.life_schema import LIFE_SCHEMA
from bardo_pipeline.events.record.arrow_columns import absent
from bardo_pipeline.events.record.arrow_schema import MOMENT, to_models, to_table
from bardo_pipeline.events.record.validate import Examined, check_table, examine
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.embedder_interface import EmbedderIdentity
from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable, Part
from bardo_pipeline.storage.delta.checksum_manifest import Sums
from bardo_pipeline.storage.delta.durable_commits import Added
from bardo_pipeline.storage.delta.files_by_version import DataFile
from bardo_pipeline.storage.delta.parquet_io import scan
from bardo_pipeline.storage.home import Home, writing_to
from bardo_pipeline.storage.leases import leased
from bardo_pipeline.storage.log.admission import Known, Verdicts, Wrong, judge
from bardo_pipeline.storage.log.batch import Batch, Stamp
from bardo_pipeline.storage.log.chain_links import Linked, link_lines, link_slices, slices_of, unlinked, unsigned_lines
from bardo_pipeline.storage.log.protocol import (
    CYCLES_SCHEMA,
    DECIDING,
    IDENTITY_COLUMNS,
    LIFE_LOG_SCHEMA,
    VECTORS_SCHEMA,
    Admitted,
    Appended,
    check_events,
    check_vectors,
    identities_in,
    utc,
)
from bardo_pipeline.storage.log.stream_heads import Head, TickRange, golem_column
from bardo_pipeline.storage.log.stream_heads_cache import load_heads, save_heads
from bardo_pipeline.storage.log.waiting_writes import Write, waiting_writes

_LOCK = "log"
_KEY_KINDS = pa.array(["KeyRegistered", "KeyRotated", "KeyRevoked"])
_LEARNED_KINDS = (*_KEY_KINDS.to_pylist(), *OWNER_KINDS, "GapAccepted", "DeathDeclared")
"""Kinds of life events whose payloads the log keeps in memory."""

_FREQUENT_KINDS, _USUAL_KINDS = pa.array(FREQUENT), ATTRIBUTE_OF.keys() - set(FREQUENT)
TEXT_COLUMNS = ["event_id", "golem_id", "observed_at", "text_stored"]
"""Columns of LIFE_SCHEMA that a text fills."""

_KEYS = ["golem_id", "tick", "content_hash"]
_VECTOR = ["text_hash", "vector"]
_PART_ROWS = 12_000  # smaller parts cost more in calls and files than threads save
_HEAD_COLUMNS = ["golem_id", "tick", "link"]


class EventLog:
    """The append-only log of all golems: cycles, life events and vectors.

    Writing raises StoreError if the disk refuses.

    Parameters
    ----------
    durable : writes survive a power cut; without it only the end of the process. False for scratch homes
    chained : Arrow batches are linked into their golems' chains. False for scratch homes: `bardo verify` then reports
        each record without a link
    """

    def __init__(self, home: Home, policy: Policy | None = None, *, durable: bool = True, chained: bool = True) -> None:
        self.home, self._policy, self._durable, self._chained = home, policy or Policy(), durable, chained
        self._mutex, self._index = RLock(), home.index / "heads.arrow"
        with writing_to(home.root), home.lock(_LOCK):
            self._cycles = self._table(home.cycles, CYCLES_SCHEMA, ["golem_id", "tick"])
            self._life = self._table(home.life, LIFE_LOG_SCHEMA, ["golem_id", "kind"])
            self._vectors = self._table(home.vectors, VECTORS_SCHEMA, ["embedder", "text_hash"])
        self._kinds: set[str] = set()
        self._vector_keys: set[tuple[str, str]] = set()
        self._life_seen = self._vectors_seen = -1
        heads, self._cycles_seen = load_heads(self._index, home.cycles)
        self._known = Known(heads)
        self._waiting_writes = waiting_writes(home.life, self._life.table_id, durable=durable)

    def _table(self, path: Path, schema: pa.Schema, stats_columns: list[str]) -> AppendOnlyTable:
        return AppendOnlyTable(
            path,
            schema,
            stats_columns,
            policy=self._policy,
            durable=self._durable,
            sums=Sums(self.home, path),
            by_version=path == self.home.cycles,
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
        simulated: bool = False,
    ) -> Appended:
        """Append a batch (RECORD_SCHEMA) atomically, each (golem, tick) once, with one link per golem.

        Parameters
        ----------
        writer, segment : transaction id; a writer numbers its segments upwards and retries under the same number
        signatures : golem -> signature of its slice
        simulated : the records were observed in the time of a simulated market, which may lie in the future

        Raises
        ------
        RecordError, SchemaVersionError : a record is invalid
        IdentityError : a record is of golem `*`
        ClockError : a record was observed ahead of `recorded_at`
        ForkError : another record of this tick is in the log
        RegressionError : the tick lies in an accepted gap
        LeaseError : a writer holds the lease of the golem
        SignatureError : a signature is missing or wrong
        StoreError : the segment number belongs to other records
        """
        stamp, examined = Stamp(writer, segment, recorded_at, checks_clock=not simulated), examine(records)
        examined.check()
        batch = Batch.of(stamp, examined)
        with self._writing():
            verdicts = self._judge(batch, frozenset(), _all_signed)
            linked = self._linked_slices(batch, verdicts, signatures or {})
            if wrong := verdicts.wrong or linked.wrong:
                raise wrong[min(wrong)]
            return self._write(batch, linked, len(batch.records))

    def admit(
        self,
        examined: Examined,
        stamp: Stamp,
        *,
        payloads: Payloads | None = None,
        signatures: Mapping[str, Signature] | Sequence[Signature | None] | None = None,
        leased_golems: frozenset[str] = frozenset(),
    ) -> Admitted:
        """Append the valid rows of a batch; refuse each other row with its error.

        Parameters
        ----------
        examined : result of `examine`
        payloads : the sender's bytes of each row of a JSON batch; each record then has a link and a signature
        leased_golems : golems whose lease the caller holds
        """
        batch = Batch.of(stamp, examined, payloads)
        with self._writing():
            if batch.payloads is None:
                assert not isinstance(signatures, Sequence), "an Arrow batch is signed golem by golem"
                verdicts = self._judge(batch, leased_golems, _all_signed)
                linked = self._linked_slices(batch, verdicts, signatures or {})
            else:
                assert not isinstance(signatures, Mapping), "lines are signed one by one"
                each = None if signatures is None else [signatures[i] for i in batch.fit.tolist()]
                contents = batch.payloads.contents
                unsigned = partial(unsigned_lines, contents=contents, signatures=each, known=self._known)
                verdicts = self._judge(batch, leased_golems, lambda rows: unsigned(batch.grouped, rows))
                linked = link_lines(batch.grouped, verdicts.news, contents, each, self._known)
            wrong = verdicts.wrong | linked.wrong
            appended = self._write(batch, linked, len(batch.records) - len(wrong))
        refused = batch.refused | {int(batch.fit[row]): error for row, error in wrong.items()}
        return Admitted(appended, dict(sorted(refused.items())))

    def _judge(self, batch: Batch, leased_golems: frozenset[str], unsigned: Callable[[Int64Array], Wrong]) -> Verdicts:
        return judge(
            batch.grouped,
            self._known,
            leased=lambda golem_ids: leased(self.home, golem_ids - leased_golems),
            on_record=self._on_record,
            unsigned=unsigned,
            unsealed_rows=lambda sealing: must_be_sealed(batch.records, sealing),
            unfit=batch.unfit(self._clock_ahead),
        )

    def _linked_slices(self, batch: Batch, verdicts: Verdicts, signatures: Mapping[str, Signature]) -> Linked:
        slices = slices_of(batch.grouped.groups, verdicts.news)
        if not self._chained and not signatures and not self._known.rings:
            return unlinked(slices, len(batch.records))
        return link_slices(batch.records, slices, verdicts, signatures, self._known)

    def _write(self, batch: Batch, linked: Linked, valid_count: int) -> Appended:
        """Commit the admitted rows. valid_count: number of sent records without an error."""
        version, count = self._cycles.checkpointed_version() + 1, len(linked.rows)
        if not count:
            return Appended(self._cycles_seen, 0, valid_count, (), ())
        stamp = batch.stamp
        if self._cycles.done({stamp.writer: stamp.segment}):
            raise StoreError(
                f"writer {stamp.writer}: segment {stamp.segment} or a later one is in the log, but {count} of these "
                "records are not: number segments upwards, and retry a segment with the same records"
            )
        rows = batch.rows(linked, self.home.bucket_count, version)
        adds = self._write_files(rows)
        committed = self._cycles.commit(adds, transactions={stamp.writer: stamp.segment}, version=version)
        assert committed == version, "only the holder of the log's lock commits"
        gaps, late = self._update_heads(rows)
        if version == self._cycles_seen + 1:
            self._cycles_seen = version
        return Appended(version, count, valid_count - count, gaps, late)

    def _write_files(self, rows: pa.Table) -> list[Added]:
        """Write the rows in parts of about equal length, one file and thread each; delete all files if one fails."""
        count = max(1, min(os.cpu_count() or 1, len(rows) // _PART_ROWS))
        size = -(-len(rows) // count)
        parts = [rows.slice(start, size) for start in range(0, len(rows), size)]
        adds: list[Added] = []
        try:
            with ThreadPoolExecutor(count) as threads:
                list(threads.map(lambda part: adds.append(self._cycles.write(part)), parts))
        except BaseException:
            self._cycles.discard(adds)
            raise
        return adds

    def _update_heads(self, rows: pa.Table) -> tuple[tuple[TickRange, ...], tuple[TickRange, ...]]:
        golem_ids, link = golem_column(rows), rows.column("link")
        self._known.heads.follow(golem_ids, pc.struct_field(link, "number"), pc.struct_field(link, "hash"))
        return self._known.heads.record(golem_ids, rows.column("tick").to_numpy())

    def tip(self, golem_id: str) -> Tip:
        """Return the newest link of a golem's chain."""
        with self._mutex:
            self._refresh()
            return self._known.tip(golem_id)

    def last_segment(self, writer: str) -> int:
        """Return the highest recorded segment of a writer; -1 without one."""
        with self._mutex:
            segment = self._cycles.transaction_version(writer)
            return -1 if segment is None else segment

    def head_of(self, golem_id: str) -> Head:
        """Return a copy of the head of a golem's stream."""
        with self._mutex:
            self._refresh()
            head = self._known.heads.of.get(golem_id) or Head()
            return replace(head, missing=list(head.missing), accepted=list(head.accepted))

    def death_of(self, golem_id: str) -> int | None:
        """Return the tick of a golem's recorded death."""
        with self._mutex:
            self._refresh()
            return self._known.deaths.get(golem_id)

    def cause_of_death(self, golem_id: str) -> str | None:
        """Return the cause of a golem's recorded death."""
        with self._mutex:
            self._refresh()
            return self._known.causes.get(golem_id)

    def sealing(self) -> frozenset[str]:
        """Return the golems whose private parts must be sealed."""
        with self._mutex:
            self._refresh()
            return frozenset(self._known.sealing)

    def ring_of(self, golem_id: str) -> KeyRing:
        """Return the golem's signing keys."""
        with self._mutex:
            self._refresh()
            return self._known.ring(golem_id)

    def _on_record(self, wanted: pa.Table) -> pa.Table:
        """Read the digests of these golems and ticks (golem_id, tick, content_hash)."""
        golems, ticks = pc.min_max(wanted["golem_id"]).as_py(), pc.min_max(wanted["tick"]).as_py()
        files = self._cycles.overlapping(
            {"golem_id": (golems["min"], golems["max"]), "tick": (ticks["min"], ticks["max"])}
        )
        condition = ds.field("golem_id").isin(wanted["golem_id"].unique())
        condition &= ds.field("tick").isin(wanted["tick"].unique())
        stored = scan(files, CYCLES_SCHEMA, _KEYS, condition)
        return stored.group_by(["golem_id", "tick"]).aggregate([("content_hash", "min")]).rename_columns(_KEYS)

    def heads(self) -> pa.Table:
        """Return the head of each golem's stream (HEADS_SCHEMA) by id."""
        with self._mutex:
            self._refresh()
            return self._known.heads.table()

    def gaps(self) -> tuple[TickRange, ...]:
        """Return all missing runs of ticks that were not accepted as lost, by golem and tick."""
        with self._mutex:
            self._refresh()
            return self._known.heads.missing()

    @property
    def table_id(self) -> str:
        """Id of the table of cycles, unique to this log."""
        return self._cycles.table_id

    @property
    def version(self) -> int:
        """Newest version of the cycles."""
        with self._mutex:
            return self._cycles.version

    def read_cycles(
        self,
        columns: Sequence[str] | None = None,
        since_version: int | None = None,
        golems: Sequence[str] | None = None,
        *,
        until_version: int | None = None,
    ) -> pa.Table:
        """Read cycles (CYCLES_SCHEMA) in any order.

        Parameters
        ----------
        columns : names or dotted paths into structs ("observation.price"); None for all
        since_version, until_version : only rows committed after the first (older ones may also be returned) and up to
            the second
        golems : only these golems
        """
        return self._cycles.load(self._cycle_files(since_version, until_version), columns, _of_golems(golems))

    def cycles_in_parts(
        self,
        columns: Sequence[str],
        since_version: int | None = None,
        until_version: int | None = None,
        golems: Sequence[str] | None = None,
    ) -> Iterator[Part]:
        """Read the cycles of `read_cycles` in parts by tick, at least one part."""
        files = self._cycle_files(since_version, until_version)
        yield from self._cycles.load_parts(files, columns, _of_golems(golems), by="tick")

    def _cycle_files(self, since_version: int | None = None, until_version: int | None = None) -> list[DataFile]:
        with self._mutex:
            return self._cycles.tail(since_version, until_version)[1]

    def read_stretch(self, columns: Sequence[str], golems: Sequence[str], tick_from: int, tick_to: int) -> pa.Table:
        """Read cycles of these golems between two ticks (inclusive), from files whose statistics overlap."""
        if not golems:
            return self._cycles.load([], columns)
        bounds = {"golem_id": (min(golems), max(golems)), "tick": (tick_from, tick_to)}
        condition = (ds.field("tick") >= tick_from) & (ds.field("tick") <= tick_to)
        condition &= ds.field("golem_id").isin(pa.array(golems, pa.string()))
        with self._mutex:
            files, overlapping = self._cycles.tail()[1], set(self._cycles.overlapping(bounds))
        return self._cycles.load([file for file in files if file.path in overlapping], columns, condition)

    def read_ticks(self, columns: Sequence[str], ticks: Mapping[str, int]) -> pa.Table:
        """Read cycles of these golems at these ticks (golem -> tick), in one pass over the files that may hold one.

        The rows of a golem include those at ticks of the others.
        """
        condition = ds.field("golem_id").isin(pa.array(sorted(ticks), pa.string()))
        condition &= ds.field("tick").isin(pa.array(sorted({*ticks.values()}), pa.int64()))
        return self._cycles.load([file for file in self._cycle_files() if _may_hold(file, ticks)], columns, condition)

    # life

    def record(
        self,
        events: Sequence[LifeEvent],
        recorded_at: datetime,
        leased_golems: frozenset[str] = frozenset(),
        *,
        door: Door = "home",
        proofs: Mapping[str, Proof] | None = None,
    ) -> int:
        """Append the events with new ids; return their number when they are durable.

        Events of INDEPENDENT that threads of this process record at the same time are committed together.

        Parameters
        ----------
        leased_golems : golems whose lease the caller holds
        door : way by which the events came; `home` is for commands, the runtime and derivations of this home, whose
            events may lie in simulated time
        proofs : event id -> its detached signature

        Raises
        ------
        AuthorityError : the kind of an event does not allow this door, or asks for another proof
        ClockError : an event from outside the home was observed ahead of the recording clock
        RecordError, SignatureError : an event contradicts the log
        LeaseError : a DECIDING event of a golem whose lease a writer holds, which may have acknowledged records
            that the event would refuse
        """
        utc(recorded_at, "recorded_at")
        check_events(events)
        write = Write(events, recorded_at, leased_golems, door, proofs or {})
        alone = any(event.kind not in INDEPENDENT for event in events)
        return self._waiting_writes.commit(write, self._commit_writes, alone=alone)

    def _commit_writes(self, writes: Sequence[Write]) -> None:
        """Commit the new events of these writes together; set the error of each write that is refused."""
        with self._writing():
            self._refresh_ids()
            taken: set[str] = set()
            for write in writes:
                try:
                    write.fresh = self._fresh(write, taken)
                    taken.update(event.event_id for event in write.fresh)
                except Exception as error:
                    write.error = error
            self._append_life([write for write in writes if write.fresh])

    def _fresh(self, write: Write, taken: Collection[str]) -> list[LifeEvent]:
        """Return the events of a write that are neither in the log nor taken. Raises the error of one that it refuses.

        The check of an event of INDEPENDENT does not depend on other events of the same commit.
        """
        by_id = {event.event_id: event for event in write.events if event.event_id not in taken}
        fresh = [event for event_id, event in by_id.items() if event_id not in self._waiting_writes.event_ids]
        fresh = self._known.drop_repeated_deaths(fresh)
        if not fresh:
            return []
        if write.door != "home":
            check_clock(fresh, write.recorded_at, self._clock_ahead)
        owners, ring = self._known.owners, self._known.ring
        check_authority(
            fresh, door=write.door, proofs=write.proofs, owners=owners, ring=ring,
            has_records=lambda golem_id: self._known.tip(golem_id).number > 0,
        )  # fmt: skip
        deciding = {event.golem_id for event in fresh if event.kind in DECIDING} - write.leased_golems
        for golem_id, why in leased(self.home, deciding).items():
            raise LeaseError(f"golem {golem_id} {why}")
        self._known.check(fresh)
        return fresh

    def _append_life(self, writes: Sequence[Write]) -> None:
        """Commit the fresh events of these writes. Events that break a rule of their model fail their own write."""
        fresh = [event for write in writes for event in write.fresh]
        if not fresh:
            return
        table = to_table(fresh, LIFE_SCHEMA)
        try:
            check_table(table, LifeEvent, LIFE_SCHEMA)
        except RecordError:
            if len(writes) == 1:
                raise
            for write in writes:
                try:
                    self._append_life([write])
                except RecordError as error:
                    write.error = error
            return
        moments = [write.recorded_at for write in writes for _ in write.fresh]
        version = self._life.append(
            table.append_column(LIFE_LOG_SCHEMA.field("recorded_at"), pa.array(moments, MOMENT)), transactions={}
        )
        assert version is not None, "a commit without transactions is never repeated"
        self._waiting_writes.event_ids.update(event.event_id for event in fresh)
        if version == self._waiting_writes.ids_seen + 1:
            self._waiting_writes.ids_seen = version
        self._learn_life(table)
        self._known.owners.learn(table)
        self._known.learn_keys(fresh)
        if version == self._life_seen + 1:
            self._life_seen = version

    def life(self, kind: str | None = None, since_version: int | None = None) -> pa.Table:
        """Read life events of one kind, or of all kinds except those that runtimes record often (FREQUENT)."""
        with self._mutex:
            files = self._life.tail(since_version)[1]
        files = [file for file in files if _may_hold_kinds(file, _USUAL_KINDS if kind is None else {kind})]
        if kind is not None:
            return self._life_of(files, [kind], ds.field("kind") == kind)
        while True:
            frequent = self._kinds & set(FREQUENT)
            usual = self._kinds - frequent
            rows = self._life_of(files, usual, ~ds.field("kind").isin(_FREQUENT_KINDS) if frequent else None)
            unknown = set(rows["kind"].unique().to_pylist()) - self._kinds
            if not unknown:
                return rows
            self._kinds |= unknown  # and read their payloads too

    def _life_of(self, files: Sequence[DataFile], kinds: Iterable[str], only: ds.Expression | None) -> pa.Table:
        """Read life events; payloads of other kinds than these are not read, and null."""
        if not files:
            return LIFE_LOG_SCHEMA.empty_table()
        return _with_every_payload(self._life.load(files, _columns_of(kinds), only))

    def texts(self, since_version: int | None = None, columns: Sequence[str] = TEXT_COLUMNS) -> tuple[int, pa.Table]:
        """Return the version of the life events, and the texts of runtimes (columns of TEXT_COLUMNS) in any order.

        Parameters
        ----------
        since_version : only texts that were recorded after it; after a compaction older ones may be returned again
        """
        with self._mutex:
            version, files = self._life.tail(since_version)
        return version, self._life.load(files, columns, ds.field("kind") == TEXTS)

    @property
    def life_version(self) -> int:
        """Newest version of the life events."""
        with self._mutex:
            return self._life.version

    @property
    def _clock_ahead(self) -> timedelta:
        return timedelta(seconds=self._policy.writer.clock_ahead_seconds_max)

    def _learn_life(self, events: pa.Table) -> None:
        self._kinds.update(events.column("kind").unique().to_pylist())
        self._known.learn_life(events)

    # vectors

    def record_vectors(self, vectors: pa.Table) -> int:
        """Append the vectors (VECTORS_SCHEMA) with a new (embedder, text_hash); return their number."""
        check_vectors(vectors)
        with self._writing():
            version, files = self._vectors.tail(self._vectors_seen)
            if files:
                self._vector_keys.update(_vector_keys(self._vectors.load(files, ["embedder", "text_hash"])))
            self._vectors_seen = version
            fresh: dict[tuple[str, str], int] = {}
            for row, key in enumerate(_vector_keys(vectors)):
                if key not in self._vector_keys:
                    fresh.setdefault(key, row)
            if fresh:
                committed = self._vectors.append(vectors.take(pa.array(list(fresh.values()))), transactions={})
                self._vector_keys.update(fresh)
                if committed == self._vectors_seen + 1:
                    self._vectors_seen = committed
            return len(fresh)

    def vectors(self, embedder: str, hashes: Sequence[str]) -> pa.Table:
        """Read the vectors of these texts (columns text_hash, vector) by text_hash."""
        condition = (ds.field("embedder") == embedder) & ds.field("text_hash").isin(pa.array(hashes, pa.string()))
        return self._read_vectors(_VECTOR, condition).sort_by("text_hash")

    def vector_parts(self, embedder: str) -> Iterator[pa.Table]:
        """Read all vectors of an embedder (columns text_hash, vector) file by file, which reuses memory."""
        with self._mutex:
            files = self._vectors.tail()[1]
        for file in files:
            yield self._vectors.load([file], _VECTOR, ds.field("embedder") == embedder)

    def count_vectors(self, embedder: str, since: datetime | None = None) -> int:
        """Count the vectors of an embedder, all or those made after a time."""
        condition = ds.field("embedder") == embedder
        if since is not None:
            condition &= ds.field("created_at") > pa.scalar(since, MOMENT)
        return self._read_vectors(["text_hash"], condition).num_rows

    def identities(self) -> dict[str, EmbedderIdentity]:
        """Return the embedders with vectors in the log by key."""
        return dict(identities_in(self._read_vectors(IDENTITY_COLUMNS)))

    def _read_vectors(self, columns: Sequence[str], only: ds.Expression | None = None) -> pa.Table:
        with self._mutex:
            files = self._vectors.tail()[1]
        return self._vectors.load(files, columns, only)

    # the state in memory

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._mutex, writing_to(self.home.root), self.home.lock(_LOCK):
            self.home.raise_version()
            self._refresh()
            yield

    def _refresh_ids(self) -> None:
        """Read the ids of the life events that other processes committed."""
        known, (version, files) = self._waiting_writes, self._life.tail(self._waiting_writes.ids_seen)
        if files:
            known.event_ids.update(self._life.load(files, ["event_id"])["event_id"].to_pylist())
        known.ids_seen = version

    def _refresh(self) -> None:
        """Update the state from all commits since the last refresh, of any process."""
        version, files = self._life.tail(self._life_seen)
        if files := [file for file in files if _may_hold_kinds(file, _USUAL_KINDS)]:
            events = self._life.load(files, _columns_of(_LEARNED_KINDS))
            self._learn_life(events)
            keys = events.filter(pc.is_in(events.column("kind"), value_set=_KEY_KINDS))
            self._known.learn_keys(to_models(_with_every_payload(keys), LifeEvent))
            self._known.owners.learn(events)
        self._life_seen = version
        version, files = self._cycles.tail(self._cycles_seen)
        if files:
            self._update_heads(self._cycles.load(files, _HEAD_COLUMNS))
        self._cycles_seen = version

    def close(self) -> None:
        """Save the cache of stream heads."""
        with self._mutex, suppress(OSError):  # the cache only saves time
            if self._cycles_seen >= 0:
                save_heads(self._index, self._known.heads, self._cycles.path, self._cycles_seen)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _may_hold_kinds(file: DataFile, kinds: Iterable[str]) -> bool:
    """Whether a file may have events of these kinds, as far as its statistics say."""
    least, most = file.bounds.get("kind", (None, None))
    return least is None or any(least <= kind <= most for kind in kinds)


def _columns_of(kinds: Iterable[str]) -> list[str]:
    """Return the columns of the life events' table that events of these kinds fill."""
    unread = set(ATTRIBUTE_OF.values()) - {ATTRIBUTE_OF.get(kind) for kind in kinds}
    return [name for name in LIFE_LOG_SCHEMA.names if name not in unread]


def _with_every_payload(events: pa.Table) -> pa.Table:
    """Return life events with null payloads in the columns that were not read."""
    present, count = set(events.schema.names), events.num_rows
    columns = [events[f.name] if f.name in present else absent(f.type, count) for f in LIFE_LOG_SCHEMA]
    return pa.table(columns, schema=LIFE_LOG_SCHEMA)


def _may_hold(file: DataFile, ticks: Mapping[str, int]) -> bool:
    """Return whether the statistics of a file of cycles allow one of these ticks (golem -> tick)."""
    if not {"golem_id", "tick"} <= file.bounds.keys():
        return True
    (golem_low, golem_high), (tick_low, tick_high) = file.bounds["golem_id"], file.bounds["tick"]
    return any(golem_low <= golem <= golem_high and tick_low <= tick <= tick_high for golem, tick in ticks.items())


def _of_golems(golems: Sequence[str] | None) -> ds.Expression | None:
    return None if golems is None else ds.field("golem_id").isin(pa.array(golems, pa.string()))


def _vector_keys(vectors: pa.Table) -> Iterator[tuple[str, str]]:
    return zip(vectors.column("embedder").to_pylist(), vectors.column("text_hash").to_pylist(), strict=True)


def _all_signed(rows: Int64Array) -> Wrong:
    """Return no errors: signatures of an Arrow batch are checked when its slices are linked."""
    return {}
