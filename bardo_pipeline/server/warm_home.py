"""WarmHome: open contexts of one home, by owner, for the threads of a server.

A context is used by one thread at a time. It sees each new commit by itself; it is closed and replaced when another
derivation came into force. Results that many requests need are kept until the log or a derived table has a new version.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from threading import Lock, local
from typing import Any, Generic, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import values_by_golem
from bardo_pipeline.derivation.memory.ask import OpenGrimoire, golem_moment, open_grimoire
from bardo_pipeline.derivation.memory.embed_texts import drift_warning
from bardo_pipeline.derivation.memory.search import newest_event_time_us
from bardo_pipeline.derivation.memory.shared_texts import open_texts
from bardo_pipeline.errors import BackpressureError, BardoError, InputError, ServerError
from bardo_pipeline.server.callers import Caller
from bardo_pipeline.server.shared_embedder import SharedEmbedder
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.embedding.embedders import open_embedder
from bardo_pipeline.storage.home import Home, typed_disk_errors

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")
Stamp = tuple[object, ...]

_GRIMOIRES = 256
_RESULTS = 1_024
_OWNERS = 64
_BATCH_MAX = 32
_WAITED_SHARE, _WAITED_SECONDS_MAX = 0.1, 0.01
_STATE_SECONDS = 0.05  # longest time that an answer waits for a new reading of the state


@dataclass(frozen=True)
class Freshness:
    """State on which an answer is based.

    Parameters
    ----------
    as_of : closing time of the newest derived cycle of the golem, or of all golems of the view; None before the first
    cycle : number of that cycle
    tick : its last tick; None for all golems
    log_version, life_version : versions of the log's tables of cycles and of life events, such as texts
    lag_ticks : ticks that are not derived, in the log or acknowledged by this server
    """

    as_of: datetime | None
    cycle: int
    tick: int | None
    log_version: int
    life_version: int
    lag_ticks: int


def stamp_of(context: DerivationContext) -> Stamp:
    """Return the versions of the log and of all derived tables; equal stamps give equal answers."""
    projections = context.projections
    versions = (
        projections.growing(name).table.version if spec.grows else projections.replaceable(name).version
        for name, spec in TABLES.items()
    )  # fmt: skip
    return (context.derivation_id, context.log.version, context.log.life_version, *versions)


class KeptResults:
    """Results by key, each under the stamp of its state; the least recently used ones are dropped.

    Threads that need the same result at once make it once: one makes it, and the others wait.
    """

    def __init__(self, count_max: int) -> None:
        self._mutex, self._count_max = Lock(), count_max
        self._kept: OrderedDict[Hashable, tuple[Stamp, Future[Any]]] = OrderedDict()

    def of(self, key: Hashable, stamp: Stamp, make: Callable[[], T]) -> T:
        """Return the kept result of this key and stamp, else make and keep it. A failure is not kept."""
        with self._mutex:
            kept = self._kept.get(key)
            is_made = kept is not None and kept[0] == stamp
            if kept is None or not is_made:
                kept = self._kept[key] = stamp, Future()
            self._kept.move_to_end(key)
            while len(self._kept) > self._count_max:
                self._kept.popitem(last=False)
        result = kept[1]
        if not is_made:
            try:
                result.set_result(make())
            except BaseException as error:
                with self._mutex:
                    if self._kept.get(key) is kept:
                        del self._kept[key]
                result.set_exception(error)
        return cast("T", result.result())


class WarmHome:
    """The open contexts of a home.

    Parameters
    ----------
    threads : number of threads that read
    waiting_max : number of requests that may wait for a thread; BackpressureError is raised for more
    """

    def __init__(self, root: Path, *, threads: int, waiting_max: int = 256) -> None:
        self.home = Home.open(root)
        self._waiting_max, self._waiting = waiting_max, 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="bardo-read")
        self._mutex, self._local = Lock(), local()
        self._idle: OrderedDict[str | None, list[DerivationContext]] = OrderedDict()
        self._embedders: dict[str, SharedEmbedder] = {}
        self._grimoires, self._results = KeptResults(_GRIMOIRES), KeptResults(_RESULTS)
        self.acknowledged: Callable[[], Mapping[str, int]] = dict
        """Returns golem -> newest tick that this server acknowledged; the log has it some seconds later."""

    async def read(self, owner: str | None, work: Callable[[DerivationContext], T]) -> T:
        """Run work with a context of the owner (None: the whole home) in a thread."""
        return await self.run(lambda: self._with_context(owner, work))

    async def run(self, work: Callable[[], T]) -> T:
        """Run work in a thread. Raises BackpressureError if too many requests wait already."""
        if self._waiting >= self._waiting_max:
            raise BackpressureError(f"{self._waiting} requests wait: try again in a second")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._waiting -= 1

    def _with_context(self, owner: str | None, work: Callable[[DerivationContext], T]) -> T:
        with self.context(owner) as context:
            return work(context)

    @contextmanager
    def context(self, owner: str | None) -> Iterator[DerivationContext]:
        """Lend a context to this thread. Afterwards it is kept for reuse, or closed after an unexpected error."""
        with typed_disk_errors():
            context = self._borrow(owner)
            try:
                yield context
            except (InputError, ServerError):
                self._give_back(owner, context)
                raise
            except BaseException:
                context.log.close()
                raise
            self._give_back(owner, context)

    def _borrow(self, owner: str | None) -> DerivationContext:
        while True:
            with self._mutex:
                idle = self._idle.get(owner)
                context = idle.pop() if idle else None
            if context is None:
                context = DerivationContext.open(self.home.root, owner=owner)
                context.share_embedder(self.embedder(context.embedder_name))
                return context
            if context.is_in_force:
                return context
            context.log.close()

    def _give_back(self, owner: str | None, context: DerivationContext) -> None:
        """Keep a context for the owner's next request; beyond _OWNERS owners, close those of the least recent one."""
        with self._mutex:
            self._idle.setdefault(owner, []).append(context)
            self._idle.move_to_end(owner)
            dropped = self._idle.popitem(last=False)[1] if len(self._idle) > _OWNERS else []
        for unused in dropped:
            unused.log.close()

    def embedder(self, name: str) -> SharedEmbedder:
        """Return the shared embedder of this name, loaded on the first call."""
        with self._mutex:
            if name not in self._embedders:
                self._embedders[name] = SharedEmbedder(open_embedder(name, self.home.models))
            return self._embedders[name]

    @contextmanager
    def held_stamp(self, context: DerivationContext) -> Iterator[None]:
        """Keep results inside the block, in this thread, under the stamp of its start."""
        self._local.stamp = stamp_of(context)
        try:
            yield
        finally:
            self._local.stamp = None

    def _stamp(self, context: DerivationContext) -> Stamp:
        kept: Stamp | None = getattr(self._local, "stamp", None)
        return stamp_of(context) if kept is None else kept

    def warm_up(self, now: datetime) -> Freshness:
        """Open a context, the texts and the embedding model, so that the first request does not wait for them."""
        with self.context(None) as context:
            open_texts(context, now)
            pa.default_memory_pool().release_unused()  # the columns of the vectors
            context.embedder.embed(["warm"])
            return self.freshness(context)

    def grimoire(
        self, context: DerivationContext, golem_id: str, *, clade: bool = False, now: datetime
    ) -> OpenGrimoire:
        """Return a golem's newest situation and its entries, ready for questions; kept while nothing is committed."""
        return self._grimoires.of(
            (context.owner, golem_id, clade),
            self._stamp(context),
            lambda: open_grimoire(context, golem_moment(context, golem_id), now=now, clade=clade),
        )

    def result(self, context: DerivationContext, name: str, make: Callable[[DerivationContext], T]) -> T:
        """Return what `make` derives from the context, under a name; kept while nothing is committed."""
        return self._results.of((context.owner, name), self._stamp(context), lambda: make(context))

    def warning(self, context: DerivationContext) -> str | None:
        """Return the warning of a drifted embedding model; the checks are read again when there is a new one."""
        path = self.home.embedding / "_delta_log"
        seen: Stamp = (path.stat().st_mtime_ns if path.exists() else None,)
        return self._results.of((None, "warning", context.embedder_name), seen, lambda: drift_warning(context))

    def newest_event_time_us(self, context: DerivationContext) -> int:
        """Return the newest closing time of a cycle of the view in UTC microseconds, 0 before the first."""
        return self.result(context, "newest_event_time_us", newest_event_time_us)

    def freshness(self, context: DerivationContext, golem_id: str | None = None) -> Freshness:
        """Return the state on which answers about a golem, or about all golems of the view, are based now."""
        key = (context.owner, "freshness", golem_id)
        fresh, highest = self._results.of(key, self._stamp(context), lambda: _freshness(context, golem_id))
        newest = self.acknowledged().items()
        waiting = sum(max(0, tick - highest[golem]) for golem, tick in newest if golem in highest)
        return replace(fresh, lag_ticks=fresh.lag_ticks + waiting)

    def close(self) -> None:
        """Wait for running work and close all contexts."""
        self._pool.shutdown(cancel_futures=True)
        with self._mutex:
            contexts = [context for idle in self._idle.values() for context in idle]
            self._idle.clear()
        for context in contexts:
            context.log.close()


