"""RecordedMarket: market and position in a golem's records, and the fees and gas prices that it paid. Pure, set-based.

Source: HB S3; KAT (Loop 3: what a counterfactual is re-simulated on).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.curator.state.evidence import flatten_lists
from bardo_pipeline.events.record.arrow_columns import codes_of, contiguous
from bardo_pipeline.grimoire.entry_columns import equals_word, int_column
from bardo_pipeline.heartbeat.decide import ACTIONS, COLLECT, ENTER, LEAVE, REBALANCE
from bardo_pipeline.market.market import tick_of_price
from bardo_pipeline.market.uniswap_v3 import fees_micros, share_in_range, sqrt_price
from bardo_pipeline.policy import Policy


@dataclass(frozen=True)
class RecordedMarket:
    """Market and position, one row per record, sorted by golem and tick.

    root: square root of the price. span: price_high / price_low - 1. volatility: excess of sigma_ratio over 1, in
    [0, 1]. open: exactly one position in the pool. moved: re-centring, -1 none, 0 refused, 1 executed. fees, gas_paid:
    micro-dollars. gas_units: gas units x gwei.
    """

    golem: Int64Array
    tick: Int64Array
    at_us: Int64Array
    pool_tick: Float64Array
    pool_tick_low: Float64Array
    pool_tick_high: Float64Array
    root: Float64Array
    span: Float64Array
    pool_liquidity: Float64Array
    volume: Float64Array
    gas_gwei: Float64Array
    gas_ratio: Float64Array
    volatility: Float64Array
    open: BoolArray
    liquidity: Float64Array
    lower: Int64Array
    upper: Int64Array
    fees: Int64Array
    acted: BoolArray
    moved: Int64Array
    slip_ppm: Int64Array
    gas_paid: Int64Array
    gas_units: Int64Array


def recorded_market(records: pa.Table, golem: Int64Array, policy: Policy) -> RecordedMarket:
    """Read market and position from records (SIMULATION_COLUMNS, sorted by golem and tick). golem: codes by row."""
    observation = contiguous(records["observation"])

    def seen(name: str) -> Float64Array:
        values = pc.struct_field(observation, name)
        return values.cast(pa.float64()).to_numpy(zero_copy_only=False) if values.null_count else np.asarray(values)

    tick = tick_of_price(seen("price")).astype(np.float64)
    low, high = (np.log(1e12 / seen(name)) / np.log(1.0001) for name in ("price_high", "price_low"))
    return RecordedMarket(
        golem=golem,
        tick=records["tick"].to_numpy().astype(np.int64),
        at_us=records["observed_at"].cast(pa.int64()).to_numpy(),
        pool_tick=tick,
        pool_tick_low=np.minimum(low, tick),
        pool_tick_high=np.maximum(high, tick),
        root=sqrt_price(tick),
        span=seen("price_high") / np.maximum(seen("price_low"), 1e-12) - 1.0,
        pool_liquidity=seen("liquidity"),
        volume=seen("volume_micros").astype(np.float64),
        gas_gwei=seen("gas_gwei"),
        gas_ratio=seen("gas_hour_ratio"),
        volatility=np.clip(np.nan_to_num(seen("sigma_ratio"), nan=1.0) - 1.0, 0.0, 1.0),
        **_positions(pc.struct_field(observation, "positions"), pc.struct_field(observation, "protocol")),
        **_actions(contiguous(records["actions"]), seen("gas_gwei"), policy),
    )


def _positions(lists: pa.ListArray, protocol: pa.Array) -> dict[str, Any]:
    """Return the position of each record with exactly one in its pool's protocol, else zeros; loans do not count."""
    row, parts = flatten_lists(lists)
    pooled = pc.equal(pc.struct_field(parts, "protocol"), protocol.take(pa.array(row)))
    row, parts = row[pooled.to_numpy(zero_copy_only=False)], parts.filter(pooled)
    count = np.bincount(row, minlength=len(lists))
    alone = count[row] == 1
    columns: dict[str, Any] = {"open": count == 1}
    fields = {"liquidity": "liquidity", "lower": "tick_lower", "upper": "tick_upper", "fees": "fees_owed_micros"}
    for name, field in fields.items():
        values = np.zeros(len(lists), np.float64 if name == "liquidity" else np.int64)
        values[row[alone]] = pc.struct_field(parts, field).to_numpy(zero_copy_only=False)[alone]
        columns[name] = values
    return columns


