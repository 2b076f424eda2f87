"""The power goes: whatever was acknowledged is there afterwards, once, and each of our fsyncs is needed for it.

A sample of moments, and every line that syncs. `make crash` cuts at every moment.
"""

from __future__ import annotations

import random

import pytest

from tests.crash.outage import WORKLOADS, Life, Workload, failing, lost
from tests.crash.power import MODES

SAMPLE = 16


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
    lives = [(workload, workload.record(tmp_path_factory.mktemp("needed"))) for workload in WORKLOADS]
    passed = {site for _, life in lives for site in life.disk.sites()}
    idle = {site for site in passed if failing(lives, site) is None}
    assert idle == set(), "these may go, or the lives above do not show what they are for"
    assert len(passed) > 25
