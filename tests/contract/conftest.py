"""Homes and logs that contract tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bardo_pipeline.errors import BardoError
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal.event_writer import EventWriter
from bardo_pipeline.storage.log.event_log import EventLog
from tests.doubles.memory_event_log import Log, MemoryEventLog
from tests.support.homes.spool_homes import Place
from tests.support.homes.spool_homes import opened as spool_at
from tests.support.records.log_queries import GOLEM, NOW
from tests.support.records.writer_records import Opener, clock


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.create(tmp_path / "home", Policy(), NOW)


@pytest.fixture
def disk(home: Home) -> Iterator[EventLog]:
    with EventLog(home, Policy()) as log:
        yield log


@pytest.fixture(params=["memory", "disk"])
def log(request: pytest.FixtureRequest) -> Log:
    return MemoryEventLog() if request.param == "memory" else request.getfixturevalue("disk")


@pytest.fixture
def opened(home: Home) -> Iterator[Opener]:
    """Return a function that opens writers; those still open at the end of the test are closed."""
    made: list[EventWriter] = []

    def open_(golem_id: str = GOLEM, **more: object) -> EventWriter:
        writer = EventWriter.open(home, golem_id, **({"clock": clock, "drain": "none", "writer": "w"} | more))
        made.append(writer)
        return writer

    yield open_
    for writer in made:
        with suppress(BardoError):
            writer.close()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A spool with an open log."""
    return spool_at(tmp_path / "home")
