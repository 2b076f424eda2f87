"""Writers that are killed at any point and any number of times: each record is in the log exactly once.

A kill leaves the machine running, so fsync is not tested here (see test_power_cut.py).
Law 2 of the architecture.
"""

from __future__ import annotations

import random
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.events.record.row_digest import row_digests
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import EventLog
from tests.support.example_count import draw_seed
from tests.support.processes.forked_processes import Forked
from tests.support.records.drawn_records import records

pytestmark = pytest.mark.full

NOW = datetime(2026, 11, 1, tzinfo=UTC)
GOLEMS, TICKS_A_SEGMENT, SEGMENTS = 4, 5, 40
ORDER = [("golem_id", "ascending"), ("tick", "ascending")]


def segment_of(number: int) -> pa.Table:
    count, first = GOLEMS * TICKS_A_SEGMENT, number * TICKS_A_SEGMENT + 1
    return records(count, golems=GOLEMS, tick=first, seed=number)


def write(root: str, writer: str, first: str) -> None:
    """Send the segments from `first` on and print each acknowledged number. Runs in a process of its own.

    Prints "ready" when the log is open, and begins when its standard input has a line.
    """
    with EventLog(Home.open(Path(root)), Policy()) as log:
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(int(first), SEGMENTS):
            log.append(segment_of(number), writer=writer, segment=number, recorded_at=NOW)
            print(number, flush=True)


def start(home: Home, writer: str, first: int) -> Forked:
    process = Forked(write, str(home.root), writer, str(first))
    assert process.out.readline() == "ready\n"
    return process


def assert_each_once(home: Home, segments: int) -> None:
    with EventLog(home, Policy()) as log:
        rows = log.read_cycles().sort_by(ORDER)
        wanted = pa.concat_tables([segment_of(number) for number in range(segments)]).sort_by(ORDER)
        assert np.array_equal(row_digests(rows.select(RECORD_SCHEMA.names)), row_digests(wanted))
        assert log.gaps() == ()
        assert set(log.heads()["contiguous"].to_pylist()) == {segments * TICKS_A_SEGMENT}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.create(tmp_path / "home", Policy(), NOW)


@pytest.mark.row("EV-2", "P-1")
def test_a_repeatedly_killed_writer_stores_each_record_once(home: Home) -> None:
    rng = random.Random(draw_seed())
    acknowledged = -1
    for _ in range(6):
        # Restarts from a recorded segment, because a restarted writer does not know which segments were recorded.
        process = start(home, "runtime", max(0, acknowledged - rng.randrange(4)))
        process.go()
        for _ in range(rng.randrange(1, 6)):
            acknowledged = max(acknowledged, int(process.out.readline() or acknowledged))
        process.wait(rng.uniform(0.0, 0.03))
        process.kill()
        acknowledged = max([acknowledged, *map(int, process.rest().split())])
        with EventLog(home, Policy()) as log:
            there = set(log.read_cycles(["segment"])["segment"].to_pylist())
        assert set(range(acknowledged + 1)) <= there, "an acknowledged segment is missing"
        assert there <= set(range(acknowledged + 2)), "at most one segment landed unacknowledged"
    process = start(home, "runtime", 0)
    process.go()
    process.rest()
    assert process.returncode == 0
    assert_each_once(home, SEGMENTS)


@pytest.mark.row("EV-2", "P-1")
def test_two_processes_with_equal_records_store_each_record_once(home: Home) -> None:
    writers = [start(home, name, 0) for name in ("one", "two")]
    for writer in writers:  # both processes have opened the log and now race for every segment
        writer.go()
    for writer in writers:
        writer.rest()
    assert [writer.returncode for writer in writers] == [0, 0]
    assert_each_once(home, SEGMENTS)
