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
from typing import Any, TextIO

import orjson
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Table

from bardo_pipeline.visible_text import escaped, visible

SHORT_CELL = 34

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
        cells = [[visible(value) if isinstance(value, str) else value for value in row] for row in rows]
        csv.writer(sys.stdout).writerows([names, *cells])
    else:
        print_table(None, names, rows)


def print_table(title: str | None, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    """Print a table; columns of at most 34 characters never wrap, numbers are right-aligned."""
    table = Table(
        title=None if title is None else escape(title),
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1),
    )
    cells = [[_cell(v) for v in row] for row in rows]
    for i, name in enumerate(names):
        values = [r[i] for r in rows if r[i] is not None]
        number = bool(values) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        short = max((len(c[i]) for c in cells), default=0) <= SHORT_CELL
        table.add_column(escape(name), justify="right" if number else "left", no_wrap=short, overflow="fold")
    for row in cells:
        table.add_row(*row)
    out.print(table)


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
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    return escape(str(value).replace("\n", " ").replace("\t", " "))  # a name with a newline could forge a row
