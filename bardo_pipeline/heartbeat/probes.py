"""The twelve probes that a golem evaluates at every tick. Pure, elementwise over golems.

A probe has a value, a limit and a severity. A probe without a source is absent: value NaN, severity -1. Source: HB S9.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.arrays import BoolArray, Float64Array, Int8Array, Int64Array
from bardo_pipeline.events.record.model import PROBES
from bardo_pipeline.policy import Policy, ProbePolicy

ABSENT, NONE, LOW, HIGH = -1, 0, 1, 2
"""Severity codes. An anomaly is a probe at HIGH."""

LINK_CANDIDATE, LINK_INVALIDATED = 1.0, 2.0
"""Values of the probe `causal_graph`; 0 without a change."""


@dataclass(frozen=True, eq=False)
class Probes:
    """Probe values [12, golems] in the order of PROBES, and their limits.

    value: compared size without sign, NaN if absent.
    """

    value: Float64Array
    rules: ProbePolicy

    @cached_property
    def anomalies(self) -> BoolArray:
        """Whether each probe is at HIGH [12, N]: its value is beyond the limit ("> 2 %", "< 1.5")."""
        _, high, sign = _limits(self.rules)
        return self._signed > high * sign

    @cached_property
    def _signed(self) -> Float64Array:
        """The values with the sign with which larger ones are worse."""
        return self.value * _limits(self.rules)[2]

    @cached_property
    def anomaly_count(self) -> Int64Array:
        """Number of anomalies of each golem."""
        return self.anomalies.sum(axis=0)

    @cached_property
    def severity(self) -> Int8Array:
        """ABSENT, NONE, LOW or HIGH, [12, N]."""
        low, _, sign = _limits(self.rules)
        severity = (self._signed > low * sign).astype(np.int8)
        severity[self.anomalies] = HIGH
        severity[np.isnan(self.value)] = ABSENT
        return severity

    @property
    def worst(self) -> Int8Array:
        """Highest severity of each golem, NONE to HIGH; absent probes do not count."""
        low, _, sign = _limits(self.rules)
        worst = np.any(self._signed > low * sign, axis=0).astype(np.int8)
        worst[self.anomaly_count > 0] = HIGH
        return worst

    @cached_property
    def threshold(self) -> Float64Array:
        """The applicable limit [12, N]: the high one at HIGH, else the low one; NaN if absent."""
        low, high, _ = _limits(self.rules)
        threshold = np.where(self.anomalies, high, low)
        threshold[np.isnan(self.value)] = np.nan
        return threshold


def evaluate(
    *,
    price_change: Float64Array | float,
    liquidity_change: Float64Array | float,
    health_factor: Float64Array,
    gas_hour_ratio: Float64Array | float,
    credit_share: Float64Array,
    rsi: Float64Array | float,
    macd: Float64Array | float,
    nav_drawdown: Float64Array,
    kill_switch: BoolArray | bool,
    threat: Float64Array | float,
    deviation_sigma: Float64Array,
    drift: Float64Array,
    causal: Float64Array,
    policy: Policy,
) -> Probes:
    """Evaluate the twelve probes. Inputs: one element per golem or one number for all; NaN: the source is absent.

    RSI and MACD share a probe whose value is the smaller of both, MACD in RSI points, because RSI alone is noisy on
    minute bars without trades: over the recorded market RSI is beyond 20 or 80 on 39 % of the bars, both are on 1 %.

    Parameters
    ----------
    price_change, liquidity_change : signed shares since the last tick
    gas_hour_ratio : gas over its hourly mean
    credit_share : credits over first credits
    macd : histogram as a signed share of the price
    nav_drawdown : share below the high-water mark
    threat : strongest pheromone, [0, 1]
    deviation_sigma : largest absolute z of the homeostatic variables
    drift : mean relative forecast error
    causal : 0, LINK_CANDIDATE or LINK_INVALIDATED
    """
    value = np.empty((len(PROBES), len(credit_share)))
    value[0] = np.abs(price_change)
    value[1] = np.abs(liquidity_change)
    value[2] = health_factor
    value[3] = gas_hour_ratio
    value[4] = credit_share
    value[5] = np.minimum(np.abs(rsi - 50.0), np.abs(macd) * policy.probes.macd_points)
    value[6] = nav_drawdown
    value[7] = kill_switch
    value[8] = threat
    value[9] = deviation_sigma
    value[10] = drift
    value[11] = causal
    return Probes(value, policy.probes)


@lru_cache(maxsize=8)
def _limits(rules: ProbePolicy) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Return low and high limits, and signs with which larger values are worse, each [12, 1]."""
    low_high_sign = {
        "price_delta": (rules.price_delta_low, rules.price_delta_high, 1.0),
        "tvl_change": (rules.tvl_low, rules.tvl_high, 1.0),
        "position_health": (rules.health_low, rules.health_high, -1.0),
        "gas_price": (rules.gas_low, rules.gas_high, 1.0),
        "credit_balance": (rules.credit_low, rules.credit_high, -1.0),
        "rsi_macd": (rules.rsi_low, rules.rsi_high, 1.0),
        "circuit_breaker": (rules.nav_low, rules.nav_high, 1.0),
        "kill_switch": (0.0, 0.0, 1.0),  # always high if thrown
        "pheromone_threat": (0.0, rules.threat_high, 1.0),  # any threat is low
        "homeostatic_deviation": (rules.sigma_low, rules.sigma_high, 1.0),
        "world_model_drift": (rules.drift_low, rules.drift_high, 1.0),
        "causal_graph": (0.0, LINK_CANDIDATE, 1.0),  # low for a candidate link, high for an invalidated one
    }
    low, high, sign = (np.array(column)[:, None] for column in zip(*(low_high_sign[p] for p in PROBES), strict=True))
    return low, high, sign


