"""Laws of inheritance: the bottleneck equals its twin, nothing gains by crossing, and nothing private crosses."""

import random
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bardo_pipeline.grimoire.entry_columns import floor_of, int_column
from bardo_pipeline.inheritance.bottleneck import RULES, bottleneck
from bardo_pipeline.inheritance.weismann import attenuate, crossing_limit, leave_bloodstains, shed
from bardo_pipeline.policy import InheritancePolicy, Policy
from tests.reference.inheritance.bottleneck import bottleneck_by_row
from tests.support.example_count import times
from tests.support.knowledge.handmade_grimoires import (
    DAY,
    DIED,
    POLICY,
    baseline,
    confidence_at,
    deaths,
    entry,
    grimoire,
    shuffled,
)

TWELVE = Policy(inheritance=InheritancePolicy(budget=12))
CATEGORIES = ("rebalance_timing", "risk_events", "range_selection")


def drawn(draw: st.DrawFn, golem: str, number: int) -> dict[str, Any]:
    """Draw an entry from few distinct values, so that ties, floors and every rule of the bottleneck occur."""
    kind = draw(st.sampled_from(["insight", "heuristic", "warning", "warning"]))
    return entry(
        golem, f"tool_{number}", kind=kind, sign=-1 if kind == "warning" else 1,
        status=draw(st.sampled_from(["active", "active", "active", "candidate", "pruned"])),
        category=draw(st.sampled_from(CATEGORIES)), generation=draw(st.integers(0, 4)),
        is_anti_knowledge=kind == "warning" and draw(st.booleans()),
        is_bloodstain=kind == "warning" and draw(st.booleans()),
        confidence_ppm=draw(st.sampled_from([0, 40_000, 250_000, 320_000, 700_000, 999_999])),
        validations=draw(st.integers(0, 2)), contradictions=draw(st.integers(0, 2)),
        anchor_at=DIED - draw(st.sampled_from([0, 7, 14, 90])) * DAY,
        validated_at=DIED - draw(st.integers(0, 1)) * DAY,
        decay_class=draw(st.sampled_from(["structural", "regime_conditional", "tactical", "ephemeral"])),
    )  # fmt: skip


@st.composite
def grimoires(draw: st.DrawFn) -> list[dict[str, Any]]:
    return [drawn(draw, golem, i) for golem in ("g-1", "g-2") for i in range(draw(st.integers(0, 20)))]


@pytest.mark.row("INH-5")
@settings(max_examples=times(40), deadline=None)
@given(grimoires(), st.integers(0, 2**32))
def test_the_bottleneck_equals_its_twin_in_any_row_order(rows: list[dict[str, Any]], seed: int) -> None:
    table = bottleneck(shuffled(grimoire(*rows), seed), deaths("g-1", "g-2"), TWELVE)
    got = [(r["golem_id"], r["entry_id"], r["selected_by"], r["rank"]) for r in table.to_pylist()]
    for rule in RULES:
        event(f"{rule}: {any(g[2] == rule for g in got)}")
    assert got == bottleneck_by_row(rows, {"g-1": DIED, "g-2": DIED}, TWELVE)


@pytest.mark.row("INH-5")
@pytest.mark.parametrize("budget", [1, 4, 9])
def test_the_bottleneck_equals_its_twin_with_many_ties_in_quality(budget: int) -> None:
    """Many entries have equal quality, so that the last place of a category is a tie."""
    policy, chance = Policy(inheritance=InheritancePolicy(budget=budget)), random.Random(budget)
    rows = [
        entry(
            f"g-{chance.randint(1, 2)}", f"rule-{i}", category=chance.choice(("slippage", "volatility", "emergency")),
            confidence_ppm=chance.choice((500_000, 600_000, 900_000)), validations=chance.choice((0, 1)),
            generation=chance.choice((0, 3)), is_bloodstain=chance.random() < 0.02,
            is_anti_knowledge=chance.random() < 0.02, validated_at=DIED - chance.randint(0, 2) * DAY,
        )
        for i in range(300)
    ]  # fmt: skip
    table = bottleneck(grimoire(*rows), deaths("g-2", "g-1"), policy)
    got = [(r["golem_id"], r["entry_id"], r["selected_by"], r["rank"]) for r in table.to_pylist()]
    assert got == bottleneck_by_row(rows, {"g-1": DIED, "g-2": DIED}, policy)
    assert len(got) == 2 * budget


