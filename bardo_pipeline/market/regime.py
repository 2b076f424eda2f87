"""Market features and regime of each bar, and the schedule of ticks. Pure.

A value depends only on its bar and earlier ones. Features are computed once per run, and the tick loop only indexes
them. Source: HB S9, canon 32.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.market.market import Market
from bardo_pipeline.policy import Policy, RegimePolicy

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

TRENDING_UP, TRENDING_DOWN, RANGE_BOUND, VOLATILE, UNKNOWN = (np.int8(REGIMES.index(name)) for name in REGIMES)

DAY_US = 86_400_000_000
SECOND_US = 1_000_000


@dataclass(frozen=True, eq=False)
class Features:
    """Features with one element per bar; NaN without enough earlier bars.

    Parameters
    ----------
    log_return : log of close over previous close, 0 at bar 0
    return_sigma : population standard deviation of the last 20 returns, bar 0 excluded
    sma, price_sigma : mean and population standard deviation of the last 20 closes, USDC per WETH
    sigma_ratio : return_sigma over its mean of the 30 days before; from 40 bars on, NaN for a mean below 1e-11
    rsi : Wilder's, in [0, 100]; 50 without movement
    macd : histogram as a share of the close
    gas_hour_mean, gas_hour_ratio : mean gwei of the 60 bars before (at bar 0 its own), and gas over that mean
    regime : index in REGIMES
    interval_seconds : time until the next tick
    """

    log_return: Floats
    return_sigma: Floats
    sma: Floats
    price_sigma: Floats
    sigma_ratio: Floats
    rsi: Floats
    macd: Floats
    gas_hour_mean: Floats
    gas_hour_ratio: Floats
    regime: NDArray[np.int8]
    interval_seconds: NDArray[np.int64]

    def __post_init__(self) -> None:
        """Make the arrays read-only, because golems share them."""
        for column in fields(self):
            getattr(self, column.name).flags.writeable = False


def features(market: Market, policy: Policy) -> Features:
    """Compute the features of a market, with market.bars elements; no value depends on a later bar."""
    rules, probes = policy.regime, policy.probes
    price, gas = market.price, market.gas_gwei

    log_return = np.diff(np.log(price), prepend=np.log(price[0]))
    sma, price_sigma = _window_moments(price, rules.sma_periods)
    _, return_sigma = _window_moments(log_return, rules.sma_periods, first=1)
    return_sigma_average = _past_average(return_sigma, market.at_us, rules.average_days)
    return_sigma_average[: 2 * rules.sma_periods - 1] = np.nan

    gas_hour_mean = _mean_before(gas, probes.gas_hour_bars)
    regime = _regime(price, sma, price_sigma, return_sigma, return_sigma_average, rules)
    return Features(
        log_return=log_return,
        return_sigma=return_sigma,
        sma=sma,
        price_sigma=price_sigma,
        sigma_ratio=return_sigma / np.where(return_sigma_average > 1e-11, return_sigma_average, np.nan),
        rsi=_rsi(price, probes.rsi_periods),
        macd=_macd(price, probes.macd_fast_periods, probes.macd_slow_periods, probes.macd_signal_periods),
        gas_hour_mean=gas_hour_mean,
        gas_hour_ratio=gas / gas_hour_mean,
        regime=regime,
        interval_seconds=_interval_seconds(regime, rules),
    )


def schedule(market: Market, features: Features) -> NDArray[np.int64]:
    """Return the bars at which golems tick, ascending from bar 0.

    The next tick is the first bar at or after this tick's time plus its interval, so 30 s on minute bars is the next
    bar.
    """
    due_at = market.at_us + features.interval_seconds * SECOND_US
    following: list[int] = np.searchsorted(market.at_us, due_at, side="left").tolist()
    ticks, bar = [], 0
    while bar < market.bars:  # each tick depends on the previous one, so this is a loop
        ticks.append(bar)
        bar = following[bar]
    return np.array(ticks, dtype=np.int64)


def _regime(
    price: Floats, sma: Floats, price_sigma: Floats, return_sigma: Floats, average: Floats, rules: RegimePolicy
) -> NDArray[np.int8]:
    """Return codes by precedence: volatile, trending, range-bound, unknown (canon 32). Comparisons with NaN are false.

    Range-bound covers the canon's Ranging (near the mean for long enough) and LowVol (sigma below half its average).
    The average is a factor instead of a divisor, so the first burst after stillness (average 0) is volatile.
    """
    distance = price - sma
    ranging = _run_length(np.abs(distance) <= rules.range_sigma * price_sigma) > rules.range_ticks
    regime: NDArray[np.int8] = np.select(
        [
            return_sigma > rules.volatile_ratio * average,
            distance > rules.trend_sigma * price_sigma,
            distance < -rules.trend_sigma * price_sigma,
            ranging | (return_sigma < rules.quiet_ratio * average),
        ],
        [VOLATILE, TRENDING_UP, TRENDING_DOWN, RANGE_BOUND],
        default=UNKNOWN,
    )
    return regime.astype(np.int8)


def _interval_seconds(regime: NDArray[np.int8], rules: RegimePolicy) -> NDArray[np.int64]:
    multiplier = np.ones(len(REGIMES))
    multiplier[[VOLATILE, TRENDING_DOWN]] = rules.fast_multiplier
    multiplier[RANGE_BOUND] = rules.slow_multiplier
    seconds = np.rint(rules.base_interval_seconds * multiplier)
    bounded = np.clip(seconds, rules.interval_seconds_min, rules.interval_seconds_max).astype(np.int64)
    return bounded[regime]


def _window_moments(values: Floats, periods: int, first: int = 0) -> tuple[Floats, Floats]:
    """Return mean and population standard deviation of the last `periods` values from index `first` on; NaN before.

    Values are centred on the bar's own, with two passes per lag. A cumulative sum of squares would lose the variance of
    prices to rounding.
    """
    mean, sigma = np.full(values.shape, np.nan), np.full(values.shape, np.nan)
    head = first + periods - 1
    if len(values) <= head:
        return mean, sigma
    now = values[head:]
    lagged = [values[head - lag : len(values) - lag] for lag in range(periods)]
    offset = np.zeros_like(now)
    for past in lagged:
        offset += past - now
    offset /= periods
    square = np.zeros_like(now)
    for past in lagged:
        square += np.square(past - now - offset)
    mean[head:] = now + offset
    sigma[head:] = np.sqrt(square / periods)
    return mean, sigma


def _mean_before(values: Floats, periods: int) -> Floats:
    """Return the mean of up to `periods` previous values; at index 0 the value itself."""
    offset = np.zeros_like(values)
    for lag in range(1, min(periods, len(values) - 1) + 1):
        offset[lag:] += values[:-lag] - values[lag:]
    count = np.clip(np.arange(len(values)), 1, periods)
    return values + offset / count


def _past_average(values: Floats, at_us: NDArray[np.int64], days: float) -> Floats:
    """Return the mean of the non-NaN values in the `days` before each bar; NaN without any.

    The bar itself is excluded, so that a burst does not raise its own reference. Values are >= 0.
    """
    known = ~np.isnan(values)
    total = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    count = np.concatenate([[0], np.cumsum(known)])
    start = np.searchsorted(at_us, at_us - int(days * DAY_US), side="left")
    stop = np.arange(len(values))
    within = count[stop] - count[start]
    return np.where(within > 0, (total[stop] - total[start]) / np.maximum(within, 1), np.nan)


def _run_length(holds: Bools) -> NDArray[np.int64]:
    """Return the number of consecutive bars, this one included, in which the condition holds."""
    index = np.arange(1, len(holds) + 1)
    return index - np.maximum.accumulate(np.where(holds, 0, index))


def _smoothed(inputs: Floats, keep: float) -> Floats:
    """Return y[t] = keep * y[t - 1] + inputs[t], with y[-1] = 0 and keep in [0, 1).

    Pass j doubles the number of summed inputs to 2**j. It stops after about 14 passes, when the weight underflows; each
    value adds the same terms in the same order.
    """
    smoothed, reach, weight = inputs.copy(), 1, keep
    while reach < len(inputs) and weight > 0.0:
        smoothed[reach:] += weight * smoothed[:-reach].copy()
        reach, weight = 2 * reach, weight * weight
    return smoothed


def _average_exponential(values: Floats, periods: int) -> Floats:
    """Return the exponential moving average with weight 2 / (periods + 1), starting at the first value."""
    alpha = 2.0 / (periods + 1)
    return values[0] + _smoothed(alpha * (values - values[0]), 1.0 - alpha)


def _rsi(price: Floats, periods: int) -> Floats:
    """Return Wilder's relative strength index: mean of the first changes, then smoothing by 1 / periods."""
    rsi = np.full(price.shape, np.nan)
    if len(price) <= periods:
        return rsi
    moves = np.diff(price)
    gain, loss = (_wilder(np.maximum(sign * moves, 0.0), periods) for sign in (1.0, -1.0))
    both = gain + loss
    still = both == 0.0
    share = 100.0 * gain / np.where(still, 1.0, both)
    rsi[periods:] = np.where(still, 50.0, np.minimum(share, 100.0))  # rounding may exceed 100
    return rsi


def _wilder(values: Floats, periods: int) -> Floats:
    inputs = values[periods - 1 :] / periods
    inputs[0] = values[:periods].sum() / periods
    return _smoothed(inputs, 1.0 - 1.0 / periods)


def _macd(price: Floats, fast: int, slow: int, signal: int) -> Floats:
    """Return the histogram (line less signal) as a share of the close, from the bar with all averages full."""
    offset = price - price[0]
    line = _average_exponential(offset, fast) - _average_exponential(offset, slow)
    histogram = (line - _average_exponential(line, signal)) / price
    histogram[: slow + signal - 2] = np.nan
    return histogram
