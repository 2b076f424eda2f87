"""Synthetic markets: the same from the same seed, and the planted truths can be found in the bars."""

from dataclasses import replace
from datetime import UTC, datetime
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bardo_pipeline.market.market import Market, price_of_tick
from bardo_pipeline.market.regime import features
from bardo_pipeline.market.synthetic import (
    REGIMES,
    SPEC_DEFAULT,
    TRENDING_DOWN,
    TRENDING_UP,
    VOLATILE,
    MarketPlan,
    null_market,
    plan_market,
    synthetic_market,
)
from bardo_pipeline.market.synthetic_spec import graded_spec, planted_truths
from bardo_pipeline.policy import Policy

START = datetime(2023, 8, 14, tzinfo=UTC)
BARS = 20_000
SEEDS = (7, 11)

seeds = st.integers(0, 2**63)


@cache
def made(seed: int) -> tuple[Market, MarketPlan]:
    return synthetic_market(seed=seed, bars=BARS, start=START), plan_market(seed=seed, bars=BARS)


@cache
def crash_free(seed: int) -> tuple[Market, MarketPlan]:
    """Return the market of the same seed without crashes, so that only the other truths act."""
    spec = replace(SPEC_DEFAULT, crash_first_bars=(10**9, 10**9 + 1))
    market = synthetic_market(seed=seed, bars=BARS, start=START, spec=spec)
    return market, plan_market(seed=seed, bars=BARS, spec=spec)


def spells(plan: MarketPlan, kind: int) -> list[NDArray[np.int64]]:
    """The bars of each unbroken stretch of one regime."""
    cuts = np.flatnonzero(np.diff(plan.regime)) + 1
    return [part for part in np.split(np.arange(len(plan.regime)), cuts) if plan.regime[part[0]] == kind]


@settings(max_examples=20, deadline=None)
@given(seed=seeds, bars=st.integers(1, 3_000))
def test_equal_seeds_yield_equal_markets(seed: int, bars: int) -> None:
    first, second = (synthetic_market(seed=seed, bars=bars, start=START) for _ in range(2))
    assert first.content_hash == second.content_hash
    assert first.bars == bars
    nothing = [null_market(seed=seed, bars=bars, start=START).content_hash for _ in range(2)]
    assert nothing[0] == nothing[1] != first.content_hash


@settings(max_examples=20, deadline=None)
@given(seed=seeds, other=seeds)
def test_different_seeds_yield_different_prices(seed: int, other: int) -> None:
    first, second = (synthetic_market(seed=s, bars=500, start=START).price for s in (seed, other))
    assert (seed == other) == np.array_equal(first, second)


