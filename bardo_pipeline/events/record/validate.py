"""Vectorised validation of records and events before every append. Pure.

The rules come from the constraints of the pydantic models: nullability, finiteness, ranges, choices and lengths of
leaf columns.

Source: architecture ("validate(full=True) and vectorised checks ... before every append").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache, partial
from math import isfinite
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import annotated_types as at
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.errors import RecordError, SchemaVersionError
from bardo_pipeline.events.record.arrow_columns import is_number, one, slots, text_offsets
from bardo_pipeline.events.record.arrow_schema import _annotation, _split_optional
from bardo_pipeline.events.record.model import SCHEMA_VERSION


class Rule(NamedTuple):
    """A rule for the values of a leaf column.

    Parameters
    ----------
    sentence : description of a violation
    check : values -> boolean array, true for a violation
    fits : (minimum, maximum) of the numbers or text lengths in bytes -> whether no violation is possible; ten times
        faster than `check`
    """

    sentence: str
    check: Callable[[pa.Array], pa.Array]
    fits: Callable[[Any, Any], bool] | None = None


_FIRST_MOMENT, _LAST_MOMENT = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_FIRST_MICROSECOND, _LAST_MICROSECOND = (
    pa.scalar(moment, pa.timestamp("us", "UTC")).value for moment in (_FIRST_MOMENT, _LAST_MOMENT)
)


@cache
def _checks(model: type[BaseModel]) -> tuple[tuple[str, Any, tuple[Rule, ...], bool], ...]:
    return tuple(_field_checks(name, _annotation(info)) for name, info in model.model_fields.items())


def _field_checks(name: str, annotation: Any) -> tuple[str, Any, tuple[Rule, ...], bool]:
    nullable, bare = _split_optional(annotation)
    if get_origin(bare) is Annotated and get_origin(get_args(bare)[0]) is not None:
        inner_nullable, inner = _split_optional(get_args(bare)[0])
        if inner_nullable:
            nullable, bare = True, Annotated[(inner, *get_args(bare)[1:])]
    core: Any = bare
    rules: list[Rule] = []
    while get_origin(core) is Annotated:
        core, *metadata = get_args(core)
        for item in metadata:
            rules.extend(_rules(item))
    if core is float:
        rules.append(Rule("is not finite", _not_finite, lambda least, most: isfinite(least) and isfinite(most)))
    elif core is datetime:
        rules.append(Rule("is outside the years 1 to 9999", _not_a_datetime, _are_moments))
    elif get_origin(core) is Literal:
        choices = pa.array(get_args(core))
        rules.append(Rule(f"is none of {', '.join(get_args(core))}", partial(_not_in, choices=choices)))
    return name, core, tuple(rules), nullable


def _rules(item: Any) -> Iterator[Rule]:
    for part in item.metadata if isinstance(item, FieldInfo) else [item]:
        assert not isinstance(part, at.Gt | at.Lt | at.MultipleOf), f"no column check for {part}"
        if isinstance(part, at.Ge):
            yield Rule(f"is below {part.ge}", partial(_below, limit=part.ge), partial(_from, limit=part.ge))
        elif isinstance(part, at.Le):
            yield Rule(f"is above {part.le}", partial(_above, limit=part.le), partial(_up_to, limit=part.le))
        elif isinstance(part, at.MinLen):
            few = part.min_length
            # Lengths are in bytes, so they decide only whether a text has a character.
            fits = partial(_from, limit=few) if few <= 1 else None
            yield Rule(f"is shorter than {few}", partial(_shorter, limit=few), fits)
        elif isinstance(part, at.MaxLen):
            many = part.max_length
            yield Rule(f"is longer than {many}", partial(_longer, limit=many), partial(_up_to, limit=many))
        elif pattern := getattr(part, "pattern", None):
            yield Rule(f"does not match {pattern}", partial(_unlike, pattern=str(pattern)))


def _from(least: Any, _most: Any, limit: Any) -> bool:
    return bool(least >= limit)


def _up_to(_least: Any, most: Any, limit: Any) -> bool:
    return bool(most <= limit)


def _are_moments(least: Any, most: Any) -> bool:
    return bool(least >= _FIRST_MICROSECOND and most <= _LAST_MICROSECOND)


def _extremes(values: pa.Array) -> tuple[Any, Any] | None:
    """Return minimum and maximum of numbers, timestamps (microseconds) or text lengths (bytes); None for other types.

    Values of nulls are included; NaN is both minimum and maximum.
    """
    if not len(values):
        return None
    if is_number(values.type):
        measures = slots(values)
    elif pa.types.is_string(values.type):
        measures = np.diff(text_offsets(values))
    else:
        return None
    return measures.min(), measures.max()


def _below(values: pa.Array, limit: Any) -> pa.Array:
    return pc.less(values, pa.scalar(limit, values.type))


def _above(values: pa.Array, limit: Any) -> pa.Array:
    return pc.greater(values, pa.scalar(limit, values.type))


def _shorter(values: pa.Array, limit: int) -> pa.Array:
    return pc.less(pc.binary_length(values) if limit <= 1 else pc.utf8_length(values), limit)


def _longer(values: pa.Array, limit: int) -> pa.Array:
    in_bytes = pc.greater(pc.binary_length(values), limit)
    return pc.greater(pc.utf8_length(values), limit) if pc.any(in_bytes).as_py() else in_bytes


def _unlike(values: pa.Array, pattern: str) -> pa.Array:
    return pc.invert(pc.match_substring_regex(values, pattern))


def _not_in(values: pa.Array, choices: pa.Array) -> pa.Array:
    return pc.invert(pc.is_in(values, value_set=choices))


def _not_finite(values: pa.Array) -> pa.Array:
    return pc.invert(pc.is_finite(values))


def _not_a_datetime(values: pa.Array) -> pa.Array:
    """Return a mask of the timestamps outside the range of Python's datetime."""
    first, last = (pa.scalar(m, values.type) for m in (_FIRST_MOMENT, _LAST_MOMENT))
    return pc.or_(pc.less(values, first), pc.greater(values, last))


