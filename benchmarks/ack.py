"""Acknowledged appends: 16 callers, each with a golem of its own, one durable record after another (closed loops).

Callers are threads, which is what the peers have; ours are measured as coroutines of one event loop, too.
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
from tests.support.drawn_records import records

CALLERS = 16
SECONDS, TURN_SECONDS, TURNS = 60.0, 2.0, 4
TEMPLATES = 200
P99_LIMIT_MS = 5.0

Append = Callable[[int, bytes], object]
"""Make the record of this tick (its JSON) durable."""


@dataclass(frozen=True)
class Closed:
    """What closed loops did: how many appends in how long, and how long each took, in ms."""

    count: int
    seconds: float
    latencies_ms: np.ndarray

    @property
    def rate(self) -> float:
        """Appends a second."""
        return self.count / self.seconds

    def ms(self, share: float) -> float:
        """The latency that this share of the appends stays within."""
        return float(np.quantile(self.latencies_ms, share))

    def shown(self) -> str:
        """In words."""
        return f"{self.rate:,.0f} acks/s, p50 {self.ms(0.5):.2f} ms, p99 {self.ms(0.99):.2f} ms"


class Lines:
    """Records as JSON, made fast: plausible ones whose golem and tick are put in."""

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
        """Makes this golem's line of a tick."""
        names = b'"golem_id":"%s","tick":' % golem_id.encode()
        ready = [(before + names, b"," + after) for before, after in self._halves]

        def line(tick: int) -> bytes:
            before, after = ready[tick % TEMPLATES]
            return before + b"%d" % tick + after

        return line


def closed_loops(appends: list[Append], lines: Lines, seconds: float, *, first: int = 1) -> Closed:
    """Every append in a thread of its own, one tick after another, for so long."""
    took: list[list[float]] = [[] for _ in appends]
    barrier = threading.Barrier(len(appends) + 1)
    failed: list[BaseException] = []

    def call(k: int) -> None:
        append, line, own = appends[k], lines.of(golem_id(k)), took[k]
        clock = time.perf_counter
        barrier.wait()
        tick, now = first, clock()
        until = now + seconds
        try:
            while now < until:
                given = line(tick)
                began = clock()
                append(tick, given)
                now = clock()
                own.append(now - began)
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
    latencies = np.array([1_000 * t for own in took for t in own])
    return Closed(len(latencies), spent, latencies)


def golem_id(k: int) -> str:
    """The golem of a caller."""
    return f"golem-{k:04}"


class Drained:
    """A home of ours. limits: its journals'; roomy enough for what a turn brings where nobody drains meanwhile."""

    def __init__(self, root: Path, drain: DrainMode) -> None:
        self.home = Home.create(root, Policy(), datetime.now(UTC))
        self.drain = drain
        self.limits = WriterPolicy() if drain == "process" else WriterPolicy(journal_bytes_max=2**30)

    def settle(self) -> float:
        """Bring what is sealed to the log; returns records a second."""
        with EventLog(self.home) as log:
            report = drain_once(self.home, log, clock=lambda: datetime.now(UTC))
        return report.records / report.seconds

    def count(self) -> int:
        """How many records the log holds."""
        with EventLog(self.home) as log:
            return len(log.read_cycles(["tick"]))


class Threads(Drained):
    """The live writer, for callers that are threads. drain: beside it in a process of its own, or by `settle` alone."""

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
        """Note the journal's greatest depth until told to stop."""
        while not stop.wait(0.5):
            self.depth_bytes_max = max(self.depth_bytes_max, journal_depth(self.home).bytes)

    def loops(self, lines: Lines, seconds: float, *, first: int = 1) -> Closed:
        """Closed loops, with an eye on the journal."""
        stop = threading.Event()
        watching = threading.Thread(target=self.watch, args=(stop,))
        watching.start()
        done = closed_loops(self.appends, lines, seconds, first=first)
        stop.set()
        watching.join()
        return done

    def close(self) -> int:
        """Drain everything; returns how many records the log holds."""
        self._stack.close()
        return self.count()


