"""A steward's checklist by command: failed expectations, those that can be waived, and those that cannot."""

from pathlib import Path

import orjson
import pytest

from tests.conftest import copy_home
from tests.support.processes.bardo_command import bardo


@pytest.mark.full
@pytest.mark.row("P-5", "INH-14")
def test_a_steward_reads_the_checklist_and_waives_a_warning(brief_home: Path, tmp_path: Path) -> None:
    home = copy_home(brief_home, tmp_path / "home")
    printed = orjson.loads(bardo("bundle", "checks", "--format", "json", home=home))
    assert {item["severity"] for item in printed} == {"warning"}
    assert "something_novel" in {item["expectation"] for item in printed}
    item = printed[0]
    output = bardo(
        "bundle", "waive", item["golem_id"], item["expectation"], "--why", "two hours are a short life", home=home
    )
    assert "is waived" in output
    shown = bardo("bundle", "checks", "--check", home=home, expect=1)
    assert "waived: two hours are a short life" in shown
    assert f"{len(printed)} failed, 1 waived, {len(printed) - 1} open" in shown
    assert f"{len(printed)} warnings, 1 of them waived" in bardo("status", home=home)
    refused = bardo("bundle", "waive", item["golem_id"], "hashes_match", "--why", "x", home=home, expect=2)
    assert "did not fail 'hashes_match'" in refused
    suite = bardo("bundle", "checks", "--suite", home=home)
    assert "no_low_divergence" in suite
    assert "link_ends_present" in suite
