"""Batches: requests that wait together are answered together, in one thread.

A batch is what waits when the one before it ends, so no request waits for another to arrive. Its answers are given
together, because callers that go on one by one would ask in small batches. Source: ADR 0093.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import BackpressureError, BardoError
from bardo_pipeline.server.warm_home import WarmHome

Q = TypeVar("Q")
A = TypeVar("A")

BATCH_MAX = 32


class Batches(Generic[Q, A]):
    """Requests of one kind, answered in batches of one owner.

    Parameters
    ----------
    answers : yields, in order, the answer or the error of each request of a batch
    waiting_max : number of requests that may wait; BackpressureError is raised for more
    """

    def __init__(
        self,
        warm: WarmHome,
        answers: Callable[[DerivationContext, Sequence[Q]], Iterator[A | Exception]],
        *,
        waiting_max: int = 256,
    ) -> None:
        self._warm, self._answers, self._waiting_max = warm, answers, waiting_max
        self._waiting: dict[str | None, deque[tuple[Q, asyncio.Future[A]]]] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def answer(self, owner: str | None, request: Q) -> A:
        """Return the answer to a request with a context of the owner (None: the whole home), or raise its error."""
        if (waiting := sum(map(len, self._waiting.values()))) >= self._waiting_max:
            raise BackpressureError(f"{waiting} requests wait: try again in a second")
        result: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        if owner in self._waiting:
            self._waiting[owner].append((request, result))
        else:
            self._waiting[owner] = deque([(request, result)])
            task = asyncio.create_task(self._run(owner))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return await result

    async def _run(self, owner: str | None) -> None:
        """Answer requests of an owner until none waits."""
        waiting = self._waiting[owner]
        try:
            while waiting:
                await self._answer_batch(owner, [waiting.popleft() for _ in range(min(len(waiting), BATCH_MAX))])
        finally:
            del self._waiting[owner]
            for _, result in waiting:
                result.cancel()

    async def _answer_batch(self, owner: str | None, batch: Sequence[tuple[Q, asyncio.Future[A]]]) -> None:
        answers: list[A | Exception] = []

        def work(context: DerivationContext) -> None:
            with self._warm.one_stamp(context):
                answers.extend(self._answers(context, [request for request, _ in batch]))
            for answer in answers:
                if isinstance(answer, Exception) and not isinstance(answer, BardoError):
                    raise answer  # the context is not kept

        try:
            await self._warm.read(owner, work)
        except Exception as error:
            answers += [error] * (len(batch) - len(answers))
        finally:
            for (_, result), answer in zip(batch, answers, strict=False):
                _settle(result, answer)
            for _, result in batch:
                result.cancel()  # without effect on a settled one


def each_alone(
    context: DerivationContext, requests: Sequence[Callable[[DerivationContext], A]]
) -> Iterator[A | Exception]:
    """Yield the answer or the error of each request, which is a function of the context."""
    for request in requests:
        try:
            yield request(context)
        except Exception as error:
            yield error


def _settle(result: asyncio.Future[A], answer: A | Exception) -> None:
    """Give its answer to a request whose caller still waits."""
    if result.done():
        return
    if isinstance(answer, Exception):
        result.set_exception(answer)
    else:
        result.set_result(answer)
