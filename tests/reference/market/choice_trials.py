"""Trials of choices, one alternative and one tick at a time, from a market's tape and a golem's records."""

from __future__ import annotations

import math
from typing import Any

from bardo_pipeline.events.life.events import LoanGranted
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.policy import Policy

ENTRY_MICROS = 50_000_000.0


def effect_ppm(
    trial: dict[str, Any], decided: dict[str, Any], tape: Tape, start: int, stop: int, policy: Policy, trait_width: int
) -> float:
    """Return the effect of a trial's alternative in ppm. decided: the record of the decision."""
    alternative = trial["alternative"]
    if alternative == "enter":
        gain = new_range_gain(tape, start, stop, trait_width)
        return 1e6 * (gain - cost(tape, start, trial["value_micros"], policy.cost.enter_gas_units))
    if alternative == "leave":
        (held,) = (p for p in decided["observation"]["positions"] if p["liquidity"] > 0)
        stayed = gain_of(tape, start, stop, held["liquidity"], held["tick_lower"], held["tick_upper"])
        left = cost(tape, start, trial["value_micros"], policy.cost.exit_gas_units)
        return 1e6 * (-stayed / trial["value_micros"] - left)
    if alternative == "recenter":
        (held,) = (p for p in decided["observation"]["positions"] if p["liquidity"] > 0)
        gain = new_range_gain(tape, start, stop, trait_width)
        bounds = held["tick_lower"], held["tick_upper"]
        stayed = gain_of(tape, start, stop, held["liquidity"], *bounds) / trial["value_micros"]
        root = tape.root[start]
        moved = abs(base_share(*range_around(tape, start, trait_width), root) - base_share(*bounds, root))
        return 1e6 * (gain - stayed - cost(tape, start, trial["value_micros"], policy.cost.rebalance_gas_units, moved))
    widths = [int(trial[name].removeprefix("range_")) for name in ("alternative", "beside")]
    first, second = (new_range_gain(tape, start, stop, width) for width in widths)
    return 1e6 * (first - second)


def loan_effect_ppm(
    trial: dict[str, Any], decided: dict[str, Any], tape: Tape, start: int, stop: int, policy: Policy,
    trait_width: int, granted: LoanGranted,
) -> float:  # fmt: skip
    """Return the effect of borrowing or repaying in ppm. granted: the loan that the golem's owner allows."""
    lending, value, in_base = policy.lending, trial["value_micros"], granted.collateral == "WETH"
    if trial["alternative"] == "borrow":
        supplied, owed = value * lending.collateral_share, value * lending.collateral_share * granted.loan_to_value
        gain = loan_gain(tape, start, stop, supplied, owed, in_base, policy)
        gain += (owed - supplied) * new_range_gain(tape, start, stop, trait_width)
        units = lending.borrow_gas_units
    else:
        (loan,) = (p for p in decided["observation"]["positions"] if p["protocol"] == "aave_v3")
        threshold = lending.weth_threshold if in_base else lending.usdc_threshold
        owed = loan["value_micros"] / (loan["health_factor"] / threshold - 1.0)
        supplied = loan["value_micros"] + owed
        gain = -loan_gain(tape, start, stop, supplied, owed, in_base, policy)
        units = lending.repay_gas_units
    return 1e6 * (gain / value - cost(tape, start, value, units, (supplied if in_base else owed) / value))


