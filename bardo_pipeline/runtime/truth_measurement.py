"""Measures the true effects of acting versus holding with a fleet that does not learn, beside the graded fleet.

The fleet uses the same step and the same trials (rebalance.py) as a run, without memory, records, derivations or
deaths by age or poverty, so a long market takes seconds. It runs in a second process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import datetime
from multiprocessing import get_context

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.curator.state.evidence import acts_of_choice, flatten_lists, is_verified
from bardo_pipeline.events.record.arrow_columns import contiguous
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS
from bardo_pipeline.heartbeat.choice_trials import alternatives
from bardo_pipeline.heartbeat.entry_names import EntryNames
from bardo_pipeline.heartbeat.fleet import HORIZONS, Fleet, Founding, born
from bardo_pipeline.heartbeat.recall_table import nothing_known
from bardo_pipeline.heartbeat.records.chunk_rows import Buffers
from bardo_pipeline.heartbeat.step import step
from bardo_pipeline.market.market import Market
from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.market.synthetic_spec import SyntheticSpec
from bardo_pipeline.market.tick_series import tape_of
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.grimoire_precision import NO_COSTS, TrueReadings
from bardo_pipeline.quality.true_effects import Judged, JudgedChoices, Yardstick, measure, measure_choices

_CHUNK_TICKS = 1_000
_ALONE_BARS = 50_000
"""Below this number of bars, measuring takes less time than starting a process."""


@dataclass(frozen=True)
class Other:
    """A market to measure on; number: its index among the markets of its spec."""

    seed: int
    spec: SyntheticSpec
    bars: int
    start: datetime
    number: int


def choice_acts(policy: Policy) -> tuple[str, ...]:
    """Return the action types of the choices on trial."""
    return tuple(act for _, _, _, act in _evidence(policy))


def _evidence(policy: Policy) -> list[tuple[int, int, int, str]]:
    """Return each action type of a choice with its alternative, horizon and anomaly band; band -1 for any band."""
    return [
        (kind, HORIZONS.index(horizon), -1 if band is None else ANOMALY_BANDS.index(band), act)
        for kind, of_choice in enumerate(alternatives(policy))
        for horizon, band, act in acts_of_choice(*of_choice)
    ]


def judged_on(other: Other, founding: Founding, policy: Policy) -> tuple[Judged, JudgedChoices]:
    """Return all trial verdicts of a memoryless fleet in this market, on decisions and on choices. Deterministic.

    founding: must give enough credits and lifespan for the whole market.
    """
    market, golems = market_of(other), policy.worth.yardstick_golems
    tape = tape_of(market, policy)
    lives = [
        born(
            lineage_id=f"{market.name}/outcomes/{i}", generation=0, owner_id=founding.owners[i % len(founding.owners)],
            founding=founding, market=market.name, market_hash=market.content_hash, derivation_id="-", policy=policy,
        )
        for i in range(golems)
    ]  # fmt: skip
    fleet = Fleet([g for g, _ in lives], [b for _, b in lives], policy)
    recall, parts, choices = nothing_known(golems, EntryNames()), [], []
    for start in range(0, tape.ticks, _CHUNK_TICKS):
        stop = min(start + _CHUNK_TICKS, tape.ticks)
        out = Buffers(golems, stop - start)
        for t in range(start, stop):
            step(fleet, tape, t, recall=recall, policy=policy, out=out, at=t - start)
        parts.append(_judged(out, tape.at_us, other.number))
        choices.append(_judged_choices(out, tape.at_us[start:stop], other.number, policy))
    return Judged.together(parts), JudgedChoices.together(choices)


def _judged_choices(out: Buffers, at_us: Int64Array, number: int, policy: Policy) -> JudgedChoices:
    """Return the windows that a chunk closed, at the horizon that counts. at_us: times of the chunk's ticks."""
    if "window_due" not in out:
        return JudgedChoices(*(np.zeros(0, np.int64) for _ in fields(JudgedChoices)))
    shape = (*out["window_due"].shape, len(alternatives(policy)))
    applies, effects = (out[f"window_{name}"].reshape(shape) for name in ("applies", "effect_ppm"))
    bands = np.searchsorted(policy.curator.anomaly_edges, out["window_score"], side="right")
    parts = []
    for act, (kind, horizon, band, _) in enumerate(_evidence(policy)):
        counts = applies[:, :, horizon, kind] & ((band < 0) | (bands[..., horizon] == band))
        golem, tick = np.nonzero(counts)
        regime = out["window_regime"][golem, tick, horizon].astype(np.int64)
        effect = effects[golem, tick, horizon, kind]
        parts.append(JudgedChoices(np.full(len(golem), number), at_us[tick], np.full(len(golem), act), regime, effect))
    return JudgedChoices.together(parts)


