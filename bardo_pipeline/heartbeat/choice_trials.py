"""Trials of a golem's choices: half-width of a range, presence, re-centring, loans. Pure, over columns.

A window begins at fixed places of the market: each 30 ticks, each 4 hours and each 24 hours of event time. Windows of
one horizon do not overlap, so each is one independent trial, whether the golem deliberated or not. At its end, shadow
positions state what each alternative would have earned. A position of one golem is under a ten-thousandth of the pool,
so the shadow of a new range is the same for all golems, and is computed once a window from the tape. Only the position
that a golem holds, its value and its costs are columns.

A gain is fees less divergence loss, relative to holding the position's first tokens. The value of these tokens is left
out, because it is equal for both alternatives and its noise would hide the effect.
Source: HB S3 (step 8), HB-24; docs/adr/0070, docs/adr/0091.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.heartbeat.defi.aave_loans import share_values, swapped_of_loan
from bardo_pipeline.heartbeat.defi.loan_trials import gains_of_loans, gains_of_new_loans
from bardo_pipeline.heartbeat.defi.rebalance import LIMIT_PPM, gas_micros
from bardo_pipeline.heartbeat.fleet import HORIZONS, Fleet
from bardo_pipeline.heartbeat.observe import Sight
from bardo_pipeline.market import uniswap_v3
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.policy import Policy

_HOUR_US = 3_600_000_000
_SPANS_US = {"4_hours": 4 * _HOUR_US, "24_hours": 24 * _HOUR_US}
_SHADOW_MICROS = 50_000_000.0
_TICKS_AT_ONCE = 128

_SWAPPED_SHARE = 0.5
"""Share of the value that entering or leaving swaps: a range around the price holds half of each token."""


@dataclass
class ChoiceVerdicts:
    """Windows closed in this tick, [horizons, golems]; valid where `due`.

    applies, effect_ppm: [horizons, alternatives, golems], ordered as `alternatives`. applies: whether the golem
    had this alternative in a due window. width: half-width of the position at the decision, 0 without one.
    levered: whether the golem had a debt then.
    """

    due: BoolArray
    decision_tick: Int64Array
    regime: Int64Array
    score: Float64Array
    gas_ratio: Float64Array
    value: Float64Array
    width: Int64Array
    levered: BoolArray
    applies: BoolArray
    effect_ppm: Int64Array


def alternatives(policy: Policy) -> tuple[tuple[str, str, str], ...]:
    """Return (choice, alternative, what it is compared with) of each effect, in the order of the effects."""
    reference = f"range_{policy.playbook.range_half_width_ticks}"
    widths = [("width", f"range_{width}", reference) for width in _rungs(policy)]
    return (
        *widths, ("presence", "enter", "hold"), ("presence", "leave", "hold"), ("recentring", "recenter", "stay"),
        ("loan", "borrow", "unlevered"), ("loan", "repay", "keep"),
    )  # fmt: skip


def _rungs(policy: Policy) -> list[int]:
    return [width for width in policy.playbook.width_ladder_ticks if width != policy.playbook.range_half_width_ticks]


def judge_choices(fleet: Fleet, tape: Tape, t: int, sight: Sight, policy: Policy) -> ChoiceVerdicts | None:
    """Close the windows that end at this tick and open the next ones; None if no window ends for any golem."""
    ending = [h for h, horizon in enumerate(HORIZONS) if _is_boundary(horizon, tape, t, policy)]
    if not ending:
        return None
    verdicts = _verdicts(fleet, tape, t, ending, policy)
    _open(fleet, tape, t, sight, np.array(ending))
    return verdicts


def _is_boundary(horizon: str, tape: Tape, t: int, policy: Policy) -> bool:
    if horizon not in _SPANS_US:
        return t % policy.prediction.check_ticks == 0
    span = _SPANS_US[horizon]
    return t > 0 and bool(tape.at_us[t] // span != tape.at_us[t - 1] // span)


def _open(fleet: Fleet, tape: Tape, t: int, sight: Sight, ending: Int64Array) -> None:
    """Begin windows: store situation and position of each living golem."""
    value = np.where(sight.open, sight.value, fleet.idle.astype(np.float64))
    runs = fleet.alive & (value > 0.0)
    for name, column in (
        ("at", np.where(runs, t, -1)), ("tick", fleet.tick), ("score", sight.score), ("value", value),
        ("liquidity", fleet.liquidity), ("lower", fleet.lower), ("upper", fleet.upper),
        ("range", fleet.half_width_in(int(tape.regime[t]))),
        ("width", np.where(sight.open, (fleet.upper - fleet.lower) // 2, 0)),
        ("supplied", fleet.collateral_shares), ("owed", fleet.debt_shares),
    ):  # fmt: skip
        getattr(fleet, f"window_{name}")[ending] = column


def _verdicts(fleet: Fleet, tape: Tape, t: int, ending: list[int], policy: Policy) -> ChoiceVerdicts | None:
    at, due = fleet.window_at, np.zeros(fleet.window_at.shape, bool)
    due[ending] = (at[ending] >= 0) & fleet.alive
    if not due.any():
        return None
    effect = np.zeros((len(HORIZONS), len(alternatives(policy)), fleet.size))
    for h in ending:
        for start in np.unique(at[h][due[h]]).tolist():
            effect[h] = np.where(due[h] & (at[h] == start), _effects(fleet, tape, h, start, t, policy), effect[h])
    opened = np.maximum(at, 0)
    return ChoiceVerdicts(
        due, fleet.window_tick.copy(), tape.regime[opened], fleet.window_score.copy(), tape.gas_hour_ratio[opened],
        fleet.window_value.copy(), fleet.window_width.copy(), fleet.window_owed > 0.0,
        _applies(fleet, tape, due, policy),
        np.clip(np.rint(effect * 1e6), -LIMIT_PPM, LIMIT_PPM).astype(np.int64),
    )  # fmt: skip


def _applies(fleet: Fleet, tape: Tape, due: BoolArray, policy: Policy) -> BoolArray:
    """Return the alternatives of each due window, [horizons, alternatives, golems].

    Leaving needs a position. Re-centring also needs a score of at least `trial_score_min`; over 30 ticks it is not
    tried here, because each decision opens such a trial (rebalance.py). Borrowing needs a grant, and repaying a debt.
    """
    kinds = alternatives(policy)
    out = np.repeat(due[:, None], len(kinds), axis=1)
    held = fleet.window_width > 0
    moves = held & (fleet.window_score >= policy.playbook.trial_score_min)
    moves[[h for h, horizon in enumerate(HORIZONS) if horizon not in _SPANS_US]] = False
    lends = tape.reserves is not None
    borrows, repays = lends & (fleet.loan_ratio > 0.0), lends & (fleet.window_owed > 0.0)
    for name, having in (("leave", held), ("recenter", moves), ("borrow", borrows), ("repay", repays)):
        out[:, [alternative for _, alternative, _ in kinds].index(name)] &= having
    return out


def _effects(fleet: Fleet, tape: Tape, h: int, start: int, stop: int, policy: Policy) -> Float64Array:
    """Return the effect of each alternative in this window as a share of the value, [alternatives, golems]."""
    rungs = np.array([policy.playbook.range_half_width_ticks, *_rungs(policy)])
    widths, of_golem = np.unique(np.concatenate([rungs, fleet.window_range[h]]), return_inverse=True)
    gain = _gains_of_new_ranges(tape, start, stop, widths)[of_golem]
    ladder, entered = gain[1 : len(rungs)] - gain[0], gain[len(rungs) :]
    value = np.maximum(fleet.window_value[h], 1.0)
    half = np.full(fleet.size, _SWAPPED_SHARE)
    entering, leaving = (
        _cost(tape, start, units, value, half) for units in (policy.cost.enter_gas_units, policy.cost.exit_gas_units)
    )
    stayed = _gains_of_positions(fleet, tape, h, start, stop) / value
    moving = _cost(tape, start, policy.cost.rebalance_gas_units, value, _share_to_swap(fleet, tape, h, start))
    loans = _effects_of_loans(fleet, tape, h, start, stop, value, entered, policy)
    judged = entered - entering, -stayed - leaving, entered - moving - stayed, *loans
    return np.concatenate([np.repeat(ladder[:, None], fleet.size, axis=1), judged])


def _effects_of_loans(
    fleet: Fleet, tape: Tape, h: int, start: int, stop: int, value: Float64Array, entered: Float64Array, policy: Policy
) -> Float64Array:
    """Return the effects of borrowing and of repaying as a share of the value, [2, golems]; 0 where none applies.

    A borrower supplies a part of its money, and puts the rest and the borrowed money into the range. The cost of
    entering it is left out, because it arises without a loan too. entered: gain of a new range as a share of its value.
    """
    out, lending = np.zeros((2, fleet.size)), policy.lending
    able, owing = np.flatnonzero(fleet.loan_ratio > 0.0), np.flatnonzero(fleet.window_owed[h] > 0.0)
    if tape.reserves is None or not len(able):
        return out
    asset, ratio, share = fleet.collateral_asset[able], fleet.loan_ratio[able], lending.collateral_share
    made = gains_of_new_loans(tape, start, stop, asset, ratio, policy)
    cost = _cost(tape, start, lending.borrow_gas_units, value[able], share * swapped_of_loan(asset, 1.0, ratio))
    out[0, able] = share * (made + (ratio - 1.0) * entered[able]) - cost
    if len(owing):
        asset, shares = fleet.collateral_asset[owing], (fleet.window_supplied[h, owing], fleet.window_owed[h, owing])
        supplied, owed = (
            held * unit / value[owing] for held, unit in zip(shares, share_values(tape, start, asset), strict=True)
        )
        cost = _cost(tape, start, lending.repay_gas_units, value[owing], swapped_of_loan(asset, supplied, owed))
        out[1, owing] = -gains_of_loans(tape, start, stop, asset, *shares, policy) / value[owing] - cost
    return out


def _cost(tape: Tape, start: int, gas_units: int, value: Float64Array, swapped: Float64Array) -> Float64Array:
    """Return gas, and fee and impact of swapping a share of the value, as a share of the value, [golems]."""
    swap = value * swapped
    slip = uniswap_v3.slippage_ppm(swap, tape.liquidity[start], tape.root[start], tape.market.fee_ppm, 0.0, 0.0)
    return (gas_micros(tape, start, gas_units) + swap * slip * 1e-6) / value


def _share_to_swap(fleet: Fleet, tape: Tape, h: int, start: int) -> Float64Array:
    """Return the share of a position's value that re-centring it swaps, [golems]."""
    shares = []
    for lower, upper in (
        (fleet.window_lower[h], fleet.window_upper[h]),
        uniswap_v3.range_around(tape.pool_tick[start], fleet.window_range[h]),
    ):
        roots = uniswap_v3.sqrt_price(lower), uniswap_v3.sqrt_price(upper)
        shares.append(uniswap_v3.token1_share(*roots, tape.root[start]))
    return np.abs(shares[1] - shares[0])


