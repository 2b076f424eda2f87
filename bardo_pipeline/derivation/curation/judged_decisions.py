"""Judged decisions: one row per verified resolution in the records. Evaluations compare a golem's memory with them.

Source: X-5, X-3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.evidence import flatten_lists
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.retraction_tracking import without_retracted
from bardo_pipeline.events.record.arrow_columns import all_required, contiguous, required
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, GAS_BANDS, MOMENT

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
