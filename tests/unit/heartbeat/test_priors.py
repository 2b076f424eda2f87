"""Scars and propositions in the tick: KAT's modifiers, the top three for the regime, the threshold that they move."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bardo_pipeline.curator.state.grimoire_state import from_table
from bardo_pipeline.events.record.model import REGIMES, TIERS
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, GAS_BANDS
from bardo_pipeline.heartbeat.caution import moved_threshold, prior_weight
from bardo_pipeline.heartbeat.decide import (
    HOLD,
    MOVE,
    REBALANCE,
    RULES,
    STAY,
    TAUGHT_TO_MOVE,
    TAUGHT_TO_WAIT,
    URGED,
    WARY,
    Choice,
    choose,
)
from bardo_pipeline.heartbeat.fleet import PRIORS
from bardo_pipeline.heartbeat.gas_gate import age_payments
from bardo_pipeline.heartbeat.observe import observe
from bardo_pipeline.heartbeat.recall_table import (
    LESSONS,
    PROPOSITIONS,
    SCARS,
    EntryNames,
    Recall,
    nothing_known,
    recall_of,
    with_priors,
)
from bardo_pipeline.heartbeat.recollection import recollect
from bardo_pipeline.katabasis.anonymous_votes import DEATH_SCHEMA
from bardo_pipeline.katabasis.priors import PRIOR_SCHEMA, propositions_as_priors
from bardo_pipeline.policy import Policy
from tests.support.knowledge.handmade_grimoires import DAY, DIED, grimoire
from tests.unit.heartbeat.test_choose import entered
from tests.unit.heartbeat.test_recall import HERE, NOW, about, look, sure

POLICY = Policy()


def prior(prior_id: str, origin: str = "own", cell: tuple[str, str, str] = HERE, **changed: Any) -> dict[str, Any]:
    """Return a prior of g-1 about re-centring, confirmed now, at 80 %."""
    kind = "proposition" if origin in ("quorum", "contradicted") else "lesson" if origin == "dream" else "scar"
    origin = "own" if origin == "dream" else origin
    half_life = POLICY.katabasis.scar_half_life_days
    if origin == "bloodstain":
        half_life *= POLICY.decay.bloodstain_multiplier
    plain = {
        "golem_id": "g-1", "prior_id": prior_id, "kind": kind, "origin": origin, "action_type": "rebalance",
        "regime": cell[0], "anomaly_band": cell[1], "gas_band": cell[2], "sign": -1, "confidence_ppm": 800_000,
        "confirmed_at": DIED, "is_bloodstain": origin == "bloodstain", "pleasure": 0.0, "arousal": 0.0,
        "dominance": 0.0, "half_life_days": half_life,
    }  # fmt: skip
    return plain | changed


def holding(*priors: dict[str, Any], entries: tuple[Any, ...] = (), at_us: int = NOW) -> Recall:
    names = EntryNames()
    state = from_table(grimoire(*entries)) if entries else None
    recall = nothing_known(1, names) if state is None else recall_of(state, ["g-1"], at_us, names, POLICY)
    return with_priors(recall, pa.Table.from_pylist(list(priors), PRIOR_SCHEMA), ["g-1"], at_us, names, POLICY)


def held(recall: Recall, shelf: int, **changed: Any) -> list[str]:
    """Return the ids of the scars or propositions retrieved in a situation, best first."""
    places = look(recall, **changed).priors[:, 0].reshape(3, PRIORS)[shelf - 1]
    return [recall.names.ids[recall.code[place]] for place in places if place >= 0]


@pytest.mark.row("KAT-7", "MEM-9")
def test_importance_is_confidence_times_the_modifier_of_the_source() -> None:
    expected = {"own": 1.0, "sibling": 0.8, "bloodstain": 1.2, "quorum": 1.0, "contradicted": 0.5}
    recall = holding(*(prior(origin, origin) for origin in expected))
    by_id = {recall.names.ids[code]: value for code, value in zip(recall.code, recall.importance, strict=True)}
    assert by_id == pytest.approx({origin: 0.8 * factor for origin, factor in expected.items()})
    late = holding(*(prior(origin, origin) for origin in expected), at_us=NOW + 30 * 24 * 3600 * 10**6)
    decayed = {late.names.ids[code]: value for code, value in zip(late.code, late.confidence, strict=True)}
    slow = 800_000 * 2 ** (-1 / 3)
    assert decayed == pytest.approx({o: slow if o == "bloodstain" else 400_000 for o in expected}, rel=1e-5)


@pytest.mark.row("KAT-7")
def test_the_three_best_scars_and_propositions_for_the_regime_are_retrieved() -> None:
    other = ("trending_up", *HERE[1:])
    scars = [prior(f"scar-{i}", confidence_ppm=900_000 - 10_000 * i) for i in range(5)]
    claims = [prior(f"claim-{i}", "quorum", confidence_ppm=900_000 - 10_000 * i) for i in range(4)]
    recall = holding(*reversed(scars), *reversed(claims), prior("away", cell=other, confidence_ppm=10**6))
    assert held(recall, SCARS) == ["scar-0", "scar-1", "scar-2"]
    assert held(recall, PROPOSITIONS) == ["claim-0", "claim-1", "claim-2"]
    lessons = [prior(f"lesson-{i}", "dream", confidence_ppm=300_000 - 10_000 * i, sign=1) for i in range(4)]
    assert held(holding(*lessons, *scars), LESSONS) == ["lesson-0", "lesson-1", "lesson-2"]
    faded = {"regime_before": REGIMES.index("trending_up"), "regime_ticks": 10}
    two = holding(scars[0], prior("away", cell=other))
    assert held(two, SCARS) == ["scar-0"]
    assert held(two, SCARS, **faded) == ["scar-0", "away"], "knowledge of the regime before fades"
    old = prior("old", "own", confirmed_at=DIED - 20 * DAY, confidence_ppm=900_000)
    recent = holding(old, prior("fresh", "sibling", confidence_ppm=700_000))
    assert held(recent, SCARS) == ["fresh", "old"], "recency lets a new scar of a sibling surface first"
    future = holding(prior("later", confirmed_at=DIED + DAY))
    assert held(future, SCARS) == []


@pytest.mark.row("KAT-7")
def test_a_routine_tick_skips_priors_and_high_arousal_retrieves_them() -> None:
    recall = holding(prior("scar"))
    routine = {"surprise": 0.2, "coverage": 1.0}
    assert held(recall, SCARS, **routine) == []
    assert held(recall, SCARS, **routine, mood=np.array([[0.0], [0.5], [0.0]])) == ["scar"]


def test_priors_leave_entries_and_blocks_in_their_places() -> None:
    warning = sure(about(HERE), kind="warning", sign=-1, confidence_ppm=900_000)
    plain = recall_of(from_table(grimoire(warning)), ["g-0", "g-1"], NOW, EntryNames(), POLICY)
    rows = [prior("a", golem_id="g-0"), prior("b"), prior("stranger", golem_id="g-9")]
    priors = pa.Table.from_pylist(rows, PRIOR_SCHEMA)
    recall = with_priors(plain, priors, ["g-0", "g-1"], NOW, plain.names, POLICY)
    assert recall.count.tolist() == [1, 2]
    blocked = np.flatnonzero(plain.block[:, 1] >= 0)
    assert len(blocked) == 1
    assert recall.code[recall.block[blocked[0], 1]] == plain.code[plain.block[blocked[0], 1]]
    seen = look(recall, golem=1)
    assert recall.code[seen.recalled[0, 0]] == plain.code[0]
    assert recall.names.ids[recall.code[seen.priors[0, 0]]] == "b"


@pytest.mark.row("KAT-7")
def test_priors_move_the_threshold_towards_the_edges_of_the_band() -> None:
    score, threshold = np.array([0.76]), np.array([0.72])
    for weight, moved in ((0.0, 0.72), (-0.5, 0.76), (-1.0, 0.8), (-2.5, 0.8), (0.5, 0.71), (1.0, 0.7), (3.0, 0.7)):
        assert moved_threshold(threshold, np.array([weight]), score, POLICY) == pytest.approx([moved])
    assert moved_threshold(np.array([0.9]), np.array([-1.0]), score, POLICY) == pytest.approx([0.9]), "never lower"
    assert moved_threshold(np.array([0.6]), np.array([1.0]), score, POLICY) == pytest.approx([0.6]), "never higher"


@pytest.mark.row("KAT-7")
def test_only_priors_about_the_situation_count_and_an_own_rule_outweighs_propositions() -> None:
    def weight(*priors: dict[str, Any], entries: tuple[Any, ...] = ()) -> float:
        recall = holding(*priors, entries=entries)
        return float(prior_weight(look(recall), recall, 1)[0])

    assert weight(prior("scar"), prior("claim", "quorum", sign=1)) == pytest.approx(0.0)
    assert weight(prior("scar"), prior("other", "sibling")) == pytest.approx(-0.8 - 0.64)
    assert weight(prior("near", cell=(HERE[0], "stretched", HERE[2]))) == 0.0
    assert weight(prior("leave", action_type="remove_liquidity")) == 0.0
    assert weight(prior("any gas", gas_band="any")) == pytest.approx(-0.8)
    rule = sure(about(HERE, action_type="rebalance"), kind="heuristic", sign=1, confidence_ppm=900_000)
    assert weight(prior("claim", "quorum"), entries=(rule,)) == 0.0
    assert weight(prior("claim", "quorum"), prior("scar"), entries=(rule,)) == pytest.approx(-0.8)
    undecided = sure(about(HERE, action_type="rebalance"), sign=0, confidence_ppm=900_000)
    assert weight(prior("claim", "quorum"), entries=(undecided,)) == pytest.approx(-0.8), "it is no rule"
    assert weight(prior("lesson", "dream", sign=1)) == pytest.approx(0.8)
    assert weight(prior("lesson", "dream", sign=1), entries=(rule,)) == 0.0
    away = sure(
        about(("unknown", *HERE[1:]), action_type="rebalance"), kind="heuristic", sign=1, confidence_ppm=900_000
    )
    assert weight(prior("claim", "quorum"), entries=(away,)) == pytest.approx(-0.8), "another situation's rule"


def decided(threshold: float, *origins: tuple[str, int]) -> tuple[Choice, float]:
    """Let a golem with a position off centre decide under a threshold, with priors about its situation."""
    fleet, tape = entered(1)
    fleet.tick += 1
    fleet.rebalance_threshold[:] = threshold
    sight, names = observe(fleet, tape, 1, POLICY), EntryNames()
    age_payments(fleet, tape, 1, POLICY)
    band = np.searchsorted(POLICY.curator.anomaly_edges, sight.score[0], side="right")
    gas = np.searchsorted(POLICY.curator.gas_edges, tape.gas_hour_ratio[1], side="right")
    cell = REGIMES[tape.regime[1]], ANOMALY_BANDS[band], GAS_BANDS[gas]
    at = pa.scalar(int(tape.at_us[1]), pa.timestamp("us", tz="UTC")).as_py()
    rows = [
        prior(f"p-{i}", origin, cell, sign=sign, golem_id=fleet.golem_ids[0], confirmed_at=at, confidence_ppm=10**6)
        for i, (origin, sign) in enumerate(origins)
    ]
    recall = nothing_known(1, names)
    recall = with_priors(
        recall, pa.Table.from_pylist(rows, PRIOR_SCHEMA), fleet.golem_ids, int(tape.at_us[1]), names, POLICY
    )
    tier = np.array([TIERS.index("T1")], np.int8)
    memory = recollect(fleet, tape, 1, sight.score, tier, np.ones(1), recall, POLICY)
    choice = choose(fleet, tape, 1, sight, tier, recall, POLICY, None, memory)
    assert choice is not None
    return choice, float(sight.score[0])


@pytest.mark.row("KAT-7", "HB-4")
def test_scars_hold_a_golem_back_and_propositions_may_urge_it_on() -> None:
    _, score = decided(0.99)
    low, high, moved = score - 0.01, score + 0.01, (WARY, URGED, TAUGHT_TO_WAIT, TAUGHT_TO_MOVE)
    for threshold, origins, action, rule in (
        (low, (), REBALANCE, MOVE), (low, (("own", -1),), HOLD, WARY), (low, (("sibling", -1),), HOLD, WARY),
        (low, (("quorum", -1),), HOLD, WARY), (low, (("quorum", 1),), REBALANCE, MOVE),
        (high, (), HOLD, STAY), (high, (("quorum", 1),), REBALANCE, URGED), (high, (("own", -1),), HOLD, STAY),
        (low, (("dream", -1),), HOLD, TAUGHT_TO_WAIT), (high, (("dream", 1),), REBALANCE, TAUGHT_TO_MOVE),
        (low, (("dream", -1), ("own", -1)), HOLD, WARY), (high, (("dream", 1), ("quorum", 1)), REBALANCE, URGED),
        (high, (("dream", 1), ("own", -1)), HOLD, STAY), (low, (("dream", 1),), REBALANCE, MOVE),
    ):  # fmt: skip
        choice, _ = decided(threshold, *origins)
        assert (choice.action[0], choice.rule[0]) == (action, rule), (threshold, origins)
        limit = choice.threshold[0] if rule in moved else threshold
        assert choice.rule_size[0] == pytest.approx(score)
        assert choice.rule_limit[0] == pytest.approx(limit), RULES[rule]


@pytest.mark.row("KAT-7", "KAT-5")
def test_an_heir_holds_the_consensus_of_the_last_votes_of_its_own_line() -> None:
    believed = {"g-1": 950_000, "g-2": 50_000, "g-3": 900_000}
    rows = [
        sure(about(HERE, action_type="rebalance"), kind="warning", sign=-1, confidence_ppm=ppm) | {"golem_id": golem_id}
        for golem_id, ppm in believed.items()
    ]
    deaths = pa.Table.from_pylist(
        [{"golem_id": g, "owner_id": "owner-1", "cycle": 9, "at": DIED} for g in believed], DEATH_SCHEMA
    )
    lines = {"h-1": ["g-1"], "h-2": ["g-1", "g-2"], "h-3": ["g-3"], "h-4": []}
    pairs = [(heir, golem_id) for heir, line in lines.items() for golem_id in line]
    table = pa.table({"holder": [h for h, _ in pairs], "golem_id": [g for _, g in pairs]})
    priors = propositions_as_priors(table, grimoire(*rows), deaths, POLICY).to_pylist()
    assert len({row["prior_id"] for row in priors}) == 1, "one claim"
    assert {row["golem_id"]: (row["origin"], row["confidence_ppm"]) for row in priors} == {
        "h-1": ("quorum", 950_000), "h-2": ("contradicted", 650_000), "h-3": ("quorum", 900_000),
    }  # fmt: skip
    scene = {(row["action_type"], row["regime"], row["anomaly_band"], row["gas_band"], row["sign"]) for row in priors}
    assert scene == {("rebalance", *HERE, -1)}
