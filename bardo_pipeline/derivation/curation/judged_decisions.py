"""Judgements: every decision that was judged since, as the records tell it: what graders hold a memory against.

Source: X-5, X-3.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.evidence import flatten_lists
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.retraction_tracking import without_retracted
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, GAS_BANDS, MOMENT
from bardo_pipeline.grimoire.entry_columns import contiguous

COLUMNS = ("golem_id", "tick", "observed_at", "observation", "resolutions")

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
"""One row per judged decision: the structure of its situation, when the verdict came, and the effect of acting beside
holding in ppm of the position's value. By golem and moment."""


def judgements(context: DerivationContext) -> pa.Table:
    """All verified judgements on record (JUDGEMENT_SCHEMA), without what is left out."""
    records = without_retracted(context.source.read_cycles(list(COLUMNS), None), context.left_out())
    row, parts = flatten_lists(contiguous(records["resolutions"]))
    keep = pc.struct_field(parts, "verified").to_numpy(zero_copy_only=False).astype(bool)
    row, parts = row[keep], parts.filter(pa.array(keep))
    rules = context.policy.curator
    band, gas = (
        np.searchsorted(edges, pc.struct_field(parts, name).to_numpy(zero_copy_only=False), side="right")
        for name, edges in (("anomaly_score", rules.anomaly_edges), ("gas_ratio", rules.gas_edges))
    )
    columns = {
        "golem_id": records["golem_id"].take(pa.array(row)),
        "regime": pc.struct_field(parts, "regime"),
        "anomaly_band": pa.array(ANOMALY_BANDS).take(pa.array(band)),
        "gas_band": pa.array(GAS_BANDS).take(pa.array(gas)),
        "at": records["observed_at"].take(pa.array(row)),
        "effect_ppm": pc.struct_field(parts, "effect_ppm"),
    }
    columns["structure"] = _structures(records, row, parts, band, gas)
    table = pa.table({name: columns[name] for name in JUDGEMENT_SCHEMA.names}).cast(JUDGEMENT_SCHEMA)
    return table.sort_by([("golem_id", "ascending"), ("at", "ascending"), ("structure", "ascending")])


def _structures(
    records: pa.Table, row: np.ndarray, parts: pa.StructArray, band: np.ndarray, gas: np.ndarray
) -> pa.Array:
    """The key of each judgement's structure; equal situations are written once."""
    observation = contiguous(records["observation"]).take(pa.array(row))
    words = [pc.struct_field(observation, n) for n in ("chain", "protocol", "pair")]
    words += [pc.struct_field(parts, n) for n in ("tool_name", "action_type")]
    coded = [word.dictionary_encode() for word in words]
    regime = pc.index_in(pc.struct_field(parts, "regime"), value_set=pa.array(REGIMES)).to_numpy(zero_copy_only=False)
    codes = [c.indices.to_numpy(zero_copy_only=False).astype(np.int64) for c in coded]
    packed = np.stack([*codes, regime.astype(np.int64), band, gas], axis=1)
    unique, inverse = np.unique(packed, axis=0, return_inverse=True)
    named = [c.dictionary.to_pylist() for c in coded]
    keys = [
        Structure(
            "pattern", named[0][c], named[1][p], named[2][q], named[3][t], named[4][a], REGIMES[r], ANOMALY_BANDS[b],
            GAS_BANDS[g],
        ).key
        for c, p, q, t, a, r, b, g in unique.tolist()
    ]  # fmt: skip
    return pa.array(keys, pa.string()).take(pa.array(inverse.reshape(-1)))
