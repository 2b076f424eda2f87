"""JSON lines to nested Arrow, in bulk: the same verdict and the same content as pydantic's, line by line, but faster.

Lines go through Arrow's reader some megabytes at a time. Whatever it could read otherwise than pydantic (absent keys,
exotic moments, several values in a line) makes smaller groups of that one, and of those that still hold any, pydantic
looks at each line, and says why a bad one is bad.
Ranges and choices are not checked here but by `row_errors` when the rows are admitted.

Source: facts ("Reading JSON"): Arrow's reader accepts invalid UTF-8, NaN and missing fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json

from bardo_pipeline.errors import RecordError, SchemaVersionError
from bardo_pipeline.events.record import SCHEMA_VERSION, DecisionCycleRecord
from bardo_pipeline.events.schema import MOMENT, RECORD_SCHEMA
from bardo_pipeline.storage.loose import loosened, tightened

_GROUP_BYTES, _PART_BYTES = 32 * 2**20, 2**19
_SHOWN_CHARACTERS = 80
_ERRORS_NAMED = 3
_MOMENT = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,6})?(Z|\+00:00)$"
# Arrow's reader ends the process at a null that stands where an object should: only one after another can come so far.
_NULL_AFTER_OBJECT = re.compile(rb"\}[ \t\r]*n")


@dataclass(frozen=True)
class BadLine:
    """A line that holds no record: its index among the lines given, whose it says it is, and what is wrong."""

    line: int
    golem_id: str | None
    tick: int | None
    error: RecordError | SchemaVersionError


@dataclass(frozen=True)
class Parsed:
    """What lines hold. records: RECORD_SCHEMA, in the order of the lines; lines: the line of each row."""

    records: pa.Table
    lines: np.ndarray
    bad: tuple[BadLine, ...]


_LOOSE = loosened(RECORD_SCHEMA, moments=pa.string())
"""What Arrow's reader is told to expect: moments as text, so that their form can be seen."""

_NOTHING = Parsed(RECORD_SCHEMA.empty_table(), np.zeros(0, np.int64), ())


def read_lines(lines: Sequence[bytes]) -> Parsed:
    """Read lines of one record each, without their newlines. Rows may still leave their ranges (`row_errors`)."""
    parts = [part for group in _groups(lines, range(len(lines)), _GROUP_BYTES) for part in _read(lines, group)]
    if len(parts) == 1:
        return parts[0]
    return Parsed(
        pa.concat_tables([_NOTHING.records, *(part.records for part in parts)]).combine_chunks(),
        np.concatenate([_NOTHING.lines, *(part.lines for part in parts)]),
        tuple(line for part in parts for line in part.bad),
    )


def _groups(lines: Sequence[bytes], which: Sequence[int], size_max: int) -> Iterator[Sequence[int]]:
    start = size = 0
    for at, line in enumerate(which):
        if size and size + len(lines[line]) > size_max:
            yield which[start:at]
            start, size = at, 0
        size += len(lines[line]) + 1
    if len(which):
        yield which[start:]


def _read(lines: Sequence[bytes], group: Sequence[int]) -> Iterator[Parsed]:
    """A group in bulk; if Arrow does not take it, smaller ones; if it does not take those, line by line."""
    # What begins and ends so in every line holds whole objects in every line; what is cut short is seen without a try.
    odd = [at for at in group if lines[at][:1] != b"{" or lines[at][-1:] != b"}"]
    if odd:
        cut = _judged(lines, odd)
        if len(cut.records):  # blanks around a good record
            yield _judged(lines, group)
            return
        yield cut
        group = sorted(set(group) - set(odd))
    table = _read_group([lines[at] for at in group]) if group else None
    if table is not None:
        yield Parsed(table, np.array(group, np.int64), ())
        return
    for part in _groups(lines, group, _PART_BYTES):
        if len(part) < len(group):
            yield from _read(lines, part)
        else:
            yield _judged(lines, part)


def _read_group(lines: Sequence[bytes]) -> pa.Table | None:
    """The records of lines that pydantic would accept but for ranges; None where it has to look itself.

    Each line begins with "{" and ends with "}".
    """
    block = b"\n".join(lines)
    if _NULL_AFTER_OBJECT.search(block) or not _is_utf8(block):
        return None
    loose = _read_block(block, len(lines))
    if loose is None or not _keys_add_up(block, loose):
        return None
    moments = loose.column("observed_at")
    if not pc.all(pc.fill_null(pc.match_substring_regex(moments, _MOMENT), False), min_count=0).as_py():
        return None
    try:
        return tightened(_set(loose, "observed_at", moments.cast(MOMENT)), RECORD_SCHEMA)
    except pa.ArrowInvalid:
        return None  # the thirtieth of February


def _set(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, column)


def _is_utf8(block: bytes) -> bool:
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True


def _read_block(block: bytes, rows: int) -> pa.Table | None:
    """The table (_LOOSE) that Arrow reads from a block of lines; None if it cannot, or not a row from every line."""
    try:
        loose = pj.read_json(
            pa.BufferReader(block),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(block) + 1),
            parse_options=pj.ParseOptions(explicit_schema=_LOOSE, unexpected_field_behavior="error"),
        )
    except pa.ArrowInvalid:
        return None
    return loose.combine_chunks() if loose.num_rows == rows else None


