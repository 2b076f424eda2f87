"""Dying costs no more than its reserve; each of its phases is recorded once, in order; silence equals its twin."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from bardo_pipeline.derivation.death.silence import LAST_TICK_SCHEMA, SILENT_SCHEMA, silent_golems
from bardo_pipeline.errors import RecordError
from bardo_pipeline.events.life.events import LifeEvent, life_event
from bardo_pipeline.events.life.thanatopsis_events import PHASES_OF_DYING, Accepted, Bequeathed, Reflected, Settled
from bardo_pipeline.mortality.death_reserve import bears_reflection, legacy_costs, reflection_costs
from bardo_pipeline.policy import Policy
from tests.doubles.memory_event_log import MemoryEventLog
from tests.reference.katabasis.dying import costs_by_row, silent_by_row
from tests.support.example_count import some
from tests.support.records.log_queries import NOW, append, died, ticks

RULES = Policy().dying
shares = st.sampled_from((0.0, 1e-6, 0.03, 0.5, 1.0, 7.0))
reserves = st.sampled_from((0, 1, 9_999, 10_000, 29_999, 30_000, 129_999, 130_000, 300_000, 349_999, 350_000, 10**9))


@pytest.mark.row("INH-4")
@some(200)
@given(st.lists(st.tuples(reserves, shares, shares, shares, shares), min_size=1, max_size=6))
def test_costs_of_dying_equal_their_twin_and_stay_within_the_reserve(rows: list[tuple[Any, ...]]) -> None:
    reserve, looked, written, uploaded, pushed = (np.array(column) for column in zip(*rows, strict=True))
    reserve = reserve.astype(np.int64)
    reflected = reflection_costs(reserve, looked, written, RULES)
    legacy = legacy_costs(reserve - sum(reflected), uploaded, pushed, RULES)
    items = list(zip(*(column.tolist() for column in (*reflected, *legacy)), strict=True))
    assert items == [costs_by_row(*row, RULES) for row in rows]
    assert all(0 <= sum(costs) <= int(held) for costs, held in zip(items, reserve, strict=True))


@pytest.mark.row("INH-4")
@pytest.mark.parametrize(
    ("reserve", "least", "most"), [(300_000, 130_000, 300_000), (350_000, 130_000, 350_000), (10**7, 130_000, 350_000)]
)
def test_a_full_reserve_pays_each_cost_within_its_price_limits(reserve: int, least: int, most: int) -> None:
    held = np.array([reserve])
    assert bears_reflection(held, RULES).all()
    for share, total in ((0.0, least), (1.0, most)):
        every = np.array([share])
        reflected = reflection_costs(held, every, every, RULES)
        legacy = legacy_costs(held - sum(reflected), every, every, RULES)
        assert sum(int(cost[0]) for cost in (*reflected, *legacy)) == total
        prices = ("reflection", *map(int, reflected[0])), ("compression", *map(int, reflected[1]))
        prices += ("upload", *map(int, legacy[0])), ("indexing", *map(int, legacy[1]))
        for name, cost in prices:
            assert getattr(RULES, f"{name}_micros_min") <= cost <= getattr(RULES, f"{name}_micros_max"), name


@pytest.mark.row("INH-4")
def test_a_small_reserve_pays_for_the_snapshot_first() -> None:
    every = np.array([1.0])
    reflected = reflection_costs(np.array([12_000]), every, every, RULES)
    legacy = legacy_costs(np.array([2_000]), every, every, RULES)
    assert [int(cost[0]) for cost in (*reflected, *legacy)] == [0, 10_000, 2_000, 0]


def phases(golem_id: str, *, reserve: int = 300_000, at: datetime = NOW) -> list[LifeEvent]:
    """The four phases of a golem's dying."""
    plain: dict[str, Any] = {"follows": "d", "tick": 5, "reserve_micros": reserve, "cost_micros": 0, "spent_micros": 0}
    rows = [
        Accepted(**plain, cause="economic", means="full"),
        Settled(**plain, position_count=0, position_value_micros=0, idle_micros=1, capital_micros=1, credits_micros=0),
        Reflected(**plain, testament_hash="t", statement_count=1, entry_count=0, reflection_micros=0,
                  compression_micros=0),
        Bequeathed(**plain, bundle_hash="b", published=True, entry_count=0, episode_count=0, vote_count=0,
                   push_confidence=0.6, pushed_entry_ids=(), upload_micros=0, indexing_micros=0, notice="it died"),
    ]  # fmt: skip
    return [life_event(golem_id, at, payload) for payload in rows]


