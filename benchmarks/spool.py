"""Spool: MB/s from a dropped file to durable, chained records in the log."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA, to_models, to_table
from bardo_pipeline.events.record.model import DecisionCycleRecord
from bardo_pipeline.storage.intake.json_reader import _LOOSE
from bardo_pipeline.storage.intake.spool_folder import Spool
from benchmarks.figures import Figure
from benchmarks.world import NOW, World

RECORDS = 25_000
PEER_RECORDS = 2_000
SHARES = (("0_1", 0.001, 60), ("10", 0.1, 10), ("50", 0.5, 10), ("100", 1.0, 10))
RUNS = 3
LATER = NOW + timedelta(days=30)  # after the records of the world, which lie in simulated time


def spool_figures(world: World, root: Path) -> list[Figure]:
    """Measure clean files and files with bad lines, each against parsing alone."""
    lines = _lines(world)
    size = sum(map(len, lines)) / 1e6
    value, peer = max(_ingest_rate(world, root, f"clean-{run}", lines) for run in range(RUNS)), _arrow_alone(lines)
    how = (
        f"{len(lines):,} records, {size:,.0f} MB in one file: hashed, parsed, validated, linked, written to Delta and "
        f"fsynced; best of {RUNS}; peer: pyarrow's JSON reader alone, same lines, all cores"
    )
    figures = [Figure("spool_mb_per_s", value, "MB/s", peer, value / peer, "value >= 100", how)]
    for name, share, aim in SHARES:
        damaged = _damaged(lines, share)
        value = max(_ingest_rate(world, root, f"{name}-{run}", damaged) for run in range(RUNS))
        peer = _pydantic_alone(damaged)
        how = (
            f"the same with {share:.1%} bad lines of eight kinds, each in quarantine with its reason and its bytes; "
            "peer: pydantic line by line into Arrow, nothing written"
        )
        figures.append(
            Figure(f"spool_mb_per_s_{name}_pct_bad", value, "MB/s", peer, value / peer, f"value >= {aim}", how)
        )
    return figures


def _lines(world: World) -> list[bytes]:
    records = pa.concat_tables(world.cycles)
    return [model.model_dump_json().encode() for model in to_models(records.slice(0, RECORDS), DecisionCycleRecord)]


def _ingest_rate(world: World, root: Path, name: str, lines: Sequence[bytes]) -> float:
    """Return MB/s of ingesting the lines as one file into a new home."""
    stores = world.home(root / f"spool-{name}")
    content = b"\n".join(lines)
    (stores.home.spool / "records.jsonl").write_bytes(content)
    spool = Spool(stores.home, stores.log, world.policy)
    started = time.perf_counter()
    (taken,) = spool.take(LATER)
    spent = time.perf_counter() - started
    assert taken.records == len(lines) == taken.written + taken.quarantined, taken
    assert not name.startswith("clean") or not taken.quarantined, taken
    stores.log.close()
    return len(content) / 1e6 / spent


def _damaged(lines: Sequence[bytes], share: float) -> list[bytes]:
    """Return the lines with a share damaged, cycling through the kinds of damage."""
    which = np.flatnonzero(np.random.default_rng(7).random(len(lines)) < share)
    damaged = list(lines)
    for turn, at in enumerate(which.tolist()):
        damaged[at] = _DAMAGES[turn % len(_DAMAGES)](lines[at])
    return damaged


_DAMAGES: tuple[Callable[[bytes], bytes], ...] = (
    lambda line: line[: len(line) // 2],
    lambda line: line.replace(b'"tick":', b'"tick":"x","no":', 1),
    lambda line: line.replace(b'"tier":"', b'"tier":"X', 1),
    lambda line: line[:-1] + b',"unknown":1}',
    lambda line: line.replace(b'"cycle_seen":', b'"cycle_seen":-', 1).replace(b":-0", b":-1", 1),
    lambda line: line.replace(b'"gating_reason":"', b'"gating_reason":"\xff', 1),
    lambda line: line.replace(b'"price":', b'"price":NaN,"pricey":', 1),
    lambda line: line.replace(b'"derivation_id":', b'"derivation":', 1),
)


def _arrow_alone(lines: Sequence[bytes]) -> float:
    content = b"\n".join(lines)
    started = time.perf_counter()
    options = pj.ParseOptions(explicit_schema=_LOOSE, unexpected_field_behavior="error")
    read = pj.read_json(pa.BufferReader(content), parse_options=options)
    assert len(read) == len(lines)
    return len(content) / 1e6 / (time.perf_counter() - started)


def _pydantic_alone(lines: Sequence[bytes]) -> float:
    some = lines[:PEER_RECORDS]
    started = time.perf_counter()
    models = []
    for line in some:
        try:
            models.append(DecisionCycleRecord.model_validate_json(line, strict=True))
        except ValueError:
            continue
    to_table(models, RECORD_SCHEMA)
    return sum(map(len, some)) / 1e6 / (time.perf_counter() - started)