def violations(table: pa.Table, model: type[BaseModel]) -> list[tuple[int, str]]:
    """Return (row, description) of every violation of the model's rules, sorted."""
    names = model.model_fields
    return sorted({fault for name in names for fault in column_violations(name, one(table.column(name)), model)})


def column_violations(name: str, values: pa.Array, model: type[BaseModel]) -> list[tuple[int, str]]:
    """Return the violations of one column, encoded or not, in any order."""
    faults: list[tuple[int, str]] = []
    _, core, rules, nullable = _checks(model)[list(model.model_fields).index(name)]
    _walk(values, np.arange(len(values)), name, core, rules, nullable, faults)
    return faults


def _walk(
    array: pa.Array, rows: Int64Array, path: str, core: Any, rules: tuple, nullable: bool, faults: list[tuple[int, str]]
) -> None:
    present = None
    if array.null_count:
        if not nullable:
            faults.extend((int(r), f"{path} is missing") for r in rows[np.asarray(array.is_null())])
        present = array.is_valid()
        if pa.types.is_struct(array.type):
            array, rows, present = array.filter(present), rows[np.asarray(present)], None
    if not len(array):
        return
    coded = pa.types.is_dictionary(array.type)
    words = array.dictionary if coded else array
    extremes = _extremes(words) if rules else None
    for sentence, check, fits in rules:
        if fits is not None and extremes is not None and fits(*extremes):
            continue
        bad = check(words)
        if bad.true_count:
            bad = bad.take(array.indices) if coded else bad
            where = np.flatnonzero(np.asarray(bad if present is None else pc.and_(pc.fill_null(bad, False), present)))
            faults.extend((int(rows[i]), f"{path} {sentence}: {_shown(array[int(i)]):.60}") for i in where)
    if get_origin(core) is tuple:
        offsets = array.offsets.to_numpy().astype(np.int64)
        child = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        _, inner, inner_rules, inner_nullable = _field_checks(path, get_args(core)[0])
        _walk(child, np.repeat(rows, np.diff(offsets)), path + "[]", inner, inner_rules, inner_nullable, faults)
    elif isinstance(core, type) and issubclass(core, BaseModel):
        for (name, inner, inner_rules, inner_nullable), child in zip(_checks(core), array.flatten(), strict=True):
            _walk(child, rows, f"{path}.{name}", inner, inner_rules, inner_nullable, faults)


