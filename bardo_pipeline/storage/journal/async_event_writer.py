"""AsyncEventWriter: the writer of one golem for the coroutines of an event loop.

Source: architecture ("Writing"); EV-3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Self, cast

from bardo_pipeline.clock import utc_now
from bardo_pipeline.errors import BackpressureError, BardoError
from bardo_pipeline.events.custody.hash_chain import Signature
from bardo_pipeline.events.life.events import LifeEvent
from bardo_pipeline.events.record.model import DecisionCycleRecord
from bardo_pipeline.events.record_json import Glance
from bardo_pipeline.policy import Policy
from bardo_pipeline.signing import Signer
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal.drainer import DrainReport
from bardo_pipeline.storage.journal.event_writer import Ack, EventWriter
from bardo_pipeline.storage.journal.journal import ROOM_SECONDS
from bardo_pipeline.storage.journal.writer_session import DrainMode


class AsyncEventWriter:
    """An EventWriter for coroutines: the same journal and guarantees, without a thread for each caller."""

    def __init__(self, writer: EventWriter) -> None:
        self._writer = writer
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(
        cls,
        home: Home | Path,
        golem_id: str,
        *,
        clock: Callable[[], datetime] = utc_now,
        policy: Policy | None = None,
        writer: str | None = None,
        signer: Signer | None = None,
        drain: DrainMode = "process",
    ) -> Self:
        """See `EventWriter.open`."""
        open_writer = partial(EventWriter.open, clock=clock, policy=policy, writer=writer, signer=signer, drain=drain)
        return cls(await asyncio.to_thread(open_writer, home, golem_id))

    @property
    def recovered(self) -> DrainReport | None:
        """The report on records that a dead writer had left; None where it left nothing."""
        return self._writer.recovered

    @property
    def next_tick(self) -> int:
        """See `EventWriter.next_tick`."""
        return self._writer.next_tick

    async def append(
        self, record: DecisionCycleRecord | bytes, *, wait: bool = True, timeout: float | None = None
    ) -> Ack:
        """See `EventWriter.append`."""
        line, tick = self._writer.checked(record)
        await self._make_room(line, wait, timeout)
        durable: asyncio.Future[None] = self._loop.create_future()
        ack = self._writer.submit(line, tick, durable, wait=False)
        if ack is None:
            ack = cast("Ack", await asyncio.to_thread(self._writer.submit, line, tick, durable))
        await durable
        return ack

    async def append_all(
        self, records: Sequence[tuple[bytes, Glance, Signature | None]]
    ) -> tuple[list[Ack], BardoError | None]:
        """Append records in order until one is refused; return when the acknowledged ones are durable.

        The records share group commits, so a batch takes about as long as one record.

        Parameters
        ----------
        records : lines that `glance` validated, with what it returned, and the sender's signature

        Returns
        -------
        acks : acknowledgements of the records before it
        refusal : error of the first record that was refused or not made durable; None if all are durable
        """
        acks: list[Ack] = []
        waiting: list[asyncio.Future[None]] = []
        refusal: BardoError | None = None
        for record, seen, signature in records:
            durable: asyncio.Future[None] = self._loop.create_future()
            try:
                line, tick = self._writer.checked(record, seen, is_signed=signature is not None)
                await self._make_room(line, wait=True, timeout=None)
                submit = partial(self._writer.submit, line, tick, durable, signature=signature)
                ack = submit(wait=False)
                if ack is None:
                    ack = cast("Ack", await asyncio.to_thread(submit))
            except BardoError as error:
                refusal = error
                break
            acks.append(ack)
            waiting.append(durable)
        for place, outcome in enumerate(await asyncio.gather(*waiting, return_exceptions=True)):
            if isinstance(outcome, BardoError):
                return acks[:place], outcome
            if outcome is not None:
                raise outcome
        return acks, refusal

    async def _make_room(self, line: bytes, wait: bool, timeout: float | None) -> None:
        """See `EventWriter.make_room`."""
        deadline = None if timeout is None else self._loop.time() + timeout
        if wait and (pause := self._writer.journal.pause_seconds(timeout)):
            await asyncio.sleep(pause)
        while not self._writer.has_room(line):
            try:
                await asyncio.to_thread(self._writer.make_room, line, wait=False)  # in a thread: it may seal a segment
                break
            except BackpressureError:
                if not wait or (deadline is not None and self._loop.time() >= deadline):
                    raise
                await asyncio.sleep(ROOM_SECONDS)

    async def record(self, *events: LifeEvent) -> int:
        """See `EventWriter.record`."""
        return await asyncio.to_thread(self._writer.record, *events)

    async def close(self) -> None:
        """See `EventWriter.close`."""
        await asyncio.to_thread(self._writer.close)

    async def __aenter__(self) -> Self:
        """Return the writer."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the writer."""
        await self.close()
