"""Writes of threads that wait for one another: one commit for all, and each error for its own caller."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bardo_pipeline.errors import AuthorityError, BardoError, DiskFullError, StoreError
from bardo_pipeline.events.experience.stored_text import stored_text
from bardo_pipeline.events.life.events import EVERY_GOLEM, LifeEvent, life_event
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.waiting_writes import Write

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
CALLERS = 12


def text(number: int, golem_id: str = "g-1") -> LifeEvent:
    return life_event(golem_id, NOW + timedelta(seconds=number), stored_text(f"the pool lost depth {number}"))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.create(tmp_path, Policy(), NOW)


def recorded_at_once(home: Home, batches: Sequence[list[LifeEvent]]) -> list[int | BardoError]:
    """Record batches by threads with a log each, all of which wait while a first write holds the lock of the log."""
    logs = [EventLog(home) for _ in batches]
    outcomes: list[int | BardoError] = [0] * len(batches)

    def record(place: int) -> None:
        try:
            outcomes[place] = logs[place].record(batches[place], NOW + timedelta(hours=1))
        except BardoError as error:
            outcomes[place] = error

    with ThreadPoolExecutor(len(batches)) as threads, home.lock("log"):
        for place in range(len(batches)):
            threads.submit(record, place)
        while logs[0]._waiting_writes.count < len(batches) - 1:
            threading.Event().wait(0.001)
    return outcomes


def test_writes_that_wait_share_a_commit_and_state_their_own_counts(home: Home) -> None:
    log = EventLog(home)
    before = log.life_version
    batches = [[text(2 * number), text(2 * number + 1)] for number in range(CALLERS)]
    batches[5] = [text(0), text(99)]  # the first event is another caller's
    counts = recorded_at_once(home, batches)
    assert log.life_version == before + 2  # the one that held the lock first, and all that waited
    assert sum(count for count in counts if isinstance(count, int)) == 2 * CALLERS - 1
    stored = log.life("TextStored")
    assert sorted(stored["event_id"].to_pylist()) == sorted({e.event_id for batch in batches for e in batch})
    assert log.record([text(0)], NOW + timedelta(hours=1)) == 0


def test_a_refused_event_fails_its_own_caller_alone(home: Home) -> None:
    batches = [[text(number)] for number in range(CALLERS)]
    batches[3] = [text(3), text(4, EVERY_GOLEM)]
    outcomes = recorded_at_once(home, batches)
    assert isinstance(outcomes[3], AuthorityError)
    assert [outcome for place, outcome in enumerate(outcomes) if place != 3] == [1] * (CALLERS - 1)
    stored = EventLog(home).life("TextStored")
    assert text(3).event_id not in stored["event_id"].to_pylist()
    assert stored.num_rows == CALLERS - 1


def test_an_event_that_breaks_a_rule_of_its_model_fails_its_own_caller_alone(home: Home) -> None:
    wrong = stored_text("the pool lost depth").model_copy(update={"importance": "immense"})
    batches = [[text(number)] for number in range(CALLERS)]
    batches[7] = [life_event("g-1", NOW, wrong)]
    outcomes = recorded_at_once(home, batches)
    assert isinstance(outcomes[7], BardoError)
    assert [outcome for place, outcome in enumerate(outcomes) if place != 7] == [1] * (CALLERS - 1)


def test_a_disk_that_refuses_the_commit_fails_every_caller_of_it(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise DiskFullError("no space")

    log = EventLog(home)
    monkeypatch.setattr(type(log._life), "write", refuse)
    outcomes = recorded_at_once(home, [[text(number)] for number in range(CALLERS)])
    assert all(isinstance(outcome, DiskFullError) for outcome in outcomes)
    monkeypatch.undo()
    assert recorded_at_once(home, [[text(number)] for number in range(CALLERS)]) == [1] * CALLERS


def test_an_interrupted_commit_leaves_no_caller_without_an_outcome(home: Home) -> None:
    log = EventLog(home)
    write = Write([text(1)], NOW, frozenset(), "home", {})

    def interrupted(writes: Sequence[Write]) -> None:
        raise KeyboardInterrupt

    commit: Callable[[Sequence[Write]], None] = interrupted
    with pytest.raises(KeyboardInterrupt):
        log._waiting_writes.commit(write, commit, alone=False)
    assert isinstance(write.error, StoreError)
    assert log.record([text(1)], NOW + timedelta(hours=1)) == 1
