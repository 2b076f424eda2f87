"""A lease is not durable: after a power cut its file may be missing, and its writer's records are still there."""

from __future__ import annotations

from pathlib import Path

import pytest

from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal.event_writer import EventWriter
from tests.conftest import NOW
from tests.crash.roles import line_of
from tests.support.processes.forked_processes import Forked, die


def write_and_die(root: str) -> None:
    writer = EventWriter.open(Path(root), "g-1", clock=lambda: NOW, writer="before", drain="none")
    for tick in range(1, 6):
        writer.append(line_of("g-1", tick))
    die()


@pytest.mark.row("EV-3")
def test_a_new_writer_continues_after_acknowledged_records_without_the_lease(tmp_path: Path) -> None:
    home = Home.create(tmp_path / "home", Policy(), NOW)
    Forked(write_and_die, str(home.root)).wait()
    for lease in home.leases.glob("*.lease"):
        lease.unlink()
    with EventWriter.open(home, "g-1", clock=lambda: NOW, writer="after", drain="none") as writer:
        assert writer.recovered is not None
        assert writer.recovered.records == 5
        assert writer.append(line_of("g-1", 6)).link.number == 6
