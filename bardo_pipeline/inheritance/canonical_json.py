"""Writes canonical JSON: a value, or a table as JSON lines; equal content gives equal bytes. Pure.

Keys are sorted, times are UTC, and there is no whitespace. A table is serialized column by column.
Source: canon 41, architecture ("Bundles are content-addressed records").
"""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_UTC_Z


def canonical(value: Any) -> bytes:
    """Return a value as one line of JSON with sorted keys and UTC times."""
    return orjson.dumps(value, option=_OPTIONS | orjson.OPT_APPEND_NEWLINE)


def jsonl(table: pa.Table) -> bytes:
    """Return one canonical line per row; times round-trip exactly."""
    parts: list[pa.Array | pa.Scalar] = []
    lead = "{"
    for name in sorted(table.column_names):
        before, values, after = _serialized(table.column(name).combine_chunks())
        lead += f"{orjson.dumps(name).decode()}:{before}"
        if values is not None:
            parts += [pa.scalar(lead), values]
            lead = ""
        lead += f"{after},"
    end = f"{lead.removesuffix(',')}}}\n"
    if not table.num_rows or not parts:
        return end.encode() * table.num_rows
    _, _, content = pc.binary_join_element_wise(*parts, end, "").buffers()
    return bytes(content.to_pybytes())


def _serialized(values: pa.Array) -> tuple[str, pa.Array | None, str]:
    """Return (prefix, JSON texts, suffix) of a column; texts is None if every value is null."""
    kind = values.type
    if values.null_count == len(values):
        return "null", None, ""
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "", pc.fill_null(values.cast(pa.string()), "null"), ""
    if pa.types.is_timestamp(kind) and not values.null_count:  # naive cast: faster than casting with a zone
        return '"', values.cast(pa.int64()).cast(pa.timestamp(kind.unit)).cast(pa.string()), 'Z"'
    if pa.types.is_string(kind) and not values.null_count and _is_plain(values):
        return '"', values, '"'
    plain_values = values.cast(pa.string()) if pa.types.is_timestamp(kind) else values
    dumped = [orjson.dumps(value, option=_OPTIONS).decode() for value in plain_values.to_pylist()]
    return "", pa.array(dumped, pa.string()), ""


def _is_plain(texts: pa.Array) -> bool:
    """Return whether the texts need no JSON escapes: no quote, backslash or control character."""
    _, offsets, content = texts.buffers()
    if content is None:
        return True
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    letters = np.frombuffer(content, np.uint8)[bounds[0] : bounds[-1]]
    return not ((letters < 0x20) | (letters == 0x22) | (letters == 0x5C)).any()
