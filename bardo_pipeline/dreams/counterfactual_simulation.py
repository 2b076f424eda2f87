"""Counterfactuals: simulate a golem's judged decisions on its recorded market, with one change. Pure.

A branch starts at the decision with the golem's position, and ends with the decision's trial. The recorded decision is
simulated too; if that does not reproduce the recorded verdict, the decision is not used. Pool fee and gas token price
follow from what the golem itself paid and earned.
Source: KAT (Loop 3); HB S3; rebalance.py, whose trials these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.curator.state.evidence import flatten_lists
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.dreams.recorded_market import RecordedMarket
from bardo_pipeline.events.record.arrow_columns import codes_of, contiguous
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, GAS_BANDS
from bardo_pipeline.grimoire.entry_columns import bool_column, equals_word, int_column
from bardo_pipeline.heartbeat.decide import ACTIONS, REBALANCE
from bardo_pipeline.heartbeat.defi.rebalance import LIMIT_PPM, MEDIAN_LUCK
from bardo_pipeline.market import uniswap_v3 as pool
from bardo_pipeline.policy import Policy

SIMULATION_COLUMNS = ("golem_id", "tick", "observed_at", "observation", "actions", "resolutions")
"""Columns of a record that simulations read."""

CHANGES = ("threshold_higher", "threshold_lower", "range_narrower", "range_wider", "wait_for_gas")
"""Changes: the re-centring threshold a band higher (hold at first) or lower (act), a narrower or wider new range, or
waiting up to `wait_ticks` for cheaper gas."""

HIGHER, LOWER, NARROWER, WIDER, WAIT = range(5)
NOW, NEVER, AT_SCORE, AT_GAS = range(4)
"""When a branch re-centres: at the decision, never, when the anomaly score reaches an edge, when gas is cheaper."""


@dataclass(frozen=True)
class Decisions:
    """Judged decisions to re-centre or to hold, with fully recorded trials; one element per decision.

    row, judged_row: market rows of the decision and its verdict. anomaly: band. situation: index into `situations`.
    """

    row: Int64Array
    judged_row: Int64Array
    acted: BoolArray
    effect_ppm: Int64Array
    anomaly: Int64Array
    situation: Int64Array
    situations: list[Structure]

    @property
    def count(self) -> int:
        """Return the number of decisions."""
        return len(self.row)


def decisions_of(records: pa.Table, market: RecordedMarket, policy: Policy) -> Decisions:
    """Return the judged decisions with fully recorded trials, in the order of their verdicts.

    Omitted are unverified and refused decisions, actions other than re-centring, and decisions without exactly one
    position.
    """
    judged_row, parts = flatten_lists(contiguous(records["resolutions"]))
    judged = pa.Table.from_struct_array(pa.chunked_array([parts]))
    decided = int_column(judged, "decision_tick")
    horizon = market.tick[judged_row] - decided
    row = judged_row - horizon  # correct if no tick is missing in between, checked below
    usable = (horizon == policy.prediction.check_ticks) & (row >= 0)
    row = np.where(usable, row, 0)
    usable &= (market.golem[row] == market.golem[judged_row]) & (market.tick[row] == decided) & market.open[row]
    acted = equals_word(judged, "chosen", "act")
    usable &= np.where(acted, market.moved[row] == 1, market.moved[row] == -1)
    usable &= bool_column(judged, "verified") & equals_word(judged, "action_type", ACTIONS[REBALANCE])
    pick = np.flatnonzero(usable)
    judged = judged.take(pa.array(pick))
    anomaly = np.searchsorted(policy.curator.anomaly_edges, judged["anomaly_score"].to_numpy(), side="right")
    gas = np.searchsorted(policy.curator.gas_edges, judged["gas_ratio"].to_numpy(), side="right")
    regime, tool = codes_of(judged["regime"], REGIMES), contiguous(judged["tool_name"])
    situation, situations = _situations(records, row[pick], tool, regime, anomaly, gas)
    effect = np.clip(int_column(judged, "effect_ppm"), -LIMIT_PPM, LIMIT_PPM)
    return Decisions(row[pick], judged_row[pick], acted[pick], effect, anomaly, situation, situations)


def _situations(
    records: pa.Table, row: Int64Array, tool: pa.Array, regime: Int64Array, anomaly: Int64Array, gas: Int64Array
) -> tuple[Int64Array, list[Structure]]:
    """Return the situation of each decision as an index, and the distinct situations."""
    observation = contiguous(records["observation"]).take(pa.array(row))
    words = [pc.struct_field(observation, n) for n in ("chain", "protocol", "pair")] + [tool]
    coded = [w.dictionary_encode() for w in words]
    packed = np.stack([*(np.asarray(c.indices).astype(np.int64) for c in coded), regime, anomaly, gas], axis=1)
    unique, inverse = np.unique(packed, axis=0, return_inverse=True)
    names = [c.dictionary.to_pylist() for c in coded]
    situations = []
    for *places, r, band, g in unique:
        chain, protocol, pair, tool_name = (words[at] for words, at in zip(names, places, strict=True))
        bands = REGIMES[r], ANOMALY_BANDS[band], GAS_BANDS[g]
        situations.append(Structure("pattern", chain, protocol, pair, tool_name, "rebalance", *bands))
    return inverse.reshape(-1), situations


@dataclass(frozen=True)
class SimulatedEffects:
    """Effects of changes relative to the recorded decisions, in ppm of the position's value; one element per branch.

    decision: index into Decisions. unlike: decisions whose simulation did not reproduce the recorded verdict.
    """

    decision: Int64Array
    change: Int64Array
    effect_ppm: Int64Array
    unlike: Int64Array


def simulate_changes(
    market: RecordedMarket, decisions: Decisions, *, half_width: Int64Array, fee_ppm: Float64Array,
    native: Float64Array, policy: Policy,
) -> SimulatedEffects:  # fmt: skip
    """Simulate every decision with each change that applies to it.

    A higher threshold, another width and waiting apply to decisions to act, a lower threshold to decisions to hold.
    A playbook may have chosen another half-width than the trait. So a decision that the trait does not reproduce is
    simulated with the half-widths of the ladder, and the first that reproduces the verdict counts.

    Parameters
    ----------
    half_width : int64 [decisions], half width of a new range in pool ticks, as the trait says
    fee_ppm, native : float64 [decisions], pool fee in ppm and gas token price in micro-dollars; 0 if unknown
    """
    world = fee_ppm, native, policy
    priced = np.flatnonzero((fee_ppm > 0) & (native > 0))
    parts = [_changed(market, decisions, priced, half_width, *world)]
    for width in policy.playbook.width_ladder_ticks:
        if len(parts[-1].unlike):
            parts.append(_changed(market, decisions, parts[-1].unlike, np.full_like(half_width, width), *world))
    decision, change, effect = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("decision", "change", "effect_ppm")
    )
    order = np.lexsort((decision, change))
    return SimulatedEffects(decision[order], change[order], effect[order], parts[-1].unlike)


def _changed(
    market: RecordedMarket, decisions: Decisions, priced: Int64Array, half_width: Int64Array, fee_ppm: Float64Array,
    native: Float64Array, policy: Policy,
) -> SimulatedEffects:  # fmt: skip
    """Simulate some decisions (indices) with the changes that apply to them."""
    branches = _branches(market, decisions, priced, half_width, fee_ppm, native, policy)
    worth_at_end = _simulate(market, branches, policy)
    value = np.maximum(branches["value"], 1.0)
    count = len(priced)
    act, hold = worth_at_end[:count], worth_at_end[count : 2 * count]
    verdict = np.clip(np.rint((act - hold) / value[:count] * 1e6), -LIMIT_PPM, LIMIT_PPM)
    reproduced = np.abs(verdict - decisions.effect_ppm[priced]) <= policy.dreams.reproduced_ppm
    recorded = np.where(decisions.acted[priced], act, hold)
    of = branches["of"][2 * count :]
    raw = np.rint((worth_at_end[2 * count :] - recorded[of]) / value[2 * count :] * 1e6)
    effect = np.clip(raw, -LIMIT_PPM, LIMIT_PPM).astype(np.int64)
    kept = reproduced[of]
    changes = branches["change"][2 * count :]
    return SimulatedEffects(priced[of][kept], changes[kept], effect[kept], priced[~reproduced])


def _branches(
    market: RecordedMarket, decisions: Decisions, priced: Int64Array, half_width: Int64Array, fee: Float64Array,
    native: Float64Array, policy: Policy,
) -> dict[str, Any]:  # fmt: skip
    """Return the branches as columns: act and hold for every decision, then each applicable change."""
    acted, band = decisions.acted[priced], decisions.anomaly[priced]
    edges = np.array([*policy.curator.anomaly_edges, np.inf])
    narrow, wide = policy.dreams.width_scales
    every = np.arange(len(priced))
    parts = [(every, -1, NOW, 1.0), (every, -1, NEVER, 1.0)]
    for change, mask, when, scale in (
        (HIGHER, acted & np.isfinite(edges[band]), AT_SCORE, 1.0),
        (LOWER, ~acted & (band > 0), NOW, 1.0),
        (NARROWER, acted, NOW, narrow),
        (WIDER, acted, NOW, wide),
        (WAIT, acted, AT_GAS, 1.0),
    ):
        parts.append((np.flatnonzero(mask), change, when, scale))
    of = np.concatenate([p[0] for p in parts])
    sizes = [len(p[0]) for p in parts]
    changes, whens, scales = (np.repeat(np.array([p[i] for p in parts]), sizes) for i in (1, 2, 3))
    row = decisions.row[priced][of]
    half = half_width[priced][of]
    scaled = np.maximum((half * scales).astype(np.int64) // 10 * 10, 10)
    lower, upper = market.lower[row].astype(np.float64), market.upper[row].astype(np.float64)
    return {
        "of": of, "change": changes, "when": whens, "row": row, "half": np.where(scales == 1.0, half, scaled),
        "edge": edges[band][of], "fee": fee[priced][of], "native": native[priced][of], "lower": lower, "upper": upper,
        "liquidity": market.liquidity[row],
        "value": pool.worth(market.liquidity[row], pool.sqrt_price(lower), pool.sqrt_price(upper), market.root[row]),
        "drift": _drift(market, row, half, fee[priced][of]),
    }  # fmt: skip


Roots = tuple[Float64Array, Float64Array]
"""Square roots of the prices at a range's bounds."""


