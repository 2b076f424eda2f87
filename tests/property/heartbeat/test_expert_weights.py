"""Weights of the learned gate's experts and its sampled boundaries, beside their twins and the vectors of the canon."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bardo_pipeline.heartbeat.fleet import prior_boundaries
from bardo_pipeline.heartbeat.gating.boundaries import after_verdicts, sampled, thresholds
from bardo_pipeline.heartbeat.gating.expert_weights import after_losses, combined, expert_losses, expert_weights
from bardo_pipeline.market.return_topology import returns_distance
from bardo_pipeline.policy import GatingPolicy, TriagePolicy
from tests.reference.learning import gating as twin

RULES = GatingPolicy()
EXPONENTIAL = GatingPolicy(combiner="exponential")
UNIT = st.integers(0, 1_000).map(lambda milli: milli / 1_000.0)
LOSSES = st.lists(st.lists(st.one_of(st.none(), UNIT), min_size=5, max_size=5), max_size=12)
ROUNDS = np.zeros(1, np.int64)


def column(values: list[float | None]) -> np.ndarray:
    return np.array([np.nan if v is None else v for v in values])[:, None]


def updated(losses: list[list[float | None]], rules: GatingPolicy) -> np.ndarray:
    new = np.stack([column(row) for row in losses]) if losses else np.zeros((0, 5, 1))
    return after_losses(np.zeros((5, 1)), new, np.ones((len(losses), 1), bool), rules)


@pytest.mark.row("HB-7", "HB-5")
@given(LOSSES, st.lists(st.one_of(st.none(), UNIT), min_size=5, max_size=5))
def test_hedge_in_columns_equals_weights_multiplied_round_by_round(
    losses: list[list[float | None]], signals: list[float | None]
) -> None:
    hedge = twin.Hedge(RULES.discount, RULES.eta, [1.0] * 5)
    for row in losses:
        hedge.update(row)
    weights = expert_weights(updated(losses, RULES), ROUNDS + len(losses), RULES)
    np.testing.assert_allclose(weights[:, 0], hedge.share(), rtol=1e-9)
    expected = hedge.combine(signals)
    np.testing.assert_allclose(combined(weights, column(signals)), np.nan if expected is None else expected, rtol=1e-9)


@pytest.mark.row("HB-7", "HB-5")
@given(LOSSES)
def test_exponential_weights_in_columns_equal_those_of_whole_losses(losses: list[list[float | None]]) -> None:
    learner = twin.ExponentialWeights([0.0] * 5)
    for row in losses:
        learner.update(row)
    weights = expert_weights(updated(losses, EXPONENTIAL), ROUNDS + len(losses), EXPONENTIAL)
    np.testing.assert_allclose(weights[:, 0], learner.share(), rtol=1e-9)


@pytest.mark.row("HB-7", "HB-5")
def test_the_log_ratio_of_two_weights_halves_in_69_rounds_without_losses() -> None:
    before = np.array([[1.0], [4.0]])
    after = after_losses(before, np.zeros((69, 2, 1)), np.ones((69, 1), bool), RULES)
    ratios = [np.log(np.divide(*expert_weights(losses, ROUNDS, RULES)[:, 0])) for losses in (before, after)]
    assert ratios[1] / ratios[0] == pytest.approx(0.5, abs=0.001)


def regret(rules: GatingPolicy, adversary: str, rounds: int = 10_000) -> float:
    """Play against an adversary; return the regret against the best expert in hindsight."""
    losses, chance, paid = np.zeros((5, 1)), np.random.default_rng(5), 0.0
    for t in range(rounds):
        weights = expert_weights(losses, ROUNDS + t, rules)[:, 0]
        drawn = {
            "heaviest": (np.arange(5) == np.argmax(weights)).astype(float),
            "two that alternate": np.array([t % 2, (t + 1) % 2, 1.0, 1.0, 1.0], float),
            "coins": chance.integers(0, 2, 5).astype(float),
        }[adversary]
        paid += float(weights @ drawn)
        losses = after_losses(losses, drawn[None, :, None], np.ones((1, 1), bool), rules)
    return paid - float(losses.min())


@pytest.mark.row("HB-7", "HB-5")
@pytest.mark.parametrize("adversary", ["heaviest", "two that alternate", "coins"])
def test_the_regret_stays_below_the_bounds_of_the_canon(adversary: str) -> None:
    fixed = GatingPolicy(discount=1.0, eta=math.sqrt(8.0 * math.log(5) / 10_000))
    assert regret(fixed, adversary) < math.sqrt(10_000 * math.log(5) / 2.0) == pytest.approx(89.7, abs=0.05)
    assert regret(EXPONENTIAL, adversary) < 158.6


@pytest.mark.row("HB-7", "HB-5")
def test_a_loss_is_the_distance_from_the_importance_and_counts_less_without_importance() -> None:
    signals = np.array([0.0, 0.3, 1.0, np.nan])[None, :, None]
    important, idle = (expert_losses(signals, np.array([[value]]), RULES)[0, :, 0] for value in (1.0, 0.0))
    np.testing.assert_allclose(important, [1.0, 0.7, 0.0, np.nan])
    np.testing.assert_allclose(idle, RULES.negative_weight * np.array([0.0, 0.3, 1.0, np.nan]))


@pytest.mark.row("HB-7", "HB-6")
@pytest.mark.parametrize("boundary", range(3))
def test_boundaries_are_drawn_from_their_beta_distributions(boundary: int) -> None:
    shapes = prior_boundaries(RULES, 1)
    drawn = sampled(np.array([7], np.uint64), np.arange(1, 4_001)[:, None], shapes)[:, boundary, 0]
    alpha, beta = RULES.boundary_priors[boundary]
    assert stats.kstest(drawn, stats.beta(alpha, beta).cdf).pvalue > 0.01
    again = sampled(np.array([7], np.uint64), np.arange(1_001, 1_051)[:, None], shapes)[:, boundary, 0]
    np.testing.assert_array_equal(again, drawn[1_000:1_050])


@pytest.mark.row("HB-7", "HB-6")
def test_draws_of_boundaries_golems_and_ticks_are_independent() -> None:
    shapes = np.repeat(np.array([[2.0], [2.0]])[:, None], 3, axis=1).repeat(2, axis=2)
    drawn = sampled(np.array([1, 2], np.uint64), np.arange(1, 4_001)[:, None].repeat(2, axis=1), shapes)
    flat = np.concatenate([drawn.reshape(4_000, 6), np.roll(drawn, 1, axis=0).reshape(4_000, 6)], axis=1)
    off_diagonal = np.corrcoef(flat.T) - np.eye(12)
    assert np.abs(off_diagonal).max() < 0.06


@pytest.mark.row("HB-7", "HB-6")
@given(st.lists(UNIT, min_size=3, max_size=3), st.floats(-1.0, 1.0), st.floats(-1.0, 1.0))
def test_thresholds_shift_with_the_mood_and_descend(drawn: list[float], arousal: float, dominance: float) -> None:
    found = thresholds(np.sort(drawn)[::-1, None], np.array([arousal]), np.array([dominance]), RULES)[:, 0]
    np.testing.assert_allclose(found, twin.thresholds(drawn, arousal, dominance, RULES), rtol=1e-12)
    assert (np.diff(found) <= 0.0).all()
    assert 0.05 <= found.min() <= found.max() <= 0.95


@pytest.mark.row("HB-7", "HB-6")
def test_needless_escalations_raise_a_boundary_missed_events_lower_it_and_both_fade() -> None:
    prior = prior_boundaries(RULES, 2)
    none, three = np.zeros((3, 2), np.int64), np.full((3, 2), 3)
    mean = lambda shapes: shapes[0] / shapes.sum(axis=0)  # noqa: E731
    raised, lowered = after_verdicts(prior, three, none, RULES), after_verdicts(prior, none, three, RULES)
    assert (mean(raised) > mean(prior)).all()
    assert (mean(lowered) < mean(prior)).all()
    for _ in range(1_000):
        raised = after_verdicts(raised, none, none, RULES)
    np.testing.assert_allclose(raised, prior, rtol=1e-6)
    np.testing.assert_array_equal(prior[:, :, 0], [[8.0, 5.0, 2.0], [2.0, 5.0, 8.0]])


@pytest.mark.row("HB-7", "HB-5")
@given(st.integers(0, 2**32 - 1))
def test_the_topology_is_the_wasserstein_distance_from_the_returns_before(seed: int) -> None:
    returns = np.random.default_rng(seed).normal(size=70) * np.repeat([1.0, 3.0], [50, 20])
    found = returns_distance(returns, 10, 30)
    assert np.isnan(found[:39]).all()
    for t in range(39, 70):
        reference, window = returns[t - 39 : t - 9], returns[t - 9 : t + 1]
        spread = np.abs(reference - np.median(reference)).mean()
        assert found[t] == pytest.approx(stats.wasserstein_distance(reference, window) / spread)
    assert np.isnan(returns_distance(np.zeros(50), 10, 30)).all()


@pytest.mark.row("HB-5", "HB-6", "HB-7", "HB-8", "HB-9", "HB-31")
def test_numbers_that_the_specification_states_are_the_default_ones() -> None:
    gate, router = GatingPolicy(), TriagePolicy()
    assert (gate.discount, gate.arousal_shift, gate.dominance_shift) == (0.99, 0.2, 0.1)
    assert (gate.threshold_min, gate.threshold_max) == (0.05, 0.95)
    assert 0.01 <= gate.explore_share <= 0.05
    assert router.borderline == 0.1
    assert router.arms == ((0.8, 0.5, 0.2), (0.7, 0.4, 0.15), (0.85, 0.55, 0.25), (0.75, 0.45, 0.2), (0.9, 0.6, 0.3))
