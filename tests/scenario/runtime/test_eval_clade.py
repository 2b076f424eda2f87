"""`bardo eval clade`: a report of one market, from the command."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bardo_pipeline.runtime.clade_evaluation import ARMS
from tests.support.processes.bardo_command import run


@pytest.mark.full
def test_the_command_compares_five_arms_and_writes_a_page(tmp_path: Path) -> None:
    words = ["eval", "clade", "--seed", "8", "--seeds", "1", "--golems", "2", "--bars", "250", "--apart", "50",
             "--out", str(tmp_path), "--json"]  # fmt: skip
    done = run(words, dict(os.environ))
    report = json.loads(done.stdout)
    assert list(report["arms"]) == list(ARMS)
    assert report["kept"] is (done.returncode == 0)
    assert report["liar"]["ticks until contradicted"] is not None
    lied_to = {arm for arm, own in report["arms"].items() if own["false_priors"][0] > 0}
    assert lied_to == {"liar", "forger"}, "golems of both arms heard lies"
    assert {report["arms"][arm]["alarmed"][0] for arm in ARMS} == {0}
    assert (report["liar"]["posts posted"][0] > 0, report["liar"]["posts admitted"][0]) == (True, 0)
    assert "Share of golems that know the truth" in (tmp_path / "index.html").read_text()
    assert json.loads((tmp_path / "report.json").read_text()) == report
