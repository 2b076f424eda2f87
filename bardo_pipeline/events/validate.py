"""Vectorised validation of records and events before every append. Pure.

The rules are the constraints of the pydantic models, walked once into checks over leaf columns: nullability, finiteness,
ranges, choices, lengths. Source: architecture ("validate(full=True) and vectorised checks ... before every append").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types as at
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from bardo_pipeline.errors import RecordError, SchemaVersionError
from bardo_pipeline.events.record import SCHEMA_VERSION
from bardo_pipeline.events.schema import _annotation, _split_optional

Check = Callable[[pa.Array], pa.Array]
"""Values of a leaf column to a boolean array, true where a value is not allowed."""


@cache
def _checks(model: type[BaseModel]) -> tuple[tuple[str, Any, tuple[tuple[str, Check], ...], bool], ...]:
    return tuple(_field_checks(name, _annotation(info)) for name, info in model.model_fields.items())


def _field_checks(name: str, annotation: Any) -> tuple[str, Any, tuple[tuple[str, Check], ...], bool]:
    nullable, bare = _split_optional(annotation)
    if get_origin(bare) is Annotated and get_origin(get_args(bare)[0]) is not None:
        inner_nullable, inner = _split_optional(get_args(bare)[0])
        if inner_nullable:
            nullable, bare = True, Annotated[(inner, *get_args(bare)[1:])]
    core, rules = bare, []
    while get_origin(core) is Annotated:
        core, *metadata = get_args(core)
        for item in metadata:
            rules.extend(_rules(item))
    if core is float:
        rules.append(("is not finite", lambda a: pc.invert(pc.is_finite(a))))
    if get_origin(core) is Literal:
        choices = pa.array(get_args(core))
        rules.append((f"is none of {', '.join(get_args(core))}", lambda a: pc.invert(pc.is_in(a, value_set=choices))))
    return name, core, tuple(rules), nullable


def _rules(item: Any) -> Iterator[tuple[str, Check]]:
    parts = [p for m in item.metadata for p in [m]] if isinstance(item, FieldInfo) else [item]
    for part in parts:
        if isinstance(part, at.Ge):
            yield f"is below {part.ge}", lambda a, x=part.ge: pc.less(a, pa.scalar(x, a.type))
        elif isinstance(part, at.Le):
            yield f"is above {part.le}", lambda a, x=part.le: pc.greater(a, pa.scalar(x, a.type))
        elif isinstance(part, at.MinLen):
            yield f"is shorter than {part.min_length}", lambda a, x=part.min_length: pc.less(pc.utf8_length(a), x)
        elif isinstance(part, at.MaxLen):
            yield f"is longer than {part.max_length}", lambda a, x=part.max_length: pc.greater(pc.utf8_length(a), x)
        elif getattr(part, "pattern", None):
            yield (
                f"does not match {part.pattern}",
                lambda a, x=str(part.pattern): pc.invert(pc.match_substring_regex(a, x)),
            )


def violations(table: pa.Table, model: type[BaseModel]) -> list[tuple[int, str]]:
    """(row, what is wrong) of every row that breaks a rule of the model, at most one sentence a row and rule."""
    found: list[tuple[int, str]] = []
    rows = np.arange(table.num_rows)
    for name, core, rules, nullable in _checks(model):
        array = table.column(name).combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
        _walk(array, rows, name, core, rules, nullable, found)
    return sorted(set(found))


def _walk(
    array: pa.Array, rows: np.ndarray, path: str, core: Any, rules: tuple, nullable: bool, found: list[tuple[int, str]]
) -> None:
    if array.null_count:
        if not nullable:
            found.extend((int(r), f"{path} is missing") for r in rows[np.asarray(array.is_null())])
        if not pa.types.is_list(array.type):
            present = np.asarray(array.is_valid())
            array, rows = array.filter(pa.array(present)), rows[present]
    for sentence, check in rules:
        bad = check(array)
        if pc.any(bad).as_py():
            where = np.flatnonzero(np.asarray(bad))
            found.extend((int(rows[i]), f"{path} {sentence}: {array[int(i)].as_py()!r:.60}") for i in where)
    if get_origin(core) is tuple:
        offsets = array.offsets.to_numpy().astype(np.int64)
        child = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        _, inner, inner_rules, inner_nullable = _field_checks(path, get_args(core)[0])
        _walk(child, np.repeat(rows, np.diff(offsets)), path + "[]", inner, inner_rules, inner_nullable, found)
    elif isinstance(core, type) and issubclass(core, BaseModel):
        for (name, inner, inner_rules, inner_nullable), child in zip(_checks(core), array.flatten(), strict=True):
            _walk(child, rows, f"{path}.{name}", inner, inner_rules, inner_nullable, found)


def check_table(table: pa.Table, model: type[BaseModel], schema: pa.Schema) -> None:
    """Raise unless every row of the table fits the model.

    Raises SchemaVersionError for a newer version, RecordError (naming golem, tick and rule) for anything else.
    """
    if not table.schema.equals(schema):
        raise RecordError(f"the batch has not the columns of {model.__name__}: {_difference(table.schema, schema)}")
    try:
        table.validate(full=True)
    except pa.ArrowInvalid as error:
        raise RecordError(f"the batch holds bytes that are no valid {model.__name__}: {error}") from error
    versions = pc.max(table.column("schema_version")).as_py()
    if versions is not None and versions > SCHEMA_VERSION:
        raise SchemaVersionError(
            f"schema version {versions} is newer than {SCHEMA_VERSION}: upgrade bardo-pipeline to read it"
        )
    found = violations(table, model)
    if found:
        row, sentence = found[0]
        golem = table.column("golem_id")[row].as_py()
        tick = f", tick {table.column('tick')[row].as_py()}" if "tick" in table.column_names else ""
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise RecordError(f"golem {golem}{tick}: {sentence}{more}")


def _difference(given: pa.Schema, wanted: pa.Schema) -> str:
    missing = sorted(set(wanted.names) - set(given.names))
    extra = sorted(set(given.names) - set(wanted.names))
    changed = [n for n in wanted.names if n in given.names and given.field(n) != wanted.field(n)]
    return "; ".join(
        f"{k} {', '.join(v)}" for k, v in (("missing", missing), ("unknown", extra), ("of another type", changed)) if v
    )
