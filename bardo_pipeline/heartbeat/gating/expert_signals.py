"""Signals of the five experts of the learned gate, from a golem's own history. Pure, over columns.

A signal is in [0, 1], and NaN if its source is absent; its expert then sleeps. Source: HB S5; canon ("topology signal,
sheaf signal").
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.arrays import Float64Array, Int64Array
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.heartbeat.observe import PRICE, Comparison
from bardo_pipeline.heartbeat.probes import HIGH, Probes
from bardo_pipeline.heartbeat.recall_table import Recall
from bardo_pipeline.heartbeat.recollection import Recollection
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.policy import Policy


def expert_signals(fleet: Fleet, tape: Tape, t: int, seen: Comparison, probes: Probes, policy: Policy) -> Float64Array:
    """Return the signals of EXPERTS at a tick, [experts, golems].

    oracle: size of the price residual over its own interval. surprise: largest KL divergence between the forecasts of a
    quantity before and after the tick. topology: `Tape.topology`. contradiction: share of opposed pairs among the
    entries last retrieved. risk: highest probe severity (none 0, low 0.5, high 1). The first three are squashed by
    x / (x + half).
    """
    rules = policy.gating
    signals = np.empty((5, fleet.size))
    residual = np.abs(seen.residual[PRICE]) / np.maximum(seen.half[PRICE], 1e-300)
    signals[0] = residual / (residual + rules.oracle_half)
    divergence = np.fmax.reduce(_divergences(seen, policy), axis=0)
    signals[1] = divergence / (divergence + rules.surprise_half_nats)
    signals[2] = tape.topology[t] / (tape.topology[t] + rules.topology_half)
    signals[3] = fleet.contradiction
    signals[4] = probes.worst / HIGH
    return signals


def _divergences(seen: Comparison, policy: Policy) -> Float64Array:
    """Return the KL divergence, in nats, of each forecast after the tick from that before it, [3, golems]."""
    before = seen.half / policy.prediction.interval_z / seen.scale
    moved = seen.residual / seen.scale / before
    ratio = np.square(seen.sigma / before)
    return np.asarray(0.5 * (ratio + moved * moved - 1.0 - np.log(ratio)))


def note_contradictions(fleet: Fleet, memory: Recollection | None, recall: Recall) -> None:
    """Store the share of pairs with opposite signs among the entries that each golem just retrieved, if any."""
    if memory is None:
        return
    held = memory.recalled >= 0
    number = held.sum(axis=0)
    sign = np.where(held, recall.sign[memory.recalled], 0)
    opposed: Int64Array = (sign > 0).sum(axis=0) * (sign < 0).sum(axis=0)
    share = opposed / np.maximum(number * (number - 1) // 2, 1)
    golem = memory.golem
    fleet.contradiction[golem] = np.where(number > 0, share, fleet.contradiction[golem])