@settings(max_examples=20, deadline=None)
@given(seed=seeds, short=st.integers(1, 3_000), more=st.integers(0, 3_000))
def test_a_longer_market_begins_with_the_bars_of_a_shorter_market(seed: int, short: int, more: int) -> None:
    long = synthetic_market(seed=seed, bars=short + more, start=START)
    assert long.slice(0, short).content_hash == synthetic_market(seed=seed, bars=short, start=START).content_hash
    empty = null_market(seed=seed, bars=short + more, start=START)
    assert empty.slice(0, short).content_hash == null_market(seed=seed, bars=short, start=START).content_hash
    spec = graded_spec(turn_bar=short // 2)
    graded = synthetic_market(seed=seed, bars=short + more, start=START, spec=spec)
    alone = synthetic_market(seed=seed, bars=short, start=START, spec=spec)
    assert graded.slice(0, short).content_hash == alone.content_hash


@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_price_matches_tick_and_lies_between_low_and_high(seed: int) -> None:
    market = synthetic_market(seed=seed, bars=3_000, start=START)
    np.testing.assert_array_equal(market.price, price_of_tick(market.tick))
    opened = np.concatenate([market.price[:1], market.price[:-1]])
    assert (market.price_low <= np.minimum(opened, market.price)).all()
    assert (market.price_high >= np.maximum(opened, market.price)).all()


def test_rsi_stays_between_0_and_100() -> None:
    """The market of seed 20261 hardly falls for an hour, so its gain over gain and loss was rounded above one."""
    read = features(synthetic_market(seed=20_261, bars=BARS, start=START), Policy())
    assert np.nanmin(read.rsi) >= 0.0
    assert np.nanmax(read.rsi) == 100.0


@pytest.mark.parametrize("seed", SEEDS)
def test_every_regime_lasts_for_hours(seed: int) -> None:
    _, plan = made(seed)
    shares = np.bincount(plan.regime, minlength=len(REGIMES)) / BARS
    assert (shares > 0.05).all()
    assert 120 < np.mean([len(part) for kind in range(4) for part in spells(plan, kind)]) < 900


@pytest.mark.parametrize("seed", SEEDS)
def test_gas_spikes_about_three_minutes_after_a_crash_begins(seed: int) -> None:
    market, plan = made(seed)
    lag = SPEC_DEFAULT.gas_lag_bars
    assert 6 <= len(plan.crashes) <= 14
    for crash in plan.crashes:
        if crash.spike.start + crash.spike.bars >= BARS:
            continue
        spike = market.gas_gwei[crash.spike.start : crash.spike.start + crash.spike.bars]
        assert crash.spike.start == crash.start + lag
        assert np.median(spike) > 2 * market.gas_gwei[crash.start : crash.spike.start].max()
        assert 10 <= crash.spike.bars <= 30
        assert 5 <= crash.spike.factor <= 30


@pytest.mark.parametrize("seed", SEEDS)
def test_median_gas_rises_most_at_the_lag_after_a_crash(seed: int) -> None:
    market, plan = made(seed)
    starts = np.array([crash.start for crash in plan.crashes if crash.start + 8 < BARS])
    around = np.median(np.log(market.gas_gwei)[starts[:, None] + np.arange(-5, 8)], axis=0)
    steps = np.diff(around)
    assert int(np.argmax(steps)) - 4 == SPEC_DEFAULT.gas_lag_bars


@pytest.mark.parametrize("seed", SEEDS)
def test_a_crash_falls_several_percent_in_15_minutes_and_partly_recovers(seed: int) -> None:
    market, plan = made(seed)
    moves = [
        (
            market.price[c.start + 15] / market.price[c.start - 1] - 1,
            market.price[c.start + 150] / market.price[c.start + 15] - 1,
        )
        for c in plan.crashes
        if c.start + 150 < BARS
    ]
    falls, returns = np.median(np.array(moves), axis=0)
    assert -0.11 < falls < -0.035
    assert 0.005 < returns < -falls


@pytest.mark.parametrize("seed", SEEDS)
def test_volatile_excursions_revert_with_a_half_life_of_about_twenty_minutes(seed: int) -> None:
    market, plan = crash_free(seed)
    logs = np.log(market.price)
    kept = []
    for part in spells(plan, VOLATILE):
        base = np.median(logs[part])
        away = logs[part][:-20] - base
        later = logs[part][20:] - base
        far = np.abs(away) > 0.01
        kept.extend((later[far] / away[far]).tolist())
    assert len(kept) > 100
    assert 0.25 < np.median(kept) < 0.75


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("kind", "sign"), [(TRENDING_UP, 1), (TRENDING_DOWN, -1)])
def test_the_drift_of_a_trend_persists(seed: int, kind: int, sign: int) -> None:
    market, plan = crash_free(seed)
    logs = np.log(market.price)
    parts = [
        part[60:] for part in spells(plan, kind) if len(part) >= 180
    ]  # the effect of a volatile stretch has faded by then
    halves = np.array([(logs[p[len(p) // 2]] - logs[p[0]], logs[p[-1]] - logs[p[len(p) // 2]]) for p in parts])
    assert (sign * halves.sum(axis=1) > 0).mean() > 0.9
    assert (sign * halves > 0).mean() > 0.75


@pytest.mark.parametrize("seed", SEEDS)
def test_volume_rises_with_moves_and_from_14_to_16_utc(seed: int) -> None:
    market, plan = crash_free(seed)
    volume = market.volume_usd_micros / 1e6
    moves = np.abs(np.diff(np.log(market.price), prepend=np.log(market.price[0])))
    assert np.corrcoef(moves, volume)[0, 1] > 0.5
    assert volume[plan.regime == VOLATILE].mean() > 2 * volume[plan.regime != VOLATILE].mean()
    still = (moves == 0) & (volume > 0) & (plan.regime != VOLATILE)
    hour = market.at_us // 3_600_000_000 % 24
    peak = (hour >= 14) & (hour < 16)
    assert np.median(volume[still & peak]) > 1.5 * np.median(volume[still & ~peak])


@pytest.mark.parametrize("seed", SEEDS)
def test_gas_is_dearest_in_the_afternoon(seed: int) -> None:
    market, _ = made(seed)
    hour = market.at_us // 3_600_000_000 % 24
    afternoon, night = (hour >= 13) & (hour < 17), (hour >= 1) & (hour < 5)
    assert np.median(market.gas_gwei[afternoon]) > 1.3 * np.median(market.gas_gwei[night])


@pytest.mark.parametrize("seed", SEEDS)
def test_liquidity_flees_a_crash(seed: int) -> None:
    spec = replace(SPEC_DEFAULT, liquidity_crash_share=0.0)
    (market, plan), loyal = made(seed), synthetic_market(seed=seed, bars=BARS, start=START, spec=spec)
    left = market.liquidity / loyal.liquidity
    start, fallen = plan.crashes[0].start, plan.crashes[0].start + SPEC_DEFAULT.crash_bars
    assert (left[:start] == 1.0).all()
    assert np.median(left[fallen : fallen + 60]) < 1.0 - 0.6 * SPEC_DEFAULT.liquidity_crash_share
    assert left.min() >= 0.9 * (1.0 - SPEC_DEFAULT.liquidity_crash_share), "a part of it stays"


@pytest.mark.parametrize("seed", SEEDS)
def test_magnitudes_match_the_recorded_polygon_pool(seed: int) -> None:
    market, _ = made(seed)
    volume = market.volume_usd_micros / 1e6
    assert 3_000 < volume.mean() < 30_000
    assert 50 < np.median(volume) < 3_000
    assert 0.6 < (volume > 0).mean() < 0.95
    assert 1.2e18 < np.median(market.liquidity) < 3.5e18
    assert 35 < np.median(market.gas_gwei) < 60
    assert 0.03 < (np.diff(market.liquidity) != 0).mean() < 0.35


def test_the_market_lists_its_planted_truths() -> None:
    market, _ = made(SEEDS[0])
    assert market.truths == planted_truths(SPEC_DEFAULT)
    assert len({truth.name for truth in market.truths}) == len(market.truths)
    for truth in market.truths:
        assert truth.regime in {*REGIMES, "any"}
        assert truth.sign in {-1, 1}
        assert truth.lag_bars >= 0
    gas = next(truth for truth in market.truths if truth.name == "gas_follows_crash")
    assert gas.lag_bars == SPEC_DEFAULT.gas_lag_bars
    assert sorted({truth.kind for truth in market.truths}) == ["causal", "decoy", "entailed"]
    assert all(truth.valid_until_bar is None for truth in market.truths)
    assert gas.strength > 1


@settings(max_examples=10, deadline=None)
@given(seed=seeds, turn=st.integers(1, 2_999))
def test_a_turn_changes_no_earlier_bar(seed: int, turn: int) -> None:
    never, once = (synthetic_market(seed=seed, bars=3_000, start=START, spec=graded_spec(bar)) for bar in (None, turn))
    assert never.slice(0, turn).content_hash == once.slice(0, turn).content_hash


def far_and_later(market: Market, plan: MarketPlan) -> NDArray[np.float64]:
    """Return the share of each bar's distance from the middle of its volatile stretch that is left after twenty
    bars.
    """
    logs = np.log(market.price)
    kept = []
    for part in spells(plan, VOLATILE):
        since = logs[part] - logs[part[0]]
        before, now, later = since[:-23], since[3:-20], since[23:]
        jump = now - before
        large = np.abs(jump) > 0.006
        kept.extend(((later - before)[large] / jump[large]).tolist())
    return np.array(kept)


@pytest.mark.row("X-5")
@pytest.mark.parametrize("seed", SEEDS)
def test_excursions_revert_before_the_turn_and_persist_after_it(seed: int) -> None:
    calm = replace(graded_spec(None), crash_first_bars=(10**9, 10**9 + 1))
    plan = plan_market(seed=seed, bars=BARS, spec=calm)
    before = synthetic_market(seed=seed, bars=BARS, start=START, spec=calm)
    after = synthetic_market(seed=seed, bars=BARS, start=START, spec=replace(calm, turn=graded_spec(0).turn))
    assert np.median(far_and_later(before, plan)) < 0.9
    assert np.median(far_and_later(after, plan)) > 1.1


@pytest.mark.row("X-5")
@pytest.mark.parametrize("seed", SEEDS)
def test_decoys_correlate_and_the_turn_ends_the_flight_of_liquidity(seed: int) -> None:
    """Gas, volume and liquidity share a daily rhythm; volume precedes the fall of liquidity after the same price
    moves.
    """
    market = synthetic_market(seed=seed, bars=BARS, start=START, spec=graded_spec(None))
    turned = synthetic_market(seed=seed, bars=BARS, start=START, spec=graded_spec(0))
    hour = market.at_us // 3_600_000_000 % 24
    peak, night = (hour >= 14) & (hour < 16), (hour >= 1) & (hour < 5)
    for values in (market.gas_gwei, market.liquidity, market.volume_usd_micros[market.volume_usd_micros > 0]):
        there = market.volume_usd_micros > 0 if len(values) < BARS else np.full(BARS, True)
        assert np.median(values[peak[there]]) > 1.15 * np.median(values[night[there]])

    def flight(item: Market) -> float:
        moves = np.abs(np.diff(np.log(item.price), prepend=np.log(item.price[0])))
        change = np.diff(np.log(item.liquidity), prepend=np.log(item.liquidity[0]))
        return float(np.corrcoef(moves[:-5], change[5:])[0, 1])

    assert flight(market) < -0.15
    assert abs(flight(turned)) < 0.1
    names = {t.name: t for t in planted_truths(graded_spec(100))}
    assert {n for n, t in names.items() if t.valid_until_bar == 100} == {"excursions_revert", "liquidity_flees_moves"}
    assert ("volume", "liquidity") in {(t.cause, t.effect) for t in names.values() if t.kind == "decoy"}


@pytest.mark.row("X-5")
@pytest.mark.parametrize("seed", SEEDS)
def test_the_null_market_has_no_correlations(seed: int) -> None:
    market = null_market(seed=seed, bars=BARS, start=START)
    assert market.truths == ()
    steps = {
        name: np.diff(np.log(values.astype(np.float64)))
        for name, values in (
            ("price", market.price), ("gas", market.gas_gwei), ("volume", market.volume_usd_micros),
            ("depth", market.liquidity),
        )
    }  # fmt: skip
    steps["move"] = np.abs(steps["price"])
    for cause, first in steps.items():
        for effect, second in steps.items():
            for lag in (0, 1, 3, 5, 20, 60):
                if cause != effect and {cause, effect} != {"price", "move"}:
                    column = np.corrcoef(first[: len(first) - lag], second[lag:])[0, 1]
                    assert abs(column) < 0.04, (cause, effect, lag)
    assert abs(np.corrcoef(steps["price"][:-1], steps["price"][1:])[0, 1]) < 0.04
    assert (market.price_high == market.price_low).all(), "a swap does not slip"