GOLEMS = ("golem-0000", "golem-0001")


@pytest.mark.row("INH-2")
@some(60)
@given(st.lists(st.lists(st.tuples(st.sampled_from(GOLEMS), st.integers(-1, 3), st.integers(0, 2)), max_size=6),
                max_size=8))  # fmt: skip
def test_the_log_records_one_death_and_each_phase_once_in_order(
    batches: list[list[tuple[str, int, int]]],
) -> None:
    """batches: rows of (golem, phase or -1 for the death, minutes after `NOW`)."""
    log = MemoryEventLog()
    append(log, ticks(1, 3, golems=2))
    reached = dict.fromkeys(GOLEMS, -1)
    for batch in batches:
        events = []
        for golem_id, phase, later in batch:
            at = NOW + timedelta(minutes=later)
            plain = died(5, golem_id, credits_micros=later) if phase < 0 else phases(golem_id, at=at)[phase]
            events.append(plain)
        fresh = {golem_id: {p for g, p, _ in batch if g == golem_id and p >= reached[golem_id]} for golem_id in GOLEMS}
        fits = all(sorted(new) == list(range(reached[g], reached[g] + len(new))) for g, new in fresh.items())
        if not fits:
            with pytest.raises(RecordError, match=r"record (that|its death) first"):
                log.record(events, NOW)
            continue
        assert log.record(events, NOW) == sum(map(len, fresh.values()))
        reached = {g: reached[g] + len(new) for g, new in fresh.items()}
    for golem_id in GOLEMS:
        kinds = [e["kind"] for e in log.life().to_pylist() if e["golem_id"] == golem_id]
        assert sorted(kinds) == sorted(("DeathDeclared", *PHASES_OF_DYING)[: reached[golem_id] + 1])


@pytest.mark.row("INH-4")
def test_a_phase_that_spends_more_than_the_reserve_is_invalid() -> None:
    plain: dict[str, Any] = {"follows": "d", "tick": 5, "reserve_micros": 7, "cause": "silence", "means": "cheapest"}
    assert Accepted(**plain, cost_micros=7, spent_micros=7).spent_micros == 7
    with pytest.raises(ValidationError, match="dying never spends more than its reserve"):
        Accepted(**plain, cost_micros=8, spent_micros=8)
    with pytest.raises(ValidationError, match="dying never spends more than its reserve"):
        Accepted(**plain, cost_micros=7, spent_micros=6)


START = datetime(2026, 1, 1, tzinfo=UTC)
minutes = st.integers(0, 300).map(lambda count: START + timedelta(minutes=count))


@pytest.mark.row("INH-2")
@some(150)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 90), minutes, st.booleans()), max_size=8),
    st.sampled_from((0, 1, 60, 200)),
    st.none() | minutes,
    st.none() | minutes,
)
def test_silent_golems_equal_their_twin(
    rows: list[tuple[Any, ...]], borne: int, at: datetime | None, now: datetime | None
) -> None:
    lines = [dict(zip(LAST_TICK_SCHEMA.names, (f"g-{i}", *row), strict=True)) for i, row in enumerate(rows)]
    result = silent_golems(
        pa.Table.from_pylist(lines, schema=LAST_TICK_SCHEMA), silence=timedelta(minutes=borne), at=at, now=now
    )
    assert result.schema == SILENT_SCHEMA
    assert result.to_pylist() == silent_by_row(lines, timedelta(minutes=borne), at, now)


@pytest.mark.row("INH-2")
def test_one_golem_in_the_far_future_makes_no_other_golem_silent() -> None:
    lives = [("g-1", 0), ("g-2", 1), ("g-3", 10**6)]
    rows = [
        dict(zip(LAST_TICK_SCHEMA.names, (g, "a", 9, START + timedelta(hours=h), True), strict=True)) for g, h in lives
    ]
    table = pa.Table.from_pylist(rows, schema=LAST_TICK_SCHEMA)
    assert silent_golems(table, silence=timedelta(hours=2)).num_rows == 0
    assert silent_golems(table, silence=timedelta(minutes=30))["golem_id"].to_pylist() == ["g-1"]
