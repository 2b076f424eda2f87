"""Keys of JSON records, counted over many lines at once: Arrow's reader takes an absent key for a null.

Source: facts ("Reading JSON").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

import numpy as np
import pyarrow as pa
from pydantic import BaseModel

from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.events.record.model import DecisionCycleRecord

_KEY = re.compile(rb'"([^"\\]*)":')
_ESCAPE, _END_OF_KEY = ord("\\"), int.from_bytes(b'":', "little")
_PART = 2**16


def keys_add_up(block: memoryview, rows: pa.Table) -> bool:
    """Whether every key that must be there is. rows: what Arrow read of the block, each column in one piece.

    A key can neither be unknown nor stand twice, or Arrow had refused it; so it is enough to count them.
    """
    octets = np.frombuffer(block, np.uint8)
    present = _keys_in(octets)
    if any((part == _ESCAPE).any() for part in _parts(octets)):
        present -= bytes(block).count(b'\\":')
    columns = [(rows.column(at).chunk(0), objects) for at, objects in _RECORDS.within]
    if present == len(rows) * _RECORDS.keys + sum(_keys_of(column, objects)[0] for column, objects in columns):
        return True
    wanted = len(rows) * _RECORDS.needed + sum(_keys_of(column, objects)[1] for column, objects in columns)
    return present == wanted + sum(bytes(block).count(b'"%s":' % name.encode()) for name in OPTIONAL)


def with_other_keys(block: memoryview) -> list[int]:
    """Lines with a key that no object has, or without one that each record has: Arrow's reader does not say where."""
    keys = [frozenset(_KEY.findall(line)) for line in bytes(block).split(b"\n")]
    return [at for at, found in enumerate(keys) if not _NEEDED <= found <= _NAMES]


def _keys_in(octets: np.ndarray) -> int:
    """How often `":` stands in a text (uint8); in a sixth of the time that counting it as text takes."""
    even, odd = (octets[first : len(octets) - (len(octets) - first) % 2].view("<u2") for first in (0, 1))
    return sum(int(np.count_nonzero(part == _END_OF_KEY)) for pairs in (even, odd) for part in _parts(pairs))


def _parts(values: np.ndarray) -> Iterator[np.ndarray]:
    """Values in parts, so small that what is said of each stays in the cache."""
    return (values[at : at + _PART] for at in range(0, len(values), _PART))


def _keys_of(array: pa.Array, objects: _Objects) -> tuple[int, int]:
    """How many keys all these objects may have, at any depth, and how many of them must be there."""
    for _ in range(objects.lists):
        array = array.values
    count = len(array) - array.null_count
    keys, needed = count * objects.keys, count * objects.needed
    for at, inner in objects.within:
        more = _keys_of(array.field(at), inner)
        keys, needed = keys + more[0], needed + more[1]
    return keys, needed


def _names(model: type[BaseModel], *, absent: bool) -> Iterator[str]:
    """Names of all fields at any depth, or of those that may be absent."""
    for name, info in model.model_fields.items():
        if not absent or (not info.is_required() and info.default is None):
            yield name
        for inner in _models_in(info.annotation):
            yield from _names(inner, absent=absent)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


_NAMES = frozenset(name.encode() for name in _names(DecisionCycleRecord, absent=False))
"""Names of all fields, at any depth, as they stand in a line."""

OPTIONAL = frozenset(_names(DecisionCycleRecord, absent=True))
"""Names of fields, at any depth, that may be absent and are null then."""

_NEEDED = frozenset(name.encode() for name in set(RECORD_SCHEMA.names) - OPTIONAL)
"""Names that stand in every record."""

assert all(list(_names(DecisionCycleRecord, absent=False)).count(name) == 1 for name in OPTIONAL), (
    "a name that may be absent belongs to one object alone, or counting keys would not tell where it is"
)


class _Objects(NamedTuple):
    """Objects of one kind: in how many lists each is, how many keys it may have and must have, and which hold more."""

    lists: int
    keys: int
    needed: int
    within: tuple[tuple[int, _Objects], ...]


def _objects_in(kind: pa.DataType) -> _Objects | None:
    """The objects in a column of this type; None where there are none."""
    lists = 0
    while pa.types.is_list(kind):
        kind, lists = kind.value_type, lists + 1
    if not pa.types.is_struct(kind):
        return None
    inner = ((at, _objects_in(field.type)) for at, field in enumerate(kind))
    within = tuple((at, objects) for at, objects in inner if objects is not None)
    return _Objects(lists, kind.num_fields, sum(field.name not in OPTIONAL for field in kind), within)


_FOUND = _objects_in(pa.struct(list(RECORD_SCHEMA)))
assert _FOUND is not None, "a record is an object"
_RECORDS = _FOUND
