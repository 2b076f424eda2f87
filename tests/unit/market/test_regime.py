"""Regimes: features against row-by-row references, regimes on crafted markets, and when a golem observes."""

import math
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from numpy.typing import NDArray

from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.market.market import Market
from bardo_pipeline.market.regime import Features, features, schedule
from bardo_pipeline.market.synthetic import flat_market, synthetic_market
from bardo_pipeline.policy import Policy, RegimePolicy

START = datetime(2023, 8, 14, tzinfo=UTC)
POLICY = Policy()


def market_of(price: NDArray[np.float64]) -> Market:
    """A market of these closes, everything else at rest."""
    price = np.asarray(price, dtype=np.float64)
    return replace(flat_market(bars=len(price), start=START), price=price, price_low=price, price_high=price)


def regimes(seen: Features) -> list[str]:
    return [REGIMES[code] for code in seen.regime]


@pytest.fixture(scope="module")
def synthetic() -> tuple[Market, Features]:
    market = synthetic_market(seed=11, bars=3_000, start=START)
    return market, features(market, POLICY)


# Features compared with row-by-row references.


def test_log_returns_are_relative_to_the_previous_bar(synthetic: tuple[Market, Features]) -> None:
    market, seen = synthetic
    assert seen.log_return[0] == 0.0
    for bar in range(1, 200):
        assert seen.log_return[bar] == pytest.approx(math.log(market.price[bar] / market.price[bar - 1]), abs=1e-12)


def test_windows_cover_20_bars_and_are_nan_before(synthetic: tuple[Market, Features]) -> None:
    market, seen = synthetic
    assert np.isnan(seen.sma[:19]).all()
    assert np.isnan(seen.price_sigma[:19]).all()
    assert np.isnan(seen.return_sigma[:20]).all()  # twenty returns need a bar more
    for bar in (19, 20, 57, 2_999):
        assert seen.sma[bar] == pytest.approx(market.price[bar - 19 : bar + 1].mean(), rel=1e-12)
        assert seen.price_sigma[bar] == pytest.approx(market.price[bar - 19 : bar + 1].std(), rel=1e-7, abs=1e-9)
    for bar in (20, 57, 2_999):
        assert seen.return_sigma[bar] == pytest.approx(seen.log_return[bar - 19 : bar + 1].std(), rel=1e-7, abs=1e-12)


def test_sigma_ratio_compares_with_the_mean_of_earlier_sigmas(synthetic: tuple[Market, Features]) -> None:
    _, seen = synthetic
    assert np.isnan(seen.sigma_ratio[:39]).all()
    for bar in (39, 40, 700, 2_999):
        assert seen.sigma_ratio[bar] == pytest.approx(
            seen.return_sigma[bar] / seen.return_sigma[20:bar].mean(), rel=1e-9
        )


def test_the_long_average_covers_the_days_of_the_policy() -> None:
    policy = Policy(regime=RegimePolicy(average_days=0.5))  # 720 bars
    seen = features(synthetic_market(seed=11, bars=3_000, start=START), policy)
    for bar in (800, 2_999):
        assert seen.sigma_ratio[bar] == pytest.approx(
            seen.return_sigma[bar] / seen.return_sigma[bar - 720 : bar].mean()
        )


def test_gas_is_compared_with_the_previous_hour(synthetic: tuple[Market, Features]) -> None:
    market, seen = synthetic
    assert seen.gas_hour_ratio[0] == 1.0
    for bar in (1, 2, 59, 60, 61, 2_999):
        mean = market.gas_gwei[max(0, bar - 60) : bar].mean()
        assert seen.gas_hour_mean[bar] == pytest.approx(mean, rel=1e-12)
        assert seen.gas_hour_ratio[bar] == pytest.approx(market.gas_gwei[bar] / mean, rel=1e-12)


def test_rsi_follows_the_formula_of_wilder(synthetic: tuple[Market, Features]) -> None:
    market, seen = synthetic
    moves = np.diff(market.price)
    gain = sum(max(move, 0.0) for move in moves[:14]) / 14
    loss = sum(max(-move, 0.0) for move in moves[:14]) / 14
    assert np.isnan(seen.rsi[:14]).all()
    for bar in range(14, market.bars):
        if bar > 14:
            gain = (13 * gain + max(moves[bar - 1], 0.0)) / 14
            loss = (13 * loss + max(-moves[bar - 1], 0.0)) / 14
        expected = 50.0 if gain + loss == 0.0 else 100.0 - 100.0 / (1.0 + gain / loss) if loss > 0.0 else 100.0
        assert seen.rsi[bar] == pytest.approx(expected, abs=1e-6)


