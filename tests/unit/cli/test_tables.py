"""Tables of the command: whole keys, vertical if the terminal is narrow, tab-separated if the output is piped."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bardo_pipeline.cli.output import tables

pytestmark = pytest.mark.row("P-4")

HASH = "8dfb26622e8c" * 5
NAMES = ["golem_id", "cause", "ticks", "note", "bundle_hash"]
ROWS = [("g-64cb0906", "stochastic", 1_180, "many words " * 12, HASH), ("g-9", None, 1_000_000, "a\tb\nc", "")]


def shown(width: int | None, names: Sequence[str], rows: Sequence[tuple[Any, ...]], title: str | None = None) -> str:
    """Return what a terminal of this width gets, or a pipe without a width."""
    paper = io.StringIO()
    console = tables.Terminal(file=paper, width=width, force_terminal=width is not None, color_system=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "out", console)
        tables.print_table(title, names, rows)
    return paper.getvalue()


def test_a_wide_terminal_gets_aligned_columns_with_every_cell_whole() -> None:
    lines = [line for line in shown(140, NAMES, ROWS).splitlines() if line.strip()]
    assert lines[0].split() == NAMES
    assert set(lines[1].strip()) == {"─"}
    assert lines[2].split()[:3] == ["g-64cb0906", "stochastic", "1,180"]
    assert lines[2].split()[-1] == HASH
    assert lines[-1].split() == ["g-9", "null", "1,000,000", "a", "b", "c"]


@pytest.mark.parametrize("width", [20, 80, 110])
def test_a_narrow_terminal_gets_one_line_for_each_cell(width: int) -> None:
    lines = shown(width, NAMES, ROWS).splitlines()
    assert lines[:3] == ["golem_id     g-64cb0906", "cause        stochastic", "ticks        1,180"]
    assert lines[4] == f"bundle_hash  {HASH}", "a value is never cut or broken, so that it copies whole"
    assert lines[5] == "─" * width
    assert lines[6] == "golem_id     g-9"


def test_a_column_of_text_wraps_between_words_before_a_table_turns_vertical() -> None:
    rows = [("e-1", "insight", "many words in a sentence " * 4)]
    assert shown(46, ["entry", "kind", "text"], rows).split()[:3] == ["entry", "kind", "text"]
    assert shown(38, ["entry", "kind", "text"], rows).startswith("entry  e-1\n")


def test_a_pipe_gets_a_header_and_tab_separated_rows() -> None:
    lines = shown(None, NAMES, ROWS, "Deaths").splitlines()
    assert lines[0] == "Deaths"
    assert lines[1] == "\t".join(NAMES)
    assert lines[2] == "\t".join(["g-64cb0906", "stochastic", "1180", "many words " * 12, HASH])
    assert lines[3] == "g-9\t\t1000000\ta b c\t"


def test_an_empty_table_shows_its_columns() -> None:
    assert shown(None, NAMES, []) == "\t".join(NAMES) + "\n"
    assert shown(80, NAMES, []).split()[:5] == NAMES
    assert shown(20, NAMES, []) == f"no rows of {', '.join(NAMES)}\n"


@given(rows=st.lists(st.tuples(st.text(), st.text(), st.integers()), max_size=4), width=st.integers(8, 120))
def test_any_text_stays_one_row_and_keeps_its_characters(rows: list[tuple[str, str, int]], width: int) -> None:
    names = ["key", "text", "number"]
    piped = shown(None, names, rows)
    read = list(csv.reader(piped.split("\n")[:-1], delimiter="\t", quoting=csv.QUOTE_NONE))
    cells = [[tables.visible(text.replace("\n", " ").replace("\t", " ")) for text in row[:2]] for row in rows]
    assert [row[:2] for row in read[1:]] == cells
    kept = "".join(shown(width, names, rows).split())
    assert all("".join(key.split()) in kept for key, _ in cells)


@pytest.mark.parametrize("columns", [1, 2, 5])
def test_a_table_that_just_fits_uses_the_whole_terminal(columns: int) -> None:
    names, row = [f"c{i}" for i in range(columns)], ("x" * 20,) * columns
    fitting = next(width for width in range(20, 200) if not shown(width, names, [row]).startswith("c0  x"))
    lines = shown(fitting, names, [row]).splitlines()
    assert max(map(len, lines)) == fitting, "a narrower terminal gets one line for each cell"
    assert "".join(lines).count("x" * 20) == columns
