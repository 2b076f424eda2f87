"""JSON lines to nested Arrow, in bulk: the same verdict and the same content as pydantic's, line by line, but faster.

Lines go through Arrow's reader in groups. A line that it cannot read, or might read otherwise than pydantic (absent
keys, exotic moments, several values in a line), is found and taken out, and pydantic looks at it and says why a bad one
is bad; the others are read without it. Where there are too many of those, pydantic looks at each line of the group.
Ranges and choices are not checked here but by `row_errors` when the rows are admitted.

Source: facts ("Reading JSON"): Arrow's reader accepts invalid UTF-8, NaN and missing fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json

from bardo_pipeline.errors import RecordError, SchemaVersionError
from bardo_pipeline.events.record import SCHEMA_VERSION, DecisionCycleRecord
from bardo_pipeline.events.schema import MOMENT, RECORD_SCHEMA
from bardo_pipeline.events.swift import judged
from bardo_pipeline.storage.loose import loosened, tightened

_GROUP_BYTES = 2 * 2**20  # Arrow's reader takes a millisecond to begin, and what it read before a bad line is lost
_FEW = 16  # lines: pydantic has looked at each of them before Arrow begins
_DOUBTFUL = 64  # one line of so many is taken out of its group; where there are more, pydantic looks at all
_SHOWN_CHARACTERS = 80
_ERRORS_NAMED = 3
_MOMENT = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,6})?(Z|\+00:00)$"
# Behind an object that is one of several in a line; Arrow's reader ends the process where the next is null.
_ANOTHER = re.compile(rb"\}[ \t\r]*[^,\]} \t\r\n]")
_KEY = re.compile(rb'"([^"\\]*)":')
_ROW = re.compile(r"in row (\d+)")


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

_READ = loosened(RECORD_SCHEMA)
"""What becomes of it."""

_OPTIONS = pj.ParseOptions(explicit_schema=_LOOSE, unexpected_field_behavior="error")


class Part(NamedTuple):
    """What some of the lines hold. rows: _READ; lines: the line of each."""

    rows: pa.Table
    lines: Sequence[int]
    bad: Sequence[BadLine] = ()


_NOTHING = Part(_READ.empty_table(), ())


def read_lines(lines: Sequence[bytes]) -> Parsed:
    """Read lines of one record each, without their newlines. Rows may still leave their ranges (`row_errors`)."""
    return together(map(partial(read_group, lines), groups_of(lines)))


def groups_of(lines: Sequence[bytes]) -> Iterator[Sequence[int]]:
    """The lines in groups, each to be read by itself."""
    start = size = 0
    for at, line in enumerate(lines):
        if size and size + len(line) > _GROUP_BYTES:
            yield range(start, at)
            start, size = at, 0
        size += len(line) + 1
    if start < len(lines):
        yield range(start, len(lines))


def together(groups: Iterable[Sequence[Part]]) -> Parsed:
    """All that was read of the groups, as one."""
    parts = [part for group in groups for part in group] or [_NOTHING]
    rows = parts[0].rows if len(parts) == 1 else pa.concat_tables([part.rows for part in parts]).combine_chunks()
    lines = np.concatenate([np.asarray(part.lines, np.int64) for part in parts])
    if (np.diff(lines) < 0).any():
        order = np.argsort(lines)
        rows, lines = rows.take(pa.array(order)).combine_chunks(), lines[order]
    return Parsed(tightened(rows, RECORD_SCHEMA), lines, tuple(line for part in parts for line in part.bad))


def read_group(lines: Sequence[bytes], group: Sequence[int]) -> list[Part]:
    """What a group of the lines holds: read in bulk, but for those that pydantic has to look at."""
    given = [lines[at] for at in group]
    block = _plain_block(given)
    doubtful = set[int]() if block is not None else {at for at in group if _plain_block([lines[at]]) is None}
    while len(doubtful) <= len(group) // _DOUBTFUL:
        plain = [at for at in group if at not in doubtful]
        if doubtful:
            given = [lines[at] for at in plain]
            block = b"\n".join(given)
        assert block is not None
        found = _read(given, block)
        if isinstance(found, pa.Table):
            return [Part(found, plain), *([_judged(lines, sorted(doubtful))] if doubtful else [])]
        if not found and len(group) > _FEW:
            middle = len(group) // 2
            return [*read_group(lines, group[:middle]), *read_group(lines, group[middle:])]
        doubtful.update(plain[at] for at in found or range(len(plain)))
    return [_judged(lines, group)]


def _plain_block(lines: Sequence[bytes]) -> bytes | None:
    """The lines in one, if each of them is UTF-8 and begins and ends as an object that is alone in it; or else None.

    What is cut short is seen without a try, and what begins and ends so in every line holds whole objects in every one.
    """
    if not all(line[:1] == b"{" and line[-1:] == b"}" for line in lines):
        return None
    block = b"\n".join(lines)
    if _ANOTHER.search(block):
        return None
    try:
        return block if block.isascii() or block.decode() else None
    except UnicodeDecodeError:
        return None


def _read(lines: Sequence[bytes], block: bytes) -> pa.Table | list[int]:
    """The rows (_READ) of plain lines, alone and in one, that pydantic would accept but for ranges.

    Or those lines that it has to look at before the others can be read; none where it is not known which.
    """
    try:
        rows = _read_block(block)
    except pa.ArrowInvalid as error:
        row = _ROW.search(str(error))
        return [int(row[1])] if row else _with_other_keys(lines)
    if len(rows) != len(lines):
        return []
    if not _keys_add_up(block, rows):
        return _with_other_keys(lines)
    texts = rows.column("observed_at")
    usual = _are_usual(texts)
    if not usual.all():
        return np.flatnonzero(~usual).tolist()
    try:
        return _set(rows, "observed_at", texts.cast(MOMENT))
    except pa.ArrowInvalid:  # the thirtieth of February
        return []


def _are_usual(texts: pa.ChunkedArray) -> np.ndarray:
    """Which of the moments are written so that nobody reads them otherwise than pydantic."""
    return np.asarray(pc.fill_null(pc.match_substring_regex(texts, _MOMENT), False), np.bool_)


def _with_other_keys(lines: Sequence[bytes]) -> list[int]:
    """Lines with a key that no object has, or without one that each record has: Arrow's reader does not say where."""
    keys = [frozenset(_KEY.findall(line)) for line in lines]
    return [at for at, found in enumerate(keys) if not _NEEDED <= found <= _NAMES]


