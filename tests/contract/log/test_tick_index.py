"""The tick index: equal to the specification's SQL index, and rebuilt when its file is unusable."""

from __future__ import annotations

import json
import shutil
import sqlite3
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest

from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.life.events import Reorg, Struck, life_event
from bardo_pipeline.events.record.model import PHASES, REGIMES, TIERS
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.index.tick_index import INDEX_SCHEMA, TickIndex
from bardo_pipeline.storage.log.event_log import EventLog
from tests.conftest import NOW
from tests.support.processes.bardo_command import bardo
from tests.support.records.drawn_records import records

GOLEMS = [f"golem-{i:04}" for i in range(7)]
SCOPES = [None, GOLEMS[:1], GOLEMS[1:4], GOLEMS[:6], ["nobody"], [GOLEMS[2], "nobody"]]

SCHEMA = """
create table cycle_index (
    golem_id text not null, tick integer not null, regime text not null, tier text not null,
    has_action boolean not null, has_outcome boolean not null, phase text not null, prediction_error real not null,
    total_cost real not null, pnl_impact real, primary_emotion text, timestamp text not null,
    primary key (golem_id, tick)
)
"""


def appended(log: EventLog, batch: pa.Table, segment: int) -> None:
    log.append(batch, writer="test", segment=segment, recorded_at=NOW)


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of seven golems with 120 ticks in commits of uneven size; some golems lag behind. Copy before writing."""
    home = Home.create(tmp_path_factory.mktemp("ticks") / "home", Policy(), NOW)
    log = EventLog(home)
    first = records(7 * 100, golems=7, seed=3)
    second = records(7 * 20, golems=7, tick=101, seed=4)
    cuts = [0, 30, 400, 430, 431, 700]
    for segment, (start, stop) in enumerate(pairwise(cuts), 1):
        appended(log, first.take(pa.array(range(start, stop))), segment)
    appended(log, second.take(pa.array([i for i in range(140) if i % 7 < 5])), 9)
    log.close()
    return home.root


@pytest.fixture
def log(grown: Path, home: Home) -> EventLog:
    """The log of a copy of that home."""
    shutil.copytree(grown, home.root, dirs_exist_ok=True)
    return EventLog(home)


def reference_index(log: EventLog) -> sqlite3.Connection:
    """Return the specification's own SQLite table, filled from the log row by row."""
    connection = sqlite3.connect(":memory:")
    connection.execute(SCHEMA)
    for row in log.read_cycles().to_pylist():
        outcome = row["outcome"]
        pnl = outcome["pnl_impact_micros"] if outcome else None
        connection.execute(
            f"insert into cycle_index values ({','.join('?' * 12)})",
            (
                row["golem_id"], row["tick"], row["regime"], row["tier"], bool(row["actions"]), outcome is not None,
                row["phase"], row["prediction_error"], row["cost"]["total_micros"], pnl, row["primary_emotion"],
                row["observed_at"].isoformat(),
            ),
        )  # fmt: skip
    return connection


def reference_ticks(
    connection: sqlite3.Connection, scope: list[str] | None, where: str, limit: int
) -> list[tuple[Any, ...]]:
    among = "true" if scope is None else f"golem_id in ({','.join(repr(g) for g in scope)})"
    return connection.execute(
        f"select * from cycle_index where {among} and {where} order by tick desc, golem_id desc limit {limit}"
    ).fetchall()


def tick_tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    assert table.schema.equals(INDEX_SCHEMA)
    return [(*list(row.values())[:-1], row["observed_at"].isoformat()) for row in table.to_pylist()]


@pytest.mark.full
@pytest.mark.row("EV-5")
def test_tick_queries_of_all_four_kinds_equal_the_sql_index(home: Home, log: EventLog) -> None:
    index, connection = TickIndex.open(home, log), reference_index(log)
    for scope, limit in product(SCOPES, (1, 5, 10_000)):
        case = f"golems {scope}, limit {limit}"
        for tier, regime in product(TIERS, REGIMES):
            ticks = index.ticks(golems=scope, tier=tier, regime=regime, limit=limit)
            expected = reference_ticks(connection, scope, f"tier = '{tier}' and regime = '{regime}'", limit)
            assert tick_tuples(ticks) == expected, f"{case}, {tier}, {regime}"
        acted = index.ticks(golems=scope, has_action=True, has_outcome=True, limit=limit)
        assert tick_tuples(acted) == reference_ticks(connection, scope, "has_action and has_outcome", limit), case
        assert tick_tuples(index.ticks(golems=scope, limit=limit)) == reference_ticks(
            connection, scope, "true", limit
        ), case
        counts = {r["phase"]: r["tick_count"] for r in index.phases(golems=scope).to_pylist()}
        assert counts == {p: len(reference_ticks(connection, scope, f"phase = '{p}'", 10**6)) for p in PHASES}, case
        several = index.ticks(golems=scope, tier=["T1", "T2"], phase=["stable", "terminal"], limit=limit)
        where = "tier in ('T1', 'T2') and phase in ('stable', 'terminal')"
        assert tick_tuples(several) == reference_ticks(connection, scope, where, limit), case


