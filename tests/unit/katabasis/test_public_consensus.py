"""Beliefs that a golem holds of public votes: those of its market and regime, sure enough, within its tokens."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from bardo_pipeline.katabasis.public_consensus import beliefs_as_priors, held_beliefs, public_consensus
from bardo_pipeline.katabasis.public_posts import Post, post_of, strongest
from bardo_pipeline.policy import Policy
from tests.support.processes.public_boards import MARKET, belief, pheromone

POLICY = Policy()
NOW = datetime(2026, 1, 2, tzinfo=UTC)
BANDS = ("calm", "stirred", "strained", "stretched", "broken")


def voted(confidences: dict[str, float], voters: str = "abc", **changes: object) -> list[Post]:
    """Return a post of each voter on each anomaly band."""
    return [
        post_of(belief(f"{voter}{band}", anomaly_band=band, confidence=confidence, **changes))
        for band, confidence in confidences.items()
        for voter in voters
    ]


def ranked(posts: list[Post], regime: str = "volatile") -> pa.Table:
    counted = public_consensus(posts, POLICY)
    return beliefs_as_priors(posts, counted, tuple(MARKET.values()), regime, NOW, POLICY)


def held(priors: pa.Table, tokens: int = 500, known: tuple[str, ...] = ()) -> list[str]:
    rows = held_beliefs(priors, "g", known, confidence_min=0.5, tokens_max=tokens, top=3)
    assert set(rows["golem_id"].to_pylist()) <= {"g"}
    return rows["anomaly_band"].to_pylist()


@pytest.mark.row("KAT-7", "MEM-15")
def test_a_golem_holds_the_three_surest_beliefs_that_fit_its_context() -> None:
    priors = ranked(voted(dict(zip(BANDS, (0.6, 0.9, 0.45, 0.8, 0.7), strict=True))))
    assert held(priors) == ["stirred", "stretched", "broken"]
    claim = -(-len(priors["claim"][0].as_py()) // 4)
    assert held(priors, tokens=claim) == ["stirred"]
    assert held(priors, tokens=claim // 2) == []
    assert held(priors, known=(priors["prior_id"][0].as_py(),)) == ["stretched", "broken", "calm"]


@pytest.mark.row("KAT-7")
def test_beliefs_need_a_quorum_in_the_regime_and_contradicted_ones_weigh_half() -> None:
    assert held(ranked(voted({"calm": 0.9}, voters="ab"))) == []
    assert held(ranked(voted({"calm": 0.9}), regime="trending_up")) == []
    assert held(ranked(voted({"calm": 0.9}, pair="WBTC/USDC"))) == []
    last = [*voted({"calm": 0.9}, voters="a", is_death_vote=True)]
    assert held(ranked(last)) == ["calm"], "a vote of the dead is a quorum"
    torn = [*voted({"calm": 1.0}, voters="abcde"), *voted({"calm": 0.0}, voters="xy"), *voted({"broken": 0.55})]
    priors = ranked(torn)
    assert priors["origin"].to_pylist() == ["quorum", "contradicted"]
    assert held(priors) == ["broken", "calm"]


@pytest.mark.row("KAT-11")
def test_a_pheromone_halves_in_a_day_and_a_deposit_refreshes_it() -> None:
    market, old = tuple(MARKET.values()), post_of(pheromone(0.8, NOW - timedelta(days=1)))
    assert strongest([old], "threat", market, NOW, POLICY) == pytest.approx(0.4)
    fresh = post_of(pheromone(0.6, NOW))
    assert strongest([old, fresh], "threat", market, NOW, POLICY) == pytest.approx(0.6)
    assert strongest([old, fresh], "opportunity", market, NOW, POLICY) == 0.0
    assert strongest([old, fresh], "threat", ("other", *market[1:]), NOW, POLICY) == 0.0
    assert strongest([fresh], "threat", market, NOW - timedelta(hours=1), POLICY) == 0.0, "not yet"