_PERCENT, _PLAIN, _NO_NUMBERS = 100.0, 1.0, 0.0

_WORDING: dict[str, tuple[float, tuple[str, str, str]]] = {
    "price_delta": (_PERCENT, ("price moved ", " % (limit ", " %)")),
    "tvl_change": (_PERCENT, ("liquidity changed by ", " % (limit ", " %)")),
    "position_health": (_PLAIN, ("health factor fell to ", " (limit ", ")")),
    "gas_price": (_PLAIN, ("gas costs ", " times its hourly mean (limit ", ")")),
    "credit_balance": (_PERCENT, ("credits are down to ", " % (limit ", " %)")),
    "rsi_macd": (_PLAIN, ("momentum is ", " RSI points off balance (limit ", ")")),
    "circuit_breaker": (_PERCENT, ("net asset value is ", " % below its high-water mark (limit ", " %)")),
    "kill_switch": (_NO_NUMBERS, ("the kill switch is thrown", "", "")),
    "pheromone_threat": (_PLAIN, ("a threat of intensity ", " was sensed (limit ", ")")),
    "homeostatic_deviation": (_PLAIN, ("a vital variable is ", " sigma off its mean (limit ", ")")),
    "world_model_drift": (_PERCENT, ("the world model erred by ", " % (limit ", " %)")),
    "causal_graph": (_NO_NUMBERS, ("the causal graph changed", "", "")),
}
"""Factor to the unit of the sentence, and the words before the value, before the limit, after it."""

_FACTORS = np.array([_WORDING[name][0] for name in PROBES])


def detail_arrow(
    probes_code: NDArray[Any], severity: NDArray[Any], value: Float64Array, threshold: Float64Array
) -> pa.Array:
    """Return one sentence per result at LOW or HIGH, else null: "price moved 2.31 % (limit 2.00 %)".

    probes_code: positions in PROBES; the other columns as `evaluate` computes them.
    """
    reported = np.flatnonzero(severity >= LOW)
    rows = reported[np.argsort(probes_code[reported], kind="stable")]
    code = probes_code[rows]
    values, limits = (fixed(column[rows] * _FACTORS[code], 2) for column in (value, threshold))
    place = np.full(len(severity), -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    edges = np.searchsorted(code, np.arange(len(PROBES) + 1))
    parts = [
        _sentences(name, severity[rows[first:stop]], values[first:stop], limits[first:stop])
        for name, first, stop in zip(PROBES, edges[:-1], edges[1:], strict=True)
    ]
    return pa.concat_arrays(parts).take(pa.array(place, mask=place < 0))


def _sentences(name: str, severity: NDArray[Any], value: pa.Array, limit: pa.Array) -> pa.Array:
    factor, (before, between, after) = _WORDING[name]
    if name == "causal_graph":
        high = pa.array(severity == HIGH)
        return pc.if_else(high, "a causal link was invalidated", "a new causal link is a candidate")
    if factor == _NO_NUMBERS:
        return pa.repeat(before, len(value))
    return pc.binary_join_element_wise(before, value, between, limit, after, "")


def fixed(values: Float64Array, decimals: int) -> pa.Array:
    """Format numbers with a fixed count of decimals ("2.00"); clipped to 1e15."""
    bounded = pa.array(np.clip(values, -1e15, 1e15))
    return pc.cast(pc.cast(bounded, pa.decimal128(30, decimals)), pa.string())
