"""Vectorised validation of records and events before every append, with the digests of records. Pure.

The rules come from the constraints of the pydantic models: nullability, finiteness, ranges, choices and lengths of
leaf columns. Source: architecture ("validate(full=True) and vectorised checks ... before every append").
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from math import isfinite
from typing import Any, Literal, NamedTuple, get_args, get_origin

import annotated_types as at
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel

from bardo_pipeline.arrays import Int64Array, UInt64Array
from bardo_pipeline.errors import RecordError, SchemaVersionError
from bardo_pipeline.events.record.arrow_columns import contiguous, encoded, is_number, slots, text_offsets
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA, field_annotation, split_constraints, split_optional
from bardo_pipeline.events.record.model import SCHEMA_VERSION, DecisionCycleRecord
from bardo_pipeline.events.record.row_digest import column_lanes, folded, row_digests

_THREADED_ROWS = 16_000  # below this size, threads cost more time than they save


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
    return tuple(_field_checks(name, field_annotation(info)) for name, info in model.model_fields.items())


def _field_checks(name: str, annotation: Any) -> tuple[str, Any, tuple[Rule, ...], bool]:
    nullable, bare = split_optional(annotation)
    core, constraints = split_constraints(bare)
    rules = [rule for constraint in constraints if (rule := _rule(constraint)) is not None]
    if core is float:
        rules.append(
            Rule(
                "is not finite",
                lambda values: pc.invert(pc.is_finite(values)),
                lambda least, most: isfinite(least) and isfinite(most),
            )
        )
    elif core is datetime:
        rules.append(
            Rule(
                "is outside the years 1 to 9999",
                _not_a_datetime,
                lambda least, most: least >= _FIRST_MICROSECOND and most <= _LAST_MICROSECOND,
            )
        )
    elif get_origin(core) is Literal:
        words = pa.array(get_args(core))
        sentence = f"is not one of {', '.join(get_args(core))}"
        rules.append(Rule(sentence, lambda values: pc.invert(pc.is_in(values, value_set=words))))
    return name, core, tuple(rules), nullable


def _rule(constraint: Any) -> Rule | None:
    match constraint:
        case at.Ge(low):
            return Rule(
                f"is below {low}",
                lambda values: pc.less(values, pa.scalar(low, values.type)),
                lambda least, _: least >= low,
            )
        case at.Le(high):
            return Rule(
                f"is above {high}",
                lambda values: pc.greater(values, pa.scalar(high, values.type)),
                lambda _, most: most <= high,
            )
        case at.MinLen(few):
            # Lengths are in bytes, so they decide only whether a text has a character.
            fits = (lambda least, _: least >= few) if few <= 1 else None
            return Rule(f"is shorter than {few}", partial(_shorter, limit=few), fits)
        case at.MaxLen(many):
            return Rule(f"is longer than {many}", partial(_longer, limit=many), lambda _, most: most <= many)
    assert not isinstance(constraint, at.Gt | at.Lt | at.MultipleOf), f"no column check for {constraint}"
    if (pattern := getattr(constraint, "pattern", None)) is None:
        return None
    unlike = f"does not match {pattern}"
    return Rule(unlike, lambda values: pc.invert(pc.match_substring_regex(values, str(pattern))))


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


def _shorter(values: pa.Array, limit: int) -> pa.Array:
    return pc.less(pc.binary_length(values) if limit <= 1 else pc.utf8_length(values), limit)


def _longer(values: pa.Array, limit: int) -> pa.Array:
    in_bytes = pc.greater(pc.binary_length(values), limit)
    return pc.greater(pc.utf8_length(values), limit) if pc.any(in_bytes).as_py() else in_bytes


def _not_a_datetime(values: pa.Array) -> pa.Array:
    """Return a mask of the timestamps outside the range of Python's datetime."""
    first, last = (pa.scalar(m, values.type) for m in (_FIRST_MOMENT, _LAST_MOMENT))
    return pc.or_(pc.less(values, first), pc.greater(values, last))


def violations(table: pa.Table, model: type[BaseModel]) -> list[tuple[int, str]]:
    """Return (row, description) of every violation of the model's rules, sorted."""
    names = model.model_fields
    return sorted({fault for name in names for fault in column_violations(name, contiguous(table.column(name)), model)})


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
        if array.null_count == len(array):
            return
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
    return _errors(table, violations(table, model))


