"""The Baldwin effect: rules that survived three generations surely become defaults of the heir's configuration. Pure.

A default needs no retrieval and does not fade: the heir's thresholds start from it. The rule itself crosses as an entry
beside it, so that the heir's own outcomes go on judging it, and what they teach moves the threshold from there, either
way. Source: INH S7.5, canon 10.
"""

from __future__ import annotations

from datetime import datetime

import numpy as np
import pyarrow as pa

from bardo_pipeline.curator.playbook import entry_ids, moving, thresholds
from bardo_pipeline.curator.state.grimoire_state import from_table
from bardo_pipeline.events.life.inherited_defaults import Default
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.confidence import attenuated, ppm
from bardo_pipeline.policy import Policy


def defaults_of(inherited: pa.Table, died_at: datetime, threshold: float, policy: Policy) -> tuple[Default, ...]:
    """What becomes a default of an heir. Returns one Default a regime that its rules move, in the order of REGIMES.

    inherited: the heir's entries at birth (ENTRY_SCHEMA, one golem), as they crossed. died_at: when they crossed.
    threshold: the heir's own, from its traits. A rule qualifies that had survived as many generations before this
    crossing as the policy asks, and stood at 0.7 or more at death: at 0.7 x 0.85 after it. Where crossing resets
    confidence, nothing tells any more how sure the dead were, and nothing qualifies.
    """
    rules = policy.inheritance
    if not inherited.num_rows or rules.weismann == "reset":
        return ()
    state = from_table(inherited)
    rows = moving(state)
    at_us = round(died_at.timestamp() * 1_000_000)
    least = int(attenuated(np.array([ppm(rules.baldwin_confidence)]), rules.attenuation)[0])
    sure = state.confidence_at(rows, at_us, policy.decay) >= least
    rows = rows[sure & (state["generation"][rows] > rules.baldwin_generation)]
    if not len(rows):
        return ()
    base = np.full((1, len(REGIMES)), threshold)
    wanted = thresholds(state, state["golem"][rows[:1]], rows, base, policy)[0].tolist()
    regime = state.structures.bands()[0][state["structure"][rows]]
    names = np.array(entry_ids(state, rows), dtype=object)
    return tuple(
        Default(regime=name, rebalance_threshold=wanted[i], entry_ids=tuple(sorted(names[regime == i])))
        for i, name in enumerate(REGIMES)
        if wanted[i] != threshold
    )
