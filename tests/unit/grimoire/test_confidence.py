"""Confidence: the tables of the documents, the floors and the closed form of decay, compared with a reference."""

from math import exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bardo_pipeline.grimoire.confidence import (
    CLASS_EPHEMERAL,
    CLASS_FACT,
    CLASS_REGIME,
    CLASS_STRUCTURAL,
    CLASS_TACTICAL,
    DAY_US,
    FOREVER_US,
    PPM,
    confidence_at,
    fades_at_us,
    floor_ppm,
    half_life_us,
    ppm,
    retention,
)
from bardo_pipeline.grimoire.entries import DECAY_CLASSES
from bardo_pipeline.policy import Policy
from tests.reference.learning import confidence as twin

DECAY = Policy().decay
LIMIT = ppm(Policy().curator.prune_confidence)
ANCHOR = 1_700_000_000_000_000

pytestmark = pytest.mark.row("MEM-5")
examples = settings(max_examples=200, deadline=None, derandomize=True)


def array_of(value: int | bool) -> NDArray[np.int64] | NDArray[np.bool_]:
    return np.array([value])


def half_life(decay_class: int, evidence: int = 1, *, bloodstain: bool = False) -> int:
    return int(half_life_us(array_of(decay_class), array_of(evidence), array_of(bloodstain), DECAY)[0])


def floor(*, anti: bool = False, bloodstain: bool = False) -> int:
    return int(floor_ppm(array_of(anti), array_of(bloodstain), DECAY)[0])


def after(days: float, start: int, half: int, floored: int = 0) -> int:
    at = ANCHOR + round(days * DAY_US)
    return int(confidence_at(array_of(start), array_of(ANCHOR), at, array_of(half), array_of(floored))[0])


@pytest.mark.parametrize(
    ("tier", "strength", "half", "tenth", "twentieth"),
    [
        ("routine", 7, 4.85, 16.12, 20.97),
        ("notable", 30, 20.79, 69.08, 89.87),
        ("critical", 90, 62.38, 207.23, 269.62),
        ("emergency", 180, 124.77, 414.47, 539.23),
    ],
)
def test_episode_retention_follows_the_ebbinghaus_curve(
    tier: str, strength: float, half: float, tenth: float, twentieth: float
) -> None:
    assert getattr(DECAY, f"{tier}_days") == strength
    kept = retention(np.array([0.0, half, tenth, twentieth]), strength)
    assert kept == pytest.approx([1.0, 0.5, 0.1, 0.05], rel=1e-3)
    assert DECAY.episode_retention_min == 0.05


@pytest.mark.parametrize(("decay_class", "days"), [(CLASS_REGIME, 14.0), (CLASS_TACTICAL, 7.0), (CLASS_EPHEMERAL, 1.0)])
def test_each_decay_class_has_its_half_life_and_a_bloodstain_three_times_that(decay_class: int, days: float) -> None:
    half = half_life(decay_class)
    assert half == days * DAY_US
    assert [after(n * days, 800_000, half) for n in range(4)] == [800_000, 400_000, 200_000, 100_000]
    stained = half_life(decay_class, bloodstain=True)
    assert stained == 3 * half
    assert after(3 * days, 800_000, stained) == 400_000


def test_structural_knowledge_does_not_decay() -> None:
    assert half_life(CLASS_STRUCTURAL) == half_life(CLASS_STRUCTURAL, bloodstain=True) == FOREVER_US
    assert after(100_000, 700_000, FOREVER_US) == 700_000
    assert fades_at_us(array_of(700_000), array_of(ANCHOR), array_of(FOREVER_US), array_of(0), LIMIT)[0] == FOREVER_US


@pytest.mark.parametrize("episodes", [1, 2, 3, 20, 5_000])
def test_a_fact_decays_with_its_e_fold_times_the_log_of_its_episodes(episodes: int) -> None:
    half = half_life(CLASS_FACT, episodes)
    for days in (0.0, 3.0, 7.0, 40.0):
        expected = 0.7 * exp(-days / (7.0 * max(1.0, log(episodes))))
        assert after(days, ppm(0.7), half) == pytest.approx(expected * PPM, abs=1)


def test_a_fact_of_one_episode_decays_to_1_over_e_in_a_week() -> None:
    assert after(7.0, PPM, half_life(CLASS_FACT)) == round(PPM / np.e)


