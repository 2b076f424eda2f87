"""Gas spans: rules that cover several gas bands, and their split into one row per band. Pure.

A rule about a span of neighbouring bands makes its claim about every band of the span.
Source: MEM (Curator: "compress").
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.record.arrow_columns import contiguous
from bardo_pipeline.grimoire.entries import GAS_BANDS
from bardo_pipeline.grimoire.entry_columns import with_columns

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
    structures = contiguous(rows["structure"]).dictionary_encode()
    keys = structures.dictionary.to_pylist()
    if not any(_bands(key) for key in keys):
        return rows
    words = pa.list_(pa.string())
    parts = pa.array([band_keys(key) or (key,) for key in keys], words).take(structures.indices)
    bands = pa.array([_bands(key) or (None,) for key in keys], words).take(structures.indices)
    split = rows.take(pc.list_parent_indices(parts))
    columns = {"structure": pc.list_flatten(parts)}
    if "gas_band" in rows.column_names:
        columns["gas_band"] = pc.coalesce(pc.list_flatten(bands), split["gas_band"])
    return with_columns(split, **columns)
