"""Imagination: a golem's own judged decision re-simulated on its recorded market, with one thing changed. Pure.

A branch starts at the decision with the position that the golem held, and is followed as long as its trial was. What
was done is simulated, too: where that does not give the verdict on record, the decision proves nothing. What the market
charges (fee, gas token) is read off what the golem itself paid and earned.
Source: KAT (Loop 3); HB S3; paired_trial.py, whose mechanics these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.evidence import flatten_lists
from bardo_pipeline.dreams.recorded_market import Walk
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.entry_columns import contiguous
from bardo_pipeline.heartbeat.decide import ACTIONS, REBALANCE
from bardo_pipeline.heartbeat.defi.rebalance import MEDIAN_LUCK
from bardo_pipeline.heartbeat.paired_trial import LIMIT_PPM
from bardo_pipeline.market.uniswap_v3 import (
    fees_micros,
    liquidity_for,
    range_around,
    share_of_ways,
    slippage_ppm,
    sqrt_price,
    token1_share,
    worth,
)
from bardo_pipeline.policy import Policy

IMAGINED_COLUMNS = ("golem_id", "tick", "observed_at", "observation", "actions", "resolutions")
"""Columns of a record that imagination reads."""

CHANGES = ("threshold_higher", "threshold_lower", "range_narrower", "range_wider", "wait_for_gas")
"""The one thing that is changed: the re-centring threshold a band up (so that it holds at first) or down (so that it
acts), a narrower or wider new range, or waiting some ticks for gas to be cheaper than it was."""

HIGHER, LOWER, NARROWER, WIDER, WAIT = range(5)
NOW, NEVER, AT_SCORE, AT_GAS = range(4)
"""When a branch re-centres: at the decision, not at all, when the score reaches an edge, when gas is cheaper."""


@dataclass(frozen=True)
class Decisions:
    """Judged decisions to re-centre or to hold, each with its whole trial on record; arrays [decisions].

    row: of the decision in the walk; judged_row: of its verdict. half_width: of the range it would have made.
    situation: code of (chain, protocol, pair, tool, regime, anomaly band, gas band) in `situations`.
    """

    row: np.ndarray
    judged_row: np.ndarray
    acted: np.ndarray
    effect_ppm: np.ndarray
    regime: np.ndarray
    anomaly: np.ndarray
    gas: np.ndarray
    situation: np.ndarray
    situations: list[tuple[str, str, str, str, str, int, int]]

    @property
    def count(self) -> int:
        """Number of decisions."""
        return len(self.row)


def decisions_of(records: pa.Table, walk: Walk, policy: Policy) -> Decisions:
    """The judged decisions among these records whose ticks are all there, in the order of their verdicts.

    Left out are unverified ones, other actions than re-centring, decisions that were refused (nothing of the golem's
    own could be changed about them), and those that saw no position or several.
    """
    judged_row, parts = flatten_lists(contiguous(records["resolutions"]))
    fields = {n: pc.struct_field(parts, n) for n in parts.type.names} if isinstance(parts.type, pa.StructType) else {}
    decided = fields["decision_tick"].to_numpy(zero_copy_only=False).astype(np.int64)
    horizon = walk.tick[judged_row] - decided
    row = judged_row - horizon  # where no tick is missing in between
    there = (horizon == policy.prediction.check_ticks) & (row >= 0)
    row = np.where(there, row, 0)
    there &= (walk.golem[row] == walk.golem[judged_row]) & (walk.tick[row] == decided) & walk.open[row]
    acted = pc.equal(fields["chosen"], "act").to_numpy(zero_copy_only=False).astype(bool)
    there &= np.where(acted, walk.moved[row] == 1, walk.moved[row] == -1)
    there &= fields["verified"].to_numpy(zero_copy_only=False).astype(bool)
    there &= pc.equal(fields["action_type"], ACTIONS[REBALANCE]).to_numpy(zero_copy_only=False).astype(bool)
    pick = np.flatnonzero(there)

    def told(name: str) -> np.ndarray:
        return fields[name].to_numpy(zero_copy_only=False)[pick]

    rules = policy.curator
    anomaly = np.searchsorted(rules.anomaly_edges, told("anomaly_score"), side="right")
    gas = np.searchsorted(rules.gas_edges, told("gas_ratio"), side="right")
    index = pc.index_in(fields["regime"], value_set=pa.array(REGIMES))
    regime = index.to_numpy(zero_copy_only=False)[pick].astype(np.int64)
    situation, situations = _situations(
        records, row[pick], fields["tool_name"].take(pa.array(pick)), regime, anomaly, gas
    )
    limit = np.clip(told("effect_ppm"), -LIMIT_PPM, LIMIT_PPM).astype(np.int64)
    return Decisions(
        row[pick], judged_row[pick], acted[pick], limit, regime, anomaly, gas, situation, situations
    )  # fmt: skip


def _situations(
    records: pa.Table, row: np.ndarray, tool: pa.Array, regime: np.ndarray, anomaly: np.ndarray, gas: np.ndarray
) -> tuple[np.ndarray, list[tuple[str, str, str, str, str, int, int]]]:
    observation = contiguous(records["observation"]).take(pa.array(row))
    words = [pc.struct_field(observation, n) for n in ("chain", "protocol", "pair")] + [tool]
    coded = [w.dictionary_encode() for w in words]
    packed = np.stack([*(np.asarray(c.indices).astype(np.int64) for c in coded), regime, anomaly, gas], axis=1)
    unique, inverse = np.unique(packed, axis=0, return_inverse=True)
    names = [c.dictionary.to_pylist() for c in coded]
    situations = [
        (names[0][a], names[1][b], names[2][c], names[3][t], REGIMES[r], int(x), int(g))
        for a, b, c, t, r, x, g in unique
    ]
    return inverse.reshape(-1), situations


@dataclass(frozen=True)
class Imagined:
    """What one change would have been worth beside what was done, [branches], in ppm of the position's value.

    decision: position in Decisions. Only of decisions whose own verdict came out again; unlike: how many did not.
    """

    decision: np.ndarray
    change: np.ndarray
    effect_ppm: np.ndarray
    unlike: np.ndarray


def imagine(
    walk: Walk, decisions: Decisions, *, half_width: np.ndarray, fee_ppm: np.ndarray, native: np.ndarray, policy: Policy
) -> Imagined:
    """Re-simulate every decision with each change that applies to it.

    half_width, fee_ppm, native: of each decision, [decisions]. A higher threshold, another width and waiting change
    what acted; a lower threshold changes what held.
    """
    know = np.flatnonzero((fee_ppm > 0) & (native > 0))
    branches = _branches(walk, decisions, know, half_width, fee_ppm, native, policy)
    found = _followed(walk, branches, policy)
    value = np.maximum(branches["value"], 1.0)
    count = len(know)
    act, hold = found[:count], found[count : 2 * count]
    verdict = np.clip(np.rint((act - hold) / value[:count] * 1e6), -LIMIT_PPM, LIMIT_PPM)
    again = np.abs(verdict - decisions.effect_ppm[know]) <= policy.dreams.reproduced_ppm
    done = np.where(decisions.acted[know], act, hold)
    of = branches["of"][2 * count :]
    raw = np.rint((found[2 * count :] - done[of]) / value[2 * count :] * 1e6)
    effect = np.clip(raw, -LIMIT_PPM, LIMIT_PPM).astype(np.int64)
    kept = again[of]
    return Imagined(know[of][kept], branches["change"][2 * count :][kept], effect[kept], know[~again])


def _branches(
    walk: Walk, decisions: Decisions, know: np.ndarray, half_width: np.ndarray, fee: np.ndarray, native: np.ndarray,
    policy: Policy,
) -> dict[str, np.ndarray]:  # fmt: skip
    """All branches as columns: acting and holding of every decision first, then each change that applies."""
    acted, band = decisions.acted[know], decisions.anomaly[know]
    edges = np.array([*policy.curator.anomaly_edges, np.inf])
    narrow, wide = policy.dreams.width_scales
    here = np.arange(len(know))
    parts = [(here, -1, NOW, 1.0), (here, -1, NEVER, 1.0)]
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
    row = decisions.row[know][of]
    half = half_width[know][of]
    scaled = np.maximum((half * scales).astype(np.int64) // 10 * 10, 10)
    lower, upper = walk.lower[row].astype(np.float64), walk.upper[row].astype(np.float64)
    return {
        "of": of, "change": changes, "when": whens, "row": row, "half": np.where(scales == 1.0, half, scaled),
        "edge": edges[band][of], "fee": fee[know][of], "native": native[know][of], "lower": lower, "upper": upper,
        "liquidity": walk.liquidity[row],
        "value": worth(walk.liquidity[row], sqrt_price(lower), sqrt_price(upper), walk.root[row]),
        "drift": _drift(walk, row, half, fee[know][of]),
    }  # fmt: skip


Roots = tuple[np.ndarray, np.ndarray]
"""Square roots of the prices at a range's bounds."""


