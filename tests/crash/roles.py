"""The processes that are killed. Each reports the records it sent and those that were acknowledged."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pyarrow as pa

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.events.life.events import Born, Traits, life_event
from bardo_pipeline.events.record.arrow_schema import to_models
from bardo_pipeline.events.record.model import DecisionCycleRecord
from bardo_pipeline.events.record.row_digest import digest_column, row_digests
from bardo_pipeline.policy import CarePolicy, Policy, WriterPolicy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.spool_folder import Spool
from bardo_pipeline.storage.journal.async_event_writer import AsyncEventWriter
from bardo_pipeline.storage.journal.drainer import Drainer
from bardo_pipeline.storage.journal.event_writer import EventWriter
from bardo_pipeline.storage.journal.writer_session import DrainMode
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.operations.maintenance import maintain
from tests.support.records.drawn_records import records

NOW = datetime(2026, 11, 1, tzinfo=UTC)
BATCHES, BATCH_TICKS = 12, 25
APPENDS = 60
FILES, FILE_TICKS = 6, 10
PASS_SECONDS = 0.005
POLICY = Policy(
    writer=WriterPolicy(batch_records=5, flush_seconds=0.2, segment_bytes_max=64 * 1024),
    care=CarePolicy(lookback_ticks=50, grace_seconds=3.0),
)
"""Small segments and short delays, so that every window is passed often."""


@dataclass(frozen=True)
class Stage:
    """Inputs of a role: home, process name, random generator, report function, and whether all writers have ended."""

    root: Path
    name: str
    rng: random.Random
    report: Callable[[str], None]
    over: Callable[[], bool]


def golem_of(name: str) -> str:
    """The golem that a writer of this name writes in batches."""
    return f"{name}-0000"


def furnish(root: Path, writers: int) -> None:
    """Create a home in which the writers' golems are born."""
    home = Home.create(root, Policy(), NOW)
    with EventLog(home) as log:
        born = Born(
            owner_id="owner",
            generation=0,
            lineage_id="lineage",
            predecessor_id=None,
            bundle_hash=None,
            credits_micros=1,
            reserve_micros=1,
            capital_micros=1,
            lifespan_ticks=10**6,
            market="none",
            market_hash="none",
            policy_hash=Policy().hash,
            derivation_id="none",
            traits=Traits(rebalance_threshold=0.7, range_half_width_ticks=160, forecast_memory=0.95),
        )
        log.record([life_event(golem_of(f"w{k}"), NOW, born) for k in range(writers)], NOW)


def batch(stage: Stage) -> None:
    """Append whole batches to the log, one after another, from where the golem's stream ends."""
    with EventLog(Home.open(stage.root)) as log:
        first = log.head_of(golem_of(stage.name)).highest
        assert first % BATCH_TICKS == 0, "a batch is on record in whole or not at all"
        for number in range(first // BATCH_TICKS, first // BATCH_TICKS + BATCHES):
            rows = records(BATCH_TICKS, golems=1, tick=number * BATCH_TICKS + 1, seed=number, prefix=stage.name)
            items = list(zip(rows["golem_id"].to_pylist(), rows["tick"].to_pylist(), digests_of(rows), strict=True))
            for golem, tick, digest in items:
                stage.report(f"sent {golem} {tick} {digest}")
            log.append(rows, writer=f"batch-{stage.name}", segment=number, recorded_at=NOW)
            for golem, tick, digest in items:
                stage.report(f"kept {golem} {tick} {digest}")


def digests_of(rows: pa.Table) -> list[str]:
    """The digests under which the log will hold these records."""
    return [digest.hex() for digest in digest_column(row_digests(rows)).to_pylist()]


def line_of(golem_id: str, tick: int) -> bytes:
    """Return the record of a golem's tick; every process builds the same bytes."""
    content = _CONTENTS[tick % len(_CONTENTS)] | {"golem_id": golem_id, "tick": tick}
    return orjson.dumps(content)


def _contents() -> list[dict]:
    models = to_models(records(32, golems=1, seed=3), DecisionCycleRecord)
    return [orjson.loads(model.model_dump_json()) for model in models]


_CONTENTS = _contents()


def _now() -> datetime:
    return datetime.now(UTC)


def writer(stage: Stage) -> None:
    """Append record by record to two golems, from a thread or a coroutine each; both share the process's journal."""
    name = stage.rng.choice([stage.name, None])  # the process's usual writer name, or a new one
    drain: DrainMode = stage.rng.choice(["none", "none", "thread"])
    golems = [f"{stage.name}-{part}" for part in "ab"]
    home = Home.open(stage.root)
    if stage.rng.random() < 0.5:
        _write_in_threads(stage, home, golems, name, drain)
    else:
        asyncio.run(_write_in_coroutines(stage, home, golems, name, drain))


def _write_in_threads(stage: Stage, home: Home, golems: list[str], name: str | None, drain: DrainMode) -> None:
    failed: list[BaseException] = []

    def write(golem_id: str) -> None:
        try:
            with EventWriter.open(home, golem_id, clock=_now, policy=POLICY, writer=name, drain=drain) as opened:
                for tick, line, statement in _lines(home, golem_id):
                    stage.report(f"sent {golem_id} {tick} {statement}")
                    opened.append(line)
                    stage.report(f"kept {golem_id} {tick} {statement}")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(golem_id,)) for golem_id in golems]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


