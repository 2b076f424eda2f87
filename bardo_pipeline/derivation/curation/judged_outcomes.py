"""Judged outcomes: the mean effect of each situation's judged decisions, by golem and tick.

quality/calibration.py compares beliefs with them. Source: X-3, X-5 (beliefs against recorded outcomes).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.evidence import EVIDENCE_COLUMNS, gather_evidence
from bardo_pipeline.curator.state.structures import Structures
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.retraction_tracking import without_retracted
from bardo_pipeline.events.record.arrow_columns import contiguous
from bardo_pipeline.grimoire.entry_columns import moments
from bardo_pipeline.policy import CuratorPolicy
from bardo_pipeline.quality.calibration import OUTCOME_SCHEMA


def judged_outcomes(context: DerivationContext, golems: Sequence[str] | None = None) -> pa.Table:
    """Return the verified outcomes (OUTCOME_SCHEMA) of all golems or of these, without those of retracted records."""
    rows = without_retracted(context.log.read_cycles(EVIDENCE_COLUMNS, golems=golems), context.left_out())
    return outcomes_of(rows, context.policy.curator)


def outcomes_of(records: pa.Table, policy: CuratorPolicy) -> pa.Table:
    """Return the outcomes in records (EVIDENCE_COLUMNS), by golem and time.

    Judgements of one situation in one tick become one outcome with their mean effect. The policy's bands define which
    situations are equal.
    """
    has_resolutions = pc.list_value_length(contiguous(records["resolutions"])).to_numpy(zero_copy_only=False) > 0
    records = records.filter(pa.array(has_resolutions))
    if not records.num_rows:
        return OUTCOME_SCHEMA.empty_table()
    golem_ids = records["golem_id"].unique()
    golem = pc.index_in(records["golem_id"], value_set=golem_ids).to_numpy().astype(np.int64)
    tick, structures = records["tick"].to_numpy().astype(np.int64), Structures()
    evidence = gather_evidence(records, golem=golem, cycle=tick, structures=structures, policy=policy)
    is_pattern = np.array([row.source == "pattern" for row in structures.rows], bool)[evidence.structure]
    judged_golem, judged_tick = evidence.golem[is_pattern], evidence.cycle[is_pattern]
    order = np.argsort(golem << 40 | tick)
    record = order[np.searchsorted((golem << 40 | tick)[order], judged_golem << 40 | judged_tick)]
    keys = pa.array([row.key for row in structures.rows], pa.string())
    columns = [
        pa.array(golem_ids).take(pa.array(judged_golem)),
        keys.take(pa.array(evidence.structure[is_pattern])),
        moments(records["observed_at"].cast(pa.int64()).to_numpy()[record]),
        pa.array(evidence.total[is_pattern] // np.maximum(evidence.count[is_pattern], 1), pa.int64()),
    ]
    table = pa.table(columns, schema=OUTCOME_SCHEMA)
    return table.sort_by([("golem_id", "ascending"), ("at", "ascending"), ("structure", "ascending")])
