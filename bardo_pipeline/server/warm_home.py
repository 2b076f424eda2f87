"""WarmHome: open contexts of one home, by owner, for the threads of a server.

A context is used by one thread at a time. It sees each new commit by itself; it is closed and replaced when another
derivation came into force. Prepared grimoires are kept by golem, until the log or a derived table has a new version.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.answer_facts import drift_warning
from bardo_pipeline.derivation.memory.ask import GolemMoment, golem_moment, grimoire_of
from bardo_pipeline.errors import BackpressureError, InputError
from bardo_pipeline.retrieval.retrieve import Grimoire
from bardo_pipeline.server.shared_embedder import SharedEmbedder
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.embedding.embedders import open_embedder
from bardo_pipeline.storage.home import Home, typed_disk_errors

T = TypeVar("T")
Stamp = tuple[object, ...]

_GRIMOIRES = 256
_OWNERS = 64


@dataclass(frozen=True)
class Freshness:
    """State on which an answer is based.

    Parameters
    ----------
    as_of : closing time of the newest derived cycle of the golem, or of all golems of the view; None before the first
    cycle : number of that cycle
    tick : its last tick; None for all golems
    log_version : version of the log's table of cycles
    lag_ticks : recorded ticks that are not derived
    """

    as_of: datetime | None
    cycle: int
    tick: int | None
    log_version: int
    lag_ticks: int


def stamp_of(context: DerivationContext) -> Stamp:
    """Return the versions of the log and of all derived tables; equal stamps give equal answers."""
    projections = context.projections
    versions = (
        projections.growing(name).table.version if spec.grows else projections.replaceable(name).version
        for name, spec in TABLES.items()
    )  # fmt: skip
    return (context.derivation_id, context.log.version, context.log.life_version, *versions)


class WarmHome:
    """The open contexts of a home.

    Parameters
    ----------
    threads : number of threads that read
    waiting_max : number of requests that may wait for a thread; BackpressureError is raised for more
    """

    def __init__(self, root: Path, *, threads: int, waiting_max: int = 256) -> None:
        self.home = Home.open(root)
        self._threads, self._waiting_max, self._waiting = threads, waiting_max, 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="bardo-read")
        self._mutex = Lock()
        self._idle: defaultdict[str | None, list[DerivationContext]] = defaultdict(list)
        self._embedders: dict[str, SharedEmbedder] = {}
        self._grimoires: OrderedDict[tuple[str | None, str, bool], tuple[Stamp, GolemMoment, Grimoire]] = OrderedDict()
        self._fresh: OrderedDict[tuple[str | None, str | None], tuple[Stamp, Freshness]] = OrderedDict()
        self._warning: tuple[Stamp, str | None] | None = None

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
        """Lend a context to this thread. It is kept afterwards unless the work broke."""
        with typed_disk_errors():
            context = self._borrow(owner)
            try:
                yield context
            except InputError:
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
                self._share_embedder(context)
                return context
            if context.is_in_force:
                return context
            context.log.close()

    def _give_back(self, owner: str | None, context: DerivationContext) -> None:
        with self._mutex:
            if len(self._idle[owner]) < self._threads and (owner is None or len(self._idle) <= _OWNERS):
                self._idle[owner].append(context)
                return
            if not self._idle[owner]:
                del self._idle[owner]
        context.log.close()

    def _share_embedder(self, context: DerivationContext) -> None:
        """Set the context's embedder to the one of all threads; the model is loaded on first use."""
        context.__dict__["embedder"] = self.embedder(context.embedder_name)

    def embedder(self, name: str) -> SharedEmbedder:
        """Return the shared embedder of this name, loaded on the first call."""
        with self._mutex:
            if name not in self._embedders:
                self._embedders[name] = SharedEmbedder(open_embedder(name, self.home.models))
            return self._embedders[name]

    def warm_up(self) -> None:
        """Open a context and load the embedding model, so that the first request does not wait for them."""
        with self.context(None) as context:
            stamp_of(context)
            context.embedder.embed(["warm"])

    def grimoire(
        self, context: DerivationContext, golem_id: str, *, clade: bool, now: datetime
    ) -> tuple[Stamp, GolemMoment, Grimoire]:
        """Return a golem's newest situation and its entries, ready for retrieval; kept while nothing is committed.

        The stamp is that of the state that both are based on.
        """
        key, stamp = (context.owner, golem_id, clade), stamp_of(context)
        with self._mutex:
            kept = self._grimoires.get(key)
        if kept is not None and kept[0] == stamp:
            return kept
        moment = golem_moment(context, golem_id)
        grimoire = grimoire_of(context, moment, now=now, clade=clade)
        kept = stamp, moment, grimoire
        self._keep(self._grimoires, key, kept)
        return kept

    def warning(self, context: DerivationContext) -> str | None:
        """Return the warning of a drifted embedding model; the checks are read again when there is a new one."""
        path = self.home.embedding / "_delta_log"
        seen: Stamp = (context.embedder_name, path.stat().st_mtime_ns if path.exists() else None)
        with self._mutex:
            kept = self._warning
        if kept is None or kept[0] != seen:
            kept = seen, drift_warning(context)
            with self._mutex:
                self._warning = kept
        return kept[1]

    def freshness(
        self, context: DerivationContext, golem_id: str | None = None, stamp: Stamp | None = None
    ) -> Freshness:
        """Return the state on which answers about a golem, or about all golems of the view, are based now.

        Parameters
        ----------
        stamp : that of the answer, if it is known
        """
        key, stamp = (context.owner, golem_id), stamp or stamp_of(context)
        with self._mutex:
            kept = self._fresh.get(key)
        if kept is None or kept[0] != stamp:
            kept = stamp, _freshness(context, golem_id)
            self._keep(self._fresh, key, kept)
        return kept[1]

    def _keep(self, cache: OrderedDict[Any, Any], key: object, value: object) -> None:
        with self._mutex:
            cache[key] = value
            cache.move_to_end(key)
            while len(cache) > _GRIMOIRES:
                cache.popitem(last=False)

    def close(self) -> None:
        """Wait for running work and close all contexts."""
        self._pool.shutdown(cancel_futures=True)
        with self._mutex:
            contexts = [context for idle in self._idle.values() for context in idle]
            self._idle.clear()
        for context in contexts:
            context.log.close()


def _freshness(context: DerivationContext, golem_id: str | None) -> Freshness:
    newest = context.projections.growing("cycles").newest("cycle", ["cycle", "tick_last", "closed_at"])
    heads = context.log.heads()
    if golem_id is not None:
        newest, heads = (rows.filter(pc.equal(rows["golem_id"], golem_id)) for rows in (newest, heads))
    recorded, derived = (int(pc.sum(column).as_py() or 0) for column in (heads["contiguous"], newest["tick_last"]))
    closed = pc.max(newest["closed_at"]).as_py()
    return Freshness(
        as_of=closed,
        cycle=int(pc.max(newest["cycle"]).as_py() or 0),
        tick=None if golem_id is None else derived,
        log_version=context.log.version,
        lag_ticks=max(0, recorded - derived),
    )
