"""Count the keys of JSON records over many lines, because Arrow's reader reads an absent key as null.

Source: facts ("Reading JSON").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.events.record.model import DecisionCycleRecord
from bardo_pipeline.events.record.repeated_keys import OPTIONAL, field_names

_KEY = re.compile(rb'"([^"\\]*)":')
_ESCAPE, _END_OF_KEY = ord("\\"), int.from_bytes(b'":', "little")
_PART = 2**16


def keys_add_up(block: memoryview, rows: pa.Table) -> bool:
    """Whether every required key is present. rows: the block as Arrow read it, one chunk per column.

    Arrow refuses unknown and repeated keys, so it is enough to count them.
    """
    octets = np.frombuffer(block, np.uint8)
    present = _keys_in(octets)
    if any((part == _ESCAPE).any() for part in _parts(octets)):
        present -= bytes(block).count(b'\\":')
    columns = [(rows.column(at).chunk(0), objects) for at, objects in _RECORDS.nested]
    if present == len(rows) * _RECORDS.keys + sum(_keys_of(column, objects)[0] for column, objects in columns):
        return True
    wanted = len(rows) * _RECORDS.needed + sum(_keys_of(column, objects)[1] for column, objects in columns)
    return present == wanted + sum(bytes(block).count(b'"%s":' % name.encode()) for name in OPTIONAL)


def with_other_keys(block: memoryview) -> list[int]:
    """Return the lines with an unknown key or without a required key of the record; Arrow does not name them."""
    keys = [frozenset(_KEY.findall(line)) for line in bytes(block).split(b"\n")]
    return [at for at, line_keys in enumerate(keys) if not _NEEDED <= line_keys <= _NAMES]


def _keys_in(octets: NDArray[np.uint8]) -> int:
    """Count `":` in a text, six times faster than bytes.count."""
    even, odd = (octets[first : len(octets) - (len(octets) - first) % 2].view("<u2") for first in (0, 1))
    return sum(int(np.count_nonzero(part == _END_OF_KEY)) for pairs in (even, odd) for part in _parts(pairs))


def _parts(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Split values into parts that fit into the CPU cache."""
    return (values[at : at + _PART] for at in range(0, len(values), _PART))


def _keys_of(array: pa.Array, objects: _Objects) -> tuple[int, int]:
    """Return the number of keys that these objects may have, at any depth, and of those that are required."""
    for _ in range(objects.lists):
        array = array.values
    count = len(array) - array.null_count
    keys, needed = count * objects.keys, count * objects.needed
    for at, inner in objects.nested:
        more = _keys_of(array.field(at), inner)
        keys, needed = keys + more[0], needed + more[1]
    return keys, needed


_NAMES = frozenset(name.encode() for name in field_names(DecisionCycleRecord))
"""Names of all fields at any depth, as bytes."""

_NEEDED = frozenset(name.encode() for name in set(RECORD_SCHEMA.names) - OPTIONAL)
"""Required keys of a record."""


class _Objects(NamedTuple):
    """A kind of object: depth of lists around it, numbers of possible and required keys, nested objects by index."""

    lists: int
    keys: int
    needed: int
    nested: tuple[tuple[int, _Objects], ...]


def _objects_in(kind: pa.DataType) -> _Objects | None:
    """Return the objects in a column of this type; None without any."""
    lists = 0
    while pa.types.is_list(kind):
        kind, lists = kind.value_type, lists + 1
    if not pa.types.is_struct(kind):
        return None
    inner = ((at, _objects_in(field.type)) for at, field in enumerate(kind))
    nested = tuple((at, objects) for at, objects in inner if objects is not None)
    return _Objects(lists, kind.num_fields, sum(field.name not in OPTIONAL for field in kind), nested)


_RECORD = _objects_in(pa.struct(list(RECORD_SCHEMA)))
assert _RECORD is not None, "a record is an object"
_RECORDS = _RECORD
