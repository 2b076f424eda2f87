"""The power goes: whatever was acknowledged is there afterwards, once, and each of our fsyncs is needed for it.

A sample of moments, and every line that syncs; `make crash` cuts at many more moments.
"""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import orjson
import pytest

from tests.crash.outage import WORKLOADS, Life, Workload, failing, lost
from tests.crash.power import MODES

SAMPLE = 24
NEEDED = Path(__file__).parents[1] / "golden" / "fsyncs.json"


@pytest.fixture(scope="module", params=WORKLOADS, ids=lambda workload: workload.name)
def lived(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Workload, Life]:
    return request.param, request.param.record(tmp_path_factory.mktemp("life"))


@pytest.mark.row("EV-3")
def test_after_a_power_cut_everything_that_was_acknowledged_is_there_once(lived: tuple[Workload, Life]) -> None:
    workload, life = lived
    moments = [(cut, mode) for cut in life.disk.cuts() for mode in MODES]
    for cut, mode in random.Random(7).sample(moments, SAMPLE):
        assert lost(life, cut, mode=mode, whole=workload.whole) == [], f"cut {cut}, {mode}"


@pytest.mark.row("EV-3")
def test_each_of_our_fsyncs_is_needed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The golden file names every line that syncs, and the life, its moment and the mode that show what it is for."""
    lives = [(workload, workload.record(tmp_path_factory.mktemp("needed"))) for workload in WORKLOADS]
    lines = _lines({site for _, life in lives for site in life.disk.sites()})
    hints = orjson.loads(NEEDED.read_bytes())
    if os.environ.get("BARDO_GOLDEN") != "write":
        assert set(lines.values()) == set(hints), "a line that syncs went, or came"
    found = {line: failing(lives, site, hints.get(line, ())) for site, line in lines.items()}
    assert [line for line, failure in found.items() if failure is None] == [], "what are these for?"
    if os.environ.get("BARDO_GOLDEN") == "write":
        shown = {line: failure[:3] for line, failure in found.items() if failure is not None}
        NEEDED.write_bytes(orjson.dumps(shown, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _lines(sites: set[str]) -> dict[str, str]:
    """Lines that sync, wherever in their files they stand; the same once more has a number."""
    found: dict[str, str] = {}
    for site in sorted(sites, key=lambda site: [int(part) if part.isdigit() else part for part in site.split(":")]):
        line = re.sub(r"\.py:\d+: ", ".py: ", site.removeprefix("bardo_pipeline/storage/"))
        again = sum(each.startswith(line) for each in found.values())
        found[site] = f"{line} ({again + 1})" if again else line
    return found
