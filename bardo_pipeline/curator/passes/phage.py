"""Phage: every hundred ticks, test a golem's weakest entries against all of its own evidence. Pure.

A cycle's vote judges that cycle's evidence only; the phage judges the claim by all evidence, and downvotes the entry if
the evidence says the opposite. Only entries with evidence in the closing cycle are tested. This removes inherited
knowledge that does not hold for the golem.
Source: canon ("phage pass"), MEM-6.
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.curator.passes.distil import vote
from bardo_pipeline.curator.state.cycle_batch import CycleBatch
from bardo_pipeline.curator.state.decision_log import CONTRADICTED
from bardo_pipeline.curator.state.grimoire_state import ACTIVE, GrimoireState
from bardo_pipeline.grimoire.confidence import CLASS_FACT, ppm
from bardo_pipeline.mortality.random_streams import rank_within
from bardo_pipeline.policy import Policy


def phage(state: GrimoireState, wave: CycleBatch, policy: Policy) -> None:
    """Downvote the refuted ones among the `phage_count` weakest entries of each golem, every `phage_cycles` cycles."""
    tested_golems = wave.golem[wave.cycle % policy.curator.phage_cycles == 0]
    if not len(tested_golems):
        return
    tested = np.zeros(len(state.golems), bool)
    tested[tested_golems] = True
    refuted = _refuted(state, wave.rows[wave.count > 0], policy)
    if not tested[state["golem"][refuted]].any():
        return
    rows = wave.living(state)
    rows = rows[tested[state["golem"][rows]] & (state["decay_class"][rows] != CLASS_FACT) & (state["sign"][rows] != 0)]
    now = state.confidence_at(rows, wave.closing(state, rows), policy.decay)
    order = np.lexsort((state.structures.stable()[state["structure"][rows]], now, state["golem"][rows]))
    rows, now = rows[order], now[order]
    downvoted = (rank_within(state["golem"][rows]) < policy.curator.phage_count) & np.isin(rows, refuted)
    rows, now = rows[downvoted], now[downvoted]
    at = np.searchsorted(wave.rows, rows)
    vote(state, rows, now - ppm(policy.curator.downvote), wave.closing(state, rows), "contradictions")
    wave.note(state, CONTRADICTED, rows, now, wave.causes[at])


def _refuted(state: GrimoireState, rows: Int64Array, policy: Policy) -> Int64Array:
    """Return the active rules among these rows whose whole own evidence points the other way."""
    rows = rows[(state["status"][rows] == ACTIVE) & (state["decay_class"][rows] != CLASS_FACT)]
    count, total = state["own_count"][rows], state["own_sum"][rows]
    opposite = (np.sign(total) == -state["sign"][rows]) & (total != 0)
    total_min = policy.curator.effect_min_ppm * count
    return np.asarray(rows[opposite & (count >= policy.curator.cluster_min) & (np.abs(total) >= total_min)])
