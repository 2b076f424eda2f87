"""Killed writers and drainers: each acknowledged record is in the log once, unchanged.

A kill leaves the machine running, so fsync is tested by the simulated power cut instead. Laws 1 and 2.
"""

from __future__ import annotations

import random
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import IO

import orjson
import pytest

from bardo_pipeline.errors import BackpressureError
from bardo_pipeline.events.record.arrow_schema import to_models
from bardo_pipeline.events.record.model import DecisionCycleRecord
from bardo_pipeline.policy import Policy, WriterPolicy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.quarantine import Quarantine
from bardo_pipeline.storage.journal.drainer import drain_once
from bardo_pipeline.storage.journal.event_writer import EventWriter
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.verification.verify import verify
from tests.support.example_count import draw_seed
from tests.support.processes.bardo_command import command
from tests.support.processes.forked_processes import Forked
from tests.support.records.drawn_records import records

NOW = datetime(2026, 11, 1, tzinfo=UTC)
ROUNDS, TICKS = 3, 400
DRAINS = ("process", "thread", "none", "none")


@cache
def content() -> dict[str, object]:
    return orjson.loads(to_models(records(1, golems=1), DecisionCycleRecord)[0].model_dump_json())


def line_of(golem_id: str, tick: int) -> bytes:
    return orjson.dumps(content() | {"golem_id": golem_id, "tick": tick})


def write(root: str, golem_id: str, name: str, drain: str, first: str) -> None:
    """Append tick after tick and report each acknowledged one with its link. Runs in a process of its own.

    When all drainers are dead the journal stays full: the writer then stops, and drains its own records on close.
    """
    policy = Policy(writer=WriterPolicy(batch_records=7, journal_bytes_max=200_000))
    with EventWriter.open(
        Path(root), golem_id, clock=lambda: datetime.now(UTC), policy=policy, writer=name, drain=drain
    ) as writer:
        for tick in range(int(first), TICKS + 1):
            try:
                link = writer.append(line_of(golem_id, tick), timeout=10.0).link
            except BackpressureError:
                return
            sys.stdout.write(f"{tick} {link.number} {link.hash.hex()}\n")
            sys.stdout.flush()


def start(home: Home, k: int, name: str, first: int) -> Forked:
    return Forked(write, str(home.root), f"golem-{k}", name, DRAINS[k], str(first))


def read_acknowledgements(out: IO[str], most: int) -> list[tuple[int, int, str]]:
    """Read up to this many acknowledgements; a truncated line does not count."""
    rows = []
    for _, line in zip(range(most), out, strict=False):
        if line.endswith("\n") and len(parts := line.split()) == 3:
            rows.append((int(parts[0]), int(parts[1]), parts[2]))
    return rows


@pytest.mark.full
@pytest.mark.row("EV-3", "P-1")
def test_repeatedly_killed_writers_and_drainers_store_each_record_once(tmp_path: Path) -> None:
    rng = random.Random(draw_seed())
    home = Home.create(tmp_path / "home", Policy(), NOW)
    acknowledged: list[dict[int, tuple[int, str]]] = [{} for _ in DRAINS]

    def note(k: int, acks: list[tuple[int, int, str]]) -> None:
        for tick, *link in acks:
            assert acknowledged[k].setdefault(tick, tuple(link)) == tuple(link), (
                "a repeated acknowledgement has another link"
            )

    for attempt in range(ROUNDS):
        # Some processes reuse the name of a dead writer, some have a new one.
        names = [f"w{k}" if rng.random() < 0.5 else f"w{k}-{attempt}" for k in range(len(DRAINS))]
        firsts = [max(1, max(line, default=0) - rng.randrange(4)) for line in acknowledged]
        writers = [start(home, k, names[k], firsts[k]) for k in range(len(DRAINS))]
        beside = Forked(command, "drain", "--follow", "--home", str(home.root))
        try:
            for k in rng.sample(range(len(DRAINS)), len(DRAINS)):
                note(k, read_acknowledgements(writers[k].out, rng.randrange(1, 60)))
                if rng.random() < 0.5:
                    beside.kill()
                writers[k].wait(rng.uniform(0.0, 0.02))
                writers[k].kill()
        finally:
            for process in (*writers, beside):
                process.kill()
        for k, writer in enumerate(writers):
            note(k, read_acknowledgements(writer.out, TICKS))
            writer.wait()
        beside.wait()
    assert all(line for line in acknowledged)
    with EventLog(home) as log:
        report = drain_once(home, log, clock=lambda: NOW)
        assert (report.refused, report.faults) == (0, [])
        for k, line in enumerate(acknowledged):
            rows = log.read_cycles(["tick", "payload", "link"], golems=[f"golem-{k}"]).sort_by("tick").to_pylist()
            ticks = [row["tick"] for row in rows]
            assert ticks == list(range(1, len(rows) + 1)), "a record is missing or doubled"
            assert len(rows) >= max(line)
            assert all(row["payload"] == line_of(f"golem-{k}", row["tick"]) for row in rows)
            links = {row["tick"]: (row["link"]["number"], row["link"]["hash"].hex()) for row in rows}
            assert all(links[tick] == link for tick, link in line.items()), "the links are those acknowledged"
    assert len(Quarantine(home).open()) == 0
    assert (list(home.journal.iterdir()), list(home.leases.iterdir())) == ([], [])
    assert verify(home).breaks == ()


@pytest.mark.full
@pytest.mark.row("EV-3")
def test_four_concurrent_writers_store_all_acknowledged_records(tmp_path: Path) -> None:
    home = Home.create(tmp_path / "home", Policy(), NOW)
    writers = [start(home, k, f"w{k}", 1) for k in range(len(DRAINS))]
    lines = [read_acknowledgements(writer.out, TICKS) for writer in writers]
    assert [writer.wait() for writer in writers] == [0, 0, 0, 0]
    with EventLog(home) as log:
        for k, acks in enumerate(lines):
            rows = log.read_cycles(["tick", "link"], golems=[f"golem-{k}"]).sort_by("tick").to_pylist()
            assert [(row["tick"], row["link"]["number"], row["link"]["hash"].hex()) for row in rows] == acks
            assert len(acks) == TICKS
    assert (list(home.journal.iterdir()), list(home.leases.iterdir())) == ([], [])
