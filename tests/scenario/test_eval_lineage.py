"""`bardo eval lineage`: exit codes, the report, and a page without external files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.scenario.test_eval_command import Page
from tests.support.bardo_command import bardo

SMALL = ("--seeds", "1", "--golems", "1", "--days", "1", "--judged-days", "1", "--ancestors", "1", "--workers", "1")


@pytest.mark.full
@pytest.mark.row("X-5")
def test_short_lives_miss_the_bounds_and_the_page_shows_it(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    words = (*SMALL, "--trace", str(nowhere), "--out", str(tmp_path / "page"))
    output = bardo("eval", "lineage", *words, home=tmp_path / "none", expect=1)
    assert "MISSED" in output
    assert "Recorded days skipped" in output
    report = json.loads((tmp_path / "page" / "report.json").read_text())
    assert not report["kept"]
    assert str(nowhere) in report["recorded"]["skipped"]
    assert set(report["conditions"]) == {"heirs", "orphans", "clones", "total_recall"}
    assert all(len(c["ticks"]) == 1 for c in report["conditions"].values())
    page = Page((tmp_path / "page" / "index.html").read_text())
    assert page.open == []
    assert page.addresses == []
    assert page.tags.count("svg") == 2
    text = " ".join(page.words)
    assert all(bound["name"] in text for bound in report["bounds"])
