"""Acknowledged appends: 16 callers, one golem each, append durable records in closed loops.

Callers are threads, as in the peers; the live writer is also measured with coroutines of one event loop.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
from eventsourcing.application import Application
from eventsourcing.domain import Aggregate

from bardo_pipeline.arrays import Float64Array
from bardo_pipeline.events.record.arrow_schema import to_models
from bardo_pipeline.events.record.model import DecisionCycleRecord
from bardo_pipeline.policy import Policy, WriterPolicy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal.async_event_writer import AsyncEventWriter
from bardo_pipeline.storage.journal.drainer import drain_once
from bardo_pipeline.storage.journal.event_writer import EventWriter
from bardo_pipeline.storage.journal.segment_files import journal_depth
from bardo_pipeline.storage.journal.writer_session import DrainMode
from bardo_pipeline.storage.log.event_log import EventLog
from benchmarks.figures import Figure
from benchmarks.sizes import CYCLE_INDEX
from tests.support.records.drawn_records import records

CALLERS = 16
SECONDS, TURN_SECONDS, TURNS = 60.0, 2.0, 4
TEMPLATES = 200
P99_LIMIT_MS = 5.0

Append = Callable[[int, bytes], object]
"""Appends the record of a tick (its JSON) durably."""


@dataclass(frozen=True)
class Closed:
    """Result of closed loops: number of appends, duration, latency of each append in ms."""

    count: int
    seconds: float
    latencies_ms: Float64Array

    @property
    def rate(self) -> float:
        """Appends per second."""
        return self.count / self.seconds

    def ms(self, share: float) -> float:
        """Return a quantile of the latencies in ms."""
        return float(np.quantile(self.latencies_ms, share))

    def shown(self) -> str:
        """Return rate, p50 and p99 as text."""
        return f"{self.rate:,.0f} acks/s, p50 {self.ms(0.5):.2f} ms, p99 {self.ms(0.99):.2f} ms"


class Lines:
    """Generates JSON records quickly: templates with golem and tick filled in."""

    def __init__(self) -> None:
        self.models = to_models(records(TEMPLATES, golems=1, tick=1), DecisionCycleRecord)
        halves = []
        for model in self.models:
            line = model.model_dump_json().encode()
            before, after = line.split(b'"golem_id":"golem-0000","tick":%d,' % model.tick)
            halves.append((before, after))
        self._halves = halves
        self.bytes_mean = sum(len(a) + len(b) + 30 for a, b in halves) / len(halves)

    def of(self, golem_id: str) -> Callable[[int], bytes]:
        """Return a function from tick to this golem's line."""
        names = b'"golem_id":"%s","tick":' % golem_id.encode()
        ready = [(before + names, b"," + after) for before, after in self._halves]

        def line(tick: int) -> bytes:
            before, after = ready[tick % TEMPLATES]
            return before + b"%d" % tick + after

        return line


def closed_loops(appends: list[Append], lines: Lines, seconds: float, *, first: int = 1) -> Closed:
    """Run each append function in its own thread for `seconds`, one tick after another."""
    latencies_by_caller: list[list[float]] = [[] for _ in appends]
    barrier = threading.Barrier(len(appends) + 1)
    failed: list[BaseException] = []

    def call(k: int) -> None:
        append, line, latencies = appends[k], lines.of(golem_id(k)), latencies_by_caller[k]
        clock = time.perf_counter
        barrier.wait()
        tick, now = first, clock()
        until = now + seconds
        try:
            while now < until:
                record = line(tick)
                began = clock()
                append(tick, record)
                now = clock()
                latencies.append(now - began)
                tick += 1
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=call, args=(k,)) for k in range(len(appends))]
    for thread in threads:
        thread.start()
    barrier.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    spent = time.perf_counter() - began
    if failed:
        raise failed[0]
    all_ms = np.array([1_000 * t for latencies in latencies_by_caller for t in latencies])
    return Closed(len(all_ms), spent, all_ms)


def golem_id(k: int) -> str:
    """Return the golem id of a caller."""
    return f"golem-{k:04}"


class Drained:
    """A home with the live writer. Without a drainer, its journal limit (1 GiB) holds a whole turn."""

    def __init__(self, root: Path, drain: DrainMode) -> None:
        self.home = Home.create(root, Policy(), datetime.now(UTC))
        self.drain = drain
        self.limits = WriterPolicy() if drain == "process" else WriterPolicy(journal_bytes_max=2**30)

    def settle(self) -> float:
        """Drain sealed segments to the log; return records per second."""
        with EventLog(self.home) as log:
            report = drain_once(self.home, log, clock=lambda: datetime.now(UTC))
        return report.records / report.seconds

    def count(self) -> int:
        """Return the number of records in the log."""
        with EventLog(self.home) as log:
            return len(log.read_cycles(["tick"]))