@pytest.mark.row("EV-5")
def test_a_refresh_adds_new_records_and_keeps_one_file(home: Home) -> None:
    log = EventLog(home)
    index = TickIndex.open(home, log)
    for number in range(1, 17):
        appended(log, records(20, golems=4, tick=1 + 5 * (number - 1), seed=number), number)
        assert index.refresh() == 20
    assert index.tick_count == 320
    assert len(list((home.index / "ticks").glob("*.duckdb"))) == 1
    reopened = TickIndex.open(home, log)
    assert reopened.refresh() == 0
    reopened.drop()
    assert reopened.refresh() == 320
    assert reopened.ticks(limit=320).equals(index.ticks(limit=320))


@pytest.mark.row("EV-5")
def test_two_readers_of_one_index_share_its_updates(home: Home, log: EventLog) -> None:
    first, other = TickIndex.open(home, log), TickIndex.open(home, EventLog(home))
    appended(log, records(70, golems=7, tick=121, seed=9, prefix="late"), 20)
    assert first.refresh() == 70
    assert other.refresh() == 0
    assert other.ticks(golems=["late-0001"], limit=99).equals(first.ticks(golems=["late-0001"], limit=99))
    assert other.version == first.version == log.version


def _torn(folder: Path) -> None:
    part = next(folder.glob("*.duckdb"))
    part.write_bytes(part.read_bytes()[:-100])


def _zeroed(folder: Path) -> None:
    """Leave a file of the right size with unwritten pages, as a power cut may."""
    file = next(folder.glob("*.duckdb"))
    content = bytearray(file.read_bytes())
    content[4 * 4096 :] = bytes(len(content) - 4 * 4096)
    file.write_bytes(content)


def _without_header(folder: Path) -> None:
    file = next(folder.glob("*.duckdb"))
    file.write_bytes(bytes(3 * 4096) + file.read_bytes()[3 * 4096 :])


def _missing(folder: Path) -> None:
    next(folder.glob("*.duckdb")).unlink()


def _of_another_log(folder: Path) -> None:
    facts = orjson.loads((folder / "manifest.json").read_bytes())
    (folder / "manifest.json").write_bytes(orjson.dumps(facts | {"table_id": "another"}))


def _of_another_format(folder: Path) -> None:
    facts = orjson.loads((folder / "manifest.json").read_bytes())
    (folder / "manifest.json").write_bytes(orjson.dumps(facts | {"format": 0}))


def _ahead_of_the_log(folder: Path) -> None:
    facts = orjson.loads((folder / "manifest.json").read_bytes())
    (folder / "manifest.json").write_bytes(orjson.dumps(facts | {"version": 10**6}))


def _no_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(b'{"format": 1, "par')


@pytest.mark.row("EV-5")
@pytest.mark.parametrize(
    "spoil",
    [_torn, _zeroed, _without_header, _missing, _of_another_log, _of_another_format, _ahead_of_the_log, _no_manifest],
)
def test_an_unusable_index_is_rebuilt(home: Home, log: EventLog, spoil: Any) -> None:
    expected = TickIndex.open(home, log).ticks(limit=10_000)
    spoil(home.index / "ticks")
    reopened = TickIndex.open(home, log)
    assert reopened.ticks(limit=10_000).equals(expected)
    assert reopened.damaged() == []


@pytest.mark.row("EV-5")
def test_an_append_to_a_torn_index_rebuilds_it(home: Home, log: EventLog) -> None:
    TickIndex.open(home, log)
    _zeroed(home.index / "ticks")
    appended(log, records(70, golems=7, tick=121, seed=9, prefix="late"), 20)
    reopened = TickIndex.open(home, log)
    assert reopened.tick_count == log.read_cycles(["tick"]).num_rows
    assert reopened.ticks(limit=10_000).num_rows == reopened.tick_count
    assert reopened.damaged() == []


