"""The tick index against SQLite with the specification's schema and indexes, over the same ticks."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.index.tick_index import TickIndex
from bardo_pipeline.storage.log.event_log import EventLog
from benchmarks.figures import Figure

LIMIT = 1_000
TIMES = 21

SCHEMA = """
create table cycle_index (
    golem_id text not null, tick integer not null, regime text not null, tier text not null,
    has_action boolean not null, has_outcome boolean not null, phase text not null, prediction_error real not null,
    total_cost real not null, pnl_impact real, primary_emotion text, timestamp text not null,
    primary key (golem_id, tick)
) without rowid;
"""
INDEXES = """
create index idx_cycle_tier_regime on cycle_index(tier, regime);
create index idx_cycle_outcome on cycle_index(has_action, has_outcome);
create index idx_cycle_phase on cycle_index(phase);
create index idx_cycle_recent on cycle_index(tick desc);
"""
"""The specification's indexes (HB S6); golem_id is added, because this database holds all golems."""

_ROWS = 500_000  # rows per insert into SQLite
_SECONDS = 2.0  # a slow query stops after this time


def index_figures(home: Home, log: EventLog, root: Path) -> list[Figure]:
    """Compare p50 milliseconds of the slowest kind of warm query with SQLite's slowest."""
    started = time.perf_counter()
    index = TickIndex.open(home, log)
    build_seconds = time.perf_counter() - started
    every = index.ticks(limit=index.tick_count)
    names = sorted(every["golem_id"].unique().to_pylist())
    scopes: dict[str, list[str] | None] = {"all": None, "one golem": names[:1], "ten golems": names[:10]}
    tier, regime = _frequent(every)
    kinds: dict[str, tuple[dict[str, Any], str]] = {
        "tier and regime": ({"tier": tier, "regime": regime}, f"tier = '{tier}' and regime = '{regime}'"),
        "acted with an outcome": ({"has_action": True, "has_outcome": True}, "has_action = 1 and has_outcome = 1"),
        "last ticks": ({}, "true"),
    }
    peer = _filled(root / "index.sqlite", every)
    del every
    index_ms: dict[str, float] = {}
    sqlite_ms: dict[str, float] = {}
    for scope, golems in scopes.items():
        for kind, (asked, where) in kinds.items():
            name = f"{kind}, {scope}"
            index_ms[name] = _p50(lambda a=asked, g=golems: index.ticks(golems=g, limit=LIMIT, **a))
            sql = f"select * from cycle_index where {_among(golems)} and {where} order by tick desc limit {LIMIT}"
            sqlite_ms[name] = _p50(lambda q=sql: peer.execute(q).fetchall())
        index_ms[f"phases, {scope}"] = _p50(lambda g=golems: index.phases(golems=g))
        sql = f"select phase, count(*) from cycle_index where {_among(golems)} group by phase"
        sqlite_ms[f"phases, {scope}"] = _p50(lambda q=sql: peer.execute(q).fetchall())
    peer.close()
    slowest = max(index_ms, key=lambda name: index_ms[name])
    by_query = "; ".join(f"{name} {index_ms[name]:.1f} ({sqlite_ms[name]:,.1f})" for name in index_ms)
    how = (
        f"{index.tick_count:,} ticks of {len(names)} golems, limit {LIMIT:,}, p50 of {TIMES} warm queries, the slowest "
        f"({slowest}); peer: SQLite, the specification's schema and indexes, its slowest; ms (SQLite): {by_query}; "
        f"built in {build_seconds:.1f} s"
    )
    value, worst = index_ms[slowest], max(sqlite_ms.values())
    return [Figure("index_ms", value, "ms", worst, worst / value, "value <= 20", how)]


def _among(golems: list[str] | None) -> str:
    return "true" if golems is None else f"golem_id in ({','.join(repr(g) for g in golems)})"


def _frequent(ticks: pa.Table) -> tuple[str, str]:
    """Return the most frequent (tier, regime) among ticks of tiers T1 and T2."""
    deliberated = ticks.filter(pc.is_in(ticks["tier"], value_set=pa.array(["T1", "T2"])))
    pairs = (
        deliberated.group_by(["tier", "regime"]).aggregate([("tick", "count")]).sort_by([("tick_count", "descending")])
    )
    first = pairs.slice(0, 1).to_pylist()[0]
    return first["tier"], first["regime"]


def _p50(ask: Callable[[], object]) -> float:
    ask()
    spent: list[float] = []
    while len(spent) < TIMES and sum(spent) < _SECONDS:
        started = time.perf_counter()
        ask()
        spent.append(time.perf_counter() - started)
    return float(np.median(spent)) * 1e3


def _filled(path: Path, ticks: pa.Table) -> sqlite3.Connection:
    """Fill a database of the specification's index with these ticks."""
    connection = sqlite3.connect(path)
    connection.execute("pragma journal_mode = wal")
    connection.executescript(SCHEMA)
    marks = ",".join("?" * len(ticks.column_names))
    moments = ticks["observed_at"].cast(pa.string())
    ticks = ticks.set_column(ticks.column_names.index("observed_at"), "observed_at", moments)
    for start in range(0, ticks.num_rows, _ROWS):
        columns = (c.to_pylist() for c in ticks.slice(start, _ROWS).columns)
        connection.executemany(f"insert into cycle_index values ({marks})", zip(*columns, strict=True))
    connection.executescript(INDEXES)
    connection.execute("analyze")
    connection.commit()
    return connection