def _freshness(context: DerivationContext, golem_id: str | None) -> tuple[Freshness, dict[str, int]]:
    """Return the state, and the newest tick in the log of each golem that it is about."""
    born = context.life("GolemBorn", None if golem_id is None else [golem_id])["golem_id"].to_pylist()
    newest = context.projections.growing("cycles").newest("cycle", ["cycle", "tick_last", "closed_at"])
    heads = context.log.heads()
    if golem_id is not None:
        newest, heads = (rows.filter(pc.equal(rows["golem_id"], golem_id)) for rows in (newest, heads))
    derived = values_by_golem(newest, "tick_last")
    recorded = zip(*(heads[name].to_pylist() for name in ("golem_id", "contiguous", "highest")), strict=True)
    lags = (min(contiguous, highest) - derived.get(golem, 0) for golem, contiguous, highest in recorded)
    closed = pc.max(newest["closed_at"]).as_py()
    fresh = Freshness(
        as_of=closed,
        cycle=int(pc.max(newest["cycle"]).as_py() or 0),
        tick=None if golem_id is None else int(derived.get(golem_id, 0)),
        log_version=context.log.version,
        life_version=context.log.life_version,
        lag_ticks=sum(max(0, lag) for lag in lags),  # a tick that was lost is never derived
    )
    return fresh, dict.fromkeys(born, 0) | values_by_golem(heads, "highest")


