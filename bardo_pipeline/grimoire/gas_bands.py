"""Gas spans: rules that cover several gas bands, and their split into one row per band. Pure.

A rule about a span of neighbouring bands makes its claim about every band of the span.
Source: MEM (Curator: "compress").
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.grimoire.entries import GAS_BANDS

WIDE_GAS_BANDS = {"not_dear": ("cheap", "normal"), "not_cheap": ("normal", "dear"), "any": GAS_BANDS}
"""Names of spans of neighbouring gas bands, with their bands."""

GAS_SPANS = (*GAS_BANDS, *WIDE_GAS_BANDS)
"""Every value of a rule's gas band, single bands first."""

SINGLE = len(GAS_BANDS)

COVERS = np.array([[band in WIDE_GAS_BANDS.get(span, (span,)) for band in GAS_BANDS] for span in GAS_SPANS])
"""Bands covered by each span. bool [spans, bands]."""


def band_keys(structure: str) -> tuple[str, ...]:
    """Return the structure keys of the single bands that a wider rule covers; empty for any other structure."""
    scene = structure.removesuffix("|-").rpartition("|")[0]
    return tuple(f"{scene}|{band}|-" for band in _bands(structure))


def _bands(structure: str) -> tuple[str, ...]:
    """Return the bands of a wider rule's structure key; empty for any other structure."""
    if not structure.startswith("pattern|") or not structure.endswith("|-"):
        return ()
    return WIDE_GAS_BANDS.get(structure.removesuffix("|-").rpartition("|")[2], ())


def split_by_band(rows: pa.Table) -> pa.Table:
    """Replace each row about a wider rule by one row per band, in the given order.

    rows: any table with a column `structure`; a column `gas_band` is replaced too, all others are repeated.
    """
    keys = rows["structure"].unique().to_pylist()
    bands = [_bands(key) for key in keys]
    if not any(bands):
        return rows
    key_index = pc.index_in(rows["structure"], value_set=pa.array(keys, pa.string())).to_numpy()
    count = np.array([max(len(key_bands), 1) for key_bands in bands])
    row = np.repeat(np.arange(rows.num_rows), count[key_index])
    inside = np.arange(len(row)) - np.repeat(np.cumsum(count[key_index]) - count[key_index], count[key_index])
    place = pa.array((np.cumsum(count) - count)[key_index][row] + inside)
    out = rows.take(pa.array(row))
    structures = pa.array([part for key in keys for part in band_keys(key) or (key,)], pa.string()).take(place)
    out = out.set_column(out.schema.get_field_index("structure"), rows.schema.field("structure"), structures)
    if "gas_band" not in rows.column_names:
        return out
    single = pa.array([band for key_bands in bands for band in key_bands or (None,)], pa.string()).take(place)
    band = pc.coalesce(single, out["gas_band"])
    return out.set_column(out.schema.get_field_index("gas_band"), rows.schema.field("gas_band"), band)
