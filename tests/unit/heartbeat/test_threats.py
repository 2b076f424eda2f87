"""Threats that a golem heard of fade, and reach its probes and its surprise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bardo_pipeline.heartbeat.fleet import Fleet, Founding, born
from bardo_pipeline.heartbeat.threats import hear_threat, threat_now
from bardo_pipeline.policy import Policy

POLICY = Policy()
HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US


def one_golem() -> Fleet:
    golem_id, birth = born(
        lineage_id="line/0", generation=0, owner_id="owner-1", founding=Founding(("owner-1",)), market="m",
        market_hash="h", derivation_id="d", policy=POLICY,
    )  # fmt: skip
    return Fleet([golem_id], [birth], POLICY)


@given(st.lists(st.tuples(st.floats(0.1, 1.0), st.integers(0, 5 * DAY_US)), min_size=1, max_size=8))
def test_the_strongest_threat_counts_at_every_later_moment(heard: list[tuple[float, int]]) -> None:
    fleet = one_golem()
    for intensity, at_us in heard:
        hear_threat(fleet, 0, intensity, at_us, POLICY)
    for hours in (0, 7, 40):
        now = 5 * DAY_US + hours * HOUR_US
        strongest = max(intensity * 0.5 ** ((now - at_us) / DAY_US) for intensity, at_us in heard)
        expected = strongest if strongest >= POLICY.clade.threat_floor else 0.0
        assert threat_now(fleet, now, POLICY)[0] == pytest.approx(expected, abs=1e-9)


def test_a_golem_without_a_threat_has_none() -> None:
    assert np.isnan(threat_now(one_golem(), DAY_US, POLICY)).all()
