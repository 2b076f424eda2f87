"""The story of g-9b2d: from recorded events the pipeline derives its scars, its testament, and one playbook line."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pyarrow.compute as pc
import pytest

from bardo_pipeline.curator.state.decision_log import fold
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curator_state import state_before
from bardo_pipeline.derivation.katabasis.bloodstains import bloodstain, bloodstains
from bardo_pipeline.derivation.legacy.bundle_store import published_bundles
from bardo_pipeline.errors import QueryError
from bardo_pipeline.heartbeat.decide import ACTIONS, Choice, _decide
from bardo_pipeline.heartbeat.entry_names import EntryNames
from bardo_pipeline.heartbeat.recall_table import cells, recall_of
from bardo_pipeline.heartbeat.refusals import STATUS
from tests.support.homes.story_of_g9b2d import ADVICE, FIRST, OWNER, SECOND, STORY, THIRD, at, rule_of, story_home
from tests.support.processes.bardo_command import bardo

pytestmark = pytest.mark.row("KAT-12")
VOLATILE = 3


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> DerivationContext:
    return story_home(tmp_path_factory.mktemp("story") / "home")


def rows(stores: DerivationContext, name: str, **where: Any) -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = stores.projections.read(name).to_pylist()
    return [row for row in table if all(row[key] == value for key, value in where.items())]


def known_before(stores: DerivationContext, golem_id: str, tick: int) -> dict[str, dict[str, Any]]:
    """Return a golem's entries at the start of a tick, by id."""
    cycle = (tick - 1) // stores.policy.curator.cycle_ticks
    decisions = stores.projections.growing("curation").read(golems=[golem_id])
    return {
        row["entry_id"]: row for row in fold(decisions.filter(pc.less_equal(decisions["cycle"], cycle))).to_pylist()
    }


def decides(
    stores: DerivationContext, golem_id: str, tick: int, score: float, threshold: float | None = None
) -> tuple[str, str]:
    """Return the heartbeat's action in a volatile market at usual gas, under the playbook and warnings in force.

    threshold: another one instead of the playbook's.
    """
    policy, cycle = stores.policy, (tick - 1) // stores.policy.curator.cycle_ticks
    mind = state_before(stores, {golem_id: cycle + 1}, stores.left_out())
    at_us = int(at(golem_id, tick).timestamp() * 1e6)
    recall = recall_of(mind.state, [golem_id], at_us, EntryNames(), policy)
    in_force = np.array(mind.playbooks.of(golem_id, policy)[1])
    tape: Any = SimpleNamespace(regime=np.array([VOLATILE]), gas_hour_ratio=np.array([1.0]))
    first, none = np.ones(1), np.zeros(1, np.int64)
    fleet: Any = SimpleNamespace(
        rebalance_threshold=in_force[:, None] if threshold is None else np.full((5, 1), threshold),
        tick=np.array([tick]), cooldown=none, fees=none, confidence=first, presence=np.zeros((5, 1), np.int64),
        presence_rule=np.full((5, 1), -1), range_rule=np.full((5, 1), -1), half_width_in=lambda _: np.array([160]),
    )  # fmt: skip
    sight: Any = SimpleNamespace(open=np.array([True]), score=np.array([score]), drawdown=np.zeros(1))
    choice = Choice(*([none.copy()] * len(Choice.__dataclass_fields__)))
    choice.golem, choice.status, choice.why = none, none.copy(), none.copy()
    cell = cells(int(tape.regime[0]), np.array([score]), tape.gas_hour_ratio[0], policy.curator)
    _decide(fleet, tape, 0, sight, choice, recall.block[cell, none], policy)
    return ACTIONS[int(choice.action[0])], STATUS[int(choice.status[0])]


def test_the_first_golem_dies_with_an_unconfirmed_insight(stores: DerivationContext) -> None:
    (death,) = [e["died"] for e in stores.life("DeathDeclared").to_pylist() if e["golem_id"] == FIRST]
    assert death["tick"] == 847
    for band in ("strained", "stretched"):
        (entry,) = rows(stores, "grimoire", golem_id=FIRST, entry_id=rule_of(FIRST, band))
        assert (entry["kind"], entry["sign"], entry["confidence_ppm"]) == ("insight", -1, 600_000)
    assert [b["rebalance_threshold"]["volatile"] for b in rows(stores, "playbooks", golem_id=FIRST)] == [0.7]
    (testament,) = rows(stores, "testaments", golem_id=FIRST)
    statements = [i["statement"] for name in ("worked", "failed", "suspected", "untested") for i in testament[name]]
    assert any("at the edge of its range" in s and "lost to holding" in s for s in statements), statements
    assert set(published_bundles(stores)) == {FIRST, SECOND}


