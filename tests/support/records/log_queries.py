"""Queries for tests of the log: records by tick, recorded keys, life events, vectors."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import cache

import numpy as np
import pyarrow as pa

from bardo_pipeline.events.life.events import Died, Gap, LifeEvent, Vitality, life_event
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.events.record.row_digest import row_digests
from bardo_pipeline.retrieval.embedder_interface import EmbedderIdentity
from bardo_pipeline.storage.log.protocol import VECTORS_SCHEMA, Appended
from tests.doubles.memory_event_log import Log
from tests.support.records.drawn_records import records

NOW = datetime(2026, 11, 1, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
GOLEM, OTHER = "golem-0000", "golem-0001"
ORDER = [("golem_id", "ascending"), ("tick", "ascending")]
SEGMENTS = itertools.count()


def append(log: Log, batch: pa.Table, segment: int | None = None, writer: str = "runtime") -> Appended:
    number = next(SEGMENTS) if segment is None else segment
    return log.append(batch, writer=writer, segment=number, recorded_at=NOW)


def ticks(first: int, last: int | None = None, *, golems: int = 1, seed: int = 0) -> pa.Table:
    """Return records of ticks first to last; a tick has the same content in every call."""
    count = (last or first) - first + 1
    return pa.concat_tables([_tick(tick, golems, seed) for tick in range(first, first + count)])


@cache
def _tick(tick: int, golems: int, seed: int) -> pa.Table:
    return records(golems, golems=golems, tick=tick, seed=seed * 1000 + tick)


def content(log: Log) -> pa.Table:
    return log.read_cycles().sort_by(ORDER).select(RECORD_SCHEMA.names)


def on_record(log: Log) -> list[int]:
    return sorted(log.read_cycles(["tick"])["tick"].to_pylist())


def same(table: pa.Table, other: pa.Table) -> bool:
    return bool(np.array_equal(row_digests(table.sort_by(ORDER)), row_digests(other.sort_by(ORDER))))


def head(log: Log, golem_id: str = GOLEM) -> tuple[int, int, int]:
    rows = {r["golem_id"]: r for r in log.heads().to_pylist()}
    return tuple(rows[golem_id][name] for name in ("contiguous", "highest", "missing_count"))


def accepted(tick_from: int, tick_to: int, golem_id: str = GOLEM) -> LifeEvent:
    return life_event(golem_id, NOW, Gap(tick_from=tick_from, tick_to=tick_to, why="the machine was lost"))


def died(tick: int, golem_id: str = GOLEM, *, credits_micros: int = 0) -> LifeEvent:
    vitality = Vitality(economic=0.0, epistemic=0.5, stochastic=0.5, composite=0.0)
    payload = Died(
        cause="economic",
        tick=tick,
        phase="terminal",
        vitality=vitality,
        credits_micros=credits_micros,
        capital_micros=1,
        earned_micros=0,
    )
    return life_event(golem_id, NOW, payload)


def embedder_of(model: str) -> EmbedderIdentity:
    return EmbedderIdentity(model=model, version="1", dimension=2, preprocess_hash="p", chunk_config="none")


MINILM, NOMIC = embedder_of("minilm").key, embedder_of("nomic").key


def vectors(texts: list[str], embedder: str = "minilm", value: float = 0.5) -> pa.Table:
    rows = [
        {
            "text_hash": text,
            "embedder": embedder_of(embedder).key,
            "vector": [value, float(i)],
            **asdict(embedder_of(embedder)),
            "created_at": NOW,
        }
        for i, text in enumerate(texts)
    ]
    return pa.Table.from_pylist(rows, schema=VECTORS_SCHEMA)