def _judged(out: Buffers, at_us: Int64Array, number: int) -> Judged:
    """Return a chunk's verdicts, sorted by tick. A golem's tick t is at the tape's position t - 1."""
    if "trial_due" not in out:
        none = np.zeros(0, np.int64)
        return Judged(none, none, none, none, np.zeros(0), np.zeros(0), none)
    golem, tick, slot = np.nonzero(out["trial_due"])
    order = np.lexsort((slot, golem, tick))
    where = (golem[order], tick[order], slot[order])
    return Judged(
        np.full(len(order), number),
        where[0],
        at_us[out["trial_decision_tick"][where] - 1],
        out["trial_regime"][where],
        out["trial_score"][where],
        out["trial_gas_ratio"][where],
        out["trial_effect_ppm"][where],
    )


def readings_on(markets: Sequence[Market], policy: Policy, costs: pa.Table = NO_COSTS) -> TrueReadings:
    """Return the readings of every tick of these markets, and the usual range of costs (98 % of ticks).

    costs: of verified actions in them, as TrueReadings has them.
    """
    tapes = [tape_of(market, policy) for market in markets]
    gas = np.concatenate([t.gas_gwei for t in tapes])
    volume = np.concatenate([t.volume_micros for t in tapes]) / 1e6
    span = np.concatenate([t.price_high / t.price_low - 1.0 for t in tapes]) * 1e6
    low, high = np.percentile(gas, (1, 99))
    fee, native, cost = markets[0].fee_ppm, markets[0].native_usd_micros * 1e-9, policy.cost
    usual = {
        "slippage": (0.0, fee + 0.5 * float(np.percentile(span, 99))),
        "gas_cost": (low * native * cost.collect_gas_units, high * native * cost.rebalance_gas_units),
    }
    at_us = np.concatenate([t.at_us for t in tapes])
    return TrueReadings(at_us, {"gas_price": gas * 1000, "pool_volume": volume}, usual, costs)


def costs_of(records: pa.Table) -> pa.Table:
    """Return the slippage and gas cost of each verified executed action (records: golem_id, observed_at, actions,
    outcome) as TrueReadings has them.
    """
    row, actions = flatten_lists(contiguous(records["actions"]))
    done = pc.equal(pc.struct_field(actions, "status"), "executed").to_numpy(zero_copy_only=False)
    done &= is_verified(records)[row]
    row, actions = row[done], actions.filter(pa.array(done))
    record = pa.array(row)
    golem_id, at_us = records["golem_id"].take(record), records["observed_at"].cast(pa.int64()).take(record)
    parts = []
    for metric, name in (("slippage", "slippage_ppm"), ("gas_cost", "gas_cost_micros")):
        value = pc.struct_field(actions, name).cast(pa.int64())
        parts.append(pa.table([golem_id, pa.repeat(metric, len(row)), at_us, value], schema=NO_COSTS.schema))
    costs = pa.concat_tables(parts)
    return costs.filter(pc.is_valid(costs["value"]))


def market_of(other: Other) -> Market:
    return synthetic_market(seed=other.seed, bars=other.bars, start=other.start, spec=other.spec)


@contextmanager
def measuring(
    groups: Sequence[Sequence[Other]], founding: Founding, policy: Policy
) -> Iterator[Callable[[Callable[[float], None]], list[Yardstick]]]:
    """Start to measure groups of markets; yield a function that waits for their yardsticks."""
    if sum(o.bars for group in groups for o in group) < _ALONE_BARS or (os.cpu_count() or 1) < 2:
        yield lambda on_progress: _gathered(
            groups, lambda other: judged_on(other, founding, policy), policy, on_progress
        )
        return
    pool: Executor
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        running: dict[Other, Future[tuple[Judged, JudgedChoices]]] = {
            other: pool.submit(judged_on, other, founding, policy) for group in groups for other in group
        }
        try:
            yield lambda notify: _gathered(groups, lambda other: running[other].result(), policy, notify)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _gathered(
    groups: Sequence[Sequence[Other]],
    judged: Callable[[Other], tuple[Judged, JudgedChoices]],
    policy: Policy,
    on_progress: Callable[[float], None],
) -> list[Yardstick]:
    total, done, yards = sum(len(group) for group in groups), 0, []
    for group in groups:
        parts = []
        for other in group:
            on_progress(done / total)
            parts.append(judged(other))
            done += 1
        decisions, choices = zip(*parts, strict=True)
        signs = measure_choices(JudgedChoices.together(choices), choice_acts(policy), policy.worth)
        yards.append(replace(measure(Judged.together(decisions), policy.curator, policy.worth), choices=signs))
    return yards
