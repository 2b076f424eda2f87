"""Outcomes: the judged decisions on record, each under the structure of its situation.

Source: X-3, X-5 (beliefs against recorded outcomes); quality/calibration.py compares the two.
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
from bardo_pipeline.grimoire.entry_columns import contiguous, moments
from bardo_pipeline.policy import CuratorPolicy
from bardo_pipeline.quality.calibration import OUTCOME_SCHEMA


def judged_outcomes(context: DerivationContext, golems: Sequence[str] | None = None) -> pa.Table:
    """Every verified judgement that stands, OUTCOME_SCHEMA, by golem and tick; of all golems or of these."""
    rows = context.log.read_cycles(EVIDENCE_COLUMNS, golems=golems)
    rows = without_retracted(rows, context.left_out())
    return outcomes_of(rows, context.policy.curator)


def outcomes_of(records: pa.Table, policy: CuratorPolicy) -> pa.Table:
    """The judgements in these records (EVIDENCE_COLUMNS). Those of one situation in one tick are one, by their mean.

    Which situations are the same, the policy's bands decide.
    """
    told = pc.list_value_length(contiguous(records["resolutions"])).to_numpy(zero_copy_only=False) > 0
    records = records.filter(pa.array(told))
    if not records.num_rows:
        return OUTCOME_SCHEMA.empty_table()
    names = records["golem_id"].unique()
    golem = pc.index_in(records["golem_id"], value_set=names).to_numpy().astype(np.int64)
    tick, structures = records["tick"].to_numpy().astype(np.int64), Structures()
    found = gather_evidence(records, golem=golem, cycle=tick, structures=structures, policy=policy)
    judged = np.array([row.source == "pattern" for row in structures.rows], bool)[found.structure]
    who, when = found.golem[judged], found.cycle[judged]
    order = np.argsort(golem << 40 | tick)
    place = order[np.searchsorted((golem << 40 | tick)[order], who << 40 | when)]
    keys = pa.array([row.key for row in structures.rows], pa.string())
    columns = [
        pa.array(names).take(pa.array(who)),
        keys.take(pa.array(found.structure[judged])),
        moments(records["observed_at"].cast(pa.int64()).to_numpy()[place]),
        pa.array(found.total[judged] // np.maximum(found.count[judged], 1), pa.int64()),
    ]
    table = pa.table(columns, schema=OUTCOME_SCHEMA)
    return table.sort_by([("golem_id", "ascending"), ("at", "ascending"), ("structure", "ascending")])
