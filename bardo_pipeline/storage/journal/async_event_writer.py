"""AsyncEventWriter: the writer of one golem for the coroutines of an event loop.

Source: architecture ("Writing"); EV-3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Self, cast

from bardo_pipeline.clock import utc_now
from bardo_pipeline.errors import BackpressureError, JournalError
from bardo_pipeline.events.life.events import LifeEvent
from bardo_pipeline.events.record.model import DecisionCycleRecord
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal.drainer import DrainReport
from bardo_pipeline.storage.journal.event_writer import Ack, EventWriter, Signer
from bardo_pipeline.storage.journal.io_uring_sync import Ring
from bardo_pipeline.storage.journal.journal import ROOM_SECONDS
from bardo_pipeline.storage.journal.writer_session import Drain


class AsyncEventWriter:
    """An EventWriter for the coroutines of one event loop: same journal, same promises, and no thread a caller."""

    def __init__(self, writer: EventWriter) -> None:
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._ring, self._left = Ring.enter(writer.journal), False

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
        drain: Drain = "process",
    ) -> Self:
        """See `EventWriter.open`."""
        opened = partial(EventWriter.open, clock=clock, policy=policy, writer=writer, signer=signer, drain=drain)
        return cls(await asyncio.to_thread(opened, home, golem_id))

    @property
    def recovered(self) -> DrainReport | None:
        """What a dead writer had left."""
        return self._writer.recovered

    async def append(
        self, record: DecisionCycleRecord | bytes, *, wait: bool = True, timeout: float | None = None
    ) -> Ack:
        """See `EventWriter.append`."""
        line, tick = self._writer.checked(record)
        if not self._writer.is_easy(line):
            await self._make_room(line, wait, timeout)
        ticket = self._ring.ticket()
        ack = self._writer.submit(line, tick, ticket, wait=False)
        if ack is None:
            ack = cast("Ack", await asyncio.to_thread(self._writer.submit, line, tick, ticket))
        await ticket.future
        if ticket.error is not None:
            raise JournalError(*ticket.error.args)
        return ack

    async def _make_room(self, line: bytes, wait: bool, timeout: float | None) -> None:
        """See `EventWriter.make_room`."""
        until = None if timeout is None else self._loop.time() + timeout
        if wait and (pause := self._writer.pause_seconds(timeout)):
            await asyncio.sleep(pause)
        while not self._writer.has_room(line):
            try:
                await asyncio.to_thread(self._writer.make_room, line, wait=False)  # it may have to sync
                break
            except BackpressureError:
                if not wait or (until is not None and self._loop.time() >= until):
                    raise
                await asyncio.sleep(ROOM_SECONDS)

    async def record(self, *events: LifeEvent) -> int:
        """See `EventWriter.record`."""
        return await asyncio.to_thread(self._writer.record, *events)

    async def close(self) -> None:
        """See `EventWriter.close`."""
        try:
            await asyncio.to_thread(self._writer.close)
        finally:
            if not self._left:
                self._left = True
                self._ring.leave()

    async def __aenter__(self) -> Self:
        """The writer itself."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close it."""
        await self.close()