@pytest.mark.row("INH-5")
def test_the_bottleneck_and_its_twin_apply_every_rule() -> None:
    rows = [
        entry(about=f"t{i}", kind="warning" if i < 4 else "insight", sign=-1 if i < 4 else 1, is_anti_knowledge=i < 1,
              is_bloodstain=1 <= i < 2, generation=3 if i == 5 else 0, anchor_at=DIED, confidence_ppm=700_000 + i)
        for i in range(30)
    ]  # fmt: skip
    got = bottleneck_by_row(rows, {"g-1": DIED}, TWELVE)
    assert {rule for _, _, rule, _ in got} == set(RULES)
    assert [g[1:3] for g in got] == [
        (r["entry_id"], r["selected_by"]) for r in bottleneck(grimoire(*rows), deaths("g-1"), TWELVE).to_pylist()
    ]


@pytest.mark.row("INH-6")
@settings(max_examples=times(40), deadline=None)
@given(grimoires(), st.sampled_from(["attenuate", "reset"]))
def test_no_entry_gains_confidence_by_crossing_a_death(rows: list[dict[str, Any]], switch: str) -> None:
    policy = Policy(inheritance=InheritancePolicy(weismann=switch))
    before = [r for r in rows if r["status"] == "active"]
    known = {
        (r["golem_id"], r["entry_id"]): c for r, c in zip(before, confidence_at(grimoire(*before), DIED), strict=True)
    }
    left = leave_bloodstains(grimoire(*rows), deaths("g-1", "g-2"), policy)
    chosen = bottleneck(left, deaths("g-1", "g-2"), policy)
    after = shed(attenuate(chosen, policy), policy)
    assert after.num_rows == len(before)
    at_death = np.array([known[r["golem_id"], r["entry_id"]] for r in after.to_pylist()], np.int64)
    limit = crossing_limit(at_death, floor_of(after, policy.decay), policy.inheritance)
    now = np.array(confidence_at(after, DIED), np.int64)
    assert (now <= limit).all()
    assert (now <= at_death + 1).all()
    floored = floor_of(after, policy.decay) > 0
    assert (now[~floored] <= at_death[~floored] * 0.85 + 1).all() or switch == "reset"


@pytest.mark.row("INH-6")
@settings(max_examples=times(40), deadline=None)
@given(grimoires(), st.sampled_from([0, 3, 14, 200]))
def test_a_bloodstain_keeps_confidence_at_death_and_slows_decay(rows: list[dict[str, Any]], days: int) -> None:
    table = grimoire(*rows)
    left = leave_bloodstains(table, deaths("g-1", "g-2"), POLICY)
    at_death = np.array(confidence_at(table, DIED)), np.array(confidence_at(left, DIED))
    assert (np.abs(at_death[1] - at_death[0]) <= 1).all()
    later = np.array(confidence_at(table, DIED + days * DAY)), np.array(confidence_at(left, DIED + days * DAY))
    assert (later[1] >= later[0] - 1).all()


@pytest.mark.row("INH-6")
@settings(max_examples=times(40), deadline=None)
@given(grimoires(), st.integers(0, 2_000))
def test_confidence_after_one_crossing_is_85_percent_at_any_later_time(rows: list[dict[str, Any]], hours: int) -> None:
    table = grimoire(*rows)
    at = DIED + timedelta(hours=hours)
    before, after = np.array(confidence_at(table, at)), np.array(confidence_at(attenuate(table, POLICY), at))
    floor = np.minimum(floor_of(table, POLICY.decay), int_column(table, "confidence_ppm"))
    expected = np.maximum(np.floor(before * 0.85), np.minimum(floor, before))
    assert (np.abs(after - expected) <= 2).all()


@settings(max_examples=times(40), deadline=None)
@given(grimoires(), st.integers(1, 400))
def test_an_entry_fades_at_its_fade_time(rows: list[dict[str, Any]], seed: int) -> None:
    left = shed(attenuate(leave_bloodstains(grimoire(*rows), deaths("g-1", "g-2"), POLICY), POLICY), POLICY)
    for row, fades in enumerate(left.column("fades_at").to_pylist()):
        item = left.slice(row, 1)
        if fades is None:
            assert (
                item.column("status")[0].as_py() != "active"
                or confidence_at(item, DIED + 50_000 * DAY)[0] >= 100_000
                or (item.column("decay_class")[0].as_py() == "structural")
            )
        else:
            assert confidence_at(item, fades + timedelta(seconds=60))[0] <= 100_000
            assert (
                fades <= item.column("anchor_at")[0].as_py()
                or confidence_at(item, fades - timedelta(seconds=60))[0] >= 100_000
            )


@settings(max_examples=times(40), deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 400), st.integers(1, 400), st.integers(0, 2_000))
def test_shedding_keeps_the_confidence_of_facts(confidence: int, own: int, evidence: int, hours: int) -> None:
    fact = entry(about=baseline("gas_price"), confidence_ppm=confidence, own_count=own, evidence_count=evidence)
    at = DIED + timedelta(hours=hours)
    assert confidence_at(shed(grimoire(fact), POLICY), at) == confidence_at(grimoire(fact), at)
