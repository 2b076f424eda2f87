"""Spans: gas bands that a wider rule takes together, and such a rule told band by band. Pure.

A rule about neighbouring bands stands for those about each: it says of every one of them what it says.
Source: MEM (Curator: "compress").
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.grimoire.entries import GAS_BANDS

WIDE_GAS_BANDS = {"not_dear": ("cheap", "normal"), "not_cheap": ("normal", "dear"), "any": GAS_BANDS}
"""Names of what spans neighbouring gas bands, and the bands that it spans."""

GAS_SPANS = (*GAS_BANDS, *WIDE_GAS_BANDS)
"""Every gas band that a rule may be about, single ones first."""

SINGLE = len(GAS_BANDS)

COVERS = np.array([[band in WIDE_GAS_BANDS.get(span, (span,)) for band in GAS_BANDS] for span in GAS_SPANS])
"""Which bands each span takes in. bool [spans, bands]."""


def band_keys(structure: str) -> tuple[str, ...]:
    """The keys of the structures that a wider rule's structure (its key) stands for; none for any other."""
    scene = structure.removesuffix("|-").rpartition("|")[0]
    return tuple(f"{scene}|{band}|-" for band in _bands(structure))


def _bands(structure: str) -> tuple[str, ...]:
    """The bands that a wider rule's structure spans; none for any other."""
    if not structure.startswith("pattern|") or not structure.endswith("|-"):
        return ()
    return WIDE_GAS_BANDS.get(structure.removesuffix("|-").rpartition("|")[2], ())


def split_by_band(rows: pa.Table) -> pa.Table:
    """Rows about structures, with each of a wider rule as one a band that it spans, in their order.

    rows: any table with a column `structure`; a column `gas_band` follows it, everything else is repeated.
    """
    keys = rows["structure"].unique().to_pylist()
    bands = [_bands(key) for key in keys]
    if not any(bands):
        return rows
    kinds = pc.index_in(rows["structure"], value_set=pa.array(keys, pa.string())).to_numpy()
    count = np.array([max(len(some), 1) for some in bands])
    row = np.repeat(np.arange(rows.num_rows), count[kinds])
    inside = np.arange(len(row)) - np.repeat(np.cumsum(count[kinds]) - count[kinds], count[kinds])
    place = pa.array((np.cumsum(count) - count)[kinds][row] + inside)
    out = rows.take(pa.array(row))
    told = pa.array([word for key in keys for word in band_keys(key) or (key,)], pa.string()).take(place)
    out = out.set_column(out.schema.get_field_index("structure"), rows.schema.field("structure"), told)
    if "gas_band" not in rows.column_names:
        return out
    single = pa.array([word for some in bands for word in some or (None,)], pa.string()).take(place)
    band = pc.coalesce(single, out["gas_band"])
    return out.set_column(out.schema.get_field_index("gas_band"), rows.schema.field("gas_band"), band)
