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
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json

from bardo_pipeline.errors import RecordError, SchemaVersionError
from bardo_pipeline.events.record.arrow_schema import MOMENT, RECORD_SCHEMA
from bardo_pipeline.events.record.fast_json import judged
from bardo_pipeline.events.record.model import SCHEMA_VERSION, DecisionCycleRecord
from bardo_pipeline.storage.intake.json_key_count import keys_add_up, with_other_keys
from bardo_pipeline.storage.intake.line_buffer import Lines
from bardo_pipeline.storage.intake.nullable_schema import loosened, tightened

_GROUP_BYTES = 2 * 2**20  # Arrow's reader takes a millisecond to begin, and what it read before a bad line is lost
_FEW = 16  # lines: pydantic has looked at each of them before Arrow begins
_DOUBTFUL = 64  # one line of so many is taken out of its group; where there are more, pydantic looks at all
_SHOWN_CHARACTERS = 80
_ERRORS_NAMED = 3
_MOMENT = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,6})?(Z|\+00:00)$"
# Behind an object that is one of several in a line; Arrow's reader ends the process where the next is null.
_ANOTHER = re.compile(rb"\}[ \t\r]*[^,\]} \t\r\n]")
_ROW = re.compile(r"in row (\d+)")
_FIRST_NOT_ASCII = 0x80


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


def read_lines(lines: Lines) -> Parsed:
    """Read lines of one record each. Rows may still leave their ranges (`row_errors`)."""
    return together(map(partial(read_group, lines), groups_of(lines)))


def groups_of(lines: Lines) -> Iterator[range]:
    """The lines in groups, each to be read by itself."""
    return lines.runs(_GROUP_BYTES)


def together(groups: Iterable[Sequence[Part]]) -> Parsed:
    """All that was read of the groups, as one."""
    parts = [part for group in groups for part in group] or [_NOTHING]
    rows = parts[0].rows if len(parts) == 1 else pa.concat_tables([part.rows for part in parts]).combine_chunks()
    lines = np.concatenate([np.asarray(part.lines, np.int64) for part in parts])
    if (np.diff(lines) < 0).any():
        order = np.argsort(lines)
        rows, lines = rows.take(pa.array(order)).combine_chunks(), lines[order]
    return Parsed(tightened(rows, RECORD_SCHEMA), lines, tuple(line for part in parts for line in part.bad))


def read_group(lines: Lines, group: range) -> list[Part]:
    """What a group of the lines holds: read in bulk, but for those that pydantic has to look at."""
    block = lines.joined(group)
    all_plain = lines.enclosed(group, b"{", b"}") and _is_plain(block)
    doubtful = set[int]() if all_plain else {at for at in group if not _is_plain_line(lines[at])}
    while len(doubtful) <= len(group) // _DOUBTFUL:
        plain = [at for at in group if at not in doubtful]
        if doubtful:
            block = memoryview(b"\n".join([lines[at] for at in plain]))
        found = _read(block, len(plain))
        if isinstance(found, pa.Table):
            return [Part(found, plain), *([_judged(lines, sorted(doubtful))] if doubtful else [])]
        if not found and len(group) > _FEW:
            middle = len(group) // 2
            return [*read_group(lines, group[:middle]), *read_group(lines, group[middle:])]
        doubtful.update(plain[at] for at in found or range(len(plain)))
    return [_judged(lines, group)]


def _is_plain_line(line: bytes) -> bool:
    return line[:1] == b"{" and line[-1:] == b"}" and _is_plain(memoryview(line))


def _is_plain(block: memoryview) -> bool:
    """Whether lines, each of which begins and ends as an object, are UTF-8 and hold one object each.

    What is cut short is seen without a try, and what begins and ends so in every line holds whole objects in every one.
    """
    if _ANOTHER.search(block):
        return False
    try:
        return np.frombuffer(block, np.uint8).max() < _FIRST_NOT_ASCII or bool(str(block, "utf-8"))
    except UnicodeDecodeError:
        return False


def _read(block: memoryview, count: int) -> pa.Table | list[int]:
    """The rows (_READ) of a block of so many plain lines that pydantic would accept but for ranges.

    Or those lines that it has to look at before the others can be read; none where it is not known which.
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


def _set(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, column)


def _read_block(block: bytes | memoryview) -> pa.Table:
    """The table (_LOOSE) that Arrow reads from a block of lines. Raises ArrowInvalid where it cannot."""
    options = pj.ReadOptions(use_threads=False, block_size=len(block) + 1)
    return pj.read_json(pa.BufferReader(block), options, _OPTIONS).combine_chunks()


def _judged(lines: Lines, which: Sequence[int]) -> Part:
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
