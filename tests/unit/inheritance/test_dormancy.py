"""Knowledge of another regime is dormant: it crosses deaths and is retrieved unchanged when its regime returns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.inheritance.bottleneck import bottleneck
from bardo_pipeline.inheritance.heir_entries import inherited_entries
from bardo_pipeline.policy import InheritancePolicy, Policy
from bardo_pipeline.retrieval.retrieve import Grimoire
from bardo_pipeline.retrieval.situation import Situation, wakefulness
from tests.support.example_count import times
from tests.support.knowledge.handmade_bundles import bundle_of
from tests.support.knowledge.handmade_grimoires import DIED, POLICY, deaths, entry, grimoire, pattern

pytestmark = pytest.mark.row("INH-9")

NOW = int(DIED.timestamp() * 10**6)
TIGHT = Policy(inheritance=InheritancePolicy(budget=4))
BULL = Situation(NOW, tick=7, regime="trending_up", tier="T2", surprise=0.9, protocol="uniswap_v3", thought_tick=6)


@settings(deadline=None, max_examples=times(12))
@given(st.lists(st.sampled_from(REGIMES), min_size=8, max_size=8), st.integers(0, 99))
def test_the_regime_of_an_entry_does_not_affect_the_bottleneck(regimes: list[str], seed: int) -> None:
    trusted = np.random.default_rng(seed).permutation(8) * 100_000 + 50_000
    about = [pattern(f"t{i}") for i in range(8)]

    def crossing(items: list[str]) -> list[str]:
        rows = [
            entry("g-1", s, regime=regime, confidence_ppm=int(c), anchor_at=DIED)
            for s, regime, c in zip(about, items, trusted, strict=True)
        ]
        return list(bottleneck(grimoire(*rows), deaths("g-1"), TIGHT)["tool"].to_pylist())

    assert crossing(regimes) == crossing(["volatile"] * 8)


def test_retrieval_returns_entries_of_the_current_regime_only() -> None:
    storm, calm = pattern("t"), pattern("t", regime="trending_up")
    left = bundle_of(entry("g-1", storm, anchor_at=DIED), entry("g-1", calm, anchor_at=DIED))
    heirs = inherited_entries(left, "g-heir", POLICY)
    held = {row["regime"]: row for row in heirs.to_pylist()}
    assert {regime: row["status"] for regime, row in held.items()} == {"volatile": "active", "trending_up": "active"}
    book = Grimoire(heirs, np.eye(2, 8, dtype=np.float32), np.arange(2), POLICY)

    def scores(where: Situation) -> dict[str, int]:
        hits = book.retrieve(np.ones(8, np.float32), where, 2, may_skip=False).hits.to_pylist()
        return {hit["regime"]: hit["score_ppm"] for hit in hits}

    bull, back = scores(BULL), scores(replace(BULL, regime="volatile"))
    assert set(bull) == {"trending_up"}
    assert set(back) == {"volatile"}
    assert back["volatile"] == scores(replace(BULL, regime=None))["volatile"], "its score is unchanged after dormancy"


def test_wakefulness_falls_gradually_after_a_change_of_regime() -> None:
    rules, storm = POLICY.retrieval, REGIMES.index("volatile")

    def awake(ticks: int) -> float:
        where = replace(BULL, regime_before="volatile", regime_ticks=ticks)
        return float(wakefulness(where, rules)[storm])

    half = rules.dormant_transition_ticks // 2
    assert [awake(0), awake(half), awake(2 * half), awake(9 * half)] == pytest.approx([1.0, 0.5, 0.0, 0.0])
    unclear = wakefulness(replace(BULL, regime="unknown"), rules)
    assert 0.0 < unclear[storm] == rules.dormant_unclear < 1.0
