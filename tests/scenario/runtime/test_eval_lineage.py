"""`bardo eval lineage`: exit codes, the report, and a page without external files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.scenario.runtime.test_eval_command import Page
from tests.support.processes.bardo_command import bardo

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
    parts = {"entries_only", "attention_only"}
    assert set(report["conditions"]) == {"heirs", "orphans", "clones", "total_recall"} | parts
    for condition in report["conditions"].values():
        assert len(condition["ticks"]) == len(condition["end_worth"]) == 1
        low, high = condition["end_worth_interval_95"]
        assert 0.0 < low <= condition["end_worth_median"] <= high
    assert report["cash"] == {"end_worth": 1.0, "costs_of_living_paid": False}
    gains = {(g["condition"], g["base"], g["measure"]): g for g in report["gains"]}
    assert {(c, "orphans", m) for c in ("heirs", *parts) for m in ("ticks", "return", "end_worth")} <= set(gains)
    assert {key[0] for key in gains if key[1:] == ("cash", "end_worth")} == set(report["conditions"])
    heirs = report["conditions"]["heirs"]["end_worth"][0]
    assert gains["heirs", "cash", "end_worth"]["median"] == pytest.approx(heirs - 1.0)
    for name in ("entries only", "attention only", "cash", "end_worth_95"):
        assert name in output
    page = Page((tmp_path / "page" / "index.html").read_text())
    assert page.open == []
    assert page.addresses == []
    assert page.tags.count("svg") == 2
    text = " ".join(page.words)
    assert all(name in text for name in ("entries only", "attention only", "cash", "end_worth_95"))
    assert all(bound["name"] in text for bound in report["bounds"])