class Coroutines(Drained):
    """The live writer, for callers that are coroutines of one loop, which goes on from turn to turn."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, "none")
        self._runner = asyncio.Runner()
        self._writers = self._runner.run(self._opened())

    async def _opened(self) -> list[AsyncEventWriter]:
        policy = Policy(writer=self.limits)
        opened = partial(AsyncEventWriter.open, clock=lambda: datetime.now(UTC), policy=policy, drain=self.drain)
        return [await opened(self.home, golem_id(k)) for k in range(CALLERS)]

    def loops(self, lines: Lines, seconds: float, *, first: int = 1) -> Closed:
        """Closed loops."""
        took: list[float] = []

        async def call(k: int, writer: AsyncEventWriter) -> None:
            line, clock = lines.of(golem_id(k)), time.perf_counter
            tick, now = first, clock()
            until = now + seconds
            while now < until:
                given = line(tick)
                began = clock()
                await writer.append(given)
                now = clock()
                took.append(now - began)
                tick += 1

        async def all_of_them() -> float:
            began = time.perf_counter()
            await asyncio.gather(*(call(k, writer) for k, writer in enumerate(self._writers)))
            return time.perf_counter() - began

        spent = self._runner.run(all_of_them())
        return Closed(len(took), spent, np.array([1_000 * t for t in took]))

    def close(self) -> int:
        """Drain everything; returns how many records the log holds."""

        async def closed() -> None:
            for writer in self._writers:
                await writer.close()

        self._runner.run(closed())
        self._runner.close()
        return self.count()


class Golem(Aggregate):
    """An aggregate of the library, whose state no event changes."""

    class Recorded(Aggregate.Event):
        """A record, as its JSON."""

        record: str


def eventsourcing_appends(root: Path) -> list[Append]:
    """The library eventsourcing as its documentation shows it: an aggregate triggers an event, an application saves it.

    A connection a caller. Nothing of the record is checked, and events do not change the aggregate.
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
    """The specification's own design (HB S6): the folder cycles/ with a file a tick, and index.sqlite in WAL mode.

    A connection a caller, and ticks of their own, for the index knows no golem. What goes into the index is at hand:
    nothing is parsed or checked.
    """
    folder = root / "cycles"
    folder.mkdir(parents=True)
    names = os.open(folder, os.O_RDONLY)
    rows = [
        (
            model.regime,
            model.tier,
            bool(model.actions),
            model.outcome is not None,
            model.phase,
            model.prediction_error,
            model.cost.total_micros / 1e6,
            None,
            model.primary_emotion,
            model.observed_at.isoformat(),
        )
        for model in lines.models
    ]
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
    """Latency of an acknowledged append, and how many a second beside two peers, measured by turns."""
    lines = Lines()
    mean, drained = _by_turns(root, lines)
    turns = (
        f"{CALLERS} callers, records of {lines.bytes_mean:,.0f} bytes, {TURNS} turns of {TURN_SECONDS:.0f} s each, "
        f"ours drained between them, {drained:,.0f} records a second"
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
            f"{turns}, all threads; ours validated and chained ({mean['coroutines']:,.0f} a second as coroutines of "
            "one loop); peer: eventsourcing, an event a save, SQLite WAL, synchronous FULL",
        ),
        Figure(
            "ack_vs_files",
            mean["coroutines"],
            "acks/s",
            mean["files"],
            mean["coroutines"] / mean["files"],
            "ratio >= 5",
            f"{turns}, ours coroutines of one loop ({mean['ours'] / mean['files']:.1f} times as threads); peer: "
            "threads, a file a tick, file and folder fsynced, and a row of the SQLite index (WAL, FULL) that all "
            "golems share",
        ),
    ]


def _by_turns(root: Path, lines: Lines) -> tuple[dict[str, float], float]:
    """Appends a second of ours (threads, coroutines) and of each peer, in turns; how fast ours was drained between.

    Raises AssertionError where the log does not hold each record that was acknowledged.
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
        drained += [home.settle() for home in homes.values()]  # what the disk has to do of it is not a peer's trouble
        for name, turns in done.items():
            firsts[name] += turns[-1].count  # more than any of its callers came to
    for name, home in homes.items():
        assert home.close() == sum(turn.count for turn in done[name])
    return {name: float(np.mean([turn.rate for turn in turns])) for name, turns in done.items()}, float(
        np.mean(drained)
    )


def _long_figure(root: Path, lines: Lines, seconds: float) -> Figure:
    """How long an append takes at most, nearly always, while another process drains."""
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
        f"another process; the journal held at most {ours.depth_bytes_max / 2**20:.0f} MiB, the rest was drained "
        f"in {closing:.1f} s; peer: the aim",
    )
