"""Laws of the steps of a tick: a golem gets equal results alone and in a fleet, values stay in range, and no step reads
a later bar.
"""

from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bardo_pipeline.events.record.model import PHASES, TIERS
from bardo_pipeline.heartbeat.gate import (
    STEER,
    UNFORCED,
    Attention,
    adaptive_threshold,
    gate,
    gating_reasons,
    prediction_error,
    prediction_error_fallback,
    transition_imminent,
)
from bardo_pipeline.heartbeat.probes import ABSENT, HIGH, LOW, evaluate
from bardo_pipeline.market.market import Market
from bardo_pipeline.market.regime import Features, features, schedule
from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.mortality.affect import appraise, emotion_codes, pad_congruence
from bardo_pipeline.mortality.vitality import (
    cause_of_death,
    death_reserve_micros,
    phase_codes,
    predictive_fitness,
    vitality,
)
from bardo_pipeline.policy import Policy

POLICY = Policy()
START = datetime(2023, 8, 14, tzinfo=UTC)
BARS = 1_500

Columns = dict[str, NDArray[Any]]

sizes = st.integers(1, 70)
seeds = st.integers(0, 2**32 - 1)
units = st.floats(0.0, 1.0)
signed = st.floats(-1.0, 1.0)


def fleet(seed: int, size: int) -> Columns:
    """Draw random inputs of each kind, [size] or [3, size]; a fifth of the optional values is absent."""
    rng = np.random.default_rng(seed)

    def gaps(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(rng.random(size) < 0.2, np.nan, values)

    return {
        "unit": rng.random(size),
        "other_unit": rng.random(size),
        "signed": rng.uniform(-1, 1, size),
        "small": rng.normal(0, 0.02, size),
        "gappy": gaps(rng.random(size)),
        "gappy_signed": gaps(rng.normal(0, 0.5, size)),
        "price": rng.uniform(1, 3_000, size),
        "expected": gaps(rng.uniform(-10, 3_000, size)),
        "health": gaps(rng.uniform(0, 2, size)),
        "gas": rng.uniform(0, 8, size),
        "rsi": gaps(rng.uniform(0, 100, size)),
        "macd": gaps(rng.normal(0, 0.001, size)),
        "sigma": gaps(rng.uniform(0, 3, size)),
        "causal": gaps(rng.integers(0, 3, size).astype(np.float64)),
        "flag": rng.random(size) < 0.2,
        "other_flag": rng.random(size) < 0.2,
        "third_flag": rng.random(size) < 0.2,
        "count": rng.integers(0, 8, size),
        "other_count": rng.integers(0, 13, size),
        "credits": rng.integers(-1_000, 20_000_000, size),
        "first_credits": rng.integers(1, 10_000_000, size),
        "age": rng.integers(0, 1_100, size),
        "lifespan": rng.integers(1, 1_000, size),
        "pad": rng.uniform(-1, 1, (3, size)),
        "other_pad": rng.uniform(-1, 1, (3, size)) * (rng.random(size) < 0.8),
        "tier": rng.integers(0, 4, size).astype(np.int8),
        "forced": rng.integers(-1, 3, size).astype(np.int8),
    }


def probed(c: Columns) -> list[NDArray[Any]]:
    probes = evaluate(
        price_change=c["small"],
        liquidity_change=c["gappy_signed"],
        health_factor=c["health"],
        gas_hour_ratio=c["gas"],
        credit_share=c["unit"],
        rsi=c["rsi"],
        macd=c["macd"],
        nav_drawdown=c["other_unit"],
        kill_switch=c["flag"],
        threat=c["gappy"],
        deviation_sigma=c["sigma"],
        drift=c["gappy"],
        causal=c["causal"],
        policy=POLICY,
    )
    return [probes.severity, probes.value, probes.threshold, probes.anomalies, probes.anomaly_count]


def lived(c: Columns) -> list[NDArray[Any]]:
    life = vitality(c["credits"], c["first_credits"], c["unit"], c["age"], c["lifespan"], POLICY)
    return [life.economic, life.epistemic, life.stochastic, life.composite, cause_of_death(life)]


def reasoned(c: Columns) -> list[NDArray[Any]]:
    judgement = Attention(c["tier"] == TIERS.index("suppress"), c["price"], c["gas"], c["unit"], c["other_unit"])
    reasons = gating_reasons(c["unit"], c["other_unit"], c["tier"], c["forced"], POLICY, judgement)
    return [np.array(reasons.to_pylist())]


STEPS: dict[str, Callable[[Columns], list[NDArray[Any]]]] = {
    "probes": probed,
    "error": lambda c: list(
        prediction_error(
            c["expected"], c["price"], c["flag"], c["gappy_signed"], c["gappy"], c["count"], c["other_count"], POLICY
        )
    ),
    "fallback": lambda c: list(
        prediction_error_fallback(c["flag"], c["gappy_signed"], c["gappy"], c["other_count"], POLICY)
    ),
    "threshold": lambda c: [adaptive_threshold(c["unit"], c["signed"], c["other_unit"], POLICY)],
    "imminent": lambda c: [transition_imminent(c["unit"] * 0.2, POLICY)],
    "gate": lambda c: list(gate(c["unit"], c["other_unit"], c["flag"], c["other_flag"], c["third_flag"], POLICY)),
    "reasons": reasoned,
    "vitality": lived,
    "phase": lambda c: [phase_codes(c["unit"], POLICY)],
    "fitness": lambda c: [predictive_fitness(np.minimum(c["count"], c["other_count"]), c["other_count"], POLICY)],
    "reserve": lambda c: [death_reserve_micros(c["first_credits"] * 37, POLICY)],
    "appraise": lambda c: [appraise(c["pad"], c["small"], c["unit"], c["other_unit"], c["gappy"], POLICY)],
    "emotion": lambda c: [emotion_codes(c["pad"])],
    "congruence": lambda c: [pad_congruence(c["pad"], c["other_pad"])],
}


@pytest.mark.parametrize("step_name", STEPS)
@given(seed=seeds, size=sizes)
@settings(max_examples=15, deadline=None)
def test_each_step_gives_equal_results_alone_and_in_a_fleet(step_name: str, seed: int, size: int) -> None:
    """Results of a fleet of N golems equal those of N separate golems, bit for bit."""
    columns = fleet(seed, size)
    together = STEPS[step_name](columns)
    for golem in range(size):
        alone = STEPS[step_name]({name: column[..., golem : golem + 1].copy() for name, column in columns.items()})
        for whole, single in zip(together, alone, strict=True):
            if whole.dtype.kind == "U":
                assert whole[golem] == single[0]
            else:
                assert whole.dtype == single.dtype
                assert whole[..., golem].tobytes() == single[..., 0].tobytes()


@pytest.mark.parametrize("step_name", STEPS)
@given(seed=seeds)
@settings(max_examples=5, deadline=None)
def test_no_step_writes_to_its_inputs(step_name: str, seed: int) -> None:
    columns = fleet(seed, 9)
    for column in columns.values():
        column.flags.writeable = False  # writing would raise
    STEPS[step_name](columns)


# Ranges and orders.


@pytest.mark.row("HB-13")
@given(seed=seeds, size=sizes)
@settings(max_examples=50, deadline=None)
def test_a_probe_is_absent_without_a_value_and_raised_beyond_its_threshold(seed: int, size: int) -> None:
    severity, value, threshold, *_ = probed(fleet(seed, size))
    np.testing.assert_array_equal(severity == ABSENT, np.isnan(value))
    np.testing.assert_array_equal(np.isnan(value), np.isnan(threshold))
    sign = np.ones((12, 1))
    sign[[2, 4]] = -1.0  # health and credits are bad when low
    raised = severity >= LOW
    np.testing.assert_array_equal(raised, sign * value > sign * threshold)
    assert set(np.unique(severity)) <= {ABSENT, 0, LOW, HIGH}


@pytest.mark.row("HB-2")
@given(seed=seeds, size=sizes)
@settings(max_examples=50, deadline=None)
def test_surprise_is_the_capped_sum_of_its_sources(seed: int, size: int) -> None:
    total, sources = STEPS["error"](fleet(seed, size))
    np.testing.assert_allclose(total, np.minimum(np.nansum(sources, axis=0), 1.0), rtol=1e-12)
    assert ((total >= 0.0) & (total <= 1.0)).all()


@pytest.mark.row("HB-3")
@given(vitality=units, arousal=signed, confidence=units)
def test_the_threshold_is_bounded_and_moves_with_its_three_factors(
    vitality: float, arousal: float, confidence: float
) -> None:
    def at(v: float, a: float, c: float) -> float:
        return float(adaptive_threshold(np.array([v]), np.array([a]), np.array([c]), POLICY)[0])

    here = at(vitality, arousal, confidence)
    assert 0.05 <= here <= 0.8
    assert at(1.0, arousal, confidence) >= here >= at(0.0, arousal, confidence)
    assert at(vitality, -1.0, confidence) >= here >= at(vitality, 1.0, confidence)
    assert at(vitality, arousal, 1.0) >= here >= at(vitality, arousal, 0.0)


@pytest.mark.row("HB-4")
@given(seed=seeds, size=sizes)
@settings(max_examples=50, deadline=None)
def test_the_tier_rises_with_surprise(seed: int, size: int) -> None:
    c = fleet(seed, size)
    none = np.zeros(size, dtype=bool)
    less, more = np.minimum(c["unit"], c["price"] / 3_000), np.maximum(c["unit"], c["price"] / 3_000)
    low, high = (gate(error, c["other_unit"], none, none, none, POLICY)[0] for error in (less, more))
    assert (low <= high).all()
    tier, forced = gate(less, c["other_unit"], c["flag"], none, none, POLICY)
    np.testing.assert_array_equal(forced == STEER, c["flag"])
    np.testing.assert_array_equal(tier, np.where(forced == UNFORCED, low, TIERS.index("T2")))


@pytest.mark.row("INH-1")
@given(seed=seeds, size=sizes)
@settings(max_examples=50, deadline=None)
def test_a_golem_dies_exactly_when_a_component_is_zero(seed: int, size: int) -> None:
    economic, epistemic, stochastic, composite, cause = lived(fleet(seed, size))
    parts = np.stack([economic, epistemic, stochastic])
    assert ((parts >= 0.0) & (parts <= 1.0)).all()
    assert (composite <= parts.min(axis=0)).all()
    np.testing.assert_array_equal(cause >= 0, (parts == 0.0).any(axis=0))
    np.testing.assert_array_equal(cause[cause >= 0], np.argmax(parts == 0.0, axis=0)[cause >= 0])


@pytest.mark.row("INH-1")
@given(st.lists(units, min_size=2, max_size=20))
def test_the_phase_is_monotonic_in_vitality(composites: list[float]) -> None:
    codes = phase_codes(np.sort(np.array(composites))[::-1].copy(), POLICY)
    assert (np.diff(codes) >= 0).all()
    assert set(codes.tolist()) <= set(range(len(PHASES)))


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=10))
def test_the_reserve_is_the_exact_share_rounded_up(balances: list[int]) -> None:
    reserve = death_reserve_micros(np.array(balances, dtype=np.int64), POLICY).tolist()
    assert reserve == [max(300_000, -(-balance * 20_000 // 1_000_000)) for balance in balances]


@pytest.mark.row("HB-28")
@given(seed=seeds, size=sizes)
@settings(max_examples=50, deadline=None)
def test_moods_stay_in_their_cube_and_congruence_is_symmetric(seed: int, size: int) -> None:
    c = fleet(seed, size)
    (after,) = STEPS["appraise"](c)
    assert (np.abs(after) <= 1.0).all()
    there, back = pad_congruence(c["pad"], c["other_pad"]), pad_congruence(c["other_pad"], c["pad"])
    np.testing.assert_array_equal(there, back)
    assert ((there >= 0.0) & (there <= 1.0)).all()


# No step reads a later bar.


@cache
def observed(seed: int) -> tuple[Market, Features]:
    market = synthetic_market(seed=seed, bars=BARS, start=START)
    return market, features(market, POLICY)


@pytest.mark.row("HB-14")
@given(seed=st.sampled_from([7, 11]), bars=st.integers(1, BARS))
@settings(max_examples=60, deadline=None)
def test_features_are_independent_of_later_bars(seed: int, bars: int) -> None:
    market, whole = observed(seed)
    part = features(market.slice(0, bars), POLICY)
    for field in fields(Features):
        seen, expected = getattr(part, field.name), getattr(whole, field.name)[:bars]
        assert seen.tobytes() == expected.tobytes(), field.name


@pytest.mark.row("HB-14")
@given(seed=st.sampled_from([7, 11]), bars=st.integers(1, BARS))
@settings(max_examples=30, deadline=None)
def test_the_schedule_of_ticks_is_independent_of_later_bars(seed: int, bars: int) -> None:
    market, whole = observed(seed)
    short = market.slice(0, bars)
    ticks = schedule(short, features(short, POLICY))
    everywhere = schedule(market, whole)
    np.testing.assert_array_equal(ticks, everywhere[everywhere < bars])


@pytest.mark.row("HB-14")
@given(seed=st.sampled_from([7, 11]))
def test_every_tick_waits_for_its_interval(seed: int) -> None:
    market, seen = observed(seed)
    ticks = schedule(market, seen)
    assert ticks[0] == 0
    waited = np.diff(market.at_us[ticks]) // 1_000_000
    due = seen.interval_seconds[ticks[:-1]]
    assert (waited >= due).all()
    assert (waited < due + 60).all()  # minute bars without gaps: the next bar is never far