async def _write_in_coroutines(stage: Stage, home: Home, golems: list[str], name: str | None, drain: DrainMode) -> None:
    async def write(golem_id: str) -> None:
        opening = AsyncEventWriter.open(home, golem_id, clock=_now, policy=POLICY, writer=name, drain=drain)
        async with await opening as opened:
            for tick, line, statement in _lines(home, golem_id):
                stage.report(f"sent {golem_id} {tick} {statement}")
                await opened.append(line)
                stage.report(f"kept {golem_id} {tick} {statement}")

    await asyncio.gather(*(write(golem_id) for golem_id in golems))


def _lines(home: Home, golem_id: str) -> Iterator[tuple[int, bytes, str]]:
    """Return a golem's next batch: ticks, lines of their records, and the digests of the lines."""
    with EventLog(home) as log:
        first = log.head_of(golem_id).highest + 1
    for tick in range(first, first + APPENDS):
        line = line_of(golem_id, tick)
        yield tick, line, hashlib.sha256(line).hexdigest()[:32]


def drainer(stage: Stage) -> None:
    """Drain for as long as writers may write."""
    home = Home.open(stage.root)
    with EventLog(home) as log:
        drains = Drainer(home, log, clock=_now, policy=POLICY)
        while True:
            over = stage.over()
            drains.once()
            if over:
                break
            time.sleep(PASS_SECONDS)


def spool(stage: Stage) -> None:
    """Drop files of records into the spool, as another runtime does, and take them. A synced file name counts as
    acknowledged.
    """
    home, golem_id = Home.open(stage.root), f"{stage.name}-s"
    with EventLog(home) as log:
        takes = Spool(home, log, POLICY)
        for _ in takes.take(_now()):
            pass
        first = log.head_of(golem_id).highest + 1
        for start in range(first, first + FILES * FILE_TICKS, FILE_TICKS):
            lines = {tick: line_of(golem_id, tick) for tick in range(start, start + FILE_TICKS)}
            rows = [f"{golem_id} {tick} {hashlib.sha256(line).hexdigest()[:32]}" for tick, line in lines.items()]
            for each in rows:
                stage.report(f"sent {each}")
            drop(home, f"{stage.name}-{start}.jsonl", b"".join(line + b"\n" for line in lines.values()))
            for each in rows:
                stage.report(f"kept {each}")
            for _ in takes.take(_now()):
                pass


def drop(home: Home, name: str, content: bytes) -> None:
    """Put a file into the spool by the protocol: write a temporary file, sync it, rename it, sync the folder."""
    draft = home.spool / f".{name}"
    with draft.open("wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    os.rename(draft, home.spool / name)
    folder = os.open(home.spool, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def care(stage: Stage) -> None:
    """Compact and sweep while others write."""
    home = Home.open(stage.root)
    with EventLog(home) as log:
        for _ in range(2):
            maintain(home, log, POLICY, now=_now(), in_force=[p.name for p in home.derivations.iterdir()])


def curator(stage: Stage) -> None:
    """Curate newly closed cycles in a loop."""
    stores = DerivationContext.open(stage.root)
    while True:
        over = stage.over()
        derive_curation(stores)
        if over:
            break
        time.sleep(PASS_SECONDS)


ROLES: dict[str, Callable[[Stage], None]] = {
    "batch": batch,
    "writer": writer,
    "drainer": drainer,
    "spool": spool,
    "care": care,
    "curator": curator,
}
"""Every role by name."""
