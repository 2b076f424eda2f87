"""The terminal of all commands: lines, rows as table, CSV or JSON, and progress bars.

All text that a command prints passes `visible`, or `escaped` in JSON. No other module of the command writes to the
standard streams.
"""

from __future__ import annotations

import csv
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from io import TextIOWrapper
from typing import Any, NamedTuple, TextIO

import orjson
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from bardo_pipeline.visible_text import escaped, visible

SHORT_CELL = 34
"""Width up to which a column never wraps."""

LONG_CELL_MIN = 24
"""Width below which a wrapped column is unreadable: the table turns vertical instead."""

COLUMN_GAP = 3
"""Width of the space between two columns; the edges of a table have one less together."""

UNBOUNDED_WIDTH = 1_000_000
"""Width at which the longest word of a cell is measured."""

ROWS_SHOWN = 20
"""Rows of a table that a command with --limit shows by default."""


class Terminal(Console):
    """A console that prints the visible characters of texts, and only its own control sequences."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render an object as segments; the removed characters have no width, so that columns stay aligned."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


out = Terminal(soft_wrap=False, highlight=False)
err = Terminal(stderr=True)


def use_lossy_streams() -> None:
    """Print "?" for characters that the terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


class _VisibleLines(logging.Formatter):
    """Lines of a log without control characters, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def show_log() -> None:
    """Print warnings and errors of all loggers on standard error."""
    lines = logging.StreamHandler()
    lines.setFormatter(_VisibleLines("%(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[lines])


def say(text: str) -> None:
    """Print a text without markup and wrapping, because names from records may contain brackets."""
    out.print(text, markup=False, soft_wrap=True)


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print named facts, one a line, aligned on a terminal and tab-separated if the output is piped."""
    if not out.is_terminal:
        out.file.writelines(visible(f"{name}\t{_text(value)}\n") for name, value in facts)
        return
    grid = Table.grid(padding=(0, 2))
    for name, value in facts:
        grid.add_row(f"[dim]{name}[/]", escape(value))
    out.print(grid)


def print_nonempty(title: str | None, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    """Print a table if it has rows."""
    if rows:
        print_table(title, names, rows)


def print_records(title: str | None, records: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as a table whose columns are the keys of the first row."""
    print_table(title, list(records[0]), [tuple(record.values()) for record in records])


def print_rows(names: Sequence[str], rows: Sequence[tuple[Any, ...]], format: str) -> None:
    """Print rows as table, csv or json: one object a row."""
    if format == "json":
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    elif format == "csv":
        cells = [[visible(value) if isinstance(value, str) else value for value in row] for row in (names, *rows)]
        csv.writer(sys.stdout).writerows(cells)
    else:
        print_table(None, names, rows)


def print_table(title: str | None, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    """Print a table, as tab-separated values if the output is piped.

    No cell is cut. On a terminal, a table that is wider than the terminal prints one `name  value` line per cell.
    """
    if not out.is_terminal:
        out.file.writelines(visible(line) for line in _tab_separated(title, names, rows))
        return
    if title is not None:
        out.print(f"[bold]{escape(title)}[/]", soft_wrap=True)
    cells = [[_cell(value) for value in row] for row in rows]
    columns = [_column(name, [row[i] for row in rows], [row[i] for row in cells]) for i, name in enumerate(names)]
    spare = out.width + 1 - sum(column.least + COLUMN_GAP for column in columns)
    if spare < 0:
        _print_vertical(names, cells)
        return
    table = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    wanted = sum(column.whole - column.least for column in columns)
    for name, column in zip(names, columns, strict=True):
        width = column.least + (column.whole - column.least) * min(spare, wanted) // max(wanted, 1)
        table.add_column(escape(name), justify="right" if column.is_number else "left", overflow="fold", width=width)
    for row in cells:
        table.add_row(*row)
    out.print(table)


class _Column(NamedTuple):
    """Widths of a column. least: below it the column is unreadable. whole: no cell of it wraps."""

    least: int
    whole: int
    is_number: bool


def _tab_separated(title: str | None, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    """Yield the lines of a table; null is an empty cell, and numbers have no separators."""
    if title is not None:
        yield title + "\n"
    for row in (names, *rows):
        yield "\t".join("" if value is None else _text(value) for value in row) + "\n"


def _column(name: str, values: Sequence[Any], cells: Sequence[str]) -> _Column:
    texts = [Text.from_markup(text) for text in (escape(name), *cells)]
    whole = max(text.cell_len for text in texts)
    word = max(Measurement.get(out, out.options.update_width(UNBOUNDED_WIDTH), text).minimum for text in texts)
    known = [value for value in values if value is not None]
    is_number = bool(known) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in known)
    return _Column(whole if whole <= SHORT_CELL else max(word, LONG_CELL_MIN), whole, is_number)


def _print_vertical(names: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Print one line per cell, and a rule between rows; the terminal wraps a long value, so that it copies whole."""
    width = max(map(cell_len, names))
    if not cells:
        say(f"no rows of {', '.join(names)}")
    for number, row in enumerate(cells):
        if number:
            out.print("─" * out.width, style="dim")
        for name, cell in zip(names, row, strict=True):
            out.print(f"[bold]{escape(set_cell_size(name, width))}[/]  {cell}", soft_wrap=True)


@contextmanager
def spinner(text: str, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Show a spinner with a text, nothing if `quiet`; yield a function that adds the present step to the text."""
    if quiet:
        yield lambda step: None
        return
    with out.status(text) as status:
        yield lambda step: status.update(f"{text}: {step}")


def progress_bar(console: Console, *extra: ProgressColumn) -> Progress:
    """Return a transient progress display: spinner, description, bar, extra columns, elapsed time."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), *extra, TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


def print_json(value: Any, *, indent: bool = False) -> None:
    """Print a value as JSON, on one line unless `indent`; types that JSON lacks become strings."""
    kinds = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    kinds |= orjson.OPT_INDENT_2 if indent else 0
    sys.stdout.buffer.write(escaped(orjson.dumps(value, option=kinds, default=str).decode()).encode())


def print_line(text: str, *, to: TextIO | None = None) -> None:
    """Print a line at once and without wrapping, for programs that read it; to standard output unless `to` is given."""
    print(visible(text), file=to, flush=True)


def percent(ppm: int) -> str:
    """Return parts per million as a whole percentage."""
    return f"{ppm / 1e4:.0f} %"


def as_moment(value: datetime | str) -> datetime:
    """Return a moment of a document, which may be a text in one of a server."""
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def day(moment: datetime | str | None) -> str:
    """Return the date of a moment, "-" for None."""
    return "-" if moment is None else f"{as_moment(moment):%Y-%m-%d}"


def _cell(value: Any) -> str:
    if value is None:
        return "[dim]null[/]"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    return escape(_text(value))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).replace("\n", " ").replace("\t", " ")  # a name with a newline could forge a row
