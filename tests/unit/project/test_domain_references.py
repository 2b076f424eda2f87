"""Every reference in the code, `canon 17`, `MEM-6` or `HB S7`, has an anchor in docs/domain."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("bardo_pipeline", "assets", "jobs", "sensors")
CANON = re.compile(r"\bcanon (\d+(?:-\d+)?(?:(?:, | and )\d+(?:-\d+)?)*)")
ROW = re.compile(r"(?<![\w-])(?:P|EV|HB|MEM|CTX|INH|KAT|CH|X)-\d+(?![\w-])")
SECTION = re.compile(r"\b(INH|HB) (S\d+)")


def _anchors(page: str) -> set[str]:
    return set(re.findall(r'<a id="([\w-]+)"></a>', (ROOT / "docs" / "domain" / page).read_text()))


def _sources() -> list[tuple[Path, str]]:
    files = chain.from_iterable(sorted((ROOT / package).rglob("*.py")) for package in PACKAGES)
    return [(path.relative_to(ROOT), " ".join(path.read_text().split())) for path in files]


def _canon_numbers(text: str) -> set[int]:
    numbers: set[int] = set()
    for cited in CANON.findall(text):
        for part in re.split(r", | and ", cited):
            first, _, last = part.partition("-")
            numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def _missing(anchors: set[str], wanted: dict[Path, set[str]]) -> dict[str, set[str]]:
    return {str(path): absent for path, ids in wanted.items() if (absent := ids - anchors)}


def test_every_cited_canon_row_is_on_the_canon_page() -> None:
    wanted = {path: {f"canon-{n}" for n in _canon_numbers(text)} for path, text in _sources()}
    assert sum(map(len, wanted.values())) > 100
    assert not _missing(_anchors("canon.md"), wanted)


@pytest.mark.parametrize(("pattern", "least"), [(ROW, 30), (SECTION, 100)])
def test_every_cited_row_and_section_is_on_the_ledger_page(pattern: re.Pattern[str], least: int) -> None:
    wanted = {path: {m[0].lower().replace(" ", "-") for m in pattern.finditer(text)} for path, text in _sources()}
    assert sum(map(len, wanted.values())) > least
    assert not _missing(_anchors("ledger.md"), wanted)


def test_canon_numbers_reads_ranges_and_lists() -> None:
    assert _canon_numbers("canon 2, 7-9 and 17; MEM-6 (canon 21)") == {2, 7, 8, 9, 17, 21}
