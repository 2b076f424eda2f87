"""`bardo eval clade`: a report of one market, from the command."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bardo_pipeline.runtime.clade_evaluation import ARMS
from tests.support.processes.bardo_command import run


@pytest.mark.full
def test_the_command_compares_four_arms_and_writes_a_page(tmp_path: Path) -> None:
    words = ["eval", "clade", "--seed", "8", "--seeds", "1", "--golems", "2", "--bars", "250", "--apart", "50",
             "--out", str(tmp_path), "--json"]  # fmt: skip
    done = run(words, dict(os.environ))
    report = json.loads(done.stdout)
    assert list(report["arms"]) == list(ARMS)
    assert report["kept"] is (done.returncode == 0)
    assert report["liar"]["ticks until contradicted"] is not None
    assert report["arms"]["clade"] != report["arms"]["alone"]
    assert "Share of golems that know the truth" in (tmp_path / "index.html").read_text()
    assert json.loads((tmp_path / "report.json").read_text()) == report