@pytest.mark.row("EV-5")
def test_the_files_of_an_older_format_are_deleted(home: Home, log: EventLog) -> None:
    folder = home.index / "ticks"
    folder.mkdir(parents=True)
    for name in ("00000000000000000005-840.arrow", ".draft.duckdb", ".draft.duckdb.wal"):
        (folder / name).write_bytes(b"a crash left this")
    old = {"format": 1, "table_id": log.table_id, "version": log.version, "parts": [["5-840.arrow", 840, 1]]}
    (folder / "manifest.json").write_bytes(orjson.dumps(old))
    index = TickIndex.open(home, log)
    assert index.ticks(limit=10_000).num_rows == index.tick_count == log.read_cycles(["tick"]).num_rows
    assert sorted(path.suffix for path in folder.iterdir()) == [".duckdb", ".json"]


@pytest.mark.row("EV-5")
def test_an_open_reader_answers_while_another_process_replaces_the_file(home: Home, log: EventLog) -> None:
    reader = TickIndex.open(home, log)
    before = reader.ticks(limit=10_000)
    appended(log, records(70, golems=7, tick=121, seed=9, prefix="late"), 20)
    TickIndex.open(home, EventLog(home))
    assert reader.ticks(limit=10_000).equals(before)
    assert reader.refresh() == 0
    assert reader.ticks(limit=10_000).num_rows == before.num_rows + 70


@pytest.mark.row("EV-5")
def test_altered_bytes_of_the_file_are_detected(home: Home, log: EventLog) -> None:
    index = TickIndex.open(home, log)
    part = next((home.index / "ticks").glob("*.duckdb"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 4
    part.write_bytes(content)
    assert index.damaged() == [part.name]


@pytest.mark.row("EV-5")
def test_struck_and_reorged_ticks_can_be_left_out(home: Home, log: EventLog) -> None:
    index = TickIndex.open(home, log)
    reorg = Reorg(chain="base", block_from=5, block_to=9, tick_from=20, tick_to=24)
    events = [
        life_event(GOLEMS[0], NOW, Struck(tick=100, why="wrong feed")),
        life_event(GOLEMS[1], NOW, reorg),
        life_event("nobody", NOW, Struck(tick=1, why="unknown")),
    ]
    log.record(events, NOW)
    with_them = {(r["golem_id"], r["tick"]) for r in index.ticks(limit=10_000).to_pylist()}
    without = {(r["golem_id"], r["tick"]) for r in index.ticks(limit=10_000, struck=False).to_pylist()}
    excluded = {(GOLEMS[0], 100)} | {(GOLEMS[1], tick) for tick in range(20, 25)}
    assert with_them - without == excluded
    assert without < with_them
    assert len(index.ticks(golems=GOLEMS[:1], limit=10, struck=False)) == 10
    counts = np.array(index.phases()["tick_count"]) - np.array(index.phases(struck=False)["tick_count"])
    assert counts.sum() == 6
    own = np.array(index.phases(golems=GOLEMS[1:2])["tick_count"])
    assert (own - np.array(index.phases(golems=GOLEMS[1:2], struck=False)["tick_count"])).sum() == 5


def test_a_query_with_an_invalid_tier_or_limit_is_refused(home: Home, log: EventLog) -> None:
    index = TickIndex.open(home, log)
    with pytest.raises(QueryError, match=r"T3.*T0, T1, T2"):
        index.ticks(tier="T3")
    with pytest.raises(QueryError, match="at least one"):
        index.ticks(limit=0)


@pytest.mark.full
@pytest.mark.row("EV-5")
def test_the_ticks_command_queries_the_index(home: Home, log: EventLog) -> None:
    log.close()
    rows = json.loads(bardo("ticks", "--tier", "T1", "--last", "5", "--format", "json", home=home.root))
    index = TickIndex.open(home, log)
    assert [(r["golem_id"], r["tick"]) for r in rows] == [
        (r["golem_id"], r["tick"]) for r in index.ticks(tier="T1", limit=5).to_pylist()
    ]
    table = bardo("ticks", "--golem", GOLEMS[1], "--golem", GOLEMS[2], "--last", "4", home=home.root)
    assert [f"{golem}:{tick}" in table for golem in GOLEMS[:4] for tick in (119, 120)] == [
        golem in GOLEMS[1:3] for golem in GOLEMS[:4] for _ in range(2)
    ]
    assert "no tick matches" in bardo("ticks", "--golem", "nobody", "--acted", home=home.root)
    counts = json.loads(bardo("ticks", "--phases", "--format", "json", home=home.root))
    assert sum(r["tick_count"] for r in counts) == index.tick_count
    assert "T0, T1, T2" in bardo("ticks", "--tier", "T9", home=home.root, expect=2)