def test_macd_is_the_histogram_of_three_averages(synthetic: tuple[Market, Features]) -> None:
    market, seen = synthetic
    fast = slow = market.price[0]
    signal = 0.0
    assert np.isnan(seen.macd[:33]).all()
    for bar in range(1, market.bars):
        fast += 2 / 13 * (market.price[bar] - fast)
        slow += 2 / 27 * (market.price[bar] - slow)
        signal += 2 / 10 * (fast - slow - signal)
        if bar >= 33:
            assert seen.macd[bar] == pytest.approx((fast - slow - signal) / market.price[bar], abs=1e-12)


def test_a_market_at_rest_has_exact_features() -> None:
    seen = features(flat_market(bars=200, start=START), POLICY)
    assert (seen.price_sigma[19:] == 0.0).all()
    assert (seen.return_sigma[20:] == 0.0).all()
    assert (seen.rsi[14:] == 50.0).all()
    assert (seen.macd[33:] == 0.0).all()
    assert (seen.gas_hour_ratio == 1.0).all()
    assert np.isnan(seen.sigma_ratio).all()  # no scale to compare with


def test_a_market_of_one_bar_has_features() -> None:
    market = flat_market(bars=1, start=START)
    seen = features(market, POLICY)
    assert regimes(seen) == ["unknown"]
    assert schedule(market, seen).tolist() == [0]


# Regimes on crafted markets.


@pytest.mark.row("HB-14")
def test_a_rising_price_trends_up_at_the_standard_interval() -> None:
    seen = features(market_of(1_800.0 + np.arange(120.0)), POLICY)
    assert regimes(seen) == ["unknown"] * 19 + ["trending_up"] * 101
    assert (seen.interval_seconds == 60).all()


@pytest.mark.row("HB-14")
def test_a_falling_price_trends_down_at_half_the_interval() -> None:
    seen = features(market_of(1_800.0 - np.arange(120.0)), POLICY)
    assert regimes(seen) == ["unknown"] * 19 + ["trending_down"] * 101
    assert (seen.interval_seconds == np.repeat([60, 30], [19, 101])).all()


@pytest.mark.row("HB-14")
def test_seven_bars_near_the_mean_are_range_bound_at_twice_the_interval() -> None:
    seen = features(flat_market(bars=40, start=START), POLICY)
    assert regimes(seen) == ["unknown"] * 25 + ["range_bound"] * 15  # near from bar 19 on: bar 25 is the seventh
    assert (seen.interval_seconds == np.repeat([60, 120], [25, 15])).all()


@pytest.mark.row("HB-14")
def test_leaving_the_range_for_one_bar_starts_the_count_again() -> None:
    price = np.full(60, 1_800.0)
    price[::2] += 1.0  # the window's mean is half a dollar from each close, and so is its sigma: beyond half a sigma
    assert set(regimes(features(market_of(price), POLICY))) == {"unknown"}
    price[30:] = 1_800.5
    named = regimes(features(market_of(price), POLICY))
    assert named[30:36] == ["unknown"] * 6
    assert named[36:] == ["range_bound"] * 24


@pytest.mark.row("HB-14")
def test_large_returns_are_volatile_under_any_trend_at_half_the_interval() -> None:
    calm = 1_800.0 * np.exp(np.where(np.arange(100) % 2, 0.0001, 0.0))
    wild = 1_800.0 * np.exp(0.02 * np.arange(1, 21) + np.where(np.arange(20) % 2, 0.03, 0.0))
    seen = features(market_of(np.concatenate([calm, wild])), POLICY)
    named = regimes(seen)
    assert "volatile" not in named[:100]
    assert named[100:] == ["volatile"] * 20
    assert (seen.interval_seconds[100:] == 30).all()
    climbing = seen.sma[100:] + seen.price_sigma[100:] < np.concatenate([calm, wild])[100:]
    assert climbing.any()  # volatile comes before trending


@pytest.mark.row("HB-14")
def test_the_first_move_after_a_flat_market_is_volatile() -> None:
    price = np.full(100, 1_800.0)
    price[60:] = 1_900.0
    named = regimes(features(market_of(price), POLICY))
    assert named[59:61] == ["range_bound", "volatile"]


@pytest.mark.row("HB-14")
def test_small_moves_are_not_volatile() -> None:
    price = 1_800.0 + np.where(np.arange(300) % 2, 0.5, 0.0)
    price[200:] = 1_800.25
    assert "volatile" not in regimes(features(market_of(price), POLICY))


def sawtooth(steps: list[tuple[int, float]]) -> NDArray[np.float64]:
    """Return closes around 1,800 that alternate by these basis points, each for this number of bars."""
    size = np.concatenate([np.full(bars, points * 0.18) for bars, points in steps])
    return 1_800.0 + np.where(np.arange(len(size)) % 2, size, -size) / 2


