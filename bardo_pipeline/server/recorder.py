"""Recorder: appends the records that arrive at the server, through one EventWriter per golem.

A writer holds the lease of its golem. An unused writer is closed after some seconds, so that other processes can
write the golem again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime

import orjson
from pydantic import ValidationError

from bardo_pipeline.errors import BardoError, JournalError, RecordError, SignatureError
from bardo_pipeline.events.custody.hash_chain import Signature
from bardo_pipeline.events.experience.reported_experience import fault_of, record_of
from bardo_pipeline.events.record.repeated_keys import check_keys, repeated_key
from bardo_pipeline.events.record_json import Glance, glance
from bardo_pipeline.server.parameters import ReportParameters
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.accept_or_refuse import life_event_of
from bardo_pipeline.storage.intake.json_reader import sentence_of
from bardo_pipeline.storage.intake.spool_signatures import signature_of
from bardo_pipeline.storage.journal.async_event_writer import AsyncEventWriter
from bardo_pipeline.storage.journal.event_writer import Ack
from bardo_pipeline.storage.journal.writer_session import DrainMode

SentRecord = tuple[bytes, Glance, Signature | None]
"""A record's line, what `glance` returned for it, and the sender's signature."""


class Recorder:
    """The writers of a server.

    Parameters
    ----------
    writer : name of the journal
    idle_seconds : time after which an unused writer is closed
    drain : process or thread that commits acknowledged records to the log
    """

    def __init__(
        self, home: Home, *, clock: Callable[[], datetime], writer: str, idle_seconds: float, drain: DrainMode
    ) -> None:
        self._home, self._clock, self._writer, self._drain = home, clock, writer, drain
        self._idle_seconds = idle_seconds
        self._open: dict[str, AsyncEventWriter] = {}
        self._used_at: dict[str, float] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._reporting: dict[str, asyncio.Lock] = {}
        self._busy: Counter[str] = Counter()

    def acknowledged(self) -> dict[str, int]:
        """Return the newest acknowledged tick of each golem that has a writer here."""
        return {golem_id: writer.next_tick - 1 for golem_id, writer in list(self._open.items())}

    async def append(self, golem_id: str, lines: Sequence[SentRecord]) -> tuple[list[Ack], BardoError | None]:
        """Append checked records of a golem in order; return the acknowledgements, and the error of the first refusal.

        Acknowledged records are durable. The error is a LeaseError if another process writes the golem.
        """
        async with self._locks.setdefault(golem_id, asyncio.Lock()):
            try:
                writer = await self._writer_of(golem_id)
            except BardoError as error:
                return [], error
            self._busy[golem_id] += 1
        try:
            acks, refusal = await writer.append_all(lines)
        except BardoError as error:  # a group commit failed, so none of these records is acknowledged
            acks, refusal = [], error
        finally:
            self._busy[golem_id] -= 1
            self._used_at[golem_id] = asyncio.get_running_loop().time()
        if isinstance(refusal, JournalError):
            await self._close(golem_id)
        return acks, refusal

    async def report(self, golem_id: str, reports: Sequence[ReportParameters]) -> tuple[list[Ack], BardoError | None]:
        """Append a record for each report; a report without a tick gets the golem's next one. See `append`."""
        lock = self._reporting.setdefault(golem_id, asyncio.Lock())
        async with lock:
            async with self._locks.setdefault(golem_id, asyncio.Lock()):
                tick = (await self._writer_of(golem_id)).next_tick
            lines = await asyncio.to_thread(_record_lines, golem_id, tick, self._clock(), reports)
            return await self.append(golem_id, lines)

    async def draft(self, golem_id: str, reports: Sequence[ReportParameters]) -> list[str]:
        """Return the record that `report` would append for each report, as a line that its golem can sign."""
        async with self._locks.setdefault(golem_id, asyncio.Lock()):
            tick = (await self._writer_of(golem_id)).next_tick
        lines = await asyncio.to_thread(_record_lines, golem_id, tick, self._clock(), reports)
        return [line.decode() for line, _, _ in lines]

    async def release(self, golem_ids: Iterable[str]) -> None:
        """Drain and close the writers of these golems, so that their life events follow their records."""
        for golem_id in golem_ids:
            await self._close(golem_id)

    async def _writer_of(self, golem_id: str) -> AsyncEventWriter:
        if golem_id not in self._open:
            self._open[golem_id] = await AsyncEventWriter.open(
                self._home, golem_id, clock=self._clock, writer=self._writer, drain=self._drain
            )
        self._used_at[golem_id] = asyncio.get_running_loop().time()
        return self._open[golem_id]

    async def close_idle(self) -> None:
        """Close unused writers, at intervals, until cancelled."""
        while True:
            await asyncio.sleep(self._idle_seconds / 2)
            for golem_id in list(self._open):
                await self._close(golem_id, if_idle=True)

    def _is_idle(self, golem_id: str) -> bool:
        unused = asyncio.get_running_loop().time() - self._used_at.get(golem_id, 0.0)
        return not self._busy[golem_id] and unused >= self._idle_seconds

    async def _close(self, golem_id: str, *, if_idle: bool = False) -> None:
        async with self._locks.setdefault(golem_id, asyncio.Lock()):
            if if_idle and not self._is_idle(golem_id):
                return
            writer = self._open.pop(golem_id, None)
            self._used_at.pop(golem_id, None)
            if writer is not None:
                with suppress(BardoError):  # a failed drain leaves the lease; `bardo status` shows it
                    await writer.close()

    async def close(self) -> None:
        """Close all writers."""
        for golem_id in list(self._open):
            await self._close(golem_id)


