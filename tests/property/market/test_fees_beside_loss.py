"""In calm stretches of synthetic and recorded markets, fees balance the loss beside holding; in others leaving pays."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from bardo_pipeline.arrays import BoolArray, Float64Array
from bardo_pipeline.market.synthetic import CALM, TRENDING_DOWN, TRENDING_UP, plan_market, synthetic_market
from bardo_pipeline.market.synthetic_spec import SPEC_DEFAULT, START, SyntheticSpec, graded_spec
from bardo_pipeline.market.tick_series import Tape, tape_of
from bardo_pipeline.market.uniswap_v3 import (
    amounts,
    fees_micros,
    liquidity_for,
    range_around,
    share_in_range,
    sqrt_price,
    worth,
)
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.market_data.demeter_trace import read_trace

TICKS = 240
HALF_WIDTHS = (100, 160, 250, 400)
"""Pool ticks; golems draw 96, 160 or 256."""

VALUE_MICROS = 50e6
BARS = 5_760
SEEDS = (1, 7, 23, 101, 555, 9_001)
AFTERMATH_BARS = 120
DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data"


def gains_beside_holding(tape: Tape, half_width: int, every: int = 10) -> Float64Array:
    """Return value and fees of positions after TICKS ticks less the value of their tokens, in basis points.

    A position opens every `every` ticks around the price and never moves; opening costs nothing.
    """
    start = np.arange(0, tape.ticks - TICKS, every)
    lower, upper = range_around(tape.pool_tick[start], np.full(len(start), float(half_width)))
    roots = sqrt_price(lower), sqrt_price(upper)
    liquidity = liquidity_for(np.full(len(start), VALUE_MICROS), *roots, tape.root[start])
    first, second = amounts(liquidity, *roots, tape.root[start])
    fees = np.zeros(len(start))
    for later in range(1, TICKS + 1):
        t = start + later
        inside = share_in_range(lower, upper, tape.pool_tick_low[t], tape.pool_tick_high[t], tape.pool_tick[t])
        fees += fees_micros(liquidity, tape.liquidity[t], tape.volume_micros[t], tape.market.fee_ppm, inside)
    end = tape.root[start + TICKS]
    gain: Float64Array = (worth(liquidity, *roots, end) + fees - first - second / end**2) / VALUE_MICROS * 1e4
    return gain


class Stretches(NamedTuple):
    """Gains by half-width, and which of the stretches are calm, trending, or touched by a crash."""

    gains: dict[int, Float64Array]
    calm: BoolArray
    trending: BoolArray
    crash: BoolArray


@cache
def stretches(seed: int, spec: SyntheticSpec) -> Stretches:
    """Return the stretches of a synthetic market; calm and trending ones are so for four of five ticks."""
    market = synthetic_market(seed=seed, bars=BARS, start=START, spec=spec)
    plan, tape = plan_market(seed=seed, bars=BARS, spec=spec), tape_of(market, Policy())
    gains = {width: gains_beside_holding(tape, width) for width in HALF_WIDTHS}
    start = np.arange(0, tape.ticks - TICKS, 10)
    shaken = np.zeros(BARS, bool)
    for crash in plan.crashes:
        shaken[crash.start : crash.start + AFTERMATH_BARS] = True

    def mean(bars: BoolArray) -> Float64Array:
        total = np.r_[0.0, np.cumsum(bars[tape.bar])]
        return (total[start + TICKS + 1] - total[start + 1]) / TICKS

    crash = mean(shaken) > 0
    trending = mean(np.isin(plan.regime, (TRENDING_UP, TRENDING_DOWN)))
    return Stretches(gains, (mean(plan.regime == CALM) > 0.8) & ~crash, (trending > 0.8) & ~crash, crash)


@pytest.mark.parametrize("half_width", HALF_WIDTHS)
@pytest.mark.parametrize("seed", SEEDS)
def test_fees_balance_the_loss_in_calm_stretches(seed: int, half_width: int) -> None:
    here = stretches(seed, SPEC_DEFAULT)
    assert here.calm.sum() >= 15
    assert abs(here.gains[half_width][here.calm].mean()) < 15.0


@pytest.mark.parametrize("half_width", HALF_WIDTHS)
@pytest.mark.parametrize("spec", [SPEC_DEFAULT, graded_spec(None)], ids=["default", "graded"])
def test_a_position_can_be_held_outside_crashes_and_leaving_pays_in_them(spec: SyntheticSpec, half_width: int) -> None:
    seeds = SEEDS if spec == SPEC_DEFAULT else SEEDS[:3]
    every = [stretches(seed, spec) for seed in seeds]
    calm, trending, crash, rest = (
        float(np.concatenate([s.gains[half_width][mask] for s, mask in zip(every, masks, strict=True)]).mean())
        for masks in (
            [s.calm for s in every], [s.trending for s in every], [s.crash for s in every], [~s.crash for s in every],
        )
    )  # fmt: skip
    assert abs(calm) < 15.0
    assert abs(rest) < 15.0
    assert -60.0 < trending < -5.0
    assert crash < -60.0


@pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is not there")
@pytest.mark.parametrize("half_width", HALF_WIDTHS)
def test_fees_balance_the_loss_on_recorded_days_without_a_crash(half_width: int) -> None:
    tape = tape_of(read_trace(DATA)[0], Policy())
    gains = gains_beside_holding(tape, half_width)
    day = tape.at_us[np.arange(0, tape.ticks - TICKS, 10)] // 86_400_000_000
    means = [float(gains[day == one].mean()) for one in np.unique(day)]
    assert max(map(abs, means[:3])) < 15.0
    assert means[3] < -15.0  # the crash of 17 August 2023
