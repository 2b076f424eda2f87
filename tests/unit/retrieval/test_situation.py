"""Whether a golem retrieves entries in a tick: each reason to retrieve, in order of precedence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bardo_pipeline.grimoire.entries import BASELINE_METRICS
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.retrieve import Grimoire
from bardo_pipeline.retrieval.situation import Situation, decide
from tests.support.knowledge.handmade_grimoires import DIED, baseline, entry, grimoire

POLICY = Policy()
NOW = int(DIED.timestamp() * 10**6)
CALM = Situation(NOW, tick=7, regime="range_bound", tier="T1", surprise=0.1, protocol="uniswap_v3", thought_tick=6)
"""Routine: nothing is felt and nothing surprises."""


@pytest.mark.row("MEM-9")
@pytest.mark.parametrize(
    ("changed", "held", "coverage", "skipped", "why"),
    [
        ({}, 4, 1.0, True, "routine: arousal 0.00, surprise 0.10, and 100% of the levels of uniswap_v3"),
        ({}, 4, 0.75, True, "75% of the levels"),
        ({}, 4, 0.74, False, "of uniswap_v3 only 74% of the levels are known"),
        ({}, 0, 1.0, True, "no entry is active in this regime"),
        ({"mood": (0.0, 0.49, 0.0)}, 4, 1.0, True, "routine"),
        ({"mood": (0.0, 0.5, 0.0)}, 4, 1.0, False, "arousal is 0.50, at least 0.50"),
        ({"mood": (0.0, -1.0, 0.0)}, 4, 1.0, True, "routine"),
        ({"surprise": 0.3}, 4, 1.0, False, "surprise is 0.30, at least 0.30"),
        ({"surprise": None}, 4, 1.0, False, "outside of a tick"),
        ({"tick": 100, "thought_tick": 99}, 4, 1.0, False, "tick 100 is a contrarian turn"),
        ({"tier": "T0", "mood": (0.0, 1.0, 0.0), "surprise": 1.0}, 4, 0.0, True, "the gate chose"),
        ({"tier": "suppress"}, 4, 0.0, True, "the gate chose"),
    ],
)
def test_retrieval_is_skipped_only_for_known_routine_or_undeliberated_ticks(
    changed: dict[str, Any], held: int, coverage: float, skipped: bool, why: str
) -> None:
    decision = decide(replace(CALM, **changed), held=held, coverage=coverage, policy=POLICY.retrieval)
    assert decision.skipped == skipped
    assert why in decision.reason


@pytest.mark.row("MEM-9")
def test_coverage_of_a_protocol_counts_its_trusted_baselines() -> None:
    def skips(confidences: list[int], protocol: str | None = "uniswap_v3") -> bool:
        known = [
            entry("g-1", baseline(metric, "WETH/USDC"), confidence_ppm=trusted, anchor_at=DIED, text=metric)
            for metric, trusted in zip(BASELINE_METRICS, confidences, strict=False)
        ]
        book = Grimoire(grimoire(*known), np.eye(len(known), 8, dtype=np.float32), np.arange(len(known)), POLICY)
        asked, where = np.ones(8, np.float32), replace(CALM, protocol=protocol)
        answer = book.retrieve(asked, where, 3)
        assert answer.hits.num_rows == (0 if answer.decision.skipped else min(3, len(known)))
        assert book.retrieve(asked, where, 3, may_skip=False).hits.num_rows == min(3, len(known))
        return answer.decision.skipped

    assert len(BASELINE_METRICS) == 4
    assert skips([500_000] * 4)
    assert skips([500_000] * 3)
    assert not skips([500_000] * 2)
    assert not skips([500_000, 500_000, 499_999])
    assert not skips([500_000] * 4, "another protocol")
    assert skips([500_000] * 4, None)
