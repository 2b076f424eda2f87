"""Find a repeated key in JSON. Parsers hide it, and keep the first value or the last. Pure.

A record's line is searched for more colons than its parsed fields and texts need, which takes 3 µs for 5 KB. If it has
more, the ends of keys are counted, and only a line with more of them than it needs is parsed again, key by key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_args

import pyarrow as pa
from msgspec import UNSET
from pydantic import BaseModel

from bardo_pipeline.errors import RecordError
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.events.record.model import DecisionCycleRecord


def repeated_key(text: bytes) -> str | None:
    """Return a key that an object of this valid JSON has twice; None if it has each key once."""
    repeated: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        if len(dict(pairs)) < len(pairs):
            names = [name for name, _ in pairs]
            repeated.append(next(name for name in names if names.count(name) > 1))

    json.loads(text, object_pairs_hook=note)
    return repeated[0] if repeated else None


def check_keys(text: bytes) -> None:
    """Raise RecordError if an object of this valid JSON has a key twice."""
    if (key := repeated_key(text)) is not None:
        raise RecordError(f"an object has the key {key!r} twice: send each key once")


def repeated_record_key(line: bytes, record: Any) -> str | None:
    """Return a key that a line has twice; None without one.

    record: the fields of DecisionCycleRecord in this line, an absent one UNSET. The time of the record has its colons
    (HH:MM:SS), as msgspec requires.
    """
    needed = _colons_needed(record, UNSET)
    if b"\\" not in line:  # an escape could hide the colon of a text, or of the time
        texts = [probe.detail for probe in record.probe_results if probe.detail]
        texts.append(record.gating_reason)
        if record.deliberation is not None:
            texts.append(record.deliberation.reasoning_summary)
        most = needed + "".join(texts).count(":")
        # `replace` by one byte finds colons by memchr in one pass; `count` compares each byte. Numpy is as fast, but it
        # releases the GIL, which costs more than the count when many threads append.
        if line.replace(b":", b";", most).find(b":") < 0:
            return None
    return None if _ends_each_key_once(line, needed - _TIME_COLONS) else repeated_key(line)


def _ends_each_key_once(line: bytes, needed: int) -> bool:
    """Whether the line has no more keys than it needs, by `":`, however many colons its ids and texts have.

    A key ends with `":` unless white space precedes the colon, and a text can only add to the count.
    """
    if b"\t" in line or b"\n" in line or b"\r" in line:
        return False
    return line.count(b'":') == needed and line.rfind(b" :") < 0  # `in` takes twice as long


_TIME_COLONS = 2
"""Colons of the time of a record, HH:MM:SS."""


def field_names(model: type[BaseModel], *, optional: bool = False) -> Iterator[str]:
    """Yield the names of all fields at any depth, or only of optional ones."""
    for name, info in model.model_fields.items():
        if not optional or (not info.is_required() and info.default is None):
            yield name
        for inner in _models_in(info.annotation):
            yield from field_names(inner, optional=optional)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


OPTIONAL = frozenset(field_names(DecisionCycleRecord, optional=True))
"""Names of optional fields at any depth; an absent one is null in a model and UNSET in a parsed line."""

assert all(list(field_names(DecisionCycleRecord)).count(name) == 1 for name in OPTIONAL), (
    "an optional name belongs to one kind of object; else counting keys would be ambiguous"
)


def _key_count(fields: Iterable[pa.Field], value: str) -> str:
    """Return an expression for the number of keys that an object has, nested objects included, if none is repeated.

    A required key counts even if its value is null.
    """
    parts = []
    for field in fields:
        inner, own = f"{value}.{field.name}", "1"
        if pa.types.is_struct(field.type):
            own = f"(1 + {_key_count(field.type, inner)})"
        elif pa.types.is_list(field.type) and pa.types.is_struct(field.type.value_type):
            own = f"(1 + {_keys_of_elements(field.type.value_type, inner)})"
        if field.nullable and own != "1":
            own = f"({own} if {inner} is not None else 1)"
        if field.name in OPTIONAL:
            own = f"({own} if {inner} is not absent else 0)"
        parts.append(own)
    plain = parts.count("1")
    return f"({' + '.join([str(plain), *(part for part in parts if part != '1')])})"


def _keys_of_elements(kind: pa.DataType, lists: str) -> str:
    """Return an expression for the number of keys of the objects in a list; objects without a list have the same."""
    if any(".element" in _key_count([field], ".element") for field in kind):
        return f"sum([{_key_count(kind, 'element')} for element in {lists}])"
    return f"{_key_count(kind, '')} * len({lists})"


_colons_needed: Callable[[Any, Any], int] = eval(  # noqa: S307
    f"lambda record, absent: {_TIME_COLONS} + {_key_count(RECORD_SCHEMA, 'record')}"
)
"""Compiled from the schema, because a loop over the fields takes as long as parsing the line."""
