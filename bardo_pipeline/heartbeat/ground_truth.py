"""Measures the true effects of acting versus holding with a fleet that does not learn. Pure.

The fleet uses the same step and the same trials (paired_trial.py) as a run, without memory, records, derivations or
deaths by age or poverty, so a long market takes seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.heartbeat.fleet import Fleet, Founding, born
from bardo_pipeline.heartbeat.recall_table import EntryNames, nothing_known
from bardo_pipeline.heartbeat.records.tick_buffers import Buffers
from bardo_pipeline.heartbeat.step import step
from bardo_pipeline.market.market import Market
from bardo_pipeline.market.tick_series import tape_of
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.true_effects import Judged

_CHUNK_TICKS = 1_000


def outcomes(market: Market, founding: Founding, golems: int, policy: Policy, *, number: int = 0) -> Judged:
    """Return all trial verdicts of a memoryless fleet in a market. Deterministic.

    founding: must give enough credits and lifespan for the whole market. number: identifies the market in the result.
    """
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
        parts.append(_judged(out, tape.at_us, number))
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


def usual_levels(markets: Sequence[Market], policy: Policy) -> dict[str, tuple[float, float]]:
    """Return each baseline metric's range over 98 of 100 ticks, in the metric's unit."""
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
