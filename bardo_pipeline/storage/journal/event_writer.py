"""EventWriter: appends single records of a golem and acknowledges each when it is durable.

A writer leases its golem, so no other process can append a conflicting record. It checks each record against head,
chain and keys before writing it, so the log will accept it. Private parts are sealed before the hash.
Source: architecture ("Writing"); EV-3, X-7.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow.compute as pc
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from bardo_pipeline.clock import utc_now
from bardo_pipeline.errors import (
    CustodyError,
    ForkError,
    IdentityError,
    JournalError,
    RecordError,
    RegressionError,
    SchemaVersionError,
    SealError,
    SignatureError,
)
from bardo_pipeline.events.custody.authority import NO_GOLEM, ahead_of_clock
from bardo_pipeline.events.custody.hash_chain import KeyRing, Signature, Tip, content_of, link_of
from bardo_pipeline.events.custody.sealing import SealKey, has_private_parts, seal_record, unsealed
from bardo_pipeline.events.life.events import EVERY_GOLEM, LifeEvent
from bardo_pipeline.events.record.model import SCHEMA_VERSION, DecisionCycleRecord
from bardo_pipeline.events.record.row_digest import digest_column, row_digests
from bardo_pipeline.events.record_json import Glance, parse_record
from bardo_pipeline.policy import Policy
from bardo_pipeline.signing import Signer
from bardo_pipeline.storage.home import Home, writing_to
from bardo_pipeline.storage.intake.json_reader import read_lines, sentence_of
from bardo_pipeline.storage.intake.line_buffer import Lines
from bardo_pipeline.storage.journal.drainer import DrainReport
from bardo_pipeline.storage.journal.frames import HEAD_BYTES, Draft
from bardo_pipeline.storage.journal.group_commit import Outcome
from bardo_pipeline.storage.journal.journal import Journal
from bardo_pipeline.storage.journal.segment_files import LOG
from bardo_pipeline.storage.journal.writer_session import DrainMode, WriterSession
from bardo_pipeline.storage.keys.golem_seal_keys import SealKeys
from bardo_pipeline.storage.leases import Lease
from bardo_pipeline.storage.log.stream_heads import Head, TickRange, past_death

_validate = DecisionCycleRecord.__pydantic_validator__.validate_json
_to_json = DecisionCycleRecord.__pydantic_serializer__.to_json
_REMEMBERED = 4_096


class Ack(NamedTuple):
    """Acknowledgement of a durable record.

    Parameters
    ----------
    link : its link in the golem's chain; None for a record from before chains existed
    repeated : the record was already there
    gaps : ticks that are missing since this record
    late : the record fills a missing tick
    """

    golem_id: str
    tick: int
    link: Tip | None
    repeated: bool = False
    gaps: tuple[TickRange, ...] = ()
    late: bool = False


class EventWriter:
    """The writer of one golem, made by `EventWriter.open`. Thread-safe."""

    def __init__(self, session: WriterSession, lease: Lease, signer: Signer | None) -> None:
        self.golem_id = lease.golem_id
        self._session, self._lease, self._signer = session, lease, signer
        self._public_key = signer.key.public_key().public_bytes_raw().hex() if signer is not None else None
        self._journal, self._clock = session.journal, session.clock
        self._mended = session.journal.mended
        self._clock_ahead = timedelta(seconds=session.journal.policy.clock_ahead_seconds_max)
        self._mutex = threading.Lock()
        self._encoded = self.golem_id.encode()
        self._head, self._tip, self._accepted_to = Head(), Tip(), 0
        self._death: int | None = None
        self._cause: str | None = None
        self._ring = KeyRing(self.golem_id)
        self._seal_key: SealKey | SealError | None = None
        self._recent: dict[int, tuple[bytes, int, bytes]] = {}
        self._earlier: dict[int, tuple[bytes, int, bytes]] = {}
        self._closed = False
        self.recovered: DrainReport | None = None

    @classmethod
    def open(
        cls,
        home: Home | Path,
        golem_id: str,
        *,
        clock: Callable[[], datetime] = utc_now,
        policy: Policy | None = None,
        writer: str | None = None,
        signer: Signer | None = None,
        drain: DrainMode = "process",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> Self:
        """Lease the golem and read its head, after draining the records of a dead writer.

        The first writer of a journal decides policy, drain and clocks. `recovered` reports records of a dead writer.

        Parameters
        ----------
        clock : current UTC time, for acceptance and recording
        writer : name of the journal, shared by the writers of this process with that name; default: the process id
        drain : "process", "thread" or "none": what commits records to the log; with "none", another process or `close`
        policy : default: the recorded configuration of the home

        Raises
        ------
        IdentityError : `*` is no golem's id
        LeaseError : another writer holds the golem or the name
        StoreError : the disk refuses a write
        """
        if golem_id == EVERY_GOLEM:
            raise IdentityError(NO_GOLEM)
        opened_home = Home.open(home) if isinstance(home, Path) else home
        with writing_to(opened_home.root):
            name = writer or f"process-{os.getpid()}"
            session = WriterSession.join(opened_home, name, policy, drain, clock, monotonic)
            try:
                return cls._leased(opened_home, golem_id, session, signer)
            except BaseException:
                session.leave()
                raise

    @classmethod
    def _leased(cls, home: Home, golem_id: str, session: WriterSession, signer: Signer | None) -> Self:
        with home.lock(LOG):  # wait for a process that appends a batch of this golem
            lease = Lease(home, golem_id, session.journal.writer)
        try:
            self = cls(session, lease, signer)
            self.recovered, session.recovered = session.recovered, None
            if lease.inherited is not None:
                self.recovered = session.recover(lease.inherited)
            self._refresh()
        except BaseException:
            lease.abandon(lease.inherited) if lease.inherited is not None else lease.release()
            raise
        return self

    def append(self, record: DecisionCycleRecord | bytes, *, wait: bool = True, timeout: float | None = None) -> Ack:
        """Append a record; return when it is durable.

        Parameters
        ----------
        record : the model, or the sender's JSON without newlines
        wait, timeout : whether and how long (seconds) to wait while the journal is full

        Raises
        ------
        BackpressureError : the journal is still full
        RecordError, SchemaVersionError : the record is invalid
        ClockError : the record was observed ahead of the clock
        IdentityError : the record is of another golem
        ForkError, RegressionError, SignatureError : the log would refuse the record
        JournalError : the record could not be made durable
        """
        line, tick = self.checked(record)
        self.make_room(line, wait=wait, timeout=timeout)
        durable = Outcome()
        with self._mutex:
            ack, draft = self._accept(line, tick)
            self._journal.enqueue(draft, durable)
        durable.wait()
        return ack

    def submit(
        self,
        line: bytes,
        tick: int,
        durable: asyncio.Future[None],
        *,
        signature: Signature | None = None,
        wait: bool = True,
    ) -> Ack | None:
        """Accept a checked record and queue it; `durable` is resolved when it is durable.

        Without `wait`, returns None where that would read the log or wait for another thread.

        Parameters
        ----------
        signature : the sender's detached signature of the line; it takes the place of the signer
        """
        if not self._mutex.acquire(wait):
            return None
        try:
            if not wait and tick <= self._head.highest:
                return None
            ack, draft = self._accept(line, tick, signature)
            self._journal.enqueue(draft, durable)
        finally:
            self._mutex.release()
        return ack

    def record(self, *events: LifeEvent) -> int:
        """Record life events of this golem after all appended records; return the number of new ones.

        Raises the errors of `EventLog.record` by the door `writer`, and IdentityError for an event of another golem.
        """
        for event in events:
            if event.golem_id != self.golem_id:
                raise IdentityError(f"golem {event.golem_id}: this is the writer of golem {self.golem_id}")
        self._check_process()
        with self._mutex:
            self._check_open()
            self._drain()
            try:
                leased_golems = frozenset((self.golem_id,))
                return self._session.log.record(events, self._clock(), leased_golems, door="writer")
            finally:
                self._refresh()

    def close(self) -> None:
        """Drain the appended records and release the golem.

        Raises JournalError if a record cannot be committed; the lease then stays until `bardo drain`.
        """
        if self._session.is_forked:
            return  # the parent process still uses it
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            try:
                with writing_to(self._journal.folder):
                    self._session.mend()
                    self._drain()
            except BaseException:
                self._lease.abandon()
                raise
            else:
                self._lease.release()
            finally:
                self._session.leave()

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the writer."""
        self.close()

    @property
    def journal(self) -> Journal:
        """The journal of this writer."""
        return self._journal

    @property
    def next_tick(self) -> int:
        """The tick after the newest accepted one."""
        return max(self._head.highest, self._accepted_to) + 1

    # admission

    def checked(
        self, record: DecisionCycleRecord | bytes, seen: Glance | None = None, *, is_signed: bool = False
    ) -> tuple[bytes, int]:
        """Return the line and tick of a valid record of this golem, with private parts sealed.

        Parameters
        ----------
        seen : what `glance` returned for this line, if it was validated before
        is_signed : the sender signed these bytes, so private parts must be sealed already
        """
        self._check_process()
        try:
            line = record if isinstance(record, bytes) else self._json(record)
            if len(line) > self._journal.policy.record_bytes_max:
                raise RecordError(
                    f"golem {self.golem_id}: a record of {len(line):,} bytes is longer than record_bytes_max"
                )
            if b"\n" in line or b"\r" in line:
                raise RecordError(f"golem {self.golem_id}: a record is one line: send it without newlines")
            found: Any = seen or parse_record(line)
        except ValidationError as error:
            raise _invalid_record(self.golem_id, error) from None
        if found.golem_id != self.golem_id:
            raise IdentityError(f"golem {found.golem_id}: this is the writer of golem {self.golem_id}")
        if found.observed_at - self._clock() > self._clock_ahead:
            subject = f"golem {self.golem_id}: tick {found.tick}"
            raise ahead_of_clock(subject, found.observed_at, self._clock_ahead)
        if self._seal_key is not None and (has_private_parts(found) if seen is None else seen.is_private):
            if is_signed:
                raise unsealed(self.golem_id, found.tick)
            if isinstance(self._seal_key, SealError):
                raise SealError(*self._seal_key.args)
            line = _to_json(seal_record(_validate(line, strict=True), self._seal_key))
        return line, found.tick

    def _json(self, record: DecisionCycleRecord) -> bytes:
        if not isinstance(record, DecisionCycleRecord):
            raise RecordError(
                f"golem {self.golem_id}: {type(record).__name__} is not a record: pass the model or its JSON"
            )
        try:
            return _to_json(record)
        except PydanticSerializationError as error:
            raise RecordError(f"golem {self.golem_id}: this model cannot be written as JSON: {error}") from error

    def make_room(self, line: bytes, *, wait: bool, timeout: float | None = None) -> None:
        """Wait until the journal has room for this line. Raises BackpressureError after the timeout."""
        size = len(line) + HEAD_BYTES
        if self._journal.undrained_bytes + size > self._journal.policy.journal_bytes_max:
            self._journal.make_room(size, wait=wait, timeout=timeout)
        elif wait and (pause := self._journal.pause_seconds(timeout)):
            time.sleep(pause)

    def has_room(self, line: bytes) -> bool:
        """Whether the journal had room for this line at the last look."""
        return self._journal.undrained_bytes + len(line) + HEAD_BYTES <= self._journal.policy.journal_bytes_max

    def _accept(self, line: bytes, tick: int, given: Signature | None = None) -> tuple[Ack, Draft | None]:
        """Check the record against head, death and keys; a repetition has no frame."""
        self._check_open()
        content = content_of(line)
        head = self._head
        gaps: tuple[TickRange, ...] = ()
        late = False
        if tick == head.highest + 1 and tick > self._accepted_to:
            if self._death is not None and tick > self._death:
                raise past_death(self.golem_id, tick, self._death, self._cause)
            signature = self._signed(tick, content, given)
            head.highest = tick
        else:
            ticks = np.array([tick])
            if head.covered(ticks)[0]:
                return self._repeated(line, tick, content), None
            if self._death is not None and tick > self._death:
                raise past_death(self.golem_id, tick, self._death, self._cause)
            signature = self._signed(tick, content, given)
            opened, filled = head.record(ticks)
            gaps, late = tuple(TickRange(self.golem_id, *span) for span in opened), bool(filled)
        number, previous = self._tip
        self._tip = tip = Tip(number + 1, link_of(self.golem_id, number + 1, previous, content))
        draft = Draft(self._encoded, tick, tip.number, previous, tip.hash, signature, line)
        if len(self._recent) == _REMEMBERED:
            self._earlier, self._recent = self._recent, {}
        self._recent[tick] = content, tip.number, tip.hash  # a plain tuple, which the garbage collector stops tracking
        return Ack(self.golem_id, tick, tip, False, gaps, late), draft

    def _check_process(self) -> None:
        if self._session.is_forked:
            raise JournalError(f"golem {self.golem_id}: its writer belongs to the process that opened it: open another")

    def _check_open(self) -> None:
        if self._closed:
            raise JournalError(f"golem {self.golem_id}: its writer is closed: open another")
        if self._journal.broken is not None:
            raise JournalError(*self._journal.broken.args)
        if self._journal.mended != self._mended:
            raise JournalError(f"golem {self.golem_id}: the journal failed since: close this writer and open another")

    def _signed(self, tick: int, content: bytes, given: Signature | None) -> Signature | None:
        """Return the signature of this tick. Raises SignatureError for a given one or a signer of another key."""
        if given is not None:
            self._ring.check(tick, content, given)
            return given
        if not self._ring.keys or (key := self._ring.key_at(tick)) is None:
            return None
        signer = self._signer
        subject = f"golem {self.golem_id}: tick {tick}"
        if signer is None:
            raise SignatureError(
                f"{subject} is not signed, though key {key.key_id} is registered: "
                "give a `signer` to the writer or client, or --key to `bardo report`"
            )
        if signer.key_id != key.key_id or self._public_key != key.public_key:
            raise SignatureError(f"{subject} asks for key {key.key_id}, not {signer.key_id}: sign with it")
        if key.revoked_from is not None and tick >= key.revoked_from:
            raise SignatureError(
                f"{subject} is signed with {key.key_id}, which was revoked from tick {key.revoked_from}"
            )
        return Signature(signer.key_id, signer.sign(self.golem_id, content))

    def _repeated(self, line: bytes, tick: int, content: bytes) -> Ack:
        """Return the acknowledgement of a repeated tick. Raises if its content differs or its gap was accepted."""
        recent = self._recent.get(tick) or self._earlier.get(tick)
        if recent is not None and recent[0] == content:
            return Ack(self.golem_id, tick, Tip(*recent[1:]), True)
        self._drain()
        rows = self._session.log.read_cycles(["tick", "content_hash", "link"], golems=[self.golem_id])
        rows = rows.filter(pc.equal(rows["tick"], tick))
        if not len(rows):
            raise RegressionError(self.golem_id, tick, "comes after its gap was accepted as lost")
        digest = digest_column(row_digests(read_lines(Lines.of([line])).records))[0].as_py()
        if rows["content_hash"][0].as_py() != digest:
            raise ForkError(self.golem_id, tick, "is already on record with different content")
        link = rows["link"][0].as_py()
        return Ack(self.golem_id, tick, Tip(link["number"], link["hash"]) if link else None, True)

    # synchronisation with the log

    def _drain(self) -> None:
        """Commit all accepted records to the log."""
        self._session.drain()
        tip = self._session.log.tip(self.golem_id)
        if tip != self._tip and self._journal.mended == self._mended:
            raise CustodyError(
                f"golem {self.golem_id}: link {self._tip.number} was acknowledged, but the log has {tip.number} or "
                "another hash: `bardo quarantine list` and `bardo verify` show why"
            )

    def _refresh(self) -> None:
        log = self._session.log
        self._head = log.head_of(self.golem_id)
        self._tip = self._head.tip
        self._death, self._cause = log.death_of(self.golem_id), log.cause_of_death(self.golem_id)
        self._ring = log.ring_of(self.golem_id)
        self._accepted_to = max((last for _, last in self._head.accepted), default=0)
        self._seal_key = None
        if self.golem_id in log.sealing():
            try:
                self._seal_key = SealKeys(log.home).in_force(log, self.golem_id)
            except SealError as error:
                self._seal_key = error  # raised by the first record with private parts


def _invalid_record(golem_id: str, error: ValidationError) -> RecordError | SchemaVersionError:
    """Convert an error of pydantic."""
    newer = [e for e in error.errors(include_url=False) if e["loc"] == ("schema_version",)]
    if newer and newer[0]["type"] == "less_than_equal":
        fact = f"schema version {newer[0]['input']} is newer than {SCHEMA_VERSION}"
        return SchemaVersionError(f"golem {golem_id}: {fact}: upgrade bardo-pipeline to write it")
    return RecordError(f"golem {golem_id}: {sentence_of(error)}")