def test_the_second_golem_inherits_the_advice_but_it_blocks_no_action(stores: DerivationContext) -> None:
    (birth,) = [e["born"] for e in stores.life("GolemBorn").to_pylist() if e["golem_id"] == SECOND]
    assert birth["bundle_hash"] == published_bundles(stores)[FIRST]
    advice = known_before(stores, SECOND, 1)[ADVICE]
    assert (advice["kind"], advice["sign"], advice["generation"], advice["confidence_ppm"]) == (
        "insight",
        -1,
        1,
        510_000,
    )
    assert decides(stores, SECOND, 1, 0.70) == ("rebalance", "executed")


def test_tick_63_leaves_a_scar_although_the_price_returned(stores: DerivationContext) -> None:
    (scar,) = rows(stores, "scars", scar_id=f"scar-{SECOND}-1")
    assert (scar["tick"], scar["confirmed"], scar["confirmed_tick"]) == (63, "deferred", 93)
    assert (scar["outcome_class"], scar["mechanism"], scar["market_regime"]) == ("lasting", "return", "HighVol")
    assert (scar["published"], scar["is_bloodstain"], scar["qualified_at_tick"]) == ("life", False, 100)
    assert scar["causal_narrative"].endswith("the place that was left would have earned more than the new one.")


def test_at_tick_287_the_second_golem_acts_against_its_insight(stores: DerivationContext) -> None:
    known = known_before(stores, SECOND, 287)[ADVICE]
    assert (known["kind"], known["sign"], known["validations"]) == ("insight", -1, 1), "its own scar agrees"
    assert 600_000 < known["confidence_ppm"] < 650_000, "below the confidence of a heuristic"
    (record,) = stores.log.read_stretch(
        ["tick", "observation", "retrieved_entries", "actions"], [SECOND], 287, 287
    ).to_pylist()
    assert record["observation"]["anomaly_score"] == 0.76
    assert [e["entry_id"] for e in record["retrieved_entries"]] == [ADVICE]
    assert [(a["status"], a["slippage_ppm"], a["gas_cost_micros"]) for a in record["actions"]] == [
        ("executed", 7_100, 4_200_000)
    ]
    assert decides(stores, SECOND, 287, 0.76) == ("rebalance", "executed"), "0.76 is above the 0.7 in its playbook"


def test_the_second_death_publishes_three_scars(stores: DerivationContext) -> None:
    left = sorted(rows(stores, "scars", golem_id=SECOND, is_bloodstain=True), key=lambda s: s["tick"])
    assert [(s["tick"], s["outcome_class"], s["confirmed"], s["seen_count"]) for s in left] == [
        (287, "lasting", "at_death", 2), (296, "lasting", "at_death", 1), (309, "drawdown", "immediate", 1),
    ]  # fmt: skip
    assert {s["published"] for s in left} == {"death"}
    (locked,) = [s for s in left if s["tick"] == 309]
    assert locked["causal_narrative"].endswith("withdraw lost 25 % at once: utilization hurt withdrawable liquidity.")
    assert locked["position_state"] == "impaired"


def test_the_second_death_casts_seven_votes_of_weight_2_5(stores: DerivationContext) -> None:
    causes = {c["vote_id"] for c in rows(stores, "vote_causes", golem_id=SECOND)}
    last = [v for v in rows(stores, "votes", is_death_vote=True) if v["vote_id"] in causes]
    assert [v["weight_tenths"] for v in last] == [25] * 7
    keys = {v["claim"]: v["confidence_ppm"] for v in last}
    edge = "in a volatile market, with gas normal, re-centring a range at whose edge price stands loses to holding."
    assert keys[f"On base, uniswap_v3 WETH/USDC: {edge}"] > 800_000


def test_the_third_golem_holds_by_one_line_of_its_playbook(stores: DerivationContext) -> None:
    (book,) = [b for b in rows(stores, "playbooks", golem_id=THIRD) if b["cycle"] == 0]
    assert book["version"] == 1
    assert "## rebalanceThreshold" in book["markdown"]
    assert "- volatile: 0.90" in book["markdown"].splitlines()
    assert "- range_bound: 0.70" in book["markdown"].splitlines(), "other regimes keep the default"
    assert rule_of(FIRST, "stretched") in book["cause_entries"]
    (record,) = stores.log.read_stretch(["tick", "observation", "actions"], [THIRD], 47, 47).to_pylist()
    assert (record["observation"]["anomaly_score"], record["actions"]) == (0.71, [])
    assert decides(stores, THIRD, 47, 0.71) == ("hold", "executed")
    assert decides(stores, THIRD, 47, 0.71, threshold=0.7) == ("rebalance", "blocked"), "a warning blocks the action"
    assert decides(stores, THIRD, 47, 0.95) == ("rebalance", "executed"), "it acts far outside its range"


