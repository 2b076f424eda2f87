"""Read JSON lines into Arrow tables in bulk, with the same result as pydantic line by line.

Arrow's reader reads lines in groups. Doubtful lines, which Arrow refuses or may read differently from pydantic (absent
keys, unusual times, several values in a line), are read by pydantic, which names the fault of a bad line. If a group
has many doubtful lines, pydantic reads the whole group. `row_errors` checks ranges and choices at admission.

Source: facts ("Reading JSON"): Arrow's reader accepts invalid UTF-8, NaN and missing fields.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.errors import RecordError, SchemaVersionError
from bardo_pipeline.events.record.arrow_schema import MOMENT, RECORD_SCHEMA
from bardo_pipeline.events.record.model import SCHEMA_VERSION, DecisionCycleRecord
from bardo_pipeline.events.record_json import parse_record
from bardo_pipeline.storage.intake.json_key_count import keys_add_up, with_other_keys
from bardo_pipeline.storage.intake.line_buffer import Lines
from bardo_pipeline.storage.intake.nullable_schema import loosened, tightened

_GROUP_BYTES = 2 * 2**20  # a call of Arrow's reader costs 1 ms, and a bad line discards the rows of its call
_FEW = 16  # lines: pydantic reads so few faster than a call of Arrow's reader
_DOUBTFUL = 64  # with more than one doubtful line in 64, pydantic reads the whole group
_SHOWN_CHARACTERS = 80
_ERRORS_NAMED = 3
_MOMENT = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,6})?(Z|\+00:00)$"
# An object followed by another value in its line; Arrow's reader crashes if that value is null.
_ANOTHER = re.compile(rb"\}[ \t\r]*[^,\]} \t\r\n]")
_ROW = re.compile(r"in row (\d+)")
_FIRST_NOT_ASCII = 0x80


@dataclass(frozen=True)
class BadLine:
    """A line without a valid record: its index, the golem and tick that it names, and the error."""

    line: int
    golem_id: str | None
    tick: int | None
    error: RecordError | SchemaVersionError


@dataclass(frozen=True)
class Parsed:
    """Records of lines. records: RECORD_SCHEMA, in the order of the lines; lines: line of each row."""

    records: pa.Table
    lines: Int64Array
    bad: tuple[BadLine, ...]


_LOOSE = loosened(RECORD_SCHEMA, moments=pa.string())
"""Schema for Arrow's reader; times are text, so that their format can be checked."""

_READ = loosened(RECORD_SCHEMA)
"""Schema of the parsed rows."""

_OPTIONS = pj.ParseOptions(explicit_schema=_LOOSE, unexpected_field_behavior="error")


class _Part(NamedTuple):
    """Parsed rows (_READ) of some lines, with the line of each."""

    rows: pa.Table
    lines: Sequence[int]
    bad: Sequence[BadLine] = ()


_NOTHING = _Part(_READ.empty_table(), ())


def read_lines(lines: Lines) -> Parsed:
    """Read lines of one record each. Values are not yet checked against their ranges (`row_errors`)."""
    parts = [part for group in lines.runs(_GROUP_BYTES) for part in _read_group(lines, group)] or [_NOTHING]
    rows = parts[0].rows if len(parts) == 1 else pa.concat_tables([part.rows for part in parts]).combine_chunks()
    line_of_row = np.concatenate([np.asarray(part.lines, np.int64) for part in parts])
    if (np.diff(line_of_row) < 0).any():
        order = np.argsort(line_of_row)
        rows, line_of_row = rows.take(pa.array(order)).combine_chunks(), line_of_row[order]
    return Parsed(tightened(rows, RECORD_SCHEMA), line_of_row, tuple(line for part in parts for line in part.bad))


def _read_group(lines: Lines, group: range) -> list[_Part]:
    """Read a group of lines in bulk, except for doubtful lines."""
    block = lines.joined(group)
    is_plain = lines.enclosed(group, b"{", b"}") and _is_plain(block)
    doubtful = set[int]() if is_plain else {at for at in group if not _is_plain_line(lines[at])}
    while len(doubtful) <= len(group) // _DOUBTFUL:
        plain = [at for at in group if at not in doubtful]
        if doubtful:
            block = memoryview(b"\n".join([lines[at] for at in plain]))
        result = _read(block, len(plain))
        if isinstance(result, pa.Table):
            return [_Part(result, plain), *([_read_single(lines, sorted(doubtful))] if doubtful else [])]
        if not result and len(group) > _FEW:
            middle = len(group) // 2
            return [*_read_group(lines, group[:middle]), *_read_group(lines, group[middle:])]
        doubtful.update(plain[at] for at in result or range(len(plain)))
    return [_read_single(lines, group)]


def _is_plain_line(line: bytes) -> bool:
    return line[:1] == b"{" and line[-1:] == b"}" and _is_plain(memoryview(line))


