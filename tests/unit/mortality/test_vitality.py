"""Vitality: components, phases, causes of death, and the death reserve."""

import numpy as np
import pytest
from numpy.typing import NDArray

from bardo_pipeline.events.record.model import PHASES
from bardo_pipeline.mortality.vitality import (
    ALIVE,
    CAUSES,
    cause_of_death,
    death_reserve_micros,
    phase_codes,
    predictive_fitness,
    vitality,
)
from bardo_pipeline.policy import MortalityPolicy, Policy

POLICY = Policy()


def life(
    credits: int = 10_000_000, fitness: float = 1.0, age: int = 0, policy: Policy = POLICY
) -> tuple[float, float, float, float, int]:
    """Economic, epistemic, stochastic, composite and cause of a golem born with ten dollars for a thousand ticks."""
    state = vitality(
        np.array([credits]), np.array([10_000_000]), np.array([fitness]), np.array([age]), np.array([1_000]), policy
    )
    parts = (state.economic, state.epistemic, state.stochastic, state.composite)
    return (*(float(part[0]) for part in parts), int(cause_of_death(state)[0]))  # type: ignore[return-value]


@pytest.mark.row("INH-1")
def test_each_component_follows_its_own_measure() -> None:
    assert life() == (1.0, 1.0, 1.0, 1.0, ALIVE)
    assert life(credits=2_500_000) == (0.25, 1.0, 1.0, 0.25, ALIVE)
    assert life(fitness=0.6) == (1.0, 0.6, 1.0, 0.6, ALIVE)
    assert life(age=500) == (1.0, 1.0, 1.0 - 0.0625, 1.0 - 0.0625, ALIVE)


@pytest.mark.row("INH-1")
def test_components_are_multiplied() -> None:
    economic, epistemic, stochastic, composite, cause = life(credits=5_000_000, fitness=0.8, age=500)
    assert composite == pytest.approx(0.5 * 0.8 * 0.9375)
    assert composite == economic * epistemic * stochastic
    assert cause == ALIVE


@pytest.mark.row("INH-1")
def test_economic_vitality_is_at_most_1() -> None:
    assert life(credits=25_000_000)[0] == 1.0


@pytest.mark.row("INH-1")
@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ({"credits": 0}, "economic"),
        ({"fitness": 0.349}, "epistemic"),
        ({"age": 1_000}, "stochastic"),
        ({"age": 1_200}, "stochastic"),
        ({"credits": 0, "fitness": 0.1, "age": 1_000}, "economic"),
        ({"fitness": 0.1, "age": 1_000}, "epistemic"),
    ],
)
def test_a_component_at_zero_is_the_cause_of_death(state: dict[str, float], cause: str) -> None:
    *_, composite, code = life(**state)  # type: ignore[arg-type]
    assert composite == 0.0
    assert CAUSES[code] == cause


@pytest.mark.row("INH-1")
def test_senescence_begins_below_its_bound() -> None:
    assert life(fitness=0.35)[1] == 0.35
    assert life(fitness=np.nextafter(0.35, 0))[1] == 0.0


def test_a_golem_at_the_last_values_before_death_is_alive() -> None:
    assert life(credits=1, fitness=0.35, age=999)[4] == ALIVE


@pytest.mark.row("INH-1")
def test_phases_include_their_lower_bound_except_thriving() -> None:
    bounds = {
        "thriving": [1.0, np.nextafter(0.7, 1)],
        "stable": [0.7, 0.5],
        "conservation": [np.nextafter(0.5, 0), 0.3],
        "declining": [np.nextafter(0.3, 0), 0.1],
        "terminal": [np.nextafter(0.1, 0), 0.0],
    }
    for phase, composites in bounds.items():
        assert [PHASES[code] for code in phase_codes(np.array(composites), POLICY)] == [phase, phase]


@pytest.mark.row("INH-1")
def test_fitness_starts_at_its_prior_and_follows_predictions_that_held() -> None:
    held, resolved = np.array([0, 50, 0, 0, 500, 350]), np.array([0, 50, 50, 500, 500, 500])
    expected = [0.7, 85 / 100, 35 / 100, 35 / 550, 535 / 550, 0.7]
    np.testing.assert_allclose(predictive_fitness(held, resolved, POLICY), expected, rtol=1e-15)


def reserve(balances: list[int], policy: Policy = POLICY) -> NDArray[np.int64]:
    return death_reserve_micros(np.array(balances, dtype=np.int64), policy)


def test_the_reserve_is_thirty_cents_or_two_per_cent() -> None:
    dollars = 1_000_000
    assert reserve([0, 5 * dollars, 15 * dollars, 15 * dollars + 50, 100 * dollars]).tolist() == [
        300_000,
        300_000,
        300_000,
        300_001,
        2_000_000,
    ]


def test_the_reserve_is_rounded_up_and_exact_for_large_balances() -> None:
    assert reserve([15_000_001, 15_000_050, 15_000_051]).tolist() == [300_001, 300_001, 300_002]
    assert reserve([2**62]).tolist() == [-(-(2**62) * 2 // 100)]
    assert reserve([100_000_000], Policy(mortality=MortalityPolicy(reserve_share=0.1))).tolist() == [10_000_000]


@pytest.mark.parametrize(("exponent", "expected"), [(1.0, 0.5), (2.0, 0.75), (2.5, 1.0 - 0.5**2.5)])
def test_the_age_exponent_comes_from_the_policy(exponent: float, expected: float) -> None:
    policy = Policy(mortality=MortalityPolicy(age_exponent=exponent))
    assert life(age=500, policy=policy)[2] == pytest.approx(expected)
