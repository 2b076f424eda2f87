"""The gain of heirs: paired comparisons with intervals over markets, and the initial state of each condition."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bardo_pipeline.errors import ConfigError
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA, MOMENT
from bardo_pipeline.grimoire.entry_columns import confidence_of
from bardo_pipeline.inheritance.endowment_conditions import CLONES, CONDITIONS, HEIRS, ORPHANS, TOTAL_RECALL, endowment
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.lineage_statistics import LIFETIME, LifeResults, gain, gains, interval, lineage_bounds
from bardo_pipeline.runtime.lineage_evaluation import Descent, graded, live_synthetic
from tests.support.handmade_grimoires import entry, grimoire

POLICY = Policy()
DIED = datetime(2026, 1, 8, tzinfo=UTC)
DEATHS = pa.table({"golem_id": ["g-1"], "at": pa.array([DIED], MOMENT)})


def lives(ticks: list[int], returns: list[float] | None = None, golems: int = 2) -> LifeResults:
    markets = np.arange(len(ticks)) // golems
    worth = np.array(returns or [0.0] * len(ticks))
    return LifeResults(markets, np.array(ticks), worth, ("economic",) * len(ticks))


@pytest.mark.row("X-5")
def test_the_lifetime_gain_is_the_median_of_the_ratios_of_pairs() -> None:
    result = gain(lives([120, 150, 90, 130]), lives([100, 100, 100, 100]), ("a", "b"), LIFETIME, 0, POLICY.worth)
    assert result.median == pytest.approx(0.25)
    assert result.mean == pytest.approx(0.225)
    assert (result.wins, result.ties) == (0.75, 0.0)
    assert result.low <= result.median <= result.high


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
    assert [bound.kept for bound in result] == kept


@pytest.mark.row("X-5")
def test_heirs_with_longer_but_poorer_lives_do_not_beat_clones() -> None:
    lived = {c: lives([100] * 8) for c in CONDITIONS}
    lived[HEIRS] = lives([130] * 8, [-0.2] * 8)
    assert not lineage_bounds(gains(lived, HEIRS, 0, POLICY.worth), POLICY.worth)[-1].kept


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
