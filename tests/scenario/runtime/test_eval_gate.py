"""`bardo eval gate`: a report of one market, from the command."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.processes.bardo_command import run


@pytest.mark.full
@pytest.mark.row("X-5", "HB-7")
def test_the_command_compares_six_gates_and_writes_a_page(tmp_path: Path) -> None:
    words = ["eval", "gate", "--seeds", "1", "--golems", "1", "--workers", "1", "--out", str(tmp_path), "--json",
             "--trace", str(tmp_path / "none")]  # fmt: skip
    done = run(words, dict(os.environ))
    report = json.loads(done.stdout)
    assert [row["gate"] for row in report["whole"]] == [
        "fixed",
        "attention",
        "learned",
        "inherited",
        "routed",
        "oracle",
    ]
    assert report["whole"][0]["cost"] == [1.0, 1.0, 1.0]
    assert report["kept"] is (done.returncode == 0)
    assert "is not a folder" in report["recorded"]["skipped"]
    page = (tmp_path / "index.html").read_text()
    assert page.count("<svg") == 4
    assert json.loads((tmp_path / "report.json").read_text()) == report
