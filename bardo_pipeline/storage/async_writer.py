"""AsyncEventWriter: the writer of one golem for the coroutines of an event loop.

Source: architecture ("Writing"); EV-3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Self, cast

from bardo_pipeline.errors import BackpressureError, JournalError
from bardo_pipeline.events.life import LifeEvent
from bardo_pipeline.events.record import DecisionCycleRecord
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.desk import Drain
from bardo_pipeline.storage.drainer import DrainReport
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal import ROOM_SECONDS
from bardo_pipeline.storage.tickets import Ticket
from bardo_pipeline.storage.writer import Ack, EventWriter, Signer


class AsyncEventWriter:
    """An EventWriter for the coroutines of one event loop: same journal, same promises, and no thread a caller."""

    def __init__(self, writer: EventWriter) -> None:
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._done = _Telling(self._loop)

    @classmethod
    async def open(
        cls,
        home: Home | Path,
        golem_id: str,
        *,
        clock: Callable[[], datetime],
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
        ticket = _Awaited(self._loop.create_future(), self._done)
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
        await asyncio.to_thread(self._writer.close)

    async def __aenter__(self) -> Self:
        """The writer itself."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close it."""
        await self.close()


class _Awaited(Ticket):
    """A ticket that a coroutine waits for; one that gives up leaves it where it is."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[None], done: _Telling) -> None:
        super().__init__(done=done)
        self.future = future


@dataclass(frozen=True)
class _Telling:
    """Tells the coroutines of a loop, all of one commit at once."""

    loop: asyncio.AbstractEventLoop

    def __call__(self, tickets: list[Ticket]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(self._wake, tickets)

    @staticmethod
    def _wake(tickets: list[Ticket]) -> None:
        for ticket in tickets:
            assert isinstance(ticket, _Awaited)
            if not ticket.future.done():
                ticket.future.set_result(None)
