"""A query of the README keeps its key on a narrow and on a wide terminal, and in a pipe."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.support.processes.bardo_command import bardo, on_terminal, unstyled

pytestmark = [pytest.mark.full, pytest.mark.row("P-4")]

QUERY = ("sql", "from fct_deaths order by golem_id")


@pytest.mark.parametrize("columns", [80, 200])
def test_a_terminal_shows_the_key_and_every_cell_of_a_wide_mart(marts_home: Path, columns: int) -> None:
    dead = json.loads(bardo(*QUERY, "--format", "json", home=marts_home))
    lines = unstyled(on_terminal(QUERY, marts_home, columns=columns))
    shown = [line.split() for line in lines if line.startswith("golem_id ")]
    assert shown == [["golem_id", row["golem_id"]] for row in dead]
    width = max(map(len, dead[0]))
    assert [line[width + 2 :] for line in lines if line.startswith("bundle_hash ")] == [r["bundle_hash"] for r in dead]


def test_a_pipe_gets_the_cells_of_the_csv_separated_by_tabs(marts_home: Path) -> None:
    piped = bardo(*QUERY, home=marts_home)
    plain = list(csv.reader(bardo(*QUERY, "--format", "csv", home=marts_home).splitlines()))
    rows = [line.split("\t") for line in piped.splitlines()]
    keys = [plain[0].index(name) for name in ("golem_id", "tick", "bundle_hash")]
    assert [[row[i] for i in keys] for row in rows] == [[row[i] for i in keys] for row in plain]
    assert {len(row) for row in rows} == {len(plain[0])}
