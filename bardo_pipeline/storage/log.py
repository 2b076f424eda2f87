"""The event log: cycles, life events and vectors as three append-only Delta tables of one home.

One lock file a home lets one process at a time decide what is new; so no two of them accept the same tick.
Source: architecture ("Laws", "Time and order", "Writing"); HB S6.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from threading import RLock
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from bardo_pipeline.errors import (
    BardoError,
    ForkError,
    LeaseError,
    RegressionError,
    SignatureError,
    StoreError,
    StreamError,
)
from bardo_pipeline.events.custody import (
    KeyRing,
    Signature,
    Tip,
    check_rings,
    content_of,
    in_order,
    link_of,
    slice_contents,
)
from bardo_pipeline.events.digest import digest_column, row_digests
from bardo_pipeline.events.life import LifeEvent
from bardo_pipeline.events.record import DecisionCycleRecord
from bardo_pipeline.events.schema import LIFE_SCHEMA, MOMENT, RECORD_SCHEMA, to_models, to_table
from bardo_pipeline.events.validate import check_columns, check_rows, check_table, row_errors
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta import AppendOnlyTable, scan
from bardo_pipeline.storage.heads import Head, Heads, TickRange, Ticks, by_golem, check_deaths, golem_column
from bardo_pipeline.storage.home import Home, bucket_of
from bardo_pipeline.storage.leases import leased
from bardo_pipeline.storage.protocols import (
    CYCLES_SCHEMA,
    DECIDING,
    LIFE_LOG_SCHEMA,
    LINK_TYPE,
    VECTORS_SCHEMA,
    Admitted,
    Appended,
    Refused,
    check_events,
    check_transaction,
    check_vectors,
    utc,
)
from bardo_pipeline.storage.sums import Sums

_LOCK = "log"
_BESIDE_ROWS = 4_000  # from here on arrays cost more than calls, and a second core helps
_KEYS = ["golem_id", "tick", "content_hash"]


class EventLog:
    """The log on disk. See `Log` in protocols.py for what each method promises."""

    def __init__(self, home: Home, policy: Policy | None = None) -> None:
        self._home, self._policy = home, policy or Policy()
        self._mutex = RLock()
        with home.lock(_LOCK):
            self._cycles = self._table(home.cycles, CYCLES_SCHEMA, ["golem_id", "tick"])
            self._life = self._table(home.life, LIFE_LOG_SCHEMA, ["golem_id", "kind"])
            self._vectors = self._table(home.vectors, VECTORS_SCHEMA, ["embedder", "text_hash"])
        self._event_ids: set[str] = set()
        self._deaths: dict[str, int] = {}
        self._rings: dict[str, KeyRing] = {}
        self._key_events: set[str] = set()
        self._vector_keys: set[tuple[str, str]] = set()
        self._life_seen = self._vectors_seen = -1
        self._heads, self._cycles_seen = self._load_index()

    def _table(self, path: Path, schema: pa.Schema, stats_columns: list[str]) -> AppendOnlyTable:
        return AppendOnlyTable(path, schema, stats_columns, policy=self._policy, sums=Sums(self._home, path))

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
        utc(recorded_at, "recorded_at")
        check_transaction(writer, segment)
        hashes = _checked_hashes(records)
        batch = records.combine_chunks().append_column(CYCLES_SCHEMA.field("content_hash"), hashes)
        with self._writing():
            news, wrong = self._verdicts(batch, frozenset())
            if wrong:
                raise wrong[min(wrong)]
            chained, wrong = self._chained(batch, news, signatures or {})
            if wrong:
                raise wrong[min(wrong)]
            return self._write(chained, len(batch), recorded_at, writer, segment)

    def admit(
        self,
        records: pa.Table,
        *,
        writer: str,
        segment: int,
        recorded_at: datetime,
        payloads: pa.Array | None = None,
        signatures: Mapping[str, Signature] | Sequence[Signature | None] | None = None,
        mine: frozenset[str] = frozenset(),
    ) -> Admitted:
        """Append the rows of a batch that may be appended, and say of each other one why not."""
        utc(recorded_at, "recorded_at")
        check_transaction(writer, segment)
        check_columns(records, DecisionCycleRecord, RECORD_SCHEMA)
        refused: dict[int, BardoError] = dict(row_errors(records, DecisionCycleRecord))
        fit = np.setdiff1d(np.arange(len(records)), np.fromiter(refused, np.int64, len(refused)))
        batch = records.combine_chunks() if not refused else records.take(pa.array(fit))
        batch = batch.append_column(CYCLES_SCHEMA.field("content_hash"), digest_column(row_digests(batch)))
        lines = None if payloads is None else (payloads if not refused else payloads.take(pa.array(fit)))
        each = [signatures[i] for i in fit.tolist()] if isinstance(signatures, Sequence) else None
        with self._writing():
            news, wrong = self._verdicts(batch, mine)
            if lines is not None:
                chained, unsigned = self._chained_lines(batch, news, lines, each or [None] * len(batch))
            else:
                assert not isinstance(signatures, Sequence), "an Arrow batch is signed golem by golem"
                chained, unsigned = self._chained(batch, news, signatures or {})
            wrong |= unsigned
            refused |= {int(fit[row]): error for row, error in wrong.items()}
            appended = self._write(chained, len(batch) - len(wrong), recorded_at, writer, segment)
        return Admitted(appended, tuple(Refused(row, refused[row]) for row in sorted(refused)))

    def _write(self, kept: pa.Table, given: int, recorded_at: datetime, writer: str, segment: int) -> Appended:
        """Commit rows that are news; given: how many were sent and are not wrong."""
        if not len(kept):
            return Appended(self._cycles_seen, 0, given, (), ())
        due = self._cycles.version + 1
        rows = _cycles(kept, self._home.bucket_count, recorded_at, writer, segment, due)
        version = self._cycles.append(rows, transactions={writer: segment})
        if version is None:
            raise StoreError(
                f"writer {writer}: segment {segment} or a later one is on record, but {len(kept)} of these "
                "records are not: number segments upwards and send one again unchanged"
            )
        gaps, late = self._learn_cycles(rows)
        if version == self._cycles_seen + 1:
            self._cycles_seen = version
        return Appended(version, len(kept), given - len(kept), gaps, late)

    def _learn_cycles(self, rows: pa.Table) -> tuple[tuple[TickRange, ...], tuple[TickRange, ...]]:
        golem_ids, link = golem_column(rows), rows.column("link").combine_chunks()
        self._heads.follow(golem_ids, pc.struct_field(link, "number"), pc.struct_field(link, "hash"))
        return self._heads.record(golem_ids, rows.column("tick").to_numpy())

    def _chained(
        self, batch: pa.Table, news: np.ndarray, signatures: Mapping[str, Signature]
    ) -> tuple[pa.Table, dict[int, BardoError]]:
        """The news of a batch that came as Arrow, golem by golem in tick order, one link a golem."""
        ids, ticks = golem_column(batch), batch.column("tick").to_numpy()
        picked: list[np.ndarray] = []
        golems: list[str] = []
        wrong: dict[int, BardoError] = {}
        for golem_id, rows in by_golem(ids, ticks):
            fresh = rows[news[rows]]
            if golem_id in signatures and 0 < len(fresh) < len(rows):
                wrong |= {
                    int(row): SignatureError(
                        f"golem {golem_id}: its signed slice is on record in part: sign and send what is new"
                    )
                    for row in fresh
                }
            elif len(fresh):
                picked.append(fresh)
                golems.append(golem_id)
        order = np.concatenate(picked) if picked else np.zeros(0, np.int64)
        kept = batch if len(order) == len(batch) and bool((np.diff(order) == 1).all()) else batch.take(pa.array(order))
        edges = np.concatenate([[0], np.cumsum([len(rows) for rows in picked])]).astype(np.int64)
        contents = slice_contents(kept.select(RECORD_SCHEMA.names), edges) if golems else []
        links: list[tuple[int, bytes, bytes, str | None, bytes | None]] = []
        stays = np.ones(len(kept), dtype=np.bool_)
        for k, (golem_id, content) in enumerate(zip(golems, contents, strict=True)):
            signature = signatures.get(golem_id)
            try:
                for end in (picked[k][0], picked[k][-1]):
                    self._ring(golem_id).check(int(ticks[end]), content, signature)
            except SignatureError as error:
                wrong |= {int(row): error for row in picked[k]}
                stays[edges[k] : edges[k + 1]] = False
                links.append((0, b"", b"", None, None))
                continue
            tip = self._heads.head(golem_id).tip
            link = link_of(golem_id, tip.number + 1, tip.hash, content)
            links.append((tip.number + 1, tip.hash, link, *(signature or (None, None))))
        which = pa.array(np.repeat(np.arange(len(golems)), np.diff(edges)))
        kept = kept.append_column(CYCLES_SCHEMA.field("link"), _links(links).take(which))
        kept = kept.append_column(CYCLES_SCHEMA.field("payload"), pa.nulls(len(kept), pa.binary()))
        return (kept if stays.all() else kept.filter(pa.array(stays))), wrong

    def _chained_lines(
        self, batch: pa.Table, news: np.ndarray, lines: pa.Array, signatures: Sequence[Signature | None]
    ) -> tuple[pa.Table, dict[int, BardoError]]:
        """The news of a batch that came as JSON, in the order given, one link a record.

        A link names the one before, so this is a loop over rows.
        """
        ids, ticks = golem_column(batch).to_pylist(), batch.column("tick").to_pylist()
        tips: dict[str, Tip] = {}
        links: list[tuple[int, bytes, bytes, str | None, bytes | None]] = []
        kept: list[int] = []
        wrong: dict[int, BardoError] = {}
        for row in np.flatnonzero(news).tolist():
            golem_id, signature = ids[row], signatures[row]
            content = content_of(lines[row].as_py())
            try:
                self._ring(golem_id).check(ticks[row], content, signature)
            except SignatureError as error:
                wrong[row] = error
                continue
            tip = tips.get(golem_id) or self._heads.head(golem_id).tip
            tips[golem_id] = Tip(tip.number + 1, link_of(golem_id, tip.number + 1, tip.hash, content))
            links.append((*tips[golem_id][:1], tip.hash, tips[golem_id].hash, *(signature or (None, None))))
            kept.append(row)
        rows = pa.array(kept, pa.int64())
        chosen = batch if len(kept) == len(batch) else batch.take(rows)
        chosen = chosen.append_column(CYCLES_SCHEMA.field("link"), _links(links))
        return chosen.append_column(CYCLES_SCHEMA.field("payload"), lines.take(rows).cast(pa.binary())), wrong

    def _ring(self, golem_id: str) -> KeyRing:
        return self._rings.get(golem_id) or KeyRing(golem_id)

    def tip(self, golem_id: str) -> Tip:
        """The newest link of a golem's chain."""
        with self._mutex:
            self._refresh()
            head = self._heads.of.get(golem_id)
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
            head = self._heads.of.get(golem_id) or Head()
            return replace(head, missing=list(head.missing), accepted=list(head.accepted))

    def death_of(self, golem_id: str) -> int | None:
        """The tick of a golem's recorded death."""
        with self._mutex:
            self._refresh()
            return self._deaths.get(golem_id)

    def ring_of(self, golem_id: str) -> KeyRing:
        """The golem's signing keys."""
        with self._mutex:
            self._refresh()
            return self._ring(golem_id)

    def _verdicts(self, batch: pa.Table, mine: frozenset[str]) -> tuple[np.ndarray, dict[int, BardoError]]:
        """Which rows are news and may be written, and what is wrong with those that may not."""
        golem_ids, ticks = golem_column(batch), batch.column("tick").to_numpy()
        news, wrong = self._news(golem_ids, ticks, batch.column("content_hash").combine_chunks())
        held = leased(self._home, set(golem_ids.unique().to_pylist()) - mine)
        for golem_id, why in held.items():
            own = np.asarray(pc.equal(golem_ids, golem_id)) & news
            for row in np.flatnonzero(own).tolist():
                wrong.setdefault(row, LeaseError(f"golem {golem_id}: tick {ticks[row]} {why}"))
        news[list(wrong)] = False
        return news, wrong

    def _news(self, golem_ids: pa.Array, ticks: Ticks, hashes: pa.Array) -> tuple[np.ndarray, dict[int, BardoError]]:
        """Which rows are not on record yet, and which of all the rows may not be."""
        wrong: dict[int, BardoError] = {}
        news = np.ones(len(ticks), dtype=np.bool_)
        covered = np.zeros(len(ticks), dtype=np.bool_)
        original = np.arange(len(ticks))
        for golem_id, rows in by_golem(golem_ids, ticks):
            own = ticks[rows]
            again = np.flatnonzero(own[1:] == own[:-1]) + 1
            for at in again:
                original[rows[at]] = original[rows[at - 1]]
            news[rows[again]] = False
            head = self._heads.of.get(golem_id)
            if head is not None:
                covered[rows] = head.covered(own)
            death = self._deaths.get(golem_id)
            if death is not None and own[-1] > death:
                for row in rows[(own > death) & news[rows] & ~covered[rows]].tolist():
                    wrong[row] = RegressionError(golem_id, int(ticks[row]), f"comes after its death at tick {death}")
        wrong |= self._conflicts(golem_ids, ticks, hashes, np.flatnonzero(~news), original)
        wrong |= self._conflicts_on_record(golem_ids, ticks, hashes, np.flatnonzero(covered))
        return news & ~covered, wrong

    @staticmethod
    def _conflicts(
        golem_ids: pa.Array, ticks: Ticks, hashes: pa.Array, repeats: np.ndarray, original: np.ndarray
    ) -> dict[int, StreamError]:
        """Rows that say something else than the first row of the same golem and tick in the batch."""
        if not len(repeats):
            return {}
        same = pc.equal(hashes.take(pa.array(repeats)), hashes.take(pa.array(original[repeats])))
        return {
            int(row): ForkError(
                golem_ids[int(row)].as_py(), int(ticks[row]), "comes twice in the batch, with different content"
            )
            for row in repeats[~np.asarray(same)]
        }

    def _conflicts_on_record(
        self, golem_ids: pa.Array, ticks: Ticks, hashes: pa.Array, rows: np.ndarray
    ) -> dict[int, StreamError]:
        """Rows at or below a head that are not what is on record there."""
        if not len(rows):
            return {}
        wanted = pa.table(
            {"golem_id": golem_ids, "tick": pa.array(ticks), "given": hashes, "row": pa.array(np.arange(len(ticks)))}
        )
        wanted = wanted.take(pa.array(rows))
        matched = wanted.join(self._on_record(wanted), ["golem_id", "tick"], join_type="left outer")
        differs = matched.filter(pc.invert(pc.fill_null(pc.equal(matched["given"], matched["content_hash"]), False)))
        found: dict[int, StreamError] = {}
        for row in differs.select(["golem_id", "tick", "row", "content_hash"]).to_pylist():
            golem_id, tick = row["golem_id"], row["tick"]
            found[row["row"]] = (
                ForkError(golem_id, tick, "is already on record with different content")
                if row["content_hash"] is not None
                else RegressionError(golem_id, tick, "comes after its gap was accepted as lost")
            )
        return found

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
            return self._heads.table()

    def gaps(self) -> tuple[TickRange, ...]:
        """Every run of ticks that is missing and not accepted as lost."""
        with self._mutex:
            self._refresh()
            return self._heads.missing()

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

    # life

    def record(self, events: Sequence[LifeEvent], recorded_at: datetime, mine: frozenset[str] = frozenset()) -> int:
        """Append those events whose id is not on record; returns how many were new."""
        utc(recorded_at, "recorded_at")
        check_events(events)
        given = {event.event_id: event for event in events}
        with self._writing():
            fresh = [event for event_id, event in given.items() if event_id not in self._event_ids]
            if not fresh:
                return 0
            deciding = {event.golem_id for event in fresh if event.kind in DECIDING} - mine
            for golem_id, why in leased(self._home, deciding).items():
                raise LeaseError(f"golem {golem_id} {why}")
            check_rings(fresh, self._rings)
            check_deaths(fresh, lambda golem_id: head.highest if (head := self._heads.of.get(golem_id)) else 0)
            table = to_table(fresh, LIFE_SCHEMA)
            check_table(table, LifeEvent, LIFE_SCHEMA)
            moments = pa.repeat(pa.scalar(recorded_at, MOMENT), len(fresh))
            version = self._life.append(
                table.append_column(LIFE_LOG_SCHEMA.field("recorded_at"), moments), transactions={}
            )
            self._learn_life(table)
            self._learn_keys(fresh)
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
        gaps = events.select(["golem_id", "gap"]).filter(pc.equal(events.column("kind"), "GapAccepted"))
        for row in gaps.to_pylist():
            self._heads.head(row["golem_id"]).accept((row["gap"]["tick_from"], row["gap"]["tick_to"]))
        deaths = events.select(["golem_id", "died"]).filter(pc.equal(events.column("kind"), "DeathDeclared"))
        for row in deaths.to_pylist():
            tick = row["died"]["tick"]
            self._deaths[row["golem_id"]] = min(tick, self._deaths.get(row["golem_id"], tick))

    def _learn_keys(self, events: Sequence[LifeEvent]) -> None:
        for event in in_order(e for e in events if e.event_id not in self._key_events):
            self._rings[event.golem_id] = self._ring(event.golem_id).after(event)
            self._key_events.add(event.event_id)

    # vectors

    def record_vectors(self, vectors: pa.Table) -> int:
        """Append those vectors whose (embedder, text_hash) is not on record; returns how many."""
        check_vectors(vectors)
        with self._writing():
            version, files = self._vectors.tail(self._vectors_seen)
            self._vector_keys.update(_vector_keys(self._vectors.load(files, ["embedder", "text_hash"])))
            self._vectors_seen = version
            fresh: dict[tuple[str, str], int] = {}
            for row, key in enumerate(_vector_keys(vectors)):
                if key not in self._vector_keys:
                    fresh.setdefault(key, row)
            if fresh:
                self._vectors.append(vectors.take(pa.array(list(fresh.values()))), transactions={})
            return len(fresh)

    def vectors(self, embedder: str, hashes: Sequence[str]) -> pa.Table:
        """The vectors that are on record for these texts (columns text_hash, vector), by text_hash."""
        asked = (ds.field("embedder") == embedder) & ds.field("text_hash").isin(pa.array(hashes, pa.string()))
        with self._mutex:
            files = self._vectors.tail()[1]
        return self._vectors.load(files, ["text_hash", "vector"], asked).sort_by("text_hash")

    # the state in memory

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._mutex, self._home.lock(_LOCK):
            self._home.raise_version()
            self._refresh()
            yield

    def _refresh(self) -> None:
        """Learn what was committed since the last look, by whomever."""
        version, files = self._life.tail(self._life_seen)
        if files:
            self._learn_life(self._life.load(files, ["event_id", "kind", "golem_id", "gap", "died"]))
            keys = self._life.load(files, None, ds.field("kind").isin(["KeyRegistered", "KeyRotated", "KeyRevoked"]))
            self._learn_keys(to_models(keys, LifeEvent))
        self._life_seen = version
        version, files = self._cycles.tail(self._cycles_seen)
        if files:
            self._learn_cycles(self._cycles.load(files, ["golem_id", "tick", "link"]))
        self._cycles_seen = version

    def _load_index(self) -> tuple[Heads, int]:
        try:
            with pa.ipc.open_file(self._home.index / "heads.arrow") as file:
                index = file.read_all()
            facts = index.schema.metadata or {}
            version = int(facts[b"version"])
            if facts[b"table_id"].decode() == self._cycles.table_id and version <= self._cycles.version:
                return Heads.from_index(index), version
        except (FileNotFoundError, pa.ArrowInvalid, KeyError, ValueError):
            pass  # it only saves time: whatever is wrong with it, the log says the same
        return Heads(), -1

    def close(self) -> None:
        """Leave the heads for the next one to open the log."""
        with self._mutex:
            facts = {"version": str(self._cycles_seen), "table_id": self._cycles.table_id}
            index = self._heads.to_index().replace_schema_metadata(facts)
            self._home.index.mkdir(parents=True, exist_ok=True)
            draft = self._home.index / f".heads.{os.getpid()}.{id(self)}"
            with pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, index.schema) as out:
                out.write_table(index)
            draft.replace(self._home.index / "heads.arrow")

    def __enter__(self) -> Self:
        """The log itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close it."""
        self.close()


