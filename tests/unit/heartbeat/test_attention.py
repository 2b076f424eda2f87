"""Attention: a golem ignores situations in which deliberation never helped; its records hold the counts, and its heir
starts with them.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from bardo_pipeline.heartbeat.entry_names import EntryNames
from bardo_pipeline.heartbeat.fleet import Fleet, Founding, born
from bardo_pipeline.heartbeat.gate import attention
from bardo_pipeline.heartbeat.observe import Sight, observe
from bardo_pipeline.heartbeat.recall_table import nothing_known
from bardo_pipeline.heartbeat.records.build_records import records_of
from bardo_pipeline.heartbeat.records.chunk_rows import Buffers, Chunk
from bardo_pipeline.heartbeat.step import step
from bardo_pipeline.inheritance.learning_state import MILLI, PLACES, THOUGHT_COLUMNS, attended, attention_of
from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.market.tick_series import Tape, tape_of
from bardo_pipeline.policy import Policy

POLICY = Policy()
TAPE = tape_of(synthetic_market(seed=5, bars=700, start=datetime(2026, 1, 1, tzinfo=UTC)), POLICY)
NOTHING = (None, None, None)


def fleet_of(count: int) -> Fleet:
    lives = [
        born(
            lineage_id=f"l/{i}", generation=0, owner_id="o", founding=Founding(), market="m", market_hash="h",
            derivation_id="d", policy=POLICY,
        )
        for i in range(count)
    ]  # fmt: skip
    return Fleet([g for g, _ in lives], [b for _, b in lives], POLICY)


def lived(fleet: Fleet, tape: Tape, start: int, stop: int) -> pa.Table:
    """The records of these ticks."""
    out, recall = Buffers(fleet.size, stop - start), nothing_known(fleet.size, EntryNames())
    for t in range(start, stop):
        step(fleet, tape, t, recall=recall, interventions=None, killed=False, policy=POLICY, out=out, at=t - start)
    return records_of(Chunk(out, tape, start, fleet.golem_ids, recall, None, POLICY))


@pytest.fixture(scope="module")
def life() -> tuple[Fleet, pa.Table]:
    fleet = fleet_of(4)
    return fleet, lived(fleet, TAPE, 0, 500)


def sight_of(fleet: Fleet) -> Sight:
    return replace(observe(fleet, TAPE, 500, POLICY), score=np.full(fleet.size, 0.3), drawdown=np.zeros(fleet.size))


def share_passed(fleet: Fleet, sight: Sight) -> np.ndarray:
    """Return how often each golem passes over a surprise in regime 2, over 2,000 ticks."""
    ages, everyone = range(101, 2_101), np.ones(fleet.size, bool)
    passed = np.zeros(fleet.size)
    for age in ages:
        fleet.tick = np.full(fleet.size, age)
        passed += attention(fleet, 2, sight, everyone, POLICY).suppressed
    return passed / len(ages)


@pytest.mark.row("HB-9", "X-5")
def test_surprises_are_ignored_at_the_rate_of_fruitless_deliberations() -> None:
    fleet = fleet_of(3)
    lived(fleet, TAPE, 0, 2)
    sight, here = sight_of(fleet), 2 * 5
    fleet.thoughts[here], fleet.vain[here] = (0.0, 100.0, 100.0), (0.0, 100.0, 10.0)
    weight = POLICY.gate.attention_prior_weight
    np.testing.assert_allclose(share_passed(fleet, sight), [0.0, 100 / (100 + weight), 10 / (100 + weight)], atol=0.04)
    assert not share_passed(fleet, replace(sight, open=np.zeros(3, bool))).any(), (
        "a golem without a position always deliberates"
    )
    fallen = replace(sight, drawdown=np.full(3, POLICY.probes.nav_high))
    assert not share_passed(fleet, fallen).any(), "a golem with a high drawdown always deliberates"


@pytest.mark.row("INH-8", "X-5")
def test_attention_counts_from_records_equal_those_of_the_fleet(life: tuple[Fleet, pa.Table]) -> None:
    fleet, records = life
    assert fleet.vain.sum() > 50, "some deliberations were fruitless"
    assert (fleet.vain <= fleet.thoughts + 1e-9).all()
    answer = attended(records.select(list(THOUGHT_COLUMNS)), {g: [[0.0] * PLACES] * 2 for g in fleet.golem_ids}, POLICY)
    for i, golem_id in enumerate(fleet.golem_ids):
        np.testing.assert_allclose(np.array(answer[golem_id]["thoughts"]) / MILLI, fleet.thoughts[:, i], atol=1e-3)
        np.testing.assert_allclose(np.array(answer[golem_id]["vain"]) / MILLI, fleet.vain[:, i], atol=1e-3)


@pytest.mark.row("INH-8", "X-5")
def test_an_heir_starts_with_the_attention_counts_of_its_predecessor(life: tuple[Fleet, pa.Table]) -> None:
    before, records = life
    first = attended(records, {g: [[0.0] * PLACES] * 2 for g in before.golem_ids}, POLICY)
    heir = fleet_of(4)
    for i, golem_id in enumerate(heir.golem_ids):
        heir.begin_with(i, NOTHING, attention_of({"attention": first[golem_id]}))
    rows = lived(heir, TAPE, 0, 300)
    alone = fleet_of(4)
    thought = np.isin(rows["tier"].to_numpy(zero_copy_only=False), ("T1", "T2")).sum()
    other = np.isin(lived(alone, TAPE, 0, 300)["tier"].to_numpy(zero_copy_only=False), ("T1", "T2")).sum()
    assert thought < other, "an heir deliberates less if its predecessor did so in vain"
    answer = attended(rows, {g: attention_of({"attention": first[g]}) for g in heir.golem_ids}, POLICY)
    for i, golem_id in enumerate(heir.golem_ids):
        np.testing.assert_allclose(np.array(answer[golem_id]["vain"]) / MILLI, heir.vain[:, i], atol=1e-3)


@pytest.mark.parametrize(
    "value",
    [None, [], {"attention": 3}, {"attention": {"thoughts": [1], "vain": [1]}},
     {"attention": {"thoughts": [-1] * PLACES, "vain": [0] * PLACES}},
     {"attention": {"thoughts": [True] * PLACES, "vain": [0] * PLACES}}],
)  # fmt: skip
def test_an_unreadable_attention_counts_as_empty(value: object) -> None:
    assert attention_of(value) == ([0.0] * PLACES, [0.0] * PLACES)


def test_fruitless_thoughts_are_limited_to_the_number_of_thoughts() -> None:
    assert attention_of({"attention": {"thoughts": [1_000] * PLACES, "vain": [9_000] * PLACES}})[1] == [1.0] * PLACES
