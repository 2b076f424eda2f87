"""Turns a bundle into the heir's first entries, decisions and defaults. Pure.

Source: INH S7.5, S12, S13; canon 2, 3, 10; architecture ("an heir's fold starts from the recorded bundle").
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.clock import micros_of
from bardo_pipeline.curator.playbook import threshold_rules, thresholds
from bardo_pipeline.curator.state.decision_log import DECISION_SCHEMA, OPERATIONS, REASONS, RECEIVED, STAGED
from bardo_pipeline.curator.state.grimoire_state import entry_ids, from_table
from bardo_pipeline.events.life.succession_events import Default
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.confidence import attenuated, ppm
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA, MOMENT
from bardo_pipeline.grimoire.entry_columns import int_column, with_columns
from bardo_pipeline.inheritance.bundle_files import Bundle
from bardo_pipeline.inheritance.choice_evidence import evidence_of, with_evidence
from bardo_pipeline.inheritance.weismann import SHED_COLUMNS, with_fade_time
from bardo_pipeline.policy import Policy


def inherited_entries(
    bundle: Bundle, heir_id: str, policy: Policy, withdrawn: frozenset[str] = frozenset(), *, bought: bool = False
) -> pa.Table:
    """Return the heir's entries at birth: ENTRY_SCHEMA sorted by entry. BundleError if the entries cannot be read.

    The entries of a bundle are attenuated already.

    Parameters
    ----------
    withdrawn : ids of entries in the bundle that the heir does not get (canon 20)
    bought : the bundle is another owner's: no entry exceeds the confidence of a purchase (canon 3)
    """
    crossed = bundle.entries()
    if withdrawn:
        is_withdrawn = pc.is_in(crossed["entry_id"], value_set=pa.array(sorted(withdrawn), pa.string()))
        crossed = crossed.filter(pc.invert(is_withdrawn))
    if bought:
        crossed = with_columns(crossed, confidence_ppm=purchased_ppm(crossed, policy))
    named = crossed.append_column("golem_id", pa.repeat(heir_id, crossed.num_rows))
    return as_inherited(named, policy)


def with_bundle_evidence(
    inherited: pa.Table,
    bundle: Bundle,
    heir_id: str,
    policy: Policy,
    withdrawn: frozenset[str] = frozenset(),
    *,
    bought: bool = False,
) -> pa.Table:
    """Return `inherited_entries` with the bundle's evidence about choices; a bought bundle gives none.

    The parameters are those of `inherited_entries`.
    """
    return inherited if bought else with_evidence(inherited, evidence_of(bundle.learning), heir_id, policy, withdrawn)


def purchased_ppm(crossed: pa.Table, policy: Policy) -> Int64Array:
    """Return the confidence of bought entries in ppm: 0.3 x 0.85^(crossings - 1), at most the entry's own."""
    crossings = np.maximum(int_column(crossed, "generation"), 1)
    limit = ppm(policy.library.purchase_confidence) * policy.inheritance.attenuation ** (crossings - 1)
    return np.minimum(np.rint(limit).astype(np.int64), int_column(crossed, "confidence_ppm"))


def as_inherited(crossed: pa.Table, policy: Policy) -> pa.Table:
    """Return crossed entries as active entries of their heirs (`golem_id`): ENTRY_SCHEMA, sorted.

    Own sums, confirmations and cycles start at 0. The provenance is the death testament; the origin golem is kept.
    """
    count = crossed.num_rows
    columns: dict[str, Any] = {name: crossed.column(name) for name in crossed.column_names}
    columns |= dict.fromkeys(SHED_COLUMNS, np.zeros(count, np.int64))
    columns |= {
        "status": pa.repeat("active", count),
        "provenance": pa.repeat("death_testament", count),
        "fades_at": pa.nulls(count, MOMENT),
    }
    table = pa.table({name: columns[name] for name in ENTRY_SCHEMA.names}).cast(ENTRY_SCHEMA)
    return with_fade_time(table, policy).sort_by([("golem_id", "ascending"), ("entry_id", "ascending")])


def received_decisions(rows: pa.Table, bundle_hash: str, at: datetime, policy_hash: str) -> pa.Table:
    """Return the heir's first decisions (DECISION_SCHEMA, cycle 0), one per row, caused by the bundle.

    An entry is `received`; a candidate with inherited evidence is `staged`.
    rows: `inherited_entries` of one heir, with evidence or without; folding the decisions returns these rows.
    """
    rows = rows.sort_by("entry_id")
    count = rows.num_rows
    zeros = np.zeros(count, np.int64)
    is_candidate = pc.equal(rows["status"], "candidate")
    columns: dict[str, Any] = {name: rows.column(name) for name in ENTRY_SCHEMA.names}
    columns |= {
        "revision": zeros,
        "cycle": zeros,
        "seq": np.arange(count),
        "at": pa.repeat(pa.scalar(at, MOMENT), count),
        "operation": pc.if_else(is_candidate, OPERATIONS[STAGED], OPERATIONS[RECEIVED]),
        "reason": pc.if_else(is_candidate, REASONS[STAGED], REASONS[RECEIVED]),
        "confidence_before_ppm": zeros,
        "cause_ticks": pa.array([[]] * count, DECISION_SCHEMA.field("cause_ticks").type),
        "cause_bundle": pa.repeat(bundle_hash, count),
        "cause_event": pa.nulls(count, pa.string()),
        "policy_hash": pa.repeat(policy_hash, count),
    }
    return pa.table({name: columns[name] for name in DECISION_SCHEMA.names}).cast(DECISION_SCHEMA)


def defaults_of(inherited: pa.Table, died_at: datetime, threshold: float, policy: Policy) -> tuple[Default, ...]:
    """Return one Default per regime whose threshold the inherited rules move, in the order of REGIMES.

    A default needs no retrieval and does not decay (Baldwin effect). The rule also crosses as an entry, so the heir's
    own outcomes still confirm or contradict it and move the threshold.
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
    at_us = micros_of(died_at)
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
