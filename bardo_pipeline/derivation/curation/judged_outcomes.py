"""Judged decisions (one row per verified resolution) and judged outcomes (their mean by situation, golem and tick).

Evaluations compare a golem's memory with judged decisions, quality/calibration.py its beliefs with judged outcomes.
Source: X-3, X-5.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.evidence import EVIDENCE_COLUMNS, flatten_lists, gather_evidence
from bardo_pipeline.curator.state.structures import Structure, Structures
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.retraction_tracking import without_retracted
from bardo_pipeline.events.record.arrow_columns import all_required, contiguous, required
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, GAS_BANDS, MOMENT
from bardo_pipeline.grimoire.entry_columns import moments
from bardo_pipeline.quality.calibration import OUTCOME_SCHEMA


def judged_outcomes(context: DerivationContext, golems: Sequence[str] | None = None) -> pa.Table:
    """Return the verified outcomes (OUTCOME_SCHEMA) of all golems or of these, without those of retracted records.

    Judgements of one situation in one tick become one outcome with their mean effect. The policy's bands define which
    situations are equal. Rows are sorted by golem and time.
    """
    records = without_retracted(context.log.read_cycles(EVIDENCE_COLUMNS, golems=golems), context.left_out())
    has_resolutions = pc.list_value_length(contiguous(records["resolutions"])).to_numpy(zero_copy_only=False) > 0
    records = records.filter(pa.array(has_resolutions))
    if not records.num_rows:
        return OUTCOME_SCHEMA.empty_table()
    golem_ids = records["golem_id"].unique()
    golem = pc.index_in(records["golem_id"], value_set=golem_ids).to_numpy().astype(np.int64)
    tick, structures = records["tick"].to_numpy().astype(np.int64), Structures()
    evidence = gather_evidence(records, golem=golem, cycle=tick, structures=structures, policy=context.policy.curator)
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


_RECORD_COLUMNS = ("golem_id", "tick", "observed_at", "observation", "resolutions")

JUDGEMENT_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "golem_id", "structure", "regime", "anomaly_band", "gas_band"),
        required("at", MOMENT),
        required("effect_ppm", pa.int64()),
    ]
)
"""One row per judged decision, by golem and time of the verdict. structure: key of the situation. effect_ppm: of acting
compared with holding, in ppm of the position's value."""


def judgements(context: DerivationContext) -> pa.Table:
    """Return all verified judgements on record (JUDGEMENT_SCHEMA), without those of retracted records."""
    records = without_retracted(context.source.read_cycles(list(_RECORD_COLUMNS), None), context.left_out())
    row, resolutions = flatten_lists(contiguous(records["resolutions"]))
    is_verified = pc.struct_field(resolutions, "verified").to_numpy(zero_copy_only=False).astype(bool)
    row, resolutions = pa.array(row[is_verified]), resolutions.filter(pa.array(is_verified))
    policy = context.policy.curator
    bands = {
        "anomaly_band": _band(resolutions, "anomaly_score", policy.anomaly_edges, ANOMALY_BANDS),
        "gas_band": _band(resolutions, "gas_ratio", policy.gas_edges, GAS_BANDS),
    }
    observation = contiguous(records["observation"]).take(row)
    situation = [pc.struct_field(observation, n) for n in ("chain", "protocol", "pair")]
    situation += [pc.struct_field(resolutions, n) for n in ("tool_name", "action_type", "regime")]
    columns = {
        "golem_id": records["golem_id"].take(row),
        "structure": _structure_keys([*situation, *bands.values()]),
        "regime": pc.struct_field(resolutions, "regime"),
        **bands,
        "at": records["observed_at"].take(row),
        "effect_ppm": pc.struct_field(resolutions, "effect_ppm"),
    }
    table = pa.table({name: columns[name] for name in JUDGEMENT_SCHEMA.names}).cast(JUDGEMENT_SCHEMA)
    return table.sort_by([("golem_id", "ascending"), ("at", "ascending"), ("structure", "ascending")])


def _band(resolutions: pa.Array, name: str, edges: Sequence[float], bands: Sequence[str]) -> pa.Array:
    values = pc.struct_field(resolutions, name).to_numpy(zero_copy_only=False)
    return pa.array(bands).take(pa.array(np.searchsorted(edges, values, side="right")))


def _structure_keys(columns: Sequence[pa.Array]) -> pa.Array:
    """Return the structure key of each situation: chain to gas_band, in the order of Structure's fields."""
    situations = list(zip(*(column.to_pylist() for column in columns), strict=True))
    keys = {situation: Structure("pattern", *situation).key for situation in set(situations)}
    return pa.array([keys[situation] for situation in situations], pa.string())