def loan_gain(
    tape: Tape, start: int, stop: int, supplied: float, owed: float, in_base: bool, policy: Policy
) -> float:  # fmt: skip
    """Return interest earned less interest paid less bonuses of liquidations, in micro-dollars, tick by tick."""
    lending, asset = policy.lending, int(in_base)
    threshold, bonus = (
        (lending.weth_threshold, lending.weth_bonus) if in_base else (lending.usdc_threshold, lending.usdc_bonus)
    )
    assert tape.reserves is not None
    supply, borrow = tape.reserves.supply_index[asset], tape.reserves.borrow_index[1 - asset]
    price = [1.0, 0.0]
    price[asset], price[1 - asset] = (tape.price[start], 1.0) if in_base else (1.0, tape.price[start])
    collateral, debt, gain = supplied / price[asset], owed / price[1 - asset], 0.0  # in tokens
    for t in range(start + 1, stop + 1):
        price[1] = tape.price[t]
        earned, paid = collateral * (supply[t] / supply[t - 1] - 1.0), debt * (borrow[t] / borrow[t - 1] - 1.0)
        gain += earned * price[asset] - paid * price[1 - asset]
        collateral, debt = collateral + earned, debt + paid
        worth_held, worth_owed = collateral * price[asset], debt * price[1 - asset]
        if worth_owed <= 0.0 or worth_held * threshold >= worth_owed:
            continue
        closes = worth_held * threshold / worth_owed <= lending.full_close_health
        due, most = worth_owed * (1.0 if closes else lending.close_factor), worth_held / (1.0 + bonus)
        repaid = min(due, most)
        gain -= repaid * bonus
        collateral, debt = collateral - repaid * (1.0 + bonus) / price[asset], debt - repaid / price[1 - asset]
        if due >= most:
            collateral, debt = 0.0, 0.0
    return gain


def cost(tape: Tape, at: int, value: float, gas_units: int, swapped: float = 0.5) -> float:
    """Return gas, and fee and impact of swapping a share of the value, as a share of the value."""
    gas = round(gas_units * tape.gas_gwei[at] * 1e-9 * tape.market.native_usd_micros)
    impact = value * swapped * tape.root[at] / tape.liquidity[at]
    slip = round((tape.market.fee_ppm * 1e-6 + impact) * 1e6) * 1e-6
    return (gas + value * swapped * slip) / value


def range_around(tape: Tape, at: int, width: int) -> tuple[int, int]:
    """Return the pool ticks of a new range around the price."""
    return (
        math.floor((tape.pool_tick[at] - width) / 10) * 10,
        math.ceil((tape.pool_tick[at] + width) / 10) * 10,
    )


def base_share(lower: int, upper: int, root: float) -> float:
    """Return the share of a position's value that is the base token."""
    quote, base = tokens(1.0, lower, upper, root)
    return base / root**2 / (quote + base / root**2)


def new_range_gain(tape: Tape, start: int, stop: int, width: int) -> float:
    """Return the gain of a new range around the price as a share of its value."""
    lower, upper = range_around(tape, start, width)
    liquidity = ENTRY_MICROS / worth(1.0, lower, upper, tape.root[start])
    return gain_of(tape, start, stop, liquidity, lower, upper) / ENTRY_MICROS


def gain_of(tape: Tape, start: int, stop: int, liquidity: float, lower: int, upper: int) -> float:
    """Return fees up to `stop` less the divergence loss at `stop`, in micro-dollars."""
    fees = 0.0
    for t in range(start + 1, stop + 1):
        low, high = tape.pool_tick_low[t], tape.pool_tick_high[t]
        if high > low:
            inside = min(max((min(upper, high) - max(lower, low)) / (high - low), 0.0), 1.0)
        else:
            inside = float(lower <= tape.pool_tick[t] < upper)
        pool = liquidity / (tape.liquidity[t] + liquidity)
        fees += pool * tape.volume_micros[t] * tape.market.fee_ppm * 1e-6 * inside
    quote, base = tokens(liquidity, lower, upper, tape.root[start])
    return float(fees + worth(liquidity, lower, upper, tape.root[stop]) - quote - base / tape.root[stop] ** 2)


def tokens(liquidity: float, lower: int, upper: int, root: float) -> tuple[float, float]:
    """Return (token0, token1) of a position."""
    first, last = (math.sqrt(1.0001**tick) for tick in (lower, upper))
    at = min(max(root, first), last)
    return liquidity * (1.0 / at - 1.0 / last), liquidity * (at - first)


def worth(liquidity: float, lower: int, upper: int, root: float) -> float:
    """Return the value of a position in micro-dollars."""
    quote, base = tokens(liquidity, lower, upper, root)
    return quote + base / root**2