class StatedFreshness:
    """The newest known state of each view, for answers that read no store: refusals, documents, `/healthz`.

    Such an answer must stay cheap and must not wait for the home. So a view is read at most every `age_seconds`, in a
    thread, for all its answers together. Source: ADR 0098.
    """

    def __init__(self, warm: WarmHome, *, age_seconds: float = 1.0) -> None:
        self._warm, self._age_seconds = warm, age_seconds
        self._reads: dict[str | None, tuple[float, asyncio.Task[Freshness]]] = {}
        self._known: dict[str | None, dict[str, Any] | None] = {}

    def read(self, owner: str | None, work: Coroutine[Any, Any, Freshness]) -> asyncio.Task[Freshness]:
        """Begin to read the state of an owner's view (None: the whole home)."""
        if len(self._reads) >= _OWNERS:
            self._reads, self._known = {}, {}
        task = asyncio.create_task(work)
        self._reads[owner] = asyncio.get_running_loop().time(), task
        task.add_done_callback(lambda done: self._keep(owner, done))
        return task

    def _keep(self, owner: str | None, done: asyncio.Task[Freshness]) -> None:
        """Store the state that was read, None after an error. A home too busy to read it keeps the state before."""
        if done.cancelled() or isinstance(error := done.exception(), BackpressureError):
            return
        self._known[owner] = None if error is not None else asdict(done.result())

    async def of(self, caller: Caller | None) -> dict[str, Any] | None:
        """Return the state of the caller's view; None before the home is open, or if it cannot be read.

        Without a token it states no cycle and no lag, because they count what golems did.
        """
        owner = None if caller is None else caller.owner
        at, task = self._reads.get(owner, (float("-inf"), None))
        if task is None or (task.done() and asyncio.get_running_loop().time() - at >= self._age_seconds):
            task = self.read(owner, self._warm.read(owner, self._warm.freshness))
        if not task.done():
            await asyncio.wait((task,), timeout=_STATE_SECONDS)
        fresh = self._known.get(owner)
        if fresh is not None and caller is None:
            fresh = {**fresh, "cycle": None, "lag_ticks": None}
        return fresh


class Batches(Generic[Q, A]):
    """Requests of one kind that wait together are answered together, in one thread for an owner.

    A batch takes all requests that wait when the last batch ends. All its callers get their answers at the same moment,
    so that their next requests form one batch again. If no request waits then, the next batch waits for as many
    requests as the last one had, but for at most a tenth of its duration and 10 ms.
    Source: ADR 0093, 0096.

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
        self._last: dict[str | None, tuple[int, float]] = {}  # size and seconds of the last batch of each owner

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
        waiting, loop = self._waiting[owner], asyncio.get_running_loop()
        size, spent = self._last.get(owner, (1, 0.0))
        until = loop.time() + min(spent * _WAITED_SHARE, _WAITED_SECONDS_MAX)
        try:
            while len(waiting) < size and loop.time() < until:
                await asyncio.sleep(0.0005)
            while waiting:
                batch = [waiting.popleft() for _ in range(min(len(waiting), _BATCH_MAX))]
                began = loop.time()
                await self._answer_batch(owner, batch)
                self._last[owner] = len(batch), loop.time() - began
        finally:
            del self._waiting[owner]
            for _, result in waiting:
                result.cancel()

    async def _answer_batch(self, owner: str | None, batch: Sequence[tuple[Q, asyncio.Future[A]]]) -> None:
        answers: list[A | Exception] = []

        def work(context: DerivationContext) -> None:
            with self._warm.held_stamp(context):
                answers.extend(self._answers(context, [request for request, _ in batch]))
            for answer in answers:
                if isinstance(answer, Exception) and not isinstance(answer, BardoError):
                    raise answer  # so that `context` closes the context

        try:
            await self._warm.read(owner, work)
        except Exception as error:
            answers += [error] * (len(batch) - len(answers))
        finally:
            for (_, result), answer in zip(batch, answers, strict=False):
                _settle(result, answer)
            for _, result in batch:
                result.cancel()  # no effect if it has an answer


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
