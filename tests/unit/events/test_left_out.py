"""Retracted records are a set: the order and repetition of retractions do not matter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bardo_pipeline.events.life.events import LifeEvent, Reorg, Steered, Struck, Withdrawn, life_event
from bardo_pipeline.events.life.life_schema import LIFE_SCHEMA
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.events.record.arrow_schema import to_table
from tests.support.records.handmade_records import START

GOLEMS = ("g-0", "g-1", "g-2")


def left_out(events: Sequence[LifeEvent]) -> LeftOut:
    return LeftOut.of(to_table(events, LIFE_SCHEMA))


def struck(golem_id: str, tick: int, why: str = "a lie") -> LifeEvent:
    return life_event(golem_id, START, Struck(tick=tick, why=why))


def reorged(golem_id: str, first: int, last: int) -> LifeEvent:
    payload = Reorg(chain="polygon", block_from=1, block_to=2, tick_from=first, tick_to=last)
    return life_event(golem_id, START, payload)


def withdrawn(golem_id: str, *entries: str, because: str = "e") -> LifeEvent:
    return life_event(golem_id, START, Withdrawn(because=because, from_golem_id="g-9", tick=3, entry_ids=entries))


def out_of(left: LeftOut, golem_id: str, ticks: Sequence[int]) -> list[int]:
    mask = left.records(pa.array([golem_id] * len(ticks)), np.array(ticks, np.int64))
    return [tick for tick, out in zip(ticks, mask.tolist(), strict=True) if out]


events = st.one_of(
    st.builds(struck, st.sampled_from(GOLEMS), st.integers(1, 40), st.sampled_from(("a lie", "a slip"))),
    st.tuples(st.sampled_from(GOLEMS), st.integers(1, 40), st.integers(0, 12)).map(
        lambda drawn: reorged(drawn[0], drawn[1], drawn[1] + drawn[2])
    ),
    st.builds(withdrawn, st.sampled_from(GOLEMS), st.sampled_from("abc"), because=st.sampled_from("xyz")),
)


def union_of(life_events: Sequence[LifeEvent], golem_id: str) -> tuple[set[int], set[str]]:
    """Return the ticks and the entries that these events leave out."""
    ticks: set[int] = set()
    entries: set[str] = set()
    for event in life_events:
        if event.golem_id == golem_id:
            if event.struck is not None:
                ticks.add(event.struck.tick)
            if event.reorg is not None:
                ticks.update(range(event.reorg.tick_from, event.reorg.tick_to + 1))
            if event.withdrawn is not None:
                entries.update(event.withdrawn.entry_ids)
    return ticks, entries


@pytest.mark.row("X-4", "EV-8")
@given(st.lists(events, max_size=8), st.data())
def test_left_out_is_the_union_of_its_events(events: list[LifeEvent], data: st.DataObject) -> None:
    left = left_out(
        data.draw(st.permutations(events)) + data.draw(st.lists(st.sampled_from(events), max_size=3)) if events else []
    )
    for golem_id in (*GOLEMS, "g-unheard"):
        ticks, entries = union_of(events, golem_id)
        assert out_of(left, golem_id, range(1, 60)) == sorted(ticks)
        assert left.entries(golem_id) == entries
        cycles = np.arange(0, 16)
        counted = [sum(t <= cycle * 4 for t in ticks) + len(entries) for cycle in cycles.tolist()]
        assert left.revision(pa.array([golem_id] * 16), cycles, 4).tolist() == counted
        listed = LeftOut.listed(golem_id, left.listing(golem_id))
        assert listed.of_golem(golem_id) == left.of_golem(golem_id)


@pytest.mark.row("X-4")
def test_a_lookup_covers_rows_of_several_golems() -> None:
    left = left_out([struck("g-0", 3), reorged("g-2", 1, 2), struck("g-2", 9)])
    golems, ticks = pa.array(["g-0", "g-1", "g-2", "g-2", "g-2", "g-0"]), np.array([3, 3, 2, 3, 9, 9])
    assert left.records(golems, ticks).tolist() == [True, False, True, False, True, False]
    assert left.revision(golems, ticks, 1).tolist() == [1, 0, 2, 2, 3, 1]


@pytest.mark.row("X-4")
def test_very_large_ticks_are_left_out_too() -> None:
    left = left_out([reorged("g-0", 5, 2**53), struck("g-1", 2**52), struck("g-1", 1)])
    assert out_of(left, "g-0", [4, 5, 10**9]) == [5, 10**9]
    assert out_of(left, "g-1", [1, 2, 2**41]) == [1]
    assert left.revision(pa.array(["g-0", "g-1"]), np.array([2, 2]), 4).tolist() == [4, 1]


@pytest.mark.row("X-4")
def test_only_retractions_leave_out_records() -> None:
    steer = Steered(intervention_id="i", due_tick=3, severity="high", intent="hold")
    left = left_out([life_event("g-0", START, steer)])
    assert left == LeftOut()
    assert left.golem_ids == []
    assert left.listing("g-0") is None
