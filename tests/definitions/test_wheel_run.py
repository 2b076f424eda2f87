"""The unit tests that `.ci/wheel` runs outside a checkout need nothing that only a checkout has."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NEEDS_CHECKOUT = re.compile(
    r"^(?:from|import) (?:assets|jobs|sensors|definitions)\b|ROOT / \"(?:definitions\.py|dbt|deploy)\"", re.MULTILINE
)


def test_the_unit_tests_of_the_wheel_need_no_checkout() -> None:
    left_out = re.search(r"^checkout=\((.*)\)$", (ROOT / ".ci" / "wheel").read_text(), re.MULTILINE)
    assert left_out is not None
    ignored = {ROOT / "tests" / "unit" / "project" / name for name in left_out[1].split()}
    assert all(path.is_file() for path in ignored)
    run = set((ROOT / "tests" / "unit").rglob("*.py")) - ignored
    assert {str(path.relative_to(ROOT)) for path in run if NEEDS_CHECKOUT.search(path.read_text())} == set()