def _checked_hashes(records: pa.Table) -> pa.Array:
    """The digest of each record's content; raises as `check_table` does for a record that does not fit."""
    check_columns(records, DecisionCycleRecord, RECORD_SCHEMA)
    if len(records) < _BESIDE_ROWS:
        check_rows(records, DecisionCycleRecord)
        return digest_column(row_digests(records))
    with ThreadPoolExecutor(1) as beside:
        digests = beside.submit(row_digests, records)
        check_rows(records, DecisionCycleRecord)
        return digest_column(digests.result())


def _vector_keys(vectors: pa.Table) -> Iterator[tuple[str, str]]:
    return zip(vectors.column("embedder").to_pylist(), vectors.column("text_hash").to_pylist(), strict=True)


def _links(links: Sequence[tuple[int, bytes, bytes, str | None, bytes | None]]) -> pa.Array:
    """Links (number, previous, hash, key id, signature) as a column."""
    parts = zip(*links, strict=True) if links else ((), (), (), (), ())
    fields = list(LINK_TYPE)
    return pa.StructArray.from_arrays([pa.array(p, f.type) for p, f in zip(parts, fields, strict=True)], fields=fields)


def _cycles(
    batch: pa.Table, bucket_count: int, recorded_at: datetime, writer: str, segment: int, version: int
) -> pa.Table:
    """Records with their hashes and links, as rows of the log."""
    golems = golem_column(batch).dictionary_encode()
    buckets = pa.array([bucket_of(golem_id, bucket_count) for golem_id in golems.dictionary.to_pylist()], pa.int32())
    added = {
        "bucket": buckets.take(golems.indices),
        "recorded_at": pa.repeat(pa.scalar(recorded_at, MOMENT), len(batch)),
        "writer": pa.repeat(pa.scalar(writer, pa.string()), len(batch)),
        "segment": pa.repeat(pa.scalar(segment, pa.int64()), len(batch)),
        "version": pa.repeat(pa.scalar(version, pa.int64()), len(batch)),
    }
    columns = [added[name] if name in added else batch.column(name) for name in CYCLES_SCHEMA.names]
    return pa.Table.from_arrays(columns, schema=CYCLES_SCHEMA)