@pytest.mark.row("HB-14")
@pytest.mark.parametrize(("points", "named"), [(2.4, "range_bound"), (2.6, "unknown"), (5.0, "unknown")])
def test_returns_below_half_the_usual_size_are_range_bound_away_from_the_mean(points: float, named: str) -> None:
    policy = Policy(regime=RegimePolicy(trend_sigma=1.5))  # each close is one sigma away
    seen = features(market_of(sawtooth([(2_000, 5.0), (21, points)])), policy)
    assert set(regimes(seen)[:2_000]) == {"unknown"}
    assert regimes(seen)[-1] == named
    assert (seen.sigma_ratio[-1] < policy.regime.quiet_ratio) is np.bool_(named == "range_bound")
    assert seen.interval_seconds[-1] == (120 if named == "range_bound" else 60)


@pytest.mark.row("HB-14")
def test_a_trend_of_small_returns_is_a_trend() -> None:
    price = np.concatenate([sawtooth([(400, 5.0)]), 1_801.0 + 0.01 * np.arange(60)])
    seen = features(market_of(price), POLICY)
    assert seen.sigma_ratio[-1] < POLICY.regime.quiet_ratio
    assert regimes(seen)[-1] == "trending_up"


@pytest.mark.row("HB-14")
def test_no_bar_is_quiet_before_the_average_exists() -> None:
    market = market_of(sawtooth([(20, 50.0), (60, 0.5)]))
    seen, blind = (
        features(market, Policy(regime=RegimePolicy(trend_sigma=1.5, quiet_ratio=ratio))) for ratio in (0.5, 1e-9)
    )
    assert np.isnan(seen.sigma_ratio[:39]).all()
    assert regimes(seen)[:39] == regimes(blind)[:39]
    assert {*regimes(seen)[60:]} == {"range_bound"} != {*regimes(blind)[60:]}


@pytest.mark.row("HB-14")
@pytest.mark.parametrize("seed", range(5))
def test_a_flat_stretch_longer_than_the_average_window_is_not_volatile(seed: int) -> None:
    """A still market is compared with exactly zero, for any rounding error of the running sum."""
    noise = np.random.default_rng(seed).normal(0.0, 0.001, 500).cumsum()
    price = 1_800.0 * np.exp(np.concatenate([noise, np.full(500, noise[-1])]))
    seen = features(market_of(price), Policy(regime=RegimePolicy(average_days=0.1)))  # 144 bars
    assert set(regimes(seen)[700:]) == {"range_bound"}
    assert np.isnan(seen.sigma_ratio[700:]).all()


@pytest.mark.row("HB-14")
@pytest.mark.parametrize(("base", "fast", "slow"), [(30, 30, 60), (40, 30, 80), (90, 45, 120), (120, 60, 120)])
def test_intervals_stay_within_their_bounds(base: int, fast: int, slow: int) -> None:
    policy = Policy(regime=RegimePolicy(base_interval_seconds=base))
    assert features(market_of(1_800.0 - np.arange(60.0)), policy).interval_seconds[-1] == fast
    assert features(market_of(np.full(60, 1_800.0)), policy).interval_seconds[-1] == slow


# When a golem observes.


@pytest.mark.row("HB-14")
def test_a_range_bound_market_is_observed_every_other_minute() -> None:
    market = flat_market(bars=40, start=START)
    assert schedule(market, features(market, POLICY)).tolist() == [*range(26), *range(27, 40, 2)]


@pytest.mark.row("HB-14")
def test_an_interval_of_half_a_minute_observes_every_minute_bar() -> None:
    market = market_of(1_800.0 - np.arange(60.0))
    assert schedule(market, features(market, POLICY)).tolist() == list(range(60))


@pytest.mark.row("HB-14")
def test_a_tick_due_in_a_gap_falls_on_the_first_bar_after_it() -> None:
    market = flat_market(bars=40, start=START)
    minutes = np.concatenate([np.arange(30), np.arange(35, 45)])  # minutes 30 to 34 are missing
    market = replace(market, at_us=market.at_us[0] + minutes * 60_000_000)
    # From bar 25 on every other minute: minutes 25, 27, 29; 31 is missing, so 35, then 37 and so on.
    assert schedule(market, features(market, POLICY)).tolist() == [*range(26), 27, 29, 30, 32, 34, 36, 38]


def test_features_are_read_only(synthetic: tuple[Market, Features]) -> None:
    with pytest.raises(ValueError, match="read-only"):
        synthetic[1].regime[0] = 1