def _is_plain(block: memoryview) -> bool:
    """Whether lines that begin with { and end with } are UTF-8 and have one object each."""
    if _ANOTHER.search(block):
        return False
    try:
        return np.frombuffer(block, np.uint8).max() < _FIRST_NOT_ASCII or bool(str(block, "utf-8"))
    except UnicodeDecodeError:
        return False


def _read(block: memoryview, count: int) -> pa.Table | list[int]:
    """Read a block of `count` plain lines (_READ).

    If that fails, return the lines that pydantic must read instead; empty if Arrow does not name them.
    """
    try:
        rows = _read_block(block)
    except pa.ArrowInvalid as error:
        row = _ROW.search(str(error))
        return [int(row[1])] if row else with_other_keys(block)
    if len(rows) != count:
        return []
    if not keys_add_up(block, rows):
        return with_other_keys(block)
    texts = rows.column("observed_at")
    is_usual = _has_usual_format(texts)
    if not is_usual.all():
        return np.flatnonzero(~is_usual).tolist()
    try:
        return _set(rows, "observed_at", texts.cast(MOMENT))
    except pa.ArrowInvalid:  # an impossible date, such as 30 February
        return []


def _has_usual_format(texts: pa.ChunkedArray) -> BoolArray:
    """Return a mask of the times in a format that Arrow and pydantic read alike."""
    return np.asarray(pc.fill_null(pc.match_substring_regex(texts, _MOMENT), False), np.bool_)


def _set(table: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, column)


def _read_block(block: bytes | memoryview) -> pa.Table:
    """Read a block of lines with Arrow (_LOOSE). Raises ArrowInvalid if it cannot."""
    options = pj.ReadOptions(use_threads=False, block_size=len(block) + 1)
    return pj.read_json(pa.BufferReader(block), options, _OPTIONS).combine_chunks()


def _read_single(lines: Lines, which: Sequence[int]) -> _Part:
    """Validate lines one by one, and read the valid ones with Arrow."""
    read: list[Any] = []
    good: list[int] = []
    bad: list[BadLine] = []
    for at in which:
        try:
            read.append(parse_record(lines[at]))
            good.append(at)
        except ValidationError as error:
            bad.append(_bad_line(at, lines[at], error))
        except RecordError as error:
            bad.append(BadLine(at, *claims_of(lines[at])[:2], error))
    if not good:
        return _NOTHING._replace(bad=bad)
    rows = _read_block(b"\n".join(lines[at] for at in good))
    assert len(rows) == len(good), "Arrow reads a row from every valid line"
    versions = pa.array([record.schema_version for record in read], pa.int64())
    usual = _has_usual_format(rows.column("observed_at")).tolist()
    exact = [
        record if is_usual else DecisionCycleRecord.model_validate_json(lines[at], strict=True)
        for at, record, is_usual in zip(good, read, usual, strict=True)
    ]
    moments = pa.array([record.observed_at for record in exact], MOMENT)
    return _Part(_set(_set(rows, "schema_version", versions), "observed_at", moments), good, bad)


def _bad_line(line: int, raw: bytes, error: ValidationError) -> BadLine:
    golem_id, tick, version = claims_of(raw)
    subject = f"golem {golem_id}, tick {tick}" if golem_id is not None else "a line"
    if version is not None and version > SCHEMA_VERSION:
        reason = (
            f"{subject}: schema version {version} is newer than {SCHEMA_VERSION}: upgrade bardo-pipeline to read it"
        )
        return BadLine(line, golem_id, tick, SchemaVersionError(reason))
    return BadLine(line, golem_id, tick, RecordError(f"{subject}: {sentence_of(error)}"))


def sentence_of(error: ValidationError) -> str:
    """Format the errors of pydantic as one sentence."""
    details = error.errors(include_url=False, include_context=False)
    named = "; ".join(_sentence(detail) for detail in details[:_ERRORS_NAMED]).replace("at line 1 column", "at column")
    return named + (f" (and {len(details) - _ERRORS_NAMED} more)" if len(details) > _ERRORS_NAMED else "")


def _sentence(detail: ErrorDetails) -> str:
    path = ".".join(str(part) for part in detail["loc"])[:_SHOWN_CHARACTERS]
    if detail["type"] in ("missing", "json_invalid"):
        return f"{path}: {detail['msg']}".removeprefix(": ")
    return f"{path}: {detail['msg']}, not {detail['input']!r:.{_SHOWN_CHARACTERS}}".removeprefix(": ")


def claims_of(raw: bytes) -> tuple[str | None, int | None, int | None]:
    """Return golem, tick and schema version that a bad line names, as far as they are readable."""
    try:
        fields = from_json(raw, allow_partial="trailing-strings")
    except ValueError:
        return None, None, None
    if not isinstance(fields, dict):
        return None, None, None
    golem_id, tick, version = fields.get("golem_id"), fields.get("tick"), fields.get("schema_version")
    return (
        golem_id if isinstance(golem_id, str) and 0 < len(golem_id) <= 256 else None,
        tick if type(tick) is int and abs(tick) < 2**63 else None,
        version if type(version) is int else None,
    )
