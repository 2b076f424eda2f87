"""Random batches through two handles of one log: each record once, and equal to the log in memory.

Law 2 (exactly once) and law 8 (twin equality) of the architecture; rows EV-2 and P-1 of the ledger.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bardo_pipeline.errors import BardoError
from bardo_pipeline.events.life.events import Gap, life_event
from bardo_pipeline.events.record.row_digest import row_digests
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import EventLog
from tests.doubles.memory_event_log import Log, MemoryEventLog
from tests.support.example_count import times
from tests.support.records.drawn_records import records

NOW = datetime(2026, 11, 1, tzinfo=UTC)
GOLEMS, TICKS = 3, 9
ORDER = [("golem_id", "ascending"), ("tick", "ascending")]
TRUE, FALSE = (records(GOLEMS * TICKS, golems=GOLEMS, seed=seed) for seed in (0, 1))
POOL = pa.concat_tables([TRUE, FALSE]).combine_chunks()


@dataclass(frozen=True)
class Batch:
    """Rows of the pool through one handle, under that handle's next segment number, or again under an earlier one."""

    handle: int
    rows: tuple[int, ...]
    segment: int | None


@dataclass(frozen=True)
class Acceptance:
    """A gap accepted through one handle."""

    handle: int
    golem: int
    tick_from: int
    ticks: int


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    golem, first = draw(st.integers(0, GOLEMS - 1)), draw(st.integers(0, TICKS - 1))
    run = [t * GOLEMS + golem for t in range(first, min(TICKS, first + draw(st.integers(1, 4))))]
    strays = draw(st.lists(st.integers(0, GOLEMS * TICKS - 1), max_size=4))
    forged = draw(st.integers(0, 9)) == 0
    rows = draw(st.permutations(run + strays + ([GOLEMS * TICKS + run[0]] if forged else [])))
    return Batch(draw(st.integers(0, 1)), tuple(rows), draw(st.none() | st.none() | st.integers(0, 3)))


acceptances = st.builds(
    Acceptance, st.integers(0, 1), st.integers(0, GOLEMS - 1), st.integers(1, TICKS), st.integers(0, 2)
)
histories = st.lists(st.one_of(batches(), batches(), batches(), acceptances), min_size=2, max_size=9)


def answer_of(act: Callable[[], object]) -> object:
    """Return the answer of a log: a result, or an error with the names in it."""
    try:
        return act()
    except BardoError as error:
        return type(error), getattr(error, "golem_id", None), getattr(error, "tick", None)


def act_on(log: Log, step: Batch | Acceptance, segment: int) -> object:
    if isinstance(step, Acceptance):
        gap = Gap(tick_from=step.tick_from, tick_to=step.tick_from + step.ticks, why="lost")
        return answer_of(lambda: log.record([life_event(f"golem-{step.golem:04}", NOW, gap)], NOW))
    batch = POOL.take(pa.array(step.rows, pa.int64()))
    return answer_of(lambda: log.append(batch, writer=f"writer {step.handle}", segment=segment, recorded_at=NOW))


def contents_of(log: Log) -> tuple[object, ...]:
    rows = log.read_cycles().sort_by(ORDER)
    keys = list(zip(rows["golem_id"].to_pylist(), rows["tick"].to_pylist(), strict=True))
    assert len(set(keys)) == len(keys)
    facts = rows.select(["writer", "segment", "content_hash", "bucket"]).to_pylist()
    digests = row_digests(rows.select(TRUE.column_names)).tolist()
    return keys, facts, digests, log.heads().to_pylist(), log.gaps(), sorted(log.life()["event_id"].to_pylist())


@pytest.mark.row("EV-2", "P-1")
@settings(max_examples=times(8), deadline=None)
@given(histories)
def test_two_handles_of_a_log_equal_the_log_in_memory(history: list[Batch | Acceptance]) -> None:
    twin = MemoryEventLog()
    with tempfile.TemporaryDirectory() as folder:
        home = Home.create(Path(folder), Policy(), NOW)
        handles = [EventLog(home, Policy()), EventLog(home, Policy())]
        segments = [0, 0]
        for step in history:
            segment = segments[step.handle]
            if isinstance(step, Batch) and step.segment is not None:
                segment = min(segment, step.segment)
            answer = act_on(handles[step.handle], step, segment)
            assert answer == act_on(twin, step, segment)
            event(f"{type(step).__name__}: {answer[0].__name__ if isinstance(answer, tuple) else 'accepted'}")
            segments[step.handle] = max(segments[step.handle], segment + 1)
        wanted = contents_of(twin)
        for log in (*handles, EventLog(home, Policy())):
            assert contents_of(log) == wanted
        handles[0].close()
        assert contents_of(EventLog(home, Policy())) == wanted


@pytest.mark.row("EV-2")
@settings(max_examples=times(5), deadline=None)
@given(
    st.permutations(range(GOLEMS * TICKS)), st.lists(st.integers(0, GOLEMS * TICKS), max_size=4), st.integers(0, 2**31)
)
def test_a_split_and_repeated_stream_is_stored_exactly_once(order: list[int], cuts: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    pieces = [p for p in np.split(np.array(order), sorted(cuts)) if len(p)]
    sent = [pieces[i] for i in rng.permutation(np.repeat(np.arange(len(pieces)), 2))]
    with tempfile.TemporaryDirectory() as folder:
        home = Home.create(Path(folder), Policy(), NOW)
        handles = [EventLog(home, Policy()), EventLog(home, Policy())]
        for number, piece in enumerate(sent):
            at = int(rng.integers(2))
            batch = TRUE.take(pa.array(piece))
            handles[at].append(batch, writer=f"writer {at}", segment=number, recorded_at=NOW)
        for log in handles:
            rows = log.read_cycles().sort_by(ORDER).select(TRUE.column_names)
            assert np.array_equal(row_digests(rows), row_digests(TRUE.sort_by(ORDER)))
            assert log.gaps() == ()