def _sent_lines(body: bytes, *, is_lines: bool) -> list[tuple[bytes, Signature | SignatureError | None]]:
    """Return the lines of a body, each with its signature, or with the error of an unreadable one.

    A signed line is an object of two texts: `line`, and `signature` as `KEY_ID BASE64`.
    """
    lines = body.split(b"\n") if is_lines else [b" ".join(body.splitlines())]  # no text in JSON has a line break
    return [_sent_line(line.strip()) for line in lines if line.strip()]


def _sent_line(text: bytes) -> tuple[bytes, Signature | SignatureError | None]:
    if b'"signature"' not in text:  # an unsigned line needs no parse here
        return text, None
    try:
        sent = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text, None  # the later check of the line refuses it with its error
    if not isinstance(sent, dict) or sent.keys() != {"line", "signature"}:
        return text, None
    if repeated_key(text) or not isinstance(sent["line"], str) or not isinstance(sent["signature"], str):
        return text, SignatureError("a signed line has one `line` and one `signature`: send both as JSON strings")
    try:
        return sent["line"].encode(), signature_of(sent["signature"].encode())
    except SignatureError as error:
        return sent["line"].encode(), error


def lines_by_golem(body: bytes, *, is_lines: bool) -> dict[str, list[SentRecord]]:
    """Check a body of one record, or of one record a line, and group its records by golem in their order.

    Raises RecordError or SignatureError, which names the line, for an empty body and for the first invalid record.
    """
    grouped: dict[str, list[SentRecord]] = {}
    for number, (text, signature) in enumerate(_sent_lines(body, is_lines=is_lines), 1):
        if isinstance(signature, SignatureError):
            raise SignatureError(f"record {number}: {signature}")
        try:
            seen = glance(text)
        except BardoError as error:
            raise RecordError(f"record {number}: {error}") from None
        except ValidationError as error:
            raise RecordError(f"record {number}: {sentence_of(error)}: `bardo schema` prints the schema") from None
        grouped.setdefault(seen.golem_id, []).append((text, seen, signature))
    if not grouped:
        raise RecordError("the body has no record: send one as JSON, or one a line as application/x-ndjson")
    return grouped


def events_in(body: bytes, *, is_lines: bool) -> tuple[list[bytes], list[Signature | SignatureError | None], list[str]]:
    """Return lines, signatures and golems of a body that holds one life event, or one event a line.

    Raises RecordError for an empty body and for an invalid event.
    """
    sent = _sent_lines(body, is_lines=is_lines)
    if not sent:
        raise RecordError("the body has no life event: send one as JSON, or one a line as application/x-ndjson")
    lines, signatures = [line for line, _ in sent], [signature for _, signature in sent]
    return lines, signatures, sorted({life_event_of(line).golem_id for line in lines})


def reports_in(body: bytes, *, is_lines: bool) -> list[ReportParameters]:
    """Check a body of one report, or of one report a line. Raises RecordError, which names the line."""
    lines = [line for line in body.split(b"\n") if line.strip()] if is_lines else [body]
    reports = []
    for number, line in enumerate(lines, 1):
        try:
            reports.append(ReportParameters.model_validate_json(line))
            check_keys(line)
        except (ValidationError, RecordError) as error:
            fault = fault_of(error) if isinstance(error, ValidationError) else error
            raise RecordError(f"report {number}: {fault}") from None
    if not reports:
        raise RecordError("the body has no report: send one as JSON, or one a line as application/x-ndjson")
    return reports


def _record_lines(golem_id: str, tick: int, now: datetime, reports: Sequence[ReportParameters]) -> list[SentRecord]:
    """Build the record of each report. tick: of the first report without one."""
    lines: list[SentRecord] = []
    for given in reports:
        at = given.observed_at or now
        record = record_of(golem_id, given.tick or tick, at, [given], domain=given.domain)
        line = record.model_dump_json().encode()
        lines.append((line, glance(line), None))
        tick = max(tick, record.tick + 1)
    return lines