def _keys_add_up(block: bytes, loose: pa.Table) -> bool:
    """Whether every key that must be there is: Arrow reads an absent one as null.

    A key can neither be unknown nor stand twice, or Arrow had refused it; so it is enough to count them.
    """
    octets = np.frombuffer(block, np.uint8)
    ends = (octets[:-1] == 0x22) & (octets[1:] == 0x3A)
    present = int(np.count_nonzero(ends)) - int(np.count_nonzero(ends[1:] & (octets[:-2] == 0x5C)))
    columns = [loose.column(i).chunk(0) for i in range(loose.num_columns)]
    if present == len(loose) * len(columns) + sum(_keys_within(column, frozenset()) for column in columns):
        return True
    wanted = len(loose) * len(set(loose.column_names) - _OPTIONAL)
    wanted += sum(_keys_within(column, _OPTIONAL) for column in columns)
    return present == wanted + sum(block.count(b'"%s":' % name.encode()) for name in _OPTIONAL)


def _keys_within(array: pa.Array, optional: frozenset[str]) -> int:
    """How many keys all the objects in this column need, at any depth."""
    if pa.types.is_list(array.type):
        return _keys_within(array.values, optional)
    if not pa.types.is_struct(array.type):
        return 0
    own = (len(array) - array.null_count) * sum(child.name not in optional for child in array.type)
    return own + sum(_keys_within(array.field(i), optional) for i in range(array.type.num_fields))


def _judged(lines: Sequence[bytes], which: Sequence[int]) -> Parsed:
    """Lines that pydantic looks at one by one."""
    models: list[DecisionCycleRecord] = []
    good: list[int] = []
    bad: list[BadLine] = []
    for at in which:
        try:
            models.append(DecisionCycleRecord.model_validate_json(lines[at], strict=True))
            good.append(at)
        except ValidationError as error:
            bad.append(_bad_line(at, lines[at], error))
    if not good:
        return replace(_NOTHING, bad=tuple(bad))
    loose = _read_block(b"\n".join(lines[at] for at in good), len(good))
    if loose is None:  # a key that stands twice: pydantic took the last, which it writes again
        loose = _read_block(b"\n".join(model.model_dump_json().encode() for model in models), len(good))
    assert loose is not None, "Arrow reads what pydantic writes"
    versions = pa.array([model.schema_version for model in models], pa.int64())
    moments = pa.array([model.observed_at for model in models], MOMENT)
    loose = _set(_set(loose, "schema_version", versions), "observed_at", moments)
    return Parsed(tightened(loose, RECORD_SCHEMA), np.array(good, np.int64), tuple(bad))


def _bad_line(line: int, raw: bytes, error: ValidationError) -> BadLine:
    golem_id, tick, version = _claims(raw)
    who = f"golem {golem_id}, tick {tick}" if golem_id is not None else "a line"
    if version is not None and version > SCHEMA_VERSION:
        reason = f"{who}: schema version {version} is newer than {SCHEMA_VERSION}: upgrade bardo-pipeline to read it"
        return BadLine(line, golem_id, tick, SchemaVersionError(reason))
    return BadLine(line, golem_id, tick, RecordError(f"{who}: {sentence_of(error)}"))


def sentence_of(error: ValidationError) -> str:
    """What pydantic has against a line, in a sentence."""
    found = error.errors(include_url=False, include_context=False)
    named = "; ".join(_sentence(detail) for detail in found[:_ERRORS_NAMED]).replace("at line 1 column", "at column")
    return named + (f" (and {len(found) - _ERRORS_NAMED} more)" if len(found) > _ERRORS_NAMED else "")


def _sentence(detail: ErrorDetails) -> str:
    path = ".".join(str(part) for part in detail["loc"])[:_SHOWN_CHARACTERS]
    if detail["type"] in ("missing", "json_invalid"):
        return f"{path}: {detail['msg']}".removeprefix(": ")
    return f"{path}: {detail['msg']}, not {detail['input']!r:.{_SHOWN_CHARACTERS}}".removeprefix(": ")


def _claims(raw: bytes) -> tuple[str | None, int | None, int | None]:
    """Golem, tick and schema version that a bad line names, as far as it can be read at all."""
    try:
        said = from_json(raw, allow_partial="trailing-strings")
    except ValueError:
        return None, None, None
    if not isinstance(said, dict):
        return None, None, None
    golem_id, tick, version = said.get("golem_id"), said.get("tick"), said.get("schema_version")
    return (
        golem_id if isinstance(golem_id, str) and 0 < len(golem_id) <= 256 else None,
        tick if type(tick) is int and abs(tick) < 2**63 else None,
        version if type(version) is int else None,
    )


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


_OPTIONAL = frozenset(_names(DecisionCycleRecord, absent=True))
"""Names of fields, at any depth, that may be absent and are null then."""

assert all(list(_names(DecisionCycleRecord, absent=False)).count(name) == 1 for name in _OPTIONAL), (
    "a name that may be absent belongs to one object alone, or counting keys would not tell where it is"
)
