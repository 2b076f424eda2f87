"""The gain of heirs: paired comparisons with intervals over markets, and the initial state of each condition."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bardo_pipeline.errors import ConfigError
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA, MOMENT
from bardo_pipeline.grimoire.entry_columns import confidence_of
from bardo_pipeline.inheritance.endowment_conditions import (
    ATTENTION_ONLY,
    CLONES,
    CONDITIONS,
    ENTRIES_ONLY,
    HEIRS,
    ORPHANS,
    TOTAL_RECALL,
    endowment,
)
from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.market.synthetic_spec import START
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.lineage_statistics import (
    CASH,
    END_WORTH,
    LIFETIME,
    MEASURES,
    LifeResults,
    gain,
    gain_over_cash,
    gains,
    interval,
    lineage_bounds,
)
from bardo_pipeline.runtime import in_memory_fleet, lineage_evaluation
from bardo_pipeline.runtime.in_memory_fleet import InMemoryFleet
from bardo_pipeline.runtime.lineage_evaluation import Descent, graded, live_synthetic, lived
from tests.support.knowledge.handmade_grimoires import entry, grimoire

POLICY = Policy()
DIED = datetime(2026, 1, 8, tzinfo=UTC)
WORTH_COLUMNS = ["golem_id", "observation", "credits_micros"]
DEATHS = pa.table({"golem_id": ["g-1"], "at": pa.array([DIED], MOMENT)})


def lives(
    ticks: list[int], returns: list[float] | None = None, golems: int = 2, ends: list[float] | None = None
) -> LifeResults:
    markets = np.arange(len(ticks)) // golems
    worth, end_worth = np.array(returns or [0.0] * len(ticks)), np.array(ends or [0.5] * len(ticks))
    return LifeResults(markets, np.array(ticks), worth, end_worth, ("economic",) * len(ticks))


@pytest.mark.row("X-5")
def test_the_lifetime_gain_is_the_median_of_the_ratios_of_pairs() -> None:
    result = gain(lives([120, 150, 90, 130]), lives([100, 100, 100, 100]), ("a", "b"), LIFETIME, 0, POLICY.worth)
    assert result.median == pytest.approx(0.25)
    assert result.mean == pytest.approx(0.225)
    assert (result.wins, result.ties) == (0.75, 0.0)
    assert result.low <= result.median <= result.high


@pytest.mark.row("X-5")
def test_the_gain_of_end_worth_is_the_median_difference_of_shares_and_cash_keeps_its_share() -> None:
    poor, rich = lives([100] * 4, ends=[0.5, 0.6, 0.4, 0.5]), lives([50] * 4, ends=[0.6, 0.65, 0.55, 0.9])
    result = gain(rich, poor, ("a", "b"), END_WORTH, 0, POLICY.worth)
    assert result.median == pytest.approx(0.125)
    assert (result.wins, result.ties, result.measure) == (1.0, 0.0, END_WORTH)
    assert result.low <= result.median <= result.high
    over_cash = gain_over_cash(rich, "a", 0, POLICY.worth)
    assert (over_cash.condition, over_cash.base, over_cash.measure) == ("a", CASH, END_WORTH)
    assert over_cash.median == pytest.approx(0.625 - 1.0)
    assert over_cash.wins == 0.0, "a golem that ends with less than its budget loses to cash"
    even = gain_over_cash(lives([9], golems=1, ends=[1.0]), "a", 0, POLICY.worth)
    assert (even.median, even.ties) == (0.0, 1.0)


@pytest.mark.row("X-5")
def test_an_interval_resamples_markets_and_not_golems() -> None:
    column = np.repeat([0.5, -0.4, 0.6], 50)
    low, high = interval(column, np.repeat([0, 1, 2], 50), 0, 400)
    assert low < 0 < high, "a hundred and fifty golems, but three markets"
    assert interval(column, np.repeat([0, 1, 2], 50), 0, 400) == (low, high), "the same draws"
    assert interval(column[:100], np.zeros(100, np.int64), 0, 400) == (-0.4, 0.5), (
        "one market gives the whole range of its golems"
    )
    assert interval(np.full(40, 0.3), np.arange(40), 1, 400) == (0.3, 0.3)


@pytest.mark.row("X-5")
@pytest.mark.parametrize(
    ("heirs", "clones", "kept"),
    [(130, 110, [True, True, True]), (110, 100, [False, True, True]), (90, 95, [False, False, False]),
     (130, 130, [True, True, False])],
)  # fmt: skip
def test_a_lineage_bound_is_kept_if_the_gain_surely_exceeds_it(heirs: int, clones: int, kept: list[bool]) -> None:
    lived = {HEIRS: lives([heirs] * 8), ORPHANS: lives([100] * 8), CLONES: lives([clones] * 8),
             TOTAL_RECALL: lives([100] * 8)}  # fmt: skip
    result = lineage_bounds(gains(lived, HEIRS, 0, POLICY.worth), POLICY.worth)
    assert [bound.kept for bound in result[:3]] == kept


@pytest.mark.row("X-5")
@pytest.mark.parametrize(
    ("ticks", "ends", "kept"),
    [(112, 0.56, [True, True, True]), (112, 0.54, [False, True, True]), (105, 0.56, [True, True, False]),
     (90, 0.5, [False, False, False])],
)  # fmt: skip
def test_entries_alone_are_bound_to_end_richer_and_to_live_longer(ticks: int, ends: float, kept: list[bool]) -> None:
    lived = {c: lives([100] * 8, ends=[0.5] * 8) for c in CONDITIONS}
    alone = lives([ticks] * 8, ends=[ends] * 8)
    rows = [gain(alone, lived[ORPHANS], ("entries_only", "orphans"), m, 0, POLICY.worth) for m in MEASURES]
    bounds = {b.name: b for b in lineage_bounds([*gains(lived, HEIRS, 0, POLICY.worth), *rows], POLICY.worth)}
    names = "entries alone end richer than orphans", "surely richer", "entries alone outlive orphans"
    assert [bounds[name].kept for name in names] == kept


@pytest.mark.row("X-5")
def test_heirs_that_earn_too_little_more_than_clones_or_sell_worth_for_life_miss_a_bound() -> None:
    lived = {c: lives([100] * 8, ends=[0.5] * 8) for c in CONDITIONS}
    for returns, ends, kept in ((0.02, 0.5, (True, True)), (0.005, 0.5, (False, True)), (0.02, 0.4, (True, False))):
        lived[HEIRS] = lives([130] * 8, [returns] * 8, ends=[ends] * 8)
        bounds = {b.name: b.kept for b in lineage_bounds(gains(lived, HEIRS, 0, POLICY.worth), POLICY.worth)}
        assert (bounds["heirs earn more than clones"], bounds["heirs sell no worth for life"]) == kept


@pytest.mark.row("X-5")
def test_heirs_with_longer_but_poorer_lives_do_not_beat_clones() -> None:
    lived = {c: lives([100] * 8) for c in CONDITIONS}
    lived[HEIRS] = lives([130] * 8, [-0.2] * 8)
    bounds = {b.name: b for b in lineage_bounds(gains(lived, HEIRS, 0, POLICY.worth), POLICY.worth)}
    assert not bounds["heirs beat clones"].kept


def given(condition: str) -> pa.Table:
    """Initial entries of an heir of g-1, which knew a heuristic, pruned a warning and considered a candidate."""
    made = DIED - timedelta(days=7)
    rows = [
        entry("g-1", about="h", kind="heuristic", confidence_ppm=800_000, own_count=5, own_sum=5_000, anchor_at=made),
        entry("g-1", about="w", kind="warning", status="pruned", confidence_ppm=50_000, anchor_at=made),
        entry("g-1", about="c", status="candidate", own_count=2, own_sum=400, anchor_at=made),
        entry("g-2", about="h", kind="heuristic", confidence_ppm=900_000, anchor_at=made),
    ]
    ever = [rows[0], entry("g-1", about="w", kind="warning", confidence_ppm=700_000, anchor_at=made)]
    return endowment(condition, grimoire(*rows), grimoire(*ever), DEATHS, {"g-1": "g-heir"}, POLICY)


@pytest.mark.row("X-5")
def test_each_condition_starts_with_its_own_entries() -> None:
    assert given(ORPHANS).num_rows == 0
    heirs, clones, recall = given(HEIRS), given(CLONES), given(TOTAL_RECALL)
    assert {g for t in (heirs, clones, recall) for g in t["golem_id"].to_pylist()} == {"g-heir"}
    assert all(t.schema == ENTRY_SCHEMA for t in (heirs, clones, recall))
    assert heirs.num_rows == 1, "only active entries cross"
    assert heirs["own_count"].to_pylist() == [0], "private evidence does not cross"
    assert sorted(clones["status"].to_pylist()) == ["active", "candidate", "pruned"]
    assert pc.sum(clones["own_count"]).as_py() == 7
    living = recall.filter(pc.equal(recall["status"], "active"))
    assert sorted(living["kind"].to_pylist()) == ["heuristic", "warning"], "pruned entries are active again"


@pytest.mark.row("X-5")
def test_entries_of_a_clone_do_not_decay_and_those_of_an_heir_do() -> None:
    later = np.int64((DIED + timedelta(days=60)).timestamp() * 1e6)
    first = np.int64(DIED.timestamp() * 1e6)

    def sure(condition: str, at: np.int64) -> int:
        table = given(condition)
        held = table.filter(pc.equal(table["kind"], "heuristic"))
        return int(confidence_of(held, np.full(held.num_rows, at), POLICY.decay)[0])

    assert sure(CLONES, first) == sure(CLONES, later) == sure(TOTAL_RECALL, later)
    assert sure(HEIRS, first) == pytest.approx(0.85 * sure(CLONES, first), abs=2)
    assert sure(HEIRS, later) < sure(HEIRS, first) / 2


@pytest.mark.row("X-5")
def test_a_half_of_an_inheritance_holds_the_entries_of_an_heir_or_none() -> None:
    assert given(ENTRIES_ONLY).equals(given(HEIRS))
    assert given(ATTENTION_ONLY).num_rows == 0


@pytest.fixture(scope="module")
def judged_fleet() -> Any:
    """The judged generation of a small lineage: results, records, initial states and initial entries by golem."""
    fleets: list[InMemoryFleet] = []
    records: list[list[pa.Table]] = []
    entries: list[pa.Table] = []

    class Watched(InMemoryFleet):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            fleets.append(self)
            records.append([])

        def begin(self, inherited: pa.Table) -> None:
            entries.append(inherited)
            super().begin(inherited)

    def watched_records(chunk: Any) -> pa.Table:
        records[-1].append(records_of(chunk))
        return records[-1][-1]

    records_of = in_memory_fleet.records_of
    market = synthetic_market(seed=3, bars=500, start=START)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lineage_evaluation, "InMemoryFleet", Watched)
        patch.setattr(in_memory_fleet, "records_of", watched_records)
        result = lived(market, [int(market.at_us[0]), int(market.at_us[330])], 2, POLICY)
    starts = {start.golem_id: start for start in fleets[-1]._starts}
    by_golem = {g: entries[-1].filter(pc.equal(entries[-1]["golem_id"], g)) for g in starts}
    return result, records[-1], starts, by_golem


@pytest.mark.row("X-5")
@pytest.mark.parametrize(
    ("condition", "entries", "forecasts", "attention"),
    [(HEIRS, True, True, True), (ORPHANS, False, False, False), (CLONES, True, True, True),
     (TOTAL_RECALL, True, True, True), (ENTRIES_ONLY, True, False, False), (ATTENTION_ONLY, False, False, True)],
)  # fmt: skip
def test_golems_of_a_condition_receive_exactly_its_parts(
    judged_fleet: Any, condition: str, entries: bool, forecasts: bool, attention: bool
) -> None:
    result, _, starts, by_golem = judged_fleet
    own, heirs = result.lives[condition].golem_ids, result.lives[HEIRS].golem_ids
    for golem_id, heir_id in zip(own, heirs, strict=True):
        start, heir = starts[golem_id], starts[heir_id]
        assert (by_golem[golem_id].num_rows > 0) == entries
        assert (start.forecast_variance == heir.forecast_variance) == forecasts
        assert (start.forecast_variance == (None, None, None)) == (not forecasts)
        thoughts, vain = start.attention
        assert (sum(thoughts) > 0) == attention, "an ancestor deliberated, and only its attention tells so"
        assert (len(vain) > 0) == attention
        assert start.luck == heir.luck
        assert start.birth.traits == heir.birth.traits
    if condition == ENTRIES_ONLY:
        names = [n for n in ENTRY_SCHEMA.names if n != "golem_id"]
        for golem_id, heir_id in zip(own, heirs, strict=True):
            assert by_golem[golem_id].select(names).equals(by_golem[heir_id].select(names))


@pytest.mark.row("X-5")
def test_the_end_worth_of_each_golem_is_what_its_last_record_holds_with_the_position(judged_fleet: Any) -> None:
    result, records, starts, _ = judged_fleet
    last = {row["golem_id"]: row for table in records for row in table.select(WORTH_COLUMNS).to_pylist()}
    early = {row["golem_id"]: row for row in records[0].select(WORTH_COLUMNS).to_pylist()}
    with_position = 0
    for lives_of_condition in result.lives.values():
        shares = zip(lives_of_condition.golem_ids, lives_of_condition.end_worth.tolist(), strict=True)
        first_course = lives_of_condition.course[0].tolist()
        for (golem_id, share), first in zip(shares, first_course, strict=True):
            birth = starts[golem_id].birth
            budget = birth.capital_micros + birth.credits_micros + birth.reserve_micros
            assert budget == 50_000_000
            assert set(lives_of_condition.budget.tolist()) == {budget}
            held, worth = recorded_worth(last[golem_id])
            with_position += held > 0
            assert share == pytest.approx(worth / budget, abs=0.02), "up to what the last tick earned and cost"
            held, worth = recorded_worth(early[golem_id])
            with_position += held > 0
            assert first == pytest.approx(worth, rel=0.02), "after a cycle, alive"
    assert with_position > 2 * len(result.lives), "most golems hold a position"


def recorded_worth(row: Any) -> tuple[int, int]:
    """Value of a record's positions with their fees; worth with idle capital and credits."""
    held = sum(p["value_micros"] + p["fees_owed_micros"] for p in row["observation"]["positions"])
    return held, held + row["observation"]["idle_micros"] + row["credits_micros"]


@pytest.mark.full
@pytest.mark.row("X-5")
def test_conditions_differ_only_in_their_entries() -> None:
    result = live_synthetic(Descent(seed=3, golems=2, days=1, judged_days=1, ancestors=1), POLICY)
    assert result.known[ORPHANS] == 0 < result.known[HEIRS] <= result.known[CLONES] <= result.known[TOTAL_RECALL]
    heirs, orphans = result.lives[HEIRS], result.lives[ORPHANS]
    np.testing.assert_array_equal(heirs.first_worth, orphans.first_worth)
    assert set(heirs.golem_ids).isdisjoint(orphans.golem_ids)
    assert (heirs.ticks > 500).all()
    report = graded([result, result], POLICY)
    assert report.lived[HEIRS].market.tolist() == [0, 0, 1, 1]
    np.testing.assert_array_equal(report.lived[HEIRS].ticks, np.tile(heirs.ticks, 2))


def test_a_lineage_without_golems_is_refused() -> None:
    with pytest.raises(ConfigError, match="golems from 1 up"):
        Descent(seed=1, golems=0)