def test_the_third_golem_confirms_the_advice(stores: DerivationContext) -> None:
    voted = [d for d in rows(stores, "curation", golem_id=THIRD, entry_id=ADVICE) if d["cause_ticks"]]
    assert [(d["operation"], d["cycle"], d["cause_ticks"]) for d in voted] == [("reinforced", 2, [47, 77])]
    (credit,) = [c for c in rows(stores, "credits", golem_id=THIRD, entry_id=ADVICE) if c["useful"]]
    assert (credit["useful"], credit["misled"]) == (1, 0)
    line: Mapping[str, Any] = {r["golem_id"]: r for r in rows(stores, "grimoire", entry_id=ADVICE)}
    assert {g: r["generation"] for g, r in line.items()} == {FIRST: 0, SECOND: 1, THIRD: 2}
    assert line[THIRD]["is_bloodstain"], "the advice must be a bloodstain"


@pytest.mark.row("KAT-8")
def test_the_bloodstain_is_content_addressed(stores: DerivationContext) -> None:
    root = stores.home.root
    printed = orjson.loads(bardo("bloodstain", SECOND, "--format", "json", home=root))
    assert [s["scar_id"] for s in printed["scars"]] == [f"scar-{SECOND}-{n}" for n in (2, 3, 5)]
    assert [v["weight"] for v in printed["death_votes"]] == [2.5] * 7
    assert (printed["golem_id"], printed["tick"], printed["cause"]) == (SECOND, 312, "economic")
    assert printed["bundle_hash"] == published_bundles(stores)[SECOND]
    assert printed["conditions"]["market_regime"] == "HighVol"
    (page,) = rows(stores, "testaments", golem_id=SECOND)
    assert printed["testament_hash"] == sha256(page["markdown"].encode()).hexdigest()
    name, rest = printed["bloodstain_id"], {n: v for n, v in printed.items() if n != "bloodstain_id"}
    assert sha256(orjson.dumps(rest, option=orjson.OPT_SORT_KEYS)).hexdigest() == name
    output = bardo("bloodstain", SECOND, home=root)
    assert f"died        at tick 312, {at(SECOND, 312).isoformat()} (economic)" in output
    assert "utilization hurt withdrawable liquidity" in output.replace("\n", " ")
    assert [item["golem_id"] for item in bloodstains(stores)] == [FIRST, SECOND]
    with pytest.raises(QueryError, match="no golem of this name was born"):
        bloodstain(stores, "g-nobody")
    with pytest.raises(QueryError, match=f"golem {THIRD}: lives"):
        bloodstain(stores, THIRD)


@pytest.mark.row("KAT-8")
def test_the_public_bloodstain_hides_the_golem_and_its_owner(stores: DerivationContext) -> None:
    output = bardo("bloodstain", SECOND, "--format", "json", "--public", home=stores.home.root)
    echo = orjson.loads(output)
    assert echo["failure_patterns"] == [
        "On base, morpho_blue USDC: in a volatile market, with gas normal, an action "
        "is hurt by something else that moves.",
        "On base, uniswap_v3 WETH/USDC: in a volatile market, with gas normal, re-centring a range at whose edge price "
        "stands does not earn back what it costs.",
        "On base, uniswap_v3 WETH/USDC: in a volatile market, with gas normal, re-centring a range that price has just "
        "left does not earn back what it costs.",
    ]
    hidden = {SECOND, FIRST, OWNER, *(v["vote_id"] for v in rows(stores, "votes")), published_bundles(stores)[SECOND]}
    hidden |= {str(tick) for tick in STORY[SECOND][1]} | {"12400", "9300", "0.7", "3100", "utilization"}
    plain = output.replace(echo["testament_hash"], "")
    assert [word for word in sorted(hidden) if word in plain] == []


def test_the_scars_command_lists_scars_and_failures(stores: DerivationContext) -> None:
    every = bardo("scars", SECOND, "--failures", home=stores.home.root)
    assert f"scar-{SECOND}-3, bloodstain of 80 %, anxious, seen 2 times: In a volatile market" in every
    assert f"scar-{SECOND}-4, no scar (the clade knew it)" in every
    scars = orjson.loads(bardo("scars", "--format", "json", home=stores.home.root))
    assert [s["scar_id"] for s in scars] == [f"scar-{SECOND}-{n}" for n in (1, 2, 3, 5)]