def _actions(lists: pa.Array, gas_gwei: Float64Array, policy: Policy) -> dict[str, Any]:
    """Return status and slippage of each record's re-centring, and the gas and gas units of its executed actions."""
    row, parts = flatten_lists(lists)
    actions = pa.Table.from_struct_array(pa.chunked_array([parts]))
    done = equals_word(actions, "status", "executed")
    size = len(lists)
    moved, slip = np.full(size, -1, np.int64), np.zeros(size, np.int64)
    centring = np.flatnonzero(equals_word(actions, "action_type", ACTIONS[REBALANCE]))
    first = centring[np.unique(row[centring], return_index=True)[1]]
    moved[row[first]] = done[first]
    slip[row[first]] = pc.fill_null(actions["slippage_ppm"], 0).to_numpy()[first]
    cost = policy.cost
    units_of = np.zeros(len(ACTIONS) + 1)  # the last element is for other actions (code -1)
    for action, gas in (
        (REBALANCE, cost.rebalance_gas_units), (ENTER, cost.enter_gas_units),
        (LEAVE, cost.exit_gas_units), (COLLECT, cost.collect_gas_units),
    ):  # fmt: skip
        units_of[action] = gas
    units = np.rint(units_of[codes_of(actions["action_type"], ACTIONS)] * gas_gwei[row]).astype(np.int64)
    paid = int_column(actions, "gas_cost_micros")
    priced = done & (units > 0)
    gas_paid, gas_units, acted = np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size, bool)
    np.add.at(gas_paid, row[priced], paid[priced])
    np.add.at(gas_units, row[priced], units[priced])
    acted[row[done]] = True
    return {"acted": acted, "moved": moved, "slip_ppm": slip, "gas_paid": gas_paid, "gas_units": gas_units}


RATES = ("gas_paid", "gas_units", "fees_earned", "volume_shared")
"""Sums over a golem's life that give the market's prices: micro-dollars of gas paid for gas units x gwei; micro-dollars
of fees earned on its share of the volume."""


def rate_increments(market: RecordedMarket) -> Int64Array:
    """Return what each record adds to RATES. [RATES, rows]."""
    before = np.arange(len(market.tick)) - 1
    same = market.open & market.open[before] & ~market.acted[before] & (market.tick == market.tick[before] + 1)
    for column in (market.golem, market.lower, market.upper):
        same &= column == column[before]
    same[:1] = False
    inside = share_in_range(market.lower, market.upper, market.pool_tick_low, market.pool_tick_high, market.pool_tick)
    volume = fees_micros(market.liquidity, market.pool_liquidity, market.volume, 10**6, inside)
    shared = np.rint(volume).astype(np.int64)
    earned = market.fees - market.fees[before]
    return np.stack([market.gas_paid, market.gas_units, np.where(same, earned, 0), np.where(same, shared, 0)])


def prices_of(sums: Int64Array) -> tuple[Float64Array, Float64Array]:
    """Return (pool fee in ppm, price of the gas token in micro-dollars) from RATES [RATES, n]; 0 if unknown."""
    gas, units, fees, shared = sums
    fee = np.where(shared > 0, np.rint(fees * 1e6 / np.maximum(shared, 1)), 0.0)
    native = np.where(units > 0, np.rint(gas * 1e9 / np.maximum(units, 1)), 0.0)
    return fee, native