def _swap(walk: Walk, row: np.ndarray, value: np.ndarray, old: Roots, new: Roots) -> np.ndarray:
    """What re-centring swaps, in micro-dollars, between two ranges given by their roots."""
    root = walk.root[row]
    return value * np.abs(token1_share(*new, root) - token1_share(*old, root))


def _drift(walk: Walk, row: np.ndarray, half: np.ndarray, fee: np.ndarray) -> np.ndarray:
    """How far the price went against the swap at the decision, as a share: what its slippage was beyond fee and impact;
    where nothing was swapped, what a simulation expects."""
    old = (sqrt_price(walk.lower[row]), sqrt_price(walk.upper[row]))
    lower, upper = range_around(walk.pool_tick[row], half)
    value = worth(walk.liquidity[row], *old, walk.root[row])
    swap = _swap(walk, row, value, old, (sqrt_price(lower), sqrt_price(upper)))
    impact = swap * walk.root[row] / walk.pool_liquidity[row]
    met = walk.slip_ppm[row] * 1e-6 - fee * 1e-6 - impact
    return np.where((walk.moved[row] == 1) & (swap > 0), met, 0.5 * walk.span[row] * MEDIAN_LUCK)


def _followed(walk: Walk, branches: Mapping[str, np.ndarray], policy: Policy) -> np.ndarray:
    """Worth of each branch at the end of its trial, in micro-dollars: position, fees earned, gas paid. [branches]

    A re-centring that would come in the second half of the trial is left out: it would have no time to pay.
    """
    state = {n: branches[n].copy() for n in ("liquidity", "lower", "upper")}
    state |= {n: np.zeros(len(branches["row"])) for n in ("fees", "gas")}
    horizon, rules = policy.prediction.check_ticks, policy.dreams
    waiting = branches["when"] != NEVER
    for k in range(horizon + 1):  # a tick of the trial at a time, all branches at once
        row = branches["row"] + k
        if k:
            inside = share_of_ways(
                state["lower"], state["upper"], walk.pool_tick_low[row], walk.pool_tick_high[row], walk.pool_tick[row]
            )
            state["fees"] += fees_micros(
                state["liquidity"], walk.pool_liquidity[row], walk.volume[row], branches["fee"], inside
            )
        if not waiting.any() or k > horizon // 2:
            continue
        cheaper = (walk.gas_gwei[row] < walk.gas_gwei[branches["row"]]) | (k == rules.wait_ticks)
        reached = _score(walk, row, state["lower"], state["upper"], policy) >= branches["edge"]
        due = np.select(
            [branches["when"] == NOW, branches["when"] == AT_SCORE, branches["when"] == AT_GAS],
            [np.full(len(row), k == 0), reached & (k > 0), cheaper & (k > 0)],
            False,
        )
        _recentre(walk, branches, state, np.flatnonzero(waiting & due), k, policy)
        waiting &= ~due
    row = branches["row"] + horizon
    at_end = worth(state["liquidity"], sqrt_price(state["lower"]), sqrt_price(state["upper"]), walk.root[row])
    return at_end + state["fees"] - state["gas"]


