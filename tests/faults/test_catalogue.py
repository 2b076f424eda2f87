"""The catalogue of faults fits the sources: each fault applies, and its tests exist and name its row."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.faults.catalogue import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
NAMED = {
    "attention silences T2", "pool-share cage off", "drift probe fed zero", "gas above its share never deferred",
    "causal probe never raised", "a prediction peeks at the next bar", "an imminent transition forces nothing",
    "kill switch unwired", "floors do not stop pruning", "constant gas probe",
}  # fmt: skip


def test_the_catalogue_has_sixty_faults_with_the_ten_that_once_survived() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(names) == len(set(names)) >= 60
    assert set(names) >= NAMED
    assert len({(fault.file, fault.old, fault.new) for fault in FAULTS}) == len(FAULTS)


@cache
def source(file: str) -> str:
    return (ROOT / "bardo_pipeline" / file).read_text()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_applies_to_one_place_and_stays_valid_python(fault: Fault) -> None:
    text = source(fault.file)
    assert text.count(fault.old) == 1, f"{fault.old!r} occurs {text.count(fault.old)} times in {fault.file}"
    assert fault.new != fault.old
    ast.parse(text.replace(fault.old, fault.new))


@cache
def rows_of(file: str) -> dict[str, set[str]]:
    """Return the ledger rows that each test of a file names."""
    tree = ast.parse((ROOT / file).read_text())
    rows: dict[str, set[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            rows[node.name] = {
                str(row.value)
                for mark in node.decorator_list
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.row"
                for row in mark.args
                if isinstance(row, ast.Constant)
            }
    return rows


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_test_that_may_kill_a_fault_names_its_row(fault: Fault) -> None:
    assert fault.tests
    for test in fault.tests:
        file, _, name = test.partition("::")
        assert fault.row in rows_of(file)[name], test
