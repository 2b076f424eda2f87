"""Two hash buckets of golems, derived by two processes at once and one after the other."""

from __future__ import annotations

import os
import shutil
import time
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import NamedTuple

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.versions.rebuild import derive_everything
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.projections.derivation_folders import HashBucket
from benchmarks.figures import Figure, seconds
from benchmarks.world import NOW, World

COUNT, BUCKETS = 3, (0, 1)
"""The world's 64 golems in three buckets: 22, 22 and 20 golems."""

TURNS = 3
RATIO_LIMIT = 0.65
_CONTEXT = get_context("spawn")


class _Turn(NamedTuple):
    """Seconds until both buckets were derived, CPU seconds of each process, and the fingerprint of each table."""

    seconds: float
    cpu_seconds: tuple[float, ...]
    fingerprints: dict[str, str]


def bucket_figure(world: World, root: Path) -> Figure:
    """Measure the time of two buckets at once as a share of one after the other; assert equal tables.

    Both processes run, with an open home and embedder, before the time begins. The better of each kind's turns counts.
    """
    stores = world.home(root / "log")
    world.fill(stores, 0, len(world.cycles), batch=50_000, writer="bench")
    assert stores.embedder
    stores.log.close()
    at_once, in_turn = [], []
    for _ in range(TURNS):
        in_turn.append(_derive(root, at_once=False))
        at_once.append(_derive(root, at_once=True))
    assert all(turn.fingerprints == in_turn[0].fingerprints for turn in (*in_turn, *at_once)), "tables differ"
    after_buckets = DerivationContext.open(root / "home")
    derive_everything(after_buckets, now=NOW)
    whole = seconds(lambda: derive_everything(stores, now=NOW))
    assert _fingerprints(after_buckets) == _fingerprints(stores), "buckets and one derivation give different tables"
    best, peer = min(at_once), min(in_turn)
    ratio = best.seconds / peer.seconds
    how = (
        f"buckets {BUCKETS[0]} and {BUCKETS[1]} of {COUNT}, {world.records:,} records in the home, tables by golem "
        f"with vectors; equal fingerprints; CPU {_listed(best)} s at once, {_listed(peer)} s in turn; one core a "
        f"process; all golems in one process on all cores {whole:.1f} s; best of {TURNS}; peer: the two processes one "
        "after the other"
    )
    return Figure("derive_two_buckets_s", best.seconds, "s", peer.seconds, ratio, f"ratio <= {RATIO_LIMIT}", how)


def _derive(root: Path, *, at_once: bool) -> _Turn:
    """Derive both buckets in a new copy of the home, each in a process on a core of its own."""
    home = root / "home"
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(root / "log", home)
    spent: SimpleQueue[float] = _CONTEXT.SimpleQueue()
    starts = []
    cores = sorted(os.sched_getaffinity(0))
    for number in BUCKETS:
        is_open, start = _CONTEXT.Event(), _CONTEXT.Event()
        process = _CONTEXT.Process(target=_derive_bucket, args=(home, number, is_open, start, spent), daemon=True)
        os.sched_setaffinity(0, {cores[number % len(cores)]})  # a process inherits it, and so do its libraries' threads
        try:
            process.start()
        finally:
            os.sched_setaffinity(0, cores)
        is_open.wait()
        starts.append(start)
    cpu: list[float] = []
    began = time.perf_counter()
    for start in starts:
        start.set()
        if not at_once:
            cpu.append(spent.get())
    cpu.extend(spent.get() for _ in range(len(BUCKETS) - len(cpu)))
    took = time.perf_counter() - began
    return _Turn(took, tuple(sorted(cpu)), _fingerprints(DerivationContext.open(home)))


def _derive_bucket(home: Path, number: int, is_open: Event, start: Event, spent: SimpleQueue[float]) -> None:
    """Open the home, wait for the start, derive the bucket, and put the CPU seconds that it took."""
    stores = DerivationContext.open(home).in_bucket(HashBucket(number, COUNT))
    assert stores.embedder
    is_open.set()
    start.wait()
    before = time.process_time()
    derive_everything(stores, now=NOW)
    spent.put(time.process_time() - before)


def _fingerprints(stores: DerivationContext) -> dict[str, str]:
    return {name: stores.projections.digest(name).fingerprint for name in TABLES}


def _listed(turn: _Turn) -> str:
    return " and ".join(f"{cpu:.1f}" for cpu in turn.cpu_seconds)