def _set(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, column)


def _read_block(block: bytes) -> pa.Table:
    """The table (_LOOSE) that Arrow reads from a block of lines. Raises ArrowInvalid where it cannot."""
    options = pj.ReadOptions(use_threads=False, block_size=len(block) + 1)
    return pj.read_json(pa.BufferReader(block), options, _OPTIONS).combine_chunks()


def _keys_add_up(block: bytes, loose: pa.Table) -> bool:
    """Whether every key that must be there is: Arrow reads an absent one as null.

    A key can neither be unknown nor stand twice, or Arrow had refused it; so it is enough to count them.
    """
    octets = np.frombuffer(block, np.uint8)
    ends = (octets[:-1] == 0x22) & (octets[1:] == 0x3A)
    within = int(np.count_nonzero(ends[1:] & (octets[:-2] == 0x5C))) if b"\\" in block else 0
    present = int(np.count_nonzero(ends)) - within
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


def _judged(lines: Sequence[bytes], which: Sequence[int]) -> Part:
    """What lines hold at which pydantic looks one by one, but for those that are seen to be good without it."""
    read: list[Any] = []
    good: list[int] = []
    bad: list[BadLine] = []
    for at in which:
        try:
            read.append(judged(lines[at]))
            good.append(at)
        except ValidationError as error:
            bad.append(_bad_line(at, lines[at], error))
    if not good:
        return _NOTHING._replace(bad=bad)
    try:
        rows = _read_block(b"\n".join(lines[at] for at in good))
    except pa.ArrowInvalid:  # a key that stands twice: pydantic took the last, which it writes again
        read = [_model_of(lines[at]) for at in good]
        rows = _read_block(b"\n".join(model.model_dump_json().encode() for model in read))
    assert len(rows) == len(good), "Arrow reads a row from every line that pydantic takes"
    versions = pa.array([record.schema_version for record in read], pa.int64())
    usual = _are_usual(rows.column("observed_at")).tolist()
    exact = [record if fits else _model_of(lines[at]) for at, record, fits in zip(good, read, usual, strict=True)]
    moments = pa.array([record.observed_at for record in exact], MOMENT)
    return Part(_set(_set(rows, "schema_version", versions), "observed_at", moments), good, bad)


def _model_of(line: bytes) -> DecisionCycleRecord:
    return DecisionCycleRecord.model_validate_json(line, strict=True)


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


_NAMES = frozenset(name.encode() for name in _names(DecisionCycleRecord, absent=False))
"""Names of all fields, at any depth, as they stand in a line."""

_OPTIONAL = frozenset(_names(DecisionCycleRecord, absent=True))
"""Names of fields, at any depth, that may be absent and are null then."""

_NEEDED = frozenset(name.encode() for name in set(RECORD_SCHEMA.names) - _OPTIONAL)
"""Names that stand in every record."""

assert all(list(_names(DecisionCycleRecord, absent=False)).count(name) == 1 for name in _OPTIONAL), (
    "a name that may be absent belongs to one object alone, or counting keys would not tell where it is"
)
