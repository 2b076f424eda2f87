"""Outcomes: what acting was worth beside holding, decision by decision, for a fleet that learns nothing. Pure.

A grader's yardstick: the same step and the same trials (paired_trial.py) as the runtime's, but nothing is
remembered, recorded or derived, nobody dies of age or poverty, and a long market costs seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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
    """Let a fleet without a memory live through a market and keep every verdict. The same arguments, the same result.

    The golems' traits are drawn as those of any founders; founding: give credits and a lifespan that last.
    number: the market's, in what is judged.
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
            step(fleet, tape, t, recall=recall, asked=None, killed=False, policy=policy, out=out, at=t - start)
        parts.append(_judged(out, tape.at_us, number))
    return Judged.together(parts)


def _judged(out: Buffers, at_us: np.ndarray, number: int) -> Judged:
    """The verdicts of a chunk, in the order in which they fell. A golem's tick t fell on the tape's position t - 1."""
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
    """The least and the highest that each metric of a baseline is on 98 of 100 ticks, in the metric's unit."""
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
