"""Measures the true effects of acting versus holding with a fleet that does not learn, beside the graded fleet.

The fleet uses the same step and the same trials (rebalance.py) as a run, without memory, records, derivations or
deaths by age or poverty, so a long market takes seconds. It runs in a second process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from multiprocessing import get_context

import numpy as np

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.heartbeat.entry_names import EntryNames
from bardo_pipeline.heartbeat.fleet import Fleet, Founding, born
from bardo_pipeline.heartbeat.recall_table import nothing_known
from bardo_pipeline.heartbeat.records.chunk_rows import Buffers
from bardo_pipeline.heartbeat.step import step
from bardo_pipeline.market.market import Market
from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.market.synthetic_spec import SyntheticSpec
from bardo_pipeline.market.tick_series import tape_of
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.true_effects import Judged, Yardstick, measure

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


def judged_on(other: Other, founding: Founding, policy: Policy) -> Judged:
    """Return all trial verdicts of a memoryless fleet in this market. Deterministic.

    founding: must give enough credits and lifespan for the whole market.
    """
    market, golems = _market_of(other), policy.worth.yardstick_golems
    tape = tape_of(market, policy)
    lives = [
        born(
            lineage_id=f"{market.name}/outcomes/{i}", generation=0, owner_id=founding.owners[i % len(founding.owners)],
            founding=founding, market=market.name, market_hash=market.content_hash, derivation_id="-", policy=policy,
        )
        for i in range(golems)
    ]  # fmt: skip
    fleet = Fleet([g for g, _ in lives], [b for _, b in lives], policy)
    recall, parts = nothing_known(golems, EntryNames()), []
    for start in range(0, tape.ticks, _CHUNK_TICKS):
        stop = min(start + _CHUNK_TICKS, tape.ticks)
        out = Buffers(golems, stop - start)
        for t in range(start, stop):
            step(fleet, tape, t, recall=recall, policy=policy, out=out, at=t - start)
        parts.append(_judged(out, tape.at_us, other.number))
    return Judged.together(parts)


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


def levels_on(others: Sequence[Other], policy: Policy) -> dict[str, tuple[float, float]]:
    """Return each baseline metric's range over 98 of 100 ticks of these markets, in the metric's unit."""
    markets = [_market_of(other) for other in others]
    tapes = [tape_of(market, policy) for market in markets]
    gas = np.concatenate([t.gas_gwei for t in tapes])
    volume = np.concatenate([t.volume_micros for t in tapes]) / 1e6
    span = np.concatenate([t.price_high / t.price_low - 1.0 for t in tapes]) * 1e6
    low, high = np.percentile(gas, (1, 99))
    fee, native, cost = markets[0].fee_ppm, markets[0].native_usd_micros * 1e-9, policy.cost
    return {
        "gas_price": (low * 1000, high * 1000),
        "pool_volume": (float(np.percentile(volume, 1)), float(np.percentile(volume, 99))),
        "slippage": (0.0, fee + 0.5 * float(np.percentile(span, 99))),
        "gas_cost": (low * native * cost.collect_gas_units, high * native * cost.rebalance_gas_units),
    }


def _market_of(other: Other) -> Market:
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
        running: dict[Other, Future[Judged]] = {
            other: pool.submit(judged_on, other, founding, policy) for group in groups for other in group
        }
        try:
            yield lambda notify: _gathered(groups, lambda other: running[other].result(), policy, notify)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _gathered(
    groups: Sequence[Sequence[Other]],
    judged: Callable[[Other], Judged],
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
        yards.append(measure(Judged.together(parts), policy.curator, policy.worth))
    return yards
