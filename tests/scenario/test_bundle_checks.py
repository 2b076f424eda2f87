"""A steward's checklist by command: failed expectations, those that can be waived, and those that cannot."""

from pathlib import Path

import orjson
import pytest

from tests.conftest import copy_home
from tests.support.bardo_command import bardo


@pytest.mark.row("P-5", "INH-14")
def test_a_steward_reads_the_checklist_and_waives_a_warning(brief_home: Path, tmp_path: Path) -> None:
    home = copy_home(brief_home, tmp_path / "home")
    told = orjson.loads(bardo("bundle", "checks", "--format", "json", home=home))
    assert {one["severity"] for one in told} == {"warning"}
    assert "something_novel" in {one["expectation"] for one in told}
    one = told[0]
    said = bardo(
        "bundle", "waive", one["golem_id"], one["expectation"], "--why", "two hours are a short life", home=home
    )
    assert "is waived" in said
    shown = bardo("bundle", "checks", "--check", home=home, expect=1)
    assert "waived: two hours are a short life" in shown
    assert f"{len(told)} failed, 1 waived, {len(told) - 1} open" in shown
    assert f"{len(told)} warnings, 1 of them waived" in bardo("status", home=home)
    refused = bardo("bundle", "waive", one["golem_id"], "hashes_match", "--why", "x", home=home, expect=2)
    assert "did not fail 'hashes_match'" in refused
    suite = bardo("bundle", "checks", "--suite", home=home)
    assert "no_low_divergence" in suite
    assert "link_ends_present" in suite