def _swap(market: RecordedMarket, row: Int64Array, value: Float64Array, old: Roots, new: Roots) -> Float64Array:
    """Return the micro-dollars that re-centring swaps between two ranges."""
    root = market.root[row]
    return value * np.abs(pool.token1_share(*new, root) - pool.token1_share(*old, root))


def _drift(market: RecordedMarket, row: Int64Array, half: Int64Array, fee: Float64Array) -> Float64Array:
    """Return the price move against the swap at the decision, as a share.

    This is the recorded slippage minus fee and impact; the expected move if nothing was swapped.
    """
    old = (pool.sqrt_price(market.lower[row]), pool.sqrt_price(market.upper[row]))
    lower, upper = pool.range_around(market.pool_tick[row], half)
    value = pool.worth(market.liquidity[row], *old, market.root[row])
    swap = _swap(market, row, value, old, (pool.sqrt_price(lower), pool.sqrt_price(upper)))
    impact = swap * market.root[row] / market.pool_liquidity[row]
    move = market.slip_ppm[row] * 1e-6 - fee * 1e-6 - impact
    return np.where((market.moved[row] == 1) & (swap > 0), move, 0.5 * market.span[row] * MEDIAN_LUCK)


def _simulate(market: RecordedMarket, branches: Mapping[str, Any], policy: Policy) -> Float64Array:
    """Return the worth of each branch at the end of its trial in micro-dollars: position plus fees minus gas.

    Branches do not re-centre in the second half of the trial, because the move could not pay off.
    """
    state = {n: branches[n].copy() for n in ("liquidity", "lower", "upper")}
    state |= {n: np.zeros(len(branches["row"])) for n in ("fees", "gas")}
    horizon, rules = policy.prediction.check_ticks, policy.dreams
    when = branches["when"]
    waiting = when != NEVER
    for k in range(horizon + 1):  # ticks of the trial; each step covers all branches
        row = branches["row"] + k
        if k:
            path = market.pool_tick_low[row], market.pool_tick_high[row], market.pool_tick[row]
            inside = pool.share_in_range(state["lower"], state["upper"], *path)
            state["fees"] += pool.fees_micros(
                state["liquidity"], market.pool_liquidity[row], market.volume[row], branches["fee"], inside
            )
        if not waiting.any() or k > horizon // 2:
            continue
        cheaper = (market.gas_gwei[row] < market.gas_gwei[branches["row"]]) | (k == rules.wait_ticks)
        away = np.abs(market.pool_tick[row] - (state["lower"] + state["upper"]) * 0.5)
        away /= (state["upper"] - state["lower"]) * 0.5
        score = policy.anomaly.away_gain * away + policy.anomaly.stir_gain * market.volatility[row]
        reached = np.minimum(score, 1.0) >= branches["edge"]
        later = (reached & (when == AT_SCORE)) | (cheaper & (when == AT_GAS))
        triggered = later if k else when == NOW
        _recentre(market, branches, state, np.flatnonzero(waiting & triggered), k, policy)
        waiting &= ~triggered
    row = branches["row"] + horizon
    at_end = pool.worth(
        state["liquidity"], pool.sqrt_price(state["lower"]), pool.sqrt_price(state["upper"]), market.root[row]
    )
    return at_end + state["fees"] - state["gas"]