class Threads(Drained):
    """The live writer with thread callers; drained by a separate process, or only by `settle`."""

    def __init__(self, root: Path, drain: DrainMode) -> None:
        super().__init__(root, drain)
        self._stack = ExitStack()
        self.appends: list[Append] = []
        self.depth_bytes_max = 0
        opened = partial(
            EventWriter.open, clock=lambda: datetime.now(UTC), policy=Policy(writer=self.limits), drain=drain
        )
        for k in range(CALLERS):
            writer = opened(self.home, golem_id(k))
            self._stack.enter_context(writer)
            self.appends.append(lambda tick, line, w=writer: w.append(line))

    def watch(self, stop: threading.Event) -> None:
        """Track the journal's maximum depth until `stop` is set."""
        while not stop.wait(0.5):
            self.depth_bytes_max = max(self.depth_bytes_max, journal_depth(self.home).bytes)

    def loops(self, lines: Lines, seconds: float, *, first: int = 1) -> Closed:
        """Run closed loops while tracking the journal's depth."""
        stop = threading.Event()
        watching = threading.Thread(target=self.watch, args=(stop,))
        watching.start()
        done = closed_loops(self.appends, lines, seconds, first=first)
        stop.set()
        watching.join()
        return done

    def close(self) -> int:
        """Close the writers, drain everything; return the number of records in the log."""
        self._stack.close()
        return self.count()


