"""A walk: the market and the position as a golem's records tell them, and what the market charged it. Pure, set-based.

Source: HB S3; KAT (Loop 3: what a counterfactual is re-simulated on).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.evidence import flatten_lists
from bardo_pipeline.grimoire.entry_columns import contiguous
from bardo_pipeline.heartbeat.decide import ACTIONS, COLLECT, ENTER, LEAVE, REBALANCE
from bardo_pipeline.market.market import tick_of_price
from bardo_pipeline.market.uniswap_v3 import fees_micros, share_of_ways, sqrt_price
from bardo_pipeline.policy import Policy


@dataclass(frozen=True)
class Walk:
    """The market and the position as recorded, a row a record, sorted by golem and tick.

    open: exactly one position was held in the pool. moved: status of re-centring, -1 none, 0 refused, 1 executed.
    fee_ppm and native_micros: what the pool and the gas token charge, by row; 0 where the golem cannot know yet.
    """

    golem: np.ndarray
    tick: np.ndarray
    at_us: np.ndarray
    pool_tick: np.ndarray
    pool_tick_low: np.ndarray
    pool_tick_high: np.ndarray
    root: np.ndarray
    span: np.ndarray
    pool_liquidity: np.ndarray
    volume: np.ndarray
    gas_gwei: np.ndarray
    gas_ratio: np.ndarray
    stir: np.ndarray
    open: np.ndarray
    liquidity: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    fees: np.ndarray
    acted: np.ndarray
    moved: np.ndarray
    slip_ppm: np.ndarray
    gas_paid: np.ndarray
    gas_units: np.ndarray

    @property
    def rows(self) -> int:
        """Number of records."""
        return len(self.tick)


def walk_of(records: pa.Table, golem: np.ndarray, policy: Policy) -> Walk:
    """What these records say of the market and of their golem's position.

    records: IMAGINED_COLUMNS, sorted by golem and tick; golem: int64 codes in the same order.
    """
    observation = contiguous(records["observation"])

    def seen(name: str) -> np.ndarray:
        values = pc.struct_field(observation, name)
        return values.cast(pa.float64()).to_numpy(zero_copy_only=False) if values.null_count else np.asarray(values)

    tick = tick_of_price(seen("price")).astype(np.float64)
    low, high = (_tick_of(seen(name)) for name in ("price_high", "price_low"))
    return Walk(
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
        stir=np.clip(np.nan_to_num(seen("sigma_ratio"), nan=1.0) - 1.0, 0.0, 1.0),
        **_positions(pc.struct_field(observation, "positions"), pc.struct_field(observation, "protocol")),
        **_actions(contiguous(records["actions"]), seen("gas_gwei"), policy),
    )


def _tick_of(price: np.ndarray) -> np.ndarray:
    return np.asarray(np.log(1e12 / price) / np.log(1.0001))


def _positions(lists: pa.ListArray, protocol: pa.Array) -> dict[str, np.ndarray]:
    """The position of each record that has exactly one in its pool's protocol, zeros elsewhere: a loan is none."""
    row, parts = flatten_lists(lists)
    pooled = pc.equal(pc.struct_field(parts, "protocol"), protocol.take(pa.array(row)))
    row, parts = row[pooled.to_numpy(zero_copy_only=False)], parts.filter(pooled)
    count = np.bincount(row, minlength=len(lists))
    alone = count[row] == 1
    out: dict[str, np.ndarray] = {"open": count == 1}
    for name, field in (
        ("liquidity", "liquidity"),
        ("lower", "tick_lower"),
        ("upper", "tick_upper"),
        ("fees", "fees_owed_micros"),
    ):
        values = np.zeros(len(lists), np.float64 if name == "liquidity" else np.int64)
        values[row[alone]] = pc.struct_field(parts, field).to_numpy(zero_copy_only=False)[alone]
        out[name] = values
    return out


def _actions(lists: pa.ListArray, gas_gwei: np.ndarray, policy: Policy) -> dict[str, np.ndarray]:
    """What became of re-centring in each record, and the gas that its executed actions paid, with their units."""
    row, parts = flatten_lists(lists)
    kind, status = (pc.struct_field(parts, name) for name in ("action_type", "status"))
    done = pc.equal(status, "executed").to_numpy(zero_copy_only=False).astype(bool)
    size = len(lists)
    moved, slip = np.full(size, -1, np.int64), np.zeros(size, np.int64)
    centring = np.flatnonzero(pc.equal(kind, ACTIONS[REBALANCE]).to_numpy(zero_copy_only=False))
    first = centring[np.unique(row[centring], return_index=True)[1]]
    moved[row[first]] = done[first]
    slip[row[first]] = pc.fill_null(pc.struct_field(parts, "slippage_ppm"), 0).to_numpy(zero_copy_only=False)[first]
    cost = policy.cost
    units_of = np.zeros(len(ACTIONS) + 1)
    for action, units in (
        (REBALANCE, cost.rebalance_gas_units), (ENTER, cost.enter_gas_units),
        (LEAVE, cost.exit_gas_units), (COLLECT, cost.collect_gas_units),
    ):  # fmt: skip
        units_of[action] = units
    known = pc.fill_null(pc.index_in(kind, value_set=pa.array(ACTIONS)), len(ACTIONS))
    units = np.rint(units_of[known.to_numpy(zero_copy_only=False)] * gas_gwei[row]).astype(np.int64)
    paid = pc.struct_field(parts, "gas_cost_micros").to_numpy(zero_copy_only=False).astype(np.int64)
    told = done & (units > 0)
    gas_paid, gas_units, acted = np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size, bool)
    np.add.at(gas_paid, row[told], paid[told])
    np.add.at(gas_units, row[told], units[told])
    acted[row[done]] = True
    return {"acted": acted, "moved": moved, "slip_ppm": slip, "gas_paid": gas_paid, "gas_units": gas_units}


RATES = ("gas_paid", "gas_units", "fees_earned", "volume_shared")
"""What a golem's knowledge of the market's charges rests on, as sums over its life: micro-dollars of gas and the units
times gwei that they paid for; micro-dollars of fees and of the volume that its share of the pool earned them on."""


def charges(walk: Walk) -> np.ndarray:
    """What each record adds to RATES. int64 [4, rows]."""
    before = np.arange(walk.rows) - 1
    same = (walk.golem == walk.golem[before]) & (walk.tick == walk.tick[before] + 1) & walk.open & walk.open[before]
    same &= (walk.lower == walk.lower[before]) & (walk.upper == walk.upper[before]) & ~walk.acted[before]
    same[:1] = False
    inside = share_of_ways(walk.lower, walk.upper, walk.pool_tick_low, walk.pool_tick_high, walk.pool_tick)
    shared = np.rint(fees_micros(walk.liquidity, walk.pool_liquidity, walk.volume, 10**6, inside)).astype(np.int64)
    earned = walk.fees - walk.fees[before]
    return np.stack([walk.gas_paid, walk.gas_units, np.where(same, earned, 0), np.where(same, shared, 0)])


def rates_of(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(fee in ppm, price of the gas token in micro-dollars) from sums of RATES [4, n]; 0 where they say nothing."""
    gas, units, fees, shared = sums
    fee = np.where(shared > 0, np.rint(fees * 1e6 / np.maximum(shared, 1)), 0.0)
    native = np.where(units > 0, np.rint(gas * 1e9 / np.maximum(units, 1)), 0.0)
    return fee, native
