"""Judged decisions: one row per verified resolution in the records. Evaluations compare a golem's memory with them.

Source: X-5, X-3.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.curator.state.evidence import flatten_lists
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.retraction_tracking import without_retracted
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, GAS_BANDS, MOMENT
from bardo_pipeline.grimoire.entry_columns import contiguous

_RECORD_COLUMNS = ("golem_id", "tick", "observed_at", "observation", "resolutions")

JUDGEMENT_SCHEMA = pa.schema(
    [
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("structure", pa.string(), nullable=False),
        pa.field("regime", pa.string(), nullable=False),
        pa.field("anomaly_band", pa.string(), nullable=False),
        pa.field("gas_band", pa.string(), nullable=False),
        pa.field("at", MOMENT, nullable=False),
        pa.field("effect_ppm", pa.int64(), nullable=False),
    ]
)
"""One row per judged decision, by golem and time of the verdict. structure: key of the situation. effect_ppm: of acting
compared with holding, in ppm of the position's value."""


def judgements(context: DerivationContext) -> pa.Table:
    """Return all verified judgements on record (JUDGEMENT_SCHEMA), without those of retracted records."""
    records = without_retracted(context.source.read_cycles(list(_RECORD_COLUMNS), None), context.left_out())
    row, resolutions = flatten_lists(contiguous(records["resolutions"]))
    is_verified = pc.struct_field(resolutions, "verified").to_numpy(zero_copy_only=False).astype(bool)
    row, resolutions = row[is_verified], resolutions.filter(pa.array(is_verified))
    policy = context.policy.curator
    band, gas = (
        np.searchsorted(edges, pc.struct_field(resolutions, name).to_numpy(zero_copy_only=False), side="right")
        for name, edges in (("anomaly_score", policy.anomaly_edges), ("gas_ratio", policy.gas_edges))
    )
    columns = {
        "golem_id": records["golem_id"].take(pa.array(row)),
        "structure": _structure_keys(records, row, resolutions, band, gas),
        "regime": pc.struct_field(resolutions, "regime"),
        "anomaly_band": pa.array(ANOMALY_BANDS).take(pa.array(band)),
        "gas_band": pa.array(GAS_BANDS).take(pa.array(gas)),
        "at": records["observed_at"].take(pa.array(row)),
        "effect_ppm": pc.struct_field(resolutions, "effect_ppm"),
    }
    table = pa.table({name: columns[name] for name in JUDGEMENT_SCHEMA.names}).cast(JUDGEMENT_SCHEMA)
    return table.sort_by([("golem_id", "ascending"), ("at", "ascending"), ("structure", "ascending")])


def _structure_keys(
    records: pa.Table, row: Int64Array, resolutions: pa.StructArray, band: Int64Array, gas: Int64Array
) -> pa.Array:
    """Return the structure key of each resolution. Each distinct situation is formatted once."""
    observation = contiguous(records["observation"]).take(pa.array(row))
    words = [pc.struct_field(observation, n) for n in ("chain", "protocol", "pair")]
    words += [pc.struct_field(resolutions, n) for n in ("tool_name", "action_type")]
    encoded = [word.dictionary_encode() for word in words]
    regime = pc.index_in(pc.struct_field(resolutions, "regime"), value_set=pa.array(REGIMES))
    codes = [array.indices.to_numpy(zero_copy_only=False).astype(np.int64) for array in encoded]
    packed = np.stack([*codes, regime.to_numpy(zero_copy_only=False).astype(np.int64), band, gas], axis=1)
    unique, inverse = np.unique(packed, axis=0, return_inverse=True)
    names = [array.dictionary.to_pylist() for array in encoded]
    keys = [
        Structure(
            "pattern", names[0][c], names[1][p], names[2][q], names[3][t], names[4][a], REGIMES[r], ANOMALY_BANDS[b],
            GAS_BANDS[g],
        ).key
        for c, p, q, t, a, r, b, g in unique.tolist()
    ]  # fmt: skip
    return pa.array(keys, pa.string()).take(pa.array(inverse.reshape(-1)))
