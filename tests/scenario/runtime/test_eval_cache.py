"""`bardo eval cache`: a report of one market, from the command, and the bounds."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bardo_pipeline.heartbeat.safety.decision_cache import RESULTS
from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime.cache_evaluation import CacheLives, graded_cache
from tests.support.processes.bardo_command import run


@pytest.mark.full
@pytest.mark.row("HB-16")
def test_the_command_reports_hit_rate_cost_and_worth_and_writes_a_page(tmp_path: Path) -> None:
    words = ["eval", "cache", "--seeds", "1", "--golems", "1", "--days", "1", "--workers", "1", "--out", str(tmp_path),
             "--json"]  # fmt: skip
    done = run(words, dict(os.environ))
    report = json.loads(done.stdout)
    assert set(report["results"]) == set(RESULTS)
    asked = sum(report["results"].values())
    assert report["hit_rate"][0] == report["results"]["hit"] / asked
    assert report["kept"] is (done.returncode == 0)
    assert "Lookups by result" in (tmp_path / "index.html").read_text()
    assert json.loads((tmp_path / "report.json").read_text()) == report


@pytest.mark.row("HB-16")
@pytest.mark.parametrize(
    ("hits", "gain", "kept"), [(400, 0.001, True), (290, 0.001, False), (400, -0.001, False), (400, 0.0, True)]
)
def test_the_cache_is_kept_above_a_hit_rate_of_30_percent_and_without_a_loss_of_worth(
    hits: int, gain: float, kept: bool
) -> None:
    lives = [
        CacheLives((hits, 1_000 - hits, *[0] * (len(RESULTS) - 2)), (0.5, 0.3), (0.9 + place, 0.9 + place + gain))
        for place in range(4)
    ]
    report = graded_cache(lives, Policy())
    assert report.kept is kept
    assert report.hit_rate[0] == hits / 1_000
    assert report.saved_usd == (pytest.approx(0.2),) * 3
    assert report.worth[0] == pytest.approx(gain)