def test_anti_knowledge_and_bloodstains_keep_their_floors() -> None:
    assert (floor(), floor(bloodstain=True)) == (0, 50_000)
    assert floor(anti=True) == floor(anti=True, bloodstain=True) == 300_000
    week = half_life(CLASS_TACTICAL)
    assert after(7.0, 900_000, week, floor(anti=True)) == 450_000
    assert after(70.0, 900_000, week, floor(anti=True)) == 300_000
    assert after(700.0, 900_000, week, floor(bloodstain=True)) == 50_000
    assert after(700.0, 900_000, week) == 0


def test_a_floor_does_not_raise_a_confidence_below_it() -> None:
    week = half_life(CLASS_TACTICAL)
    assert [after(days, 120_000, week, floor(anti=True)) for days in (0.0, 7.0, 700.0)] == [120_000] * 3


def test_confidence_before_the_anchor_equals_that_at_the_anchor() -> None:
    assert after(-30.0, 600_000, half_life(CLASS_TACTICAL)) == 600_000


@pytest.mark.parametrize("days_to_go", [0, 1, 365])
def test_an_entry_with_a_floor_above_the_limit_never_fades(days_to_go: int) -> None:
    at = ANCHOR + days_to_go * DAY_US
    week = half_life(CLASS_TACTICAL)
    assert fades_at_us(array_of(900_000), array_of(at), array_of(week), array_of(300_000), LIMIT)[0] == FOREVER_US
    assert fades_at_us(array_of(900_000), array_of(at), array_of(week), array_of(50_000), LIMIT)[0] < FOREVER_US


confidences = st.one_of(st.sampled_from([0, 1, 99_999, 100_000, 100_001, 300_000, 600_000, PPM]), st.integers(0, PPM))
classes = st.integers(0, len(DECAY_CLASSES) - 1)


@examples
@given(
    st.lists(
        st.tuples(confidences, classes, st.integers(0, 3_000), st.booleans(), st.booleans(), st.integers(-9, 4_000)),
        min_size=1,
        max_size=40,
    ),
    st.integers(0, 86_400_000_000),
)
def test_columnar_confidence_equals_the_reference(
    rows: list[tuple[int, int, int, bool, bool, int]], odd_us: int
) -> None:
    confidence, decay_class, evidence, anti, stained, days = (np.array(column) for column in zip(*rows, strict=True))
    at = ANCHOR + days * DAY_US + odd_us
    half, low = half_life_us(decay_class, evidence, stained, DECAY), floor_ppm(anti, stained, DECAY)
    now = confidence_at(confidence, np.full(len(rows), ANCHOR), at, half, low)
    fades = fades_at_us(confidence, np.full(len(rows), ANCHOR), half, low, LIMIT)
    for i, (c, k, e, a, s, _) in enumerate(rows):
        wanted, wanted_floor = twin.half_life_us(DECAY_CLASSES[k], e, s, DECAY), twin.floor_ppm(a, s, DECAY)
        assert (half[i] if half[i] < FOREVER_US else None) == pytest.approx(wanted, abs=1)
        assert low[i] == wanted_floor
        assert now[i] == twin.confidence_at(c, ANCHOR, int(at[i]), wanted, wanted_floor)
        ends = twin.fades_at_us(c, ANCHOR, wanted, wanted_floor, LIMIT)
        assert (fades[i] if fades[i] < FOREVER_US else None) == pytest.approx(ends, abs=5)


@examples
@given(st.integers(LIMIT, PPM), st.sampled_from([CLASS_REGIME, CLASS_TACTICAL, CLASS_EPHEMERAL, CLASS_FACT]))
def test_fades_at_is_the_moment_at_which_confidence_falls_below_the_limit(start: int, decay_class: int) -> None:
    half = half_life(decay_class, 9)
    ends = int(fades_at_us(array_of(start), array_of(ANCHOR), array_of(half), array_of(0), LIMIT)[0])
    just_before, then = (
        int(confidence_at(array_of(start), array_of(ANCHOR), at, array_of(half), array_of(0))[0])
        for at in (ends - 5, ends + 5)
    )
    assert then < LIMIT <= just_before


def test_an_entry_below_the_limit_fades_at_its_anchor() -> None:
    week = half_life(CLASS_TACTICAL)
    for start in (0, 1, 99_999):
        assert fades_at_us(array_of(start), array_of(ANCHOR), array_of(week), array_of(0), LIMIT)[0] == ANCHOR