def _score(walk: Walk, row: np.ndarray, lower: np.ndarray, upper: np.ndarray, policy: Policy) -> np.ndarray:
    """The anomaly score of a position in these ranges at these rows."""
    away = np.abs(walk.pool_tick[row] - (lower + upper) * 0.5) / ((upper - lower) * 0.5)
    return np.minimum(policy.anomaly.away_gain * away + policy.anomaly.stir_gain * walk.stir[row], 1.0)


def _recentre(
    walk: Walk,
    branches: Mapping[str, np.ndarray],
    state: dict[str, np.ndarray],
    pick: np.ndarray,
    k: int,
    policy: Policy,
) -> None:
    """Move these branches to a new range around the price: swap with its slippage, pay the gas."""
    if not len(pick):
        return
    row, fee = branches["row"][pick] + k, branches["fee"][pick]
    root, old = walk.root[row], (sqrt_price(state["lower"][pick]), sqrt_price(state["upper"][pick]))
    lower, upper = range_around(walk.pool_tick[row], branches["half"][pick])
    new = (sqrt_price(lower), sqrt_price(upper))
    value = worth(state["liquidity"][pick], *old, root)
    swap = _swap(walk, row, value, old, new)
    if k == 0:
        slip = np.rint((fee * 1e-6 + swap * root / walk.pool_liquidity[row] + branches["drift"][pick]) * 1e6)
    else:
        slip = slippage_ppm(swap, walk.pool_liquidity[row], root, fee, walk.span[row], MEDIAN_LUCK)
    kept = value - swap * slip * 1e-6
    state["liquidity"][pick] = liquidity_for(kept, *new, root)
    state["lower"][pick], state["upper"][pick] = lower, upper
    price = walk.gas_gwei[row] * 1e-9 * branches["native"][pick]
    state["gas"][pick] += np.rint(policy.cost.rebalance_gas_units * price)
