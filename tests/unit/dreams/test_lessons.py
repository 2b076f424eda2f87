"""Lessons: hypotheses of dreams that outcomes confirm; their time, confidence, first tick and end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bardo_pipeline.curator.state.decision_log import DECISION_SCHEMA, fold
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.curator.views.crossings import crossings_of, dreams_that_cross
from bardo_pipeline.dreams.counterfactual_simulation import CHANGES
from bardo_pipeline.dreams.hypothesis_staging import OPERATIONS
from bardo_pipeline.dreams.hypothesis_table import to_table
from bardo_pipeline.dreams.lessons import MEANING, lesson_decisions, lessons_of
from bardo_pipeline.events.life.override_events import Order
from bardo_pipeline.grimoire.confidence import DAY_US
from bardo_pipeline.grimoire.entries import CHANGE_CATEGORY, ENTRY_SCHEMA
from bardo_pipeline.grimoire.entry_columns import confidence_of, floor_of, half_life_of
from bardo_pipeline.grimoire.entry_text import CHANGE_WORDS
from tests.support.homes.owner_events import order
from tests.support.knowledge.handmade_grimoires import grimoire
from tests.unit.dreams.test_dreams import POLICY, WHERE, Night, staged

pytestmark = pytest.mark.row("MEM-16")

GOOD, BAD = (1_400, 1_500, 1_600), (-9_000,) * 5


def hypotheses_of(night: Night) -> pa.Table:
    return to_table(night.state, POLICY, "p")


def lessons(night: Night, *orders: Order) -> list[dict]:
    return lessons_of(hypotheses_of(night), orders, POLICY).to_pylist()


def lesson(night: Night, *orders: Order) -> dict:
    (row,) = lessons(night, *orders)
    return row


def decided(night: Night, *orders: Order) -> list[dict]:
    return lesson_decisions(hypotheses_of(night), orders, POLICY).to_pylist()


def confirmed(days: float = 1) -> Night:
    night = staged()
    assert night.dream(days, lived=GOOD) == ["confirmed"]
    return night


def day(night: Night) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=night.day)


def test_an_unconfirmed_hypothesis_gives_no_lesson() -> None:
    fates = []
    for days, lived in ((1, GOOD[:1]), (2, BAD), (14.5, ()), (7.5, GOOD)):
        night = staged()
        fates += night.dream(days, lived=lived)
        assert lessons(night) == decided(night) == [], fates
    assert fates == ["gathered", "refuted", "expired"]
    assert lessons(Night()) == []


def test_a_confirmed_hypothesis_gives_a_lesson_from_that_dream_on() -> None:
    night = confirmed()
    row = lesson(night)
    assert (row["kind"], row["status"], row["provenance"]) == ("insight", "active", "dream_counterfactual")
    assert (row["source"], row["cause"], row["sign"]) == ("dream", "range_wider", 1)
    assert row["structure"] == WHERE._replace(source="dream", cause="range_wider").key
    assert row["text"] == (
        "In a volatile market, with a WETH/USDC position on uniswap_v3 far outside its range and gas normal, "
        "a wider new range would have been strongly better."
    )
    assert row["confidence_ppm"] == row["confidence_origin_ppm"] == 300_000
    assert row["created_at"] == row["validated_at"] == row["anchor_at"] == day(night)
    assert (row["own_count"], row["own_sum"], row["effect_mean_ppm"]) == (3, sum(GOOD), 1_500)
    assert 0 < row["effect_low_ppm"] < 1_500 < row["effect_high_ppm"]


def test_decisions_of_a_lesson_name_the_ticks_of_failures_and_outcomes() -> None:
    night = confirmed()
    first, second = decided(night)
    assert [first["operation"], second["operation"]] == ["staged", "created"]
    assert [first["status"], second["status"]] == ["candidate", "active"]
    assert first["cause_ticks"] == [1, 31, 41, 71, 81, 111], "decisions that failed, and their verdicts"
    assert second["cause_ticks"] == [1_001, 1_031, 1_041, 1_071, 1_081, 1_111], "and those since the dream"
    assert f"dream of cycle {second['cycle']}, hypothesis " in second["reason"]
    assert first["cycle"] < second["cycle"] == lesson(night)["created_cycle"]


def test_a_lesson_decays_at_half_the_rate_of_its_class_and_has_no_floor() -> None:
    night = confirmed()
    entries = lessons_of(hypotheses_of(night), (), POLICY)
    assert entries["decay_class"].to_pylist() == ["regime_conditional"]
    twice = 2 * POLICY.decay.regime_conditional_days
    assert half_life_of(entries, POLICY.decay).tolist() == [round(twice * DAY_US)]
    assert floor_of(entries, POLICY.decay).tolist() == [0]
    at = round((night.day + twice) * DAY_US)
    assert confidence_of(entries, at, POLICY.decay).tolist() == [150_000]
    thinks = timedelta(days=twice * 1.585)
    assert abs(entries["fades_at"][0].as_py() - day(night) - thinks) < timedelta(hours=1), "from 0.3 to 0.1"


def test_contradicting_outcomes_weaken_a_lesson_until_it_is_pruned() -> None:
    night = confirmed()
    for _ in range(2):
        assert night.dream(0.1, lived=(1_500,)) == ["reinforced"]
    assert (lesson(night)["validations"], lesson(night)["contradictions"]) == (2, 0)
    assert lesson(night)["validated_at"] == day(night)
    best, good_day = lesson(night)["confidence_ppm"], day(night)
    assert night.dream(0.1, lived=BAD) == ["contradicted"]
    row = lesson(night)
    assert (row["status"], row["contradictions"], row["validated_at"]) == ("active", 1, good_day)
    assert row["confidence_ppm"] == pytest.approx(best - POLICY.curator.downvote * 1e6, abs=2_000)
    assert night.dream(1, lived=BAD) == ["contradicted"]
    assert night.dream(1, lived=BAD) == ["contradicted", "faded"]
    assert lesson(night)["status"] == "pruned"
    assert decided(night)[-1]["operation"] == "pruned"


def test_a_lesson_crosses_to_the_clade_only_from_half_confidence_on() -> None:
    night = confirmed()

    def gate() -> tuple[str, bool, bool, str]:
        entries = lessons_of(hypotheses_of(night), (), POLICY)
        (row,) = crossings_of(entries, POLICY).to_pylist()
        received = dreams_that_cross(entries, POLICY).to_pylist()[0]
        return row["gate"], row["crosses"], received, row["reason"]

    assert gate() == ("validation", False, False, "confidence is below what a dream needs")
    while lesson(night)["confidence_ppm"] < POLICY.dreams.clade_confidence * 1e6:
        assert not gate()[1]
        night.dream(0.1, lived=(1_500,))
    assert gate() == ("validation", True, True, "passes by validation")
    assert decided(night)[-1]["reason"].startswith("sure enough to be offered to the clade")
    night.dream(0.1, lived=BAD)
    assert not gate()[1]


def test_a_pruned_lesson_that_is_confirmed_again_keeps_its_id() -> None:
    night = confirmed()
    before = lesson(night)
    assert night.dream(1, lived=BAD) == ["contradicted"]
    assert night.dream(1, lived=BAD) == ["contradicted", "faded"]
    assert night.dream(30, failed=(1_500, 1_700, 1_600)) == ["staged"]
    assert lesson(night)["status"] == "pruned", "not before outcomes confirm it"
    assert night.dream(1, lived=GOOD) == ["confirmed"]
    row = lesson(night)
    assert (row["entry_id"], row["status"]) == (before["entry_id"], "active")
    assert (row["created_at"], row["contradictions"]) == (day(night), 0)


def test_lessons_equal_the_fold_of_their_decisions_at_every_moment() -> None:
    night = confirmed()
    for lived in ((1_500,), (1_500,), (1_500,), BAD, BAD, BAD):
        night.dream(0.5, lived=lived)
    rows, decisions = hypotheses_of(night), lesson_decisions(hypotheses_of(night), (), POLICY)
    moments = sorted(set(rows["at"].to_pylist()))
    assert len(moments) == 8
    for at in moments:
        known = lessons_of(rows.filter(pc.less_equal(rows["at"], pa.scalar(at))), (), POLICY)
        folded = fold(decisions.filter(pc.less_equal(decisions["at"], pa.scalar(at))))
        active = [t.filter(pc.equal(t["status"], "active")) for t in (known, folded)]
        assert active[0].equals(active[1])
        assert active[0].num_rows == (at >= moments[1])
    assert decisions.schema == DECISION_SCHEMA


def test_the_structure_of_a_lesson_differs_from_that_of_the_rule() -> None:
    about = [WHERE, *(WHERE._replace(source="dream", cause=change) for change in CHANGES)]
    assert len({item.key for item in about}) == len(about) == 6
    assert {item.category for item in about[1:]} == {"rebalance_timing", "range_selection", "gas_timing"}
    assert set(CHANGES) == set(CHANGE_WORDS) == set(CHANGE_CATEGORY)
    assert all(isinstance(item, Structure) and item.decay_class == WHERE.decay_class for item in about)
    assert set(OPERATIONS) - set(MEANING) == {"refuted", "expired"}, "refuted and expired hypotheses give no lesson"


@pytest.mark.row("X-8")
def test_an_owner_can_pin_unpin_and_retract_a_lesson() -> None:
    night = confirmed()
    name, tick = lesson(night)["entry_id"], night.tick
    pinned = order("g-0", 1, "EntryPinned", name, tick, at=day(night))
    night.dream(1, lived=BAD)
    night.dream(1, lived=BAD)
    assert lesson(night)["status"] == "pruned"
    row = lesson(night, pinned)
    assert (row["status"], row["pinned_ppm"]) == ("active", 300_000)
    held = grimoire(row)
    assert confidence_of(held, round((night.day + 400) * DAY_US), POLICY.decay).tolist() == [row["confidence_ppm"]]
    decided_rows = decided(night, pinned)
    assert [d["operation"] for d in decided_rows] == ["staged", "created", "pinned", "contradicted", "contradicted"]
    assert (decided_rows[2]["cause_event"], decided_rows[2]["reason"]) == ("g-0-1", "its owner pinned it: I was there")
    free = order("g-0", 2, "EntryUnpinned", name, night.tick, at=day(night))
    assert lesson(night, pinned, free)["pinned_ppm"] == 0
    out = order("g-0", 2, "EntryRetracted", name, tick, at=day(night))
    assert lesson(night, out)["status"] == "retracted"
    assert [d["operation"] for d in decided(night, out)] == ["staged", "created", "retracted"], (
        "later decisions are undone"
    )
    stranger = order("g-0", 1, "EntryRetracted", "f" * 24, tick, at=day(night))
    early = order("g-0", 1, "EntryRetracted", name, 10, at=day(night))
    assert lesson(night, stranger) == lesson(night, early) == lesson(night), "no such entry, or not yet"


def test_a_lesson_fills_every_column_except_metric_effect_and_lag() -> None:
    row = lesson(confirmed())
    assert set(row) == set(ENTRY_SCHEMA.names)
    empty = {name for name, value in row.items() if value is None}
    assert empty == {"metric", "effect", "lag_ticks"}
