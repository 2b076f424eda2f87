"""Turns rules that survived three generations with high confidence into defaults of the heir (Baldwin effect). Pure.

A default needs no retrieval and does not decay: the heir's thresholds start from it. The rule also crosses as an entry,
so the heir's own outcomes still confirm or contradict it and move the threshold. Source: INH S7.5, canon 10.
"""

from __future__ import annotations

from datetime import datetime

import numpy as np
import pyarrow as pa

from bardo_pipeline.curator.playbook import entry_ids, threshold_rules, thresholds
from bardo_pipeline.curator.state.grimoire_state import from_table
from bardo_pipeline.events.life.inherited_defaults import Default
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.confidence import attenuated, ppm
from bardo_pipeline.policy import Policy


def defaults_of(inherited: pa.Table, died_at: datetime, threshold: float, policy: Policy) -> tuple[Default, ...]:
    """Return one Default per regime whose threshold the inherited rules move, in the order of REGIMES.

    A rule qualifies if it survived more than `baldwin_generation` crossings with `baldwin_confidence` at death.
    With `weismann = "reset"` no rule qualifies, because the confidence at death is lost.

    Parameters
    ----------
    inherited : pa.Table, ENTRY_SCHEMA, the entries of one heir at birth
    died_at : datetime, time of the crossing
    threshold : float, the heir's own threshold from its traits
    """
    rules = policy.inheritance
    if not inherited.num_rows or rules.weismann == "reset":
        return ()
    state = from_table(inherited)
    rows = threshold_rules(state)
    at_us = round(died_at.timestamp() * 1_000_000)
    least = int(attenuated(np.array([ppm(rules.baldwin_confidence)]), rules.attenuation)[0])
    is_confident = state.confidence_at(rows, at_us, policy.decay) >= least
    rows = rows[is_confident & (state["generation"][rows] > rules.baldwin_generation)]
    if not len(rows):
        return ()
    base = np.full((1, len(REGIMES)), threshold)
    new_thresholds = thresholds(state, state["golem"][rows[:1]], rows, base, policy)[0].tolist()
    regime = state.structures.bands()[0][state["structure"][rows]]
    names = np.array(entry_ids(state, rows), dtype=object)
    return tuple(
        Default(regime=name, rebalance_threshold=new_thresholds[i], entry_ids=tuple(sorted(names[regime == i])))
        for i, name in enumerate(REGIMES)
        if new_thresholds[i] != threshold
    )