def _recentre(
    market: RecordedMarket, branches: Mapping[str, Any], state: dict[str, Any], pick: Int64Array, k: int, policy: Policy
) -> None:
    """Re-centre these branches around the price at tick k of the trial: swap with slippage, pay gas."""
    if not len(pick):
        return
    row, fee = branches["row"][pick] + k, branches["fee"][pick]
    root, old = market.root[row], (pool.sqrt_price(state["lower"][pick]), pool.sqrt_price(state["upper"][pick]))
    lower, upper = pool.range_around(market.pool_tick[row], branches["half"][pick])
    new = (pool.sqrt_price(lower), pool.sqrt_price(upper))
    value = pool.worth(state["liquidity"][pick], *old, root)
    swap = _swap(market, row, value, old, new)
    if k == 0:
        slip = np.rint((fee * 1e-6 + swap * root / market.pool_liquidity[row] + branches["drift"][pick]) * 1e6)
    else:
        slip = pool.slippage_ppm(swap, market.pool_liquidity[row], root, fee, market.span[row], MEDIAN_LUCK)
    kept = value - swap * slip * 1e-6
    state["liquidity"][pick] = pool.liquidity_for(kept, *new, root)
    state["lower"][pick], state["upper"][pick] = lower, upper
    price = market.gas_gwei[row] * 1e-9 * branches["native"][pick]
    state["gas"][pick] += np.rint(policy.cost.rebalance_gas_units * price)