class Coroutines(Drained):
    """The live writer with coroutine callers of one event loop, which is kept between turns."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, "none")
        self._runner = asyncio.Runner()
        self._writers = self._runner.run(self._opened())

    async def _opened(self) -> list[AsyncEventWriter]:
        policy = Policy(writer=self.limits)
        opened = partial(AsyncEventWriter.open, clock=lambda: datetime.now(UTC), policy=policy, drain=self.drain)
        return [await opened(self.home, golem_id(k)) for k in range(CALLERS)]

    def loops(self, lines: Lines, seconds: float, *, first: int = 1) -> Closed:
        """Run closed loops."""
        latencies: list[float] = []

        async def call(k: int, writer: AsyncEventWriter) -> None:
            line, clock = lines.of(golem_id(k)), time.perf_counter
            tick, now = first, clock()
            until = now + seconds
            while now < until:
                record = line(tick)
                began = clock()
                await writer.append(record)
                now = clock()
                latencies.append(now - began)
                tick += 1

        async def run_all() -> float:
            began = time.perf_counter()
            await asyncio.gather(*(call(k, writer) for k, writer in enumerate(self._writers)))
            return time.perf_counter() - began

        spent = self._runner.run(run_all())
        return Closed(len(latencies), spent, np.array([1_000 * t for t in latencies]))

    def close(self) -> int:
        """Close the writers, drain everything; return the number of records in the log."""

        async def closed() -> None:
            for writer in self._writers:
                await writer.close()

        self._runner.run(closed())
        self._runner.close()
        return self.count()


class Golem(Aggregate):
    """An aggregate of eventsourcing; events leave its state unchanged."""

    class Recorded(Aggregate.Event):
        """A record as JSON."""

        record: str


def eventsourcing_appends(root: Path) -> list[Append]:
    """Return append functions of the library eventsourcing, used as its documentation shows.

    One connection per caller. Records are not validated, and events leave the aggregate unchanged.
    """
    root.mkdir(parents=True)
    application: Application = Application(
        env={
            "PERSISTENCE_MODULE": "eventsourcing.sqlite",
            "SQLITE_DBNAME": f"{root}/events.db",
            "SQLITE_LOCK_TIMEOUT": "60",
        }
    )
    pool = application.factory.datastore.pool  # type: ignore[attr-defined]
    pool.pool_size, pool.pool_timeout = CALLERS, 60.0
    connect = pool._create_connection

    def durable() -> object:
        connection = connect()
        connection.cursor().execute("PRAGMA synchronous=FULL")
        return connection

    pool._create_connection = durable
    golems = [Golem() for _ in range(CALLERS)]

    def append(golem: Golem) -> Append:
        def put(tick: int, line: bytes) -> object:
            golem.trigger_event(Golem.Recorded, record=line.decode())
            return application.save(golem)

        return put

    return [append(golem) for golem in golems]


_TICKS_APART = 10**9


def files_appends(root: Path, lines: Lines) -> list[Append]:
    """Return append functions of the specification's design (HB S6): a file per tick, index.sqlite in WAL mode.

    One connection per caller and disjoint ticks, because the index has no golem column. Index rows are prepared in
    advance: records are neither parsed nor validated.
    """
    folder = root / "cycles"
    folder.mkdir(parents=True)
    names = os.open(folder, os.O_RDONLY)
    rows = [
        (
            model.regime, model.tier, bool(model.actions), model.outcome is not None, model.phase,
            model.prediction_error, model.cost.total_micros / 1e6, None, model.primary_emotion,
            model.observed_at.isoformat(),
        )
        for model in lines.models
    ]  # fmt: skip
    insert = f"insert into cycle_index values ({', '.join('?' * 11)})"

    def connected() -> sqlite3.Connection:
        index = sqlite3.connect(folder / "index.sqlite", check_same_thread=False, isolation_level=None, timeout=60.0)
        index.execute("PRAGMA journal_mode=WAL")
        index.execute("PRAGMA synchronous=FULL")
        return index

    connected().executescript(CYCLE_INDEX)

    def append(k: int) -> Append:
        index = connected()

        def put(tick: int, line: bytes) -> None:
            number = k * _TICKS_APART + tick
            file = os.open(folder / f"cycle-{number:06}.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            os.write(file, line)
            os.fsync(file)
            os.close(file)
            os.fsync(names)
            index.execute(insert, (number, *rows[tick % TEMPLATES]))

        return put

    return [append(k) for k in range(CALLERS)]


def ack_figures(root: Path, seconds: float = SECONDS) -> list[Figure]:
    """Measure latency of acknowledged appends, and their rate against two peers in alternating turns."""
    lines = Lines()
    mean, drained = _by_turns(root, lines)
    turns = (
        f"{CALLERS} callers, records of {lines.bytes_mean:,.0f} bytes, {TURNS} turns of {TURN_SECONDS:.0f} s each, "
        f"ours drained between turns at {drained:,.0f} records/s"
    )
    return [
        _long_figure(root, lines, seconds),
        Figure(
            "ack_vs_eventsourcing",
            mean["ours"],
            "acks/s",
            mean["eventsourcing"],
            mean["ours"] / mean["eventsourcing"],
            "ratio >= 3",
            f"{turns}, all threads; ours validated and chained ({mean['coroutines']:,.0f} per second as coroutines of "
            "one loop); peer: eventsourcing, one event per save, SQLite WAL, synchronous FULL",
        ),
        Figure(
            "ack_vs_files",
            mean["coroutines"],
            "acks/s",
            mean["files"],
            mean["coroutines"] / mean["files"],
            "ratio >= 5",
            f"{turns}, ours coroutines of one loop ({mean['ours'] / mean['files']:.1f} times as threads); peer: "
            "threads, a file per tick, file and folder fsynced, and a row of the SQLite index (WAL, FULL) that all "
            "golems share",
        ),
    ]


def _by_turns(root: Path, lines: Lines) -> tuple[dict[str, float], float]:
    """Return appends per second of the live writer (threads, coroutines) and each peer, and the drain rate.

    Raises AssertionError unless the log holds every acknowledged record.
    """
    homes = {"ours": Threads(root / "ours", "none"), "coroutines": Coroutines(root / "coroutines")}
    peers = {
        "eventsourcing": eventsourcing_appends(root / "eventsourcing"),
        "files": files_appends(root / "files", lines),
    }
    drained: list[float] = []
    done: dict[str, list[Closed]] = {name: [] for name in (*homes, *peers)}
    firsts = dict.fromkeys(done, 1)
    for _ in range(TURNS):
        for name, home in homes.items():
            done[name].append(home.loops(lines, TURN_SECONDS, first=firsts[name]))
        for name, appends in peers.items():
            done[name].append(closed_loops(appends, lines, TURN_SECONDS, first=firsts[name]))
        drained += [home.settle() for home in homes.values()]  # finish our disk writes before the peers' next turn
        for name, turns in done.items():
            firsts[name] += turns[-1].count  # at least the last tick of every caller
    for name, home in homes.items():
        assert home.close() == sum(turn.count for turn in done[name])
    return {name: float(np.mean([turn.rate for turn in turns])) for name, turns in done.items()}, float(
        np.mean(drained)
    )


def _long_figure(root: Path, lines: Lines, seconds: float) -> Figure:
    """Measure p99 latency of appends while another process drains."""
    ours = Threads(root / "long", "process")
    long = ours.loops(lines, seconds)
    began = time.perf_counter()
    ours.close()
    closing = time.perf_counter() - began
    p99 = long.ms(0.99)
    return Figure(
        "ack_p99_ms",
        p99,
        "ms",
        P99_LIMIT_MS,
        p99 / P99_LIMIT_MS,
        "ratio <= 1",
        f"{CALLERS} callers for {long.seconds:.0f} s: {long.shown()}; validated, chained, fsynced, drained by "
        f"another process; journal at most {ours.depth_bytes_max / 2**20:.0f} MiB, remainder drained "
        f"in {closing:.1f} s; peer: the aim",
    )