def _shown(value: pa.Scalar) -> str:
    # Some timestamps of Arrow have no Python value.
    return f"{value.value} us" if pa.types.is_timestamp(value.type) else repr(value.as_py())


def row_errors(table: pa.Table, model: type[BaseModel]) -> dict[int, RecordError | SchemaVersionError]:
    """Return the first fault of each invalid row of a table with the model's columns."""
    return errors_of(table, violations(table, model))


def errors_of(table: pa.Table, faults: list[tuple[int, str]]) -> dict[int, RecordError | SchemaVersionError]:
    """Convert the result of `violations` to one error per row."""
    errors: dict[int, RecordError | SchemaVersionError] = {}
    versions = table.column("schema_version").to_numpy()
    for row in np.flatnonzero(versions > SCHEMA_VERSION).tolist():
        errors[row] = SchemaVersionError(
            f"{_subject(table, row)}: schema version {versions[row]:.0f} is newer than {SCHEMA_VERSION}: upgrade "
            "bardo-pipeline to read it"
        )
    for row, sentence in faults:
        errors.setdefault(row, RecordError(f"{_subject(table, row)}: {sentence}"))
    return errors


def _subject(table: pa.Table, row: int) -> str:
    tick = f", tick {table.column('tick')[row].as_py()}" if "tick" in table.column_names else ""
    return f"golem {table.column('golem_id')[row].as_py()}{tick}"


def check_table(table: pa.Table, model: type[BaseModel], schema: pa.Schema) -> None:
    """Raise SchemaVersionError for a newer version, RecordError for any other violation of the model."""
    check_columns(table, model, schema)
    check_rows(table, model)


def check_columns(table: pa.Table, model: type[BaseModel], schema: pa.Schema) -> None:
    """Raise RecordError unless the table has these columns and valid Arrow data."""
    check_names(table, model, schema)
    check_bytes(table, model)


def check_names(table: pa.Table, model: type[BaseModel], schema: pa.Schema) -> None:
    """Raise RecordError unless the table has these columns."""
    if not table.schema.equals(schema):
        raise RecordError(f"the batch has not the columns of {model.__name__}: {_difference(table.schema, schema)}")


def check_bytes(table: pa.Table, model: type[BaseModel]) -> None:
    """Raise RecordError unless the table is valid Arrow data."""
    try:
        table.validate(full=True)
    except pa.ArrowInvalid as error:
        raise RecordError(f"the batch holds bytes that are no valid {model.__name__}: {error}") from error


def check_rows(table: pa.Table, model: type[BaseModel]) -> None:
    """Raise for the first row that violates the model's rules."""
    raise_first(table, violations(table, model))


def raise_first(table: pa.Table, faults: list[tuple[int, str]]) -> None:
    """Raise for the first fault of `violations`."""
    versions = pc.max(table.column("schema_version")).as_py()
    if versions is not None and versions > SCHEMA_VERSION:
        raise SchemaVersionError(
            f"schema version {versions} is newer than {SCHEMA_VERSION}: upgrade bardo-pipeline to read it"
        )
    if faults:
        row, sentence = faults[0]
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise RecordError(f"{_subject(table, row)}: {sentence}{more}")


def _difference(actual: pa.Schema, expected: pa.Schema) -> str:
    missing = sorted(set(expected.names) - set(actual.names))
    extra = sorted(set(actual.names) - set(expected.names))
    changed = [n for n in expected.names if n in actual.names and actual.field(n) != expected.field(n)]
    return "; ".join(
        f"{k} {', '.join(v)}" for k, v in (("missing", missing), ("unknown", extra), ("of another type", changed)) if v
    )