def _gains_of_new_ranges(tape: Tape, start: int, stop: int, widths: Int64Array) -> Float64Array:
    """Return fees less divergence loss of new ranges around the price, as a share of their value, [widths]."""
    lower, upper = uniswap_v3.range_around(tape.pool_tick[start], widths)
    roots = uniswap_v3.sqrt_price(lower), uniswap_v3.sqrt_price(upper)
    liquidity = uniswap_v3.liquidity_for(np.full(len(widths), _SHADOW_MICROS), *roots, tape.root[start])
    return _gains(tape, start, stop, liquidity, (lower, upper), roots) / _SHADOW_MICROS


def _gains_of_positions(fleet: Fleet, tape: Tape, h: int, start: int, stop: int) -> Float64Array:
    """Return fees less divergence loss of the positions held at the start, in micro-dollars; 0 without one."""
    held = np.flatnonzero((fleet.window_liquidity[h] > 0.0) & (fleet.window_at[h] == start))
    out = np.zeros(fleet.size)
    if len(held):
        lower, upper = fleet.window_lower[h, held], fleet.window_upper[h, held]
        roots = uniswap_v3.sqrt_price(lower), uniswap_v3.sqrt_price(upper)
        out[held] = _gains(tape, start, stop, fleet.window_liquidity[h, held], (lower, upper), roots)
    return out


def _gains(
    tape: Tape, start: int, stop: int, liquidity: Float64Array, ticks: tuple[Int64Array, Int64Array],
    roots: tuple[Float64Array, Float64Array],
) -> Float64Array:  # fmt: skip
    """Return the fees of the ticks after `start` up to `stop`, less the divergence loss at `stop`."""
    fees = np.zeros(len(liquidity))
    for first in range(start + 1, stop + 1, _TICKS_AT_ONCE):
        part = slice(first, min(first + _TICKS_AT_ONCE, stop + 1))
        low, high, now = (getattr(tape, name)[part, None] for name in ("pool_tick_low", "pool_tick_high", "pool_tick"))
        inside = uniswap_v3.share_in_range(*ticks, low, high, now)
        fees += uniswap_v3.fees_micros(
            liquidity, tape.liquidity[part, None], tape.volume_micros[part, None], tape.market.fee_ppm, inside
        ).sum(axis=0)
    quote, base = uniswap_v3.amounts(liquidity, *roots, tape.root[start])
    root = tape.root[stop]
    return fees + uniswap_v3.worth(liquidity, *roots, root) - (quote + base / (root * root))
