"""Read CSV files of demeter-fetch as columns, with errors that name line (the header is line 1) and column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.clock import moment_at
from bardo_pipeline.errors import TraceError
from bardo_pipeline.market.market import TICK_MAX, FloatBars, IntBars

_NUMBER = r"^-?\d+(\.\d+)?([eE][+-]?\d+)?$"
_WHOLE = r"^-?\d+(\.0+)?$"
_MINUTE = r"^\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}:00(\.0+)?(Z|\+00:00)?$"


@dataclass(frozen=True)
class TraceFile:
    """A CSV file as columns of cells; row r is line r + 2."""

    name: str
    cells: dict[str, pa.Array]

    def refuse(self, bad: NDArray[np.bool_], column: str, fact: str) -> None:
        """Raise TraceError for the first bad row; `{cell}` in the fact is replaced by its value."""
        if bad.any():
            row = int(np.argmax(bad))
            cell = self.cells[column][row].as_py()
            raise TraceError(self.name, fact.replace("{cell}", repr(cell)), line=row + 2, column=column)

    def numbers(self, column: str, *, whole: bool = False) -> FloatBars:
        """Return the column as finite float64. Raises TraceError for any other cell."""
        cells = self.cells[column]
        fits = _mask(pc.match_substring_regex(cells, _WHOLE if whole else _NUMBER))
        self.refuse(_mask(pc.equal(pc.utf8_trim_whitespace(cells), "")), column, "the cell is empty")
        self.refuse(~fits, column, "{cell} is not a whole number" if whole else "{cell} is not a finite number")
        values = pc.cast(cells, pa.float64()).to_numpy(zero_copy_only=False)
        self.refuse(~np.isfinite(values), column, "{cell} is not a finite number")
        return np.asarray(values, dtype=np.float64)

    def ticks(self, column: str) -> IntBars:
        """Return the column as ticks in [-887272, 887272]."""
        values = self.numbers(column, whole=True)
        self.refuse(np.abs(values) > TICK_MAX, column, f"tick {{cell}} is outside [-{TICK_MAX}, {TICK_MAX}]")
        return values.astype(np.int64)

    def minutes(self, column: str) -> IntBars:
        """Return the column as UTC epoch microseconds on full minutes, strictly ascending."""
        cells = self.cells[column]
        self.refuse(_mask(pc.equal(pc.utf8_trim_whitespace(cells), "")), column, "the cell is empty")
        fact = "{cell} is not a UTC minute (YYYY-MM-DD HH:MM:00)"
        self.refuse(~_mask(pc.match_substring_regex(cells, _MINUTE)), column, fact)
        plain = pc.replace_substring(pc.utf8_slice_codeunits(cells, 0, 19), "T", " ")
        stamps = pc.strptime(plain, format="%Y-%m-%d %H:%M:%S", unit="us", error_is_null=True)
        round_trip = pc.fill_null(
            pc.equal(pc.strftime(stamps, format="%Y-%m-%d %H:%M"), pc.utf8_slice_codeunits(plain, 0, 16)), False
        )
        self.refuse(~_mask(round_trip), column, fact)
        at_us = np.asarray(stamps.cast(pa.int64()).to_numpy(zero_copy_only=False), dtype=np.int64)
        steps = np.diff(at_us, prepend=at_us[:1] - 1)
        self.refuse(steps == 0, column, "{cell} is repeated")
        self.refuse(steps < 0, column, "{cell} comes before the line above")
        return at_us


def load_trace_file(folder: Path, path: Path, columns: Sequence[str]) -> TraceFile:
    """Read a file with exactly these columns. Raises TraceError with the relative path."""
    name = str(path.relative_to(folder))
    try:
        raw = path.read_bytes()
    except OSError as fault:
        raise TraceError(name, f"cannot be read: {fault.strerror}") from fault
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        line = raw.count(b"\n", 0, fault.start) + 1
        raise TraceError(name, f"byte {fault.start} is not UTF-8", line=line) from fault
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    header = [cell.strip() for cell in lines[0].split(",")]
    if header != list(columns):
        wrong = next((have for have, want in zip(header, columns, strict=False) if have != want), None)
        raise TraceError(name, f"the header must be {','.join(columns)}", line=1, column=wrong)
    split = pc.split_pattern(pa.array(lines[1:], type=pa.large_string()), ",")
    widths = pc.list_value_length(split).to_numpy(zero_copy_only=False)
    if (widths != len(columns)).any():
        row = int(np.argmax(widths != len(columns)))
        column = columns[min(int(widths[row]), len(columns) - 1)]
        raise TraceError(name, f"{widths[row]} cells instead of {len(columns)}", line=row + 2, column=column)
    cells = pc.list_flatten(split)
    return TraceFile(name, {column: cells[k :: len(columns)] for k, column in enumerate(columns)})


def _mask(array: Any) -> NDArray[np.bool_]:
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.bool_)


@dataclass(frozen=True)
class Bars:
    """The minutes of one or several files, in time order.

    Parameters
    ----------
    names : relative paths of the files with a minute
    at_us : minutes, ascending, epoch microseconds
    columns : arrays with one value a minute, by name
    """

    names: tuple[str, ...]
    at_us: IntBars
    columns: dict[str, NDArray[Any]]


def read_bars(
    folder: Path, paths: Sequence[Path], header: Sequence[str], columns_of: Callable[[TraceFile], dict[str, NDArray]]
) -> Bars:
    """Read and join files with the same header, whose first column is the time.

    Raises TraceError if a file is malformed, if two files overlap, or if no file has a row.
    """
    files = [_bars(load_trace_file(folder, path, header), header[0], columns_of) for path in paths]
    parts = sorted((file for file in files if file.names), key=lambda part: (int(part.at_us[0]), part.names))
    for before, after in pairwise(parts):
        if after.at_us[0] <= before.at_us[-1]:
            moment, name = moment_at(int(after.at_us[0])), before.names[0]
            fact = f"{moment:%Y-%m-%d %H:%M:%S} does not come after the last line of {name}"
            raise TraceError(after.names[0], fact, line=2, column=header[0])
    if not parts:
        names = ", ".join(str(path.relative_to(folder)) for path in paths)
        raise TraceError(names, "holds no row below its header; fetch it again", line=1)
    joined = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
    return Bars(tuple(part.names[0] for part in parts), np.concatenate([part.at_us for part in parts]), joined)


def _bars(table: TraceFile, time: str, columns_of: Callable[[TraceFile], dict[str, NDArray]]) -> Bars:
    at_us = table.minutes(time)
    return Bars((table.name,) if len(at_us) else (), at_us, columns_of(table))


def last_known(at_us: IntBars, known_at: IntBars) -> NDArray[np.intp]:
    """Return for each minute the index of the newest known one; the first for earlier minutes."""
    return np.maximum(np.searchsorted(known_at, at_us, side="right") - 1, 0)