def check_table(table: pa.Table, model: type[BaseModel], schema: pa.Schema) -> None:
    """Raise SchemaVersionError for a newer version, RecordError for any other violation of the model."""
    _check_names(table, model, schema)
    _check_bytes(table, model)
    _raise_first(table, violations(table, model))


@dataclass(frozen=True)
class Examined:
    """Records (RECORD_SCHEMA, one chunk per column), their digests [rows, 2] and the faults of `violations`."""

    records: pa.Table
    digests: UInt64Array
    faults: list[tuple[int, str]]

    @property
    def is_newer(self) -> bool:
        """Whether a record has a newer schema version than this code."""
        return _newest_version(self.records) > SCHEMA_VERSION

    def errors(self) -> dict[int, RecordError | SchemaVersionError]:
        """Return the first fault of each invalid row."""
        return _errors(self.records, self.faults)

    def check(self) -> None:
        """Raise SchemaVersionError or RecordError for the first fault."""
        _raise_first(self.records, self.faults)


def examine(records: pa.Table) -> Examined:
    """Validate and digest a batch. Raises RecordError for other columns than RECORD_SCHEMA or invalid Arrow data."""
    _check_names(records, DecisionCycleRecord, RECORD_SCHEMA)
    whole = records.combine_chunks()
    if len(whole) < _THREADED_ROWS:
        _check_bytes(whole, DecisionCycleRecord)
        return Examined(whole, row_digests(whole), violations(whole, DecisionCycleRecord))
    heaviest = sorted(RECORD_SCHEMA.names, key=lambda name: -whole.column(name).nbytes)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        futures = {name: threads.submit(_examine_column, whole, name) for name in heaviest}
        results = [futures[name].result() for name in RECORD_SCHEMA.names]
    faults = {fault for _, column_faults in results for fault in column_faults}
    return Examined(whole, folded((lanes for lanes, _ in results), len(whole)), sorted(faults))


def _examine_column(records: pa.Table, name: str) -> tuple[UInt64Array | None, list[tuple[int, str]]]:
    _check_bytes(records.select([name]), DecisionCycleRecord)
    values = encoded(contiguous(records.column(name)))
    return column_lanes(name, values), column_violations(name, values, DecisionCycleRecord)


def _errors(table: pa.Table, faults: list[tuple[int, str]]) -> dict[int, RecordError | SchemaVersionError]:
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


def _newest_version(table: pa.Table) -> int:
    return pc.max(table.column("schema_version")).as_py() or 0


def _raise_first(table: pa.Table, faults: list[tuple[int, str]]) -> None:
    if (newest := _newest_version(table)) > SCHEMA_VERSION:
        raise SchemaVersionError(
            f"schema version {newest} is newer than {SCHEMA_VERSION}: upgrade bardo-pipeline to read it"
        )
    if faults:
        row, sentence = faults[0]
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise RecordError(f"{_subject(table, row)}: {sentence}{more}")


def _subject(table: pa.Table, row: int) -> str:
    tick = f", tick {table.column('tick')[row].as_py()}" if "tick" in table.column_names else ""
    return f"golem {table.column('golem_id')[row].as_py()}{tick}"


def _check_names(table: pa.Table, model: type[BaseModel], schema: pa.Schema) -> None:
    if not table.schema.equals(schema):
        raise RecordError(f"the batch has not the columns of {model.__name__}: {_difference(table.schema, schema)}")


def _check_bytes(table: pa.Table, model: type[BaseModel]) -> None:
    try:
        table.validate(full=True)
    except pa.ArrowInvalid as error:
        raise RecordError(f"the batch holds bytes that are no valid {model.__name__}: {error}") from error


def _difference(actual: pa.Schema, expected: pa.Schema) -> str:
    missing = sorted(set(expected.names) - set(actual.names))
    extra = sorted(set(actual.names) - set(expected.names))
    changed = [n for n in expected.names if n in actual.names and actual.field(n) != expected.field(n)]
    return "; ".join(
        f"{k} {', '.join(v)}" for k, v in (("missing", missing), ("unknown", extra), ("of another type", changed)) if v
    )
