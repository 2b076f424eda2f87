"""A fleet: each golem lives as it does alone, takes the steps of its tier, and dies of the cause that applies to it."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from bardo_pipeline.events.life.events import Traits
from bardo_pipeline.events.record.model import EMOTIONS, PROBES
from bardo_pipeline.heartbeat.fleet import RECALL
from bardo_pipeline.market.market import Market
from bardo_pipeline.mortality.affect import emotion_codes
from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime import fleet_run
from tests.reference.market import position as twin
from tests.support.fleets.memory_fleets import FOUNDING, Lived, drawn_market, live, lively_market
from tests.support.fleets.shared_fleets import SHORT, STEERS, Row, cage, credit, crowd, heirs, known, live_fleet

CALM_TICK = 200_000


# law: a golem is judged alike alone and in a fleet


@pytest.mark.full
@pytest.mark.row("HB-1")
def test_a_fleet_equals_separate_runs_of_each_lineage() -> None:
    assert len(crowd().births) > 10
    assert len(crowd().deaths) > 8
    alone = [live(lively_market(900), lineages=[i], founding=SHORT, generations=3, steers=STEERS) for i in range(5)]
    apart = pa.concat_tables([golem.records for golem in alone])
    assert apart.sort_by([("golem_id", "ascending"), ("tick", "ascending")]).equals(crowd().records)
    assert {g: death for golem in alone for g, death in golem.deaths.items()} == crowd().deaths


@pytest.mark.row("HB-1")
@pytest.mark.parametrize("lineages", [(4, 0), (2, 1, 3)])
def test_records_of_heirs_are_independent_of_other_lineages(lineages: Sequence[int]) -> None:
    market = lively_market(300, seed=3)
    some = live(market, lineages=lineages, inherited=known(), founding=SHORT)
    everyone = live(market, lineages=range(5), inherited=known(), founding=SHORT)
    for golem_id in some.births:
        assert some.of(golem_id).equals(everyone.of(golem_id))


# the nine steps, conditional on the tier


@pytest.mark.row("HB-1")
@pytest.mark.parametrize("lived", [crowd, heirs])
def test_a_tick_at_t0_or_suppressed_has_no_retrieval_deliberation_or_action(
    lived: Callable[[], Lived],
) -> None:
    quiet = [row for row in lived().rows if row["tier"] in ("T0", "suppress")]
    assert len(quiet) > 1_000
    assert {row["tier"] for row in quiet} == {"T0", "suppress"}
    for row in quiet:
        assert row["forced_by"] is None
        passed = row["tier"] == "suppress"  # attention passed over the surprise
        assert (row["prediction_error"] >= row["deliberation_threshold"]) is passed
        assert row["prediction_error"] < row["deliberation_threshold"] * (2 if passed else 1)
        assert row["observation"]["positions"] or not passed
        assert row["deliberation"] is row["context_bundle_summary"] is row["outcome"] is None
        assert row["retrieved_entries"] == row["actions"] == row["somatic_markers_fired"] == []
        assert row["cost"] == {"inference_micros": 0, "gas_micros": 0, "total_micros": 0}


@pytest.mark.row("HB-1")
@pytest.mark.parametrize("lived", [crowd, heirs])
def test_every_tick_of_any_tier_has_probes_predictions_and_costs(lived: Callable[[], Lived]) -> None:
    for row in lived().rows:
        assert len(row["probe_results"]) == len(PROBES)
        assert {"price", "gas"} <= {p["quantity"] for p in row["predictions"]} or row["tick"] == 1
        assert row["credit_consumed_micros"] == row["cost"]["total_micros"] or row["credits_micros"] == 0
        assert row["cost"]["total_micros"] == row["cost"]["inference_micros"] + row["cost"]["gas_micros"]
        assert [a["probe"] for a in row["anomalies"]] == [
            p["probe"] for p in row["probe_results"] if p["severity"] == "high"
        ]


@pytest.mark.row("HB-1")
@pytest.mark.parametrize("lived", [crowd, heirs])
def test_a_deliberated_tick_records_its_context_actions_and_outcome(
    lived: Callable[[], Lived],
) -> None:
    thinking = [row for row in lived().rows if row["tier"] in ("T1", "T2")]
    assert {row["tier"] for row in thinking} == {"T1", "T2"}
    for row in thinking:
        thought, actions = row["deliberation"], row["actions"]
        assert thought["tier"] == row["tier"]
        assert thought["cost_micros"] == row["cost"]["inference_micros"] > 0
        assert thought["input_tokens"] == row["context_bundle_summary"]["tokens"]
        assert thought["recommends_action"] is (thought["decision"] != "hold") is bool(actions)
        assert [c["action_type"] for c in thought["tool_calls"]] == [a["action_type"] for a in actions]
        sent = [a for a in actions if a["status"] in ("executed", "reverted")]
        assert (row["outcome"] is not None) is bool(sent)
        assert row["cost"]["gas_micros"] == sum(a["gas_cost_micros"] for a in sent)
        assert all((a["permit_id"] is not None) is (a in sent) for a in actions)
        assert all((a["block_reason"] is None) is (a["status"] == "executed") for a in actions)
        limit = row["deliberation_threshold"] * (2 if row["tier"] == "T2" else 1)
        assert row["forced_by"] or row["prediction_error"] >= limit


@pytest.mark.row("HB-1")
def test_only_t2_simulates_and_both_t1_and_t2_defer_dear_gas() -> None:
    market = lively_market(900)
    stopped = Counter(
        (row["tier"], action["status"], action["block_reason"].partition(" of ")[0])
        for row in live(market, lineages=range(5), founding=SHORT, policy=cage(slippage_max=0.00055)).rows
        for action in row["actions"]
        if action["status"] != "executed"
    )
    simulated = "simulation: slippage"
    assert stopped["T2", "blocked", simulated] > 0
    assert ("T1", "blocked", simulated) not in stopped
    assert stopped["T1", "reverted", "inclusion: slippage"] > 0
    dear = live(market, lineages=range(5), founding=SHORT, policy=credit(hourly_multiple=0.2)).rows
    deferred = {(row["tier"], a["block_reason"]) for row in dear for a in row["actions"] if a["status"] == "deferred"}
    assert {tier for tier, _ in deferred} == {"T1", "T2"}


@pytest.mark.row("HB-1")
def test_the_cage_blocks_actions_on_a_protocol_that_is_not_allowed() -> None:
    foreign = live(replace(lively_market(200), protocol="sushiswap"), lineages=range(3)).rows
    wished = [action for row in foreign for action in row["actions"]]
    assert len(wished) >= 3
    assert {(a["status"], a["block_reason"]) for a in wished} == {
        ("blocked", "policy cage: this protocol may not be touched")
    }
    assert not any(row["observation"]["positions"] or row["cost"]["gas_micros"] for row in foreign)
    both = Policy()
    both = both.model_copy(update={"cage": both.cage.model_copy(update={"protocols": ("uniswap_v3", "sushiswap")})})
    allowed = live(replace(lively_market(200), protocol="sushiswap"), lineages=range(3), policy=both).rows
    assert "executed" in {action["status"] for row in allowed for action in row["actions"]}


@pytest.mark.row("HB-1")
def test_only_executed_actions_move_a_position() -> None:
    last: dict[str, Row] = {}
    moved = Counter()
    for row in heirs().rows:
        before = last.get(row["golem_id"])
        if before is not None and before["actions"]:
            (action,) = before["actions"]
            held = [[(p["tick_lower"], p["tick_upper"]) for p in r["observation"]["positions"]] for r in (before, row)]
            changed = held[0] != held[1]
            moves = action["status"] == "executed" and action["action_type"] != "collect_fees"
            assert changed is moves or (moves and action["action_type"] == "rebalance")
            moved[action["status"], changed] += 1
        last[row["golem_id"]] = row
    assert moved["executed", True] > 3
    assert sum(n for (status, _), n in moved.items() if status != "executed") > 3


@pytest.mark.row("HB-1")
def test_a_decision_is_judged_thirty_ticks_later_against_its_alternative() -> None:
    ends = {g: max(r["tick"] for r in crowd().rows if r["golem_id"] == g) for g in crowd().births}
    judged = {
        (row["golem_id"], part["decision_tick"]): (row["tick"], part)
        for row in crowd().rows
        for part in row["resolutions"]
    }
    assert len(judged) > 20
    assert all(tick == decided + 30 for (_, decided), (tick, _) in judged.items())
    assert {part["chosen"] for _, part in judged.values()} == {"act", "hold"}
    assert {part["effect_ppm"] > 0 for _, part in judged.values()} == {True, False}
    acts = {
        (row["golem_id"], row["tick"])
        for row in crowd().rows
        for action in row["actions"]
        if (action["action_type"], action["status"]) == ("rebalance", "executed")
        and row["tick"] + 30 <= ends[row["golem_id"]]
    }
    assert acts
    assert acts <= {key for key, (_, part) in judged.items() if part["chosen"] == "act"}


@pytest.mark.row("HB-24")
def test_inaction_on_suppressed_ticks_is_judged_without_retrieved_entries() -> None:
    suppressed = {(row["golem_id"], row["tick"]) for row in crowd().rows if row["tier"] in ("T0", "suppress")}
    still = [
        part
        for row in crowd().rows
        for part in row["resolutions"]
        if (row["golem_id"], part["decision_tick"]) in suppressed
    ]
    assert len(still) > 20
    assert {part["chosen"] for part in still} == {"hold"}
    assert all(part["retrieved_entry_ids"] == [] for part in still)
    assert min(part["anomaly_score"] for part in still) >= Policy().playbook.trial_score_min


# without an oracle


@cache
def without_oracle() -> Lived:
    """The fleet of `crowd` without predictions."""
    with patch.object(fleet_run, "Run", partial(fleet_run.Run, oracle=False)):
        return live(lively_market(900), lineages=range(5), founding=SHORT, generations=3, steers=STEERS)


@pytest.mark.row("HB-2")
def test_surprise_without_an_oracle_is_the_largest_of_four_signals() -> None:
    policy, health = Policy(), dict[str, float | None]()
    for row in without_oracle().rows:
        sources, golem_id = row["prediction_error_sources"], row["golem_id"]
        assert row["predictions"] == []
        assert sources["price"] is None
        assert sources["interventions"] == 0
        assert row["prediction_error"] == pytest.approx(max(v for v in sources.values() if v is not None))
        assert sources["anomalies"] == pytest.approx(min(len(row["anomalies"]), 5) / 5)
        assert sources["regime"] in (0.0, policy.gate.regime_weight)
        assert row["vitality"]["epistemic"] == policy.prediction.fitness_prior
        now = [p["health_factor"] for p in row["observation"]["positions"]]
        before = health.get(golem_id)
        if now and before is not None and sources["health"] is not None:
            assert sources["health"] == pytest.approx(min(abs(now[0] - before), 0.5) / 0.5)
        health[golem_id] = now[0] if now and not row["actions"] else None
    drift = [p for row in without_oracle().rows for p in row["probe_results"] if p["probe"] == "world_model_drift"]
    assert drift
    assert {p["value"] for p in drift} == {None}


@pytest.mark.row("HB-2")
def test_golems_without_an_oracle_use_all_tiers_act_and_die() -> None:
    assert {row["tier"] for row in without_oracle().rows} == {"T0", "T1", "T2", "suppress"}
    assert {a["status"] for row in without_oracle().rows for a in row["actions"]} >= {"executed"}
    assert len(without_oracle().deaths) > 8
    assert without_oracle().records["prediction_error"] != crowd().records["prediction_error"]


@pytest.mark.row("HB-1")
def test_the_effect_of_a_rebalance_includes_the_earned_fees() -> None:
    """The price leaves the range for good: a golem that re-centred earns fees, a golem that held earns none."""
    leap = [CALM_TICK] * 20 + [CALM_TICK + 200] * 200
    traits = Traits(rebalance_threshold=0.7, range_half_width_ticks=160, forecast_memory=0.95)
    rows = []
    for volume in (0, 40_000_000_000):
        after = np.where(np.arange(len(leap)) <= 20, 0, volume).astype(np.int64)
        result = live(drawn_market(leap, volume_usd_micros=after), traits=traits).rows
        acted = next(row for row in result if [a["action_type"] for a in row["actions"]] == ["rebalance"])
        tick = acted["tick"]
        (judged,) = [part for row in result for part in row["resolutions"] if part["decision_tick"] == tick]
        (position,) = result[tick]["observation"]["positions"]
        pools, size = [r["observation"] for r in result[tick : tick + 30]], position["liquidity"]
        earned = sum(twin.fees_micros(size, p["liquidity"], p["volume_micros"], 500, 1.0) for p in pools)
        rows.append((judged["effect_ppm"], earned, judged["value_micros"]))
    (without, nothing, _), (paid, earned, value) = rows
    assert nothing == 0
    assert without < 0
    assert paid > 0
    assert paid - without == pytest.approx(earned / value * 10**6, rel=1e-3)


@pytest.mark.row("HB-1")
def test_own_trust_follows_judged_decisions_and_moves_the_threshold() -> None:
    policy, trust, last = Policy(), dict[str, float](), dict[str, Row]()
    thought = {(row["golem_id"], row["tick"]) for row in live_fleet("plain").rows if row["deliberation"]}
    for row in live_fleet("plain").rows:
        golem_id = row["golem_id"]
        for part in (p for p in row["resolutions"] if (golem_id, p["decision_tick"]) in thought):
            right = (part["effect_ppm"] > 0) is (part["chosen"] == "act")
            trust[golem_id] = 0.9 * trust.get(golem_id, 0.5) + 0.1 * right
        own, before = trust.get(golem_id, 0.5), last.get(golem_id)
        vitality = before["vitality"]["composite"] if before else policy.prediction.fitness_prior
        alert = 1 - policy.gate.arousal_gain * max(0.0, row["pad_before"]["arousal"])
        dying = 1 - policy.gate.mortality_gain * (1 - vitality)
        threshold = policy.gate.base_threshold * (1 + policy.gate.confidence_gain * own) * dying * alert
        assert row["deliberation_threshold"] == pytest.approx(max(0.05, min(0.8, threshold)))
        if row["deliberation"] and not row["observation"]["positions"]:
            assert row["deliberation"]["confidence"] == pytest.approx(0.5 * own + 0.25)
        last[golem_id] = row
    assert min(trust.values()) < 0.45
    assert max(trust.values()) > 0.5


@pytest.mark.row("HB-1")
def test_retrieved_entries_are_scored_by_four_factors_and_ranked() -> None:
    weights = Policy().retrieval
    several = 0
    for row in heirs().rows:
        retrieved_entries = row["retrieved_entries"]
        for e in retrieved_entries:
            score = weights.semantic * e["semantic"] + weights.recency * e["recency"]
            score += weights.importance * e["importance"] + weights.affect * e["affect"]
            awake = {1.0, row["retrieval"]["regime_before_weight"]}
            awake |= {weights.dormant_unclear} if row["regime"] == "unknown" else set()
            assert any(e["score"] == pytest.approx(min(score * weight, 1.0), abs=4e-6) for weight in awake)
        assert [e["score"] for e in retrieved_entries] == sorted((e["score"] for e in retrieved_entries), reverse=True)
        assert len({e["entry_id"] for e in retrieved_entries}) == len(retrieved_entries) <= RECALL
        several += len(retrieved_entries) == RECALL
    assert several > 50


# mood


@pytest.mark.row("HB-28")
@pytest.mark.parametrize("lived", [crowd, heirs])
def test_the_mood_before_a_tick_equals_the_mood_after_the_previous_tick(lived: Callable[[], Lived]) -> None:
    last: dict[str, Row] = {}
    for row in lived().rows:
        assert row["pad_before"] == last.get(row["golem_id"], dict.fromkeys(row["pad_before"], 0.0))
        last[row["golem_id"]] = row["pad_after"]


@pytest.mark.row("HB-28")
def test_arousal_dominance_and_pleasure_follow_surprise_hits_and_gains() -> None:
    rules, prior = Policy().affect, Policy().prediction.fitness_prior
    gained: dict[bool, list[float]] = {True: [], False: []}
    for row in crowd().rows:
        before, after = row["pad_before"], row["pad_after"]
        surprise = row["prediction_error"] - rules.arousal_pivot * row["deliberation_threshold"]
        arousal = rules.memory * before["arousal"] + rules.arousal_gain * surprise
        assert after["arousal"] == pytest.approx(max(-1.0, min(1.0, arousal)))
        held = [p["held"] for p in row["predictions"]]
        surer = rules.dominance_gain * (sum(held) / len(held) - prior) if held else 0.0
        dominance = rules.memory * before["dominance"] + surer
        assert after["dominance"] == pytest.approx(max(-1.0, min(1.0, dominance)))
        change = after["pleasure"] - rules.memory * before["pleasure"]
        if abs(row["observation"]["price_return"]) > 0.005 and abs(after["pleasure"]) < 1:
            gained[row["observation"]["price_return"] > 0].append(change)
    assert min(len(part) for part in gained.values()) > 50
    assert np.mean(gained[True]) > 0 > np.mean(gained[False])


@pytest.mark.row("HB-28")
def test_the_emotion_is_the_octant_of_the_mood_after_the_tick() -> None:
    pad = crowd().records["pad_after"].combine_chunks()
    mood = np.stack([pad.field(n).to_numpy() for n in ("pleasure", "arousal", "dominance")])
    expected = [EMOTIONS[code] for code in emotion_codes(mood)]
    assert crowd().records["primary_emotion"].to_pylist() == expected
    assert len(set(expected)) == len(EMOTIONS)


@pytest.mark.row("HB-28")
def test_a_somatic_marker_is_a_rule_of_the_same_situation_with_its_sign() -> None:
    signs = {r["entry_id"]: r["sign"] for r in known().to_pylist()}
    fired = [(row, marker) for row in heirs().rows for marker in row["somatic_markers_fired"]]
    assert len(fired) > 3
    for row, marker in fired:
        (entry,) = [e for e in row["retrieved_entries"] if e["entry_id"] == marker["entry_id"]]
        assert entry["semantic"] == pytest.approx(1.0)
        assert marker["situation"].startswith(row["regime"])
        if marker["entry_id"] in signs:
            assert np.sign(marker["valence"]) == signs[marker["entry_id"]]
    assert {np.sign(marker["valence"]) for _, marker in fired} == {1.0, -1.0}


# knowledge changes actions


def rebalance_counts(lived: Lived) -> Counter[str]:
    """Return the outcomes of the golems' proposals to re-centre."""
    return Counter(a["status"] for row in lived.rows for a in row["actions"] if a["action_type"] == "rebalance")


def warned_rebalances(lived: Lived) -> int:
    """Count the re-centrings in the situation of the warning: far out of range, gas normal."""
    return sum(
        action["status"] == "executed"
        for row in lived.rows
        if row["observation"]["anomaly_score"] >= 0.8 and 0.75 <= row["observation"]["gas_hour_ratio"] < 2.0
        for action in row["actions"]
        if action["action_type"] == "rebalance"
    )


@pytest.mark.full
@pytest.mark.row("HB-1")
def test_an_inherited_playbook_changes_the_actions_of_a_golem() -> None:
    plain, cautious, eager = (rebalance_counts(live_fleet(kind)) for kind in ("plain", "cautious", "eager"))
    assert cautious["executed"] < plain["executed"] < eager["executed"]
    assert 3 * warned_rebalances(live_fleet("cautious")) < warned_rebalances(live_fleet("plain")), (
        "warnings must block most re-centrings of their situation"
    )
    assert cautious["blocked"] > 10
    assert plain["blocked"] == eager["blocked"] == 0


@pytest.mark.row("HB-1")
@pytest.mark.parametrize(("kind", "acts"), [("wary", False), ("eager", True)])
def test_golems_with_different_knowledge_diverge_at_a_decision(kind: str, acts: bool) -> None:
    """The story's turn (KAT): one line in the playbook, and the heir holds where its predecessor acted."""
    for golem_id in live_fleet("plain").births:
        both = zip(
            live_fleet("plain").of(golem_id).to_pylist(), live_fleet(kind).of(golem_id).to_pylist(), strict=False
        )
        for first, second in both:
            assert first["observation"] == second["observation"]
            if not first["deliberation"]:
                assert not second["deliberation"]
            elif first["deliberation"]["decision"] != second["deliberation"]["decision"]:
                assert (second["deliberation"]["decision"] == "rebalance") is acts
                assert first["playbook_version"] == second["playbook_version"] == 1
                return
            elif first["actions"] != second["actions"]:
                break  # both propose the same act and a warning blocks one of them: from here on their positions differ
    pytest.fail("the golems never diverged")


@pytest.mark.row("HB-1")
def test_a_warning_of_the_same_situation_blocks_an_action_and_is_named() -> None:
    ids = {r["entry_id"] for r in known().to_pylist() if r["kind"] == "warning"}
    reasons = [a["block_reason"] for row in heirs().rows for a in row["actions"] if a["status"] == "blocked"]
    named = [r.rsplit(": ", 1)[1] for r in reasons if r.startswith("a warning stands against acting here")]
    assert named
    assert set(named) <= ids


# causes of death


def still_market(bars: int, gas_gwei: float = 20.0) -> Market:
    """Return a market with a constant price and cheap gas."""
    return drawn_market([CALM_TICK] * bars, gas_gwei)


@pytest.mark.full
@pytest.mark.row("INH-1")
def test_no_golem_dies_in_a_still_market() -> None:
    lived = live(still_market(3_000), lineages=range(4), founding=replace(FOUNDING, lifespan_ticks=(2_000, 8_000)))
    assert lived.deaths == {}
    last = {r["golem_id"]: r["credits_micros"] for r in lived.rows}
    assert len(last) == 4
    assert min(credits / lived.births[golem_id].credits_micros for golem_id, credits in last.items()) > 0.9


@cache
def poor_golems() -> Lived:
    """Golems that think much, act dearly, and run out of credits."""
    market = lively_market(1_500)
    dear = replace(market, gas_gwei=market.gas_gwei * 20)
    poor = replace(FOUNDING, lifespan_ticks=(5_000, 6_000), credit_share=0.01)
    generous = cage(gas_share_max=1.0)
    generous = generous.model_copy(update={"credit": credit(hourly_multiple=1e6).credit})
    return live(dear, lineages=range(4), founding=poor, policy=generous)


@pytest.mark.full
@pytest.mark.row("INH-1")
def test_poor_golems_die_in_a_lively_market_with_dear_gas() -> None:
    lived = poor_golems()
    assert "economic" in {cause for _, cause in lived.deaths.values()}
    for golem_id, (tick, cause) in lived.deaths.items():
        last = lived.of(golem_id).to_pylist()[-1]
        assert last["tick"] == tick
        assert (last["vitality"]["economic"] == 0) is (cause == "economic")
        assert last["phase"] == "terminal"


@pytest.mark.row("INH-1")
@pytest.mark.parametrize("lived", [poor_golems, crowd, heirs])
def test_every_credit_is_accounted_for(lived: Callable[[], Lived]) -> None:
    credits = {golem_id: birth.credits_micros for golem_id, birth in lived().births.items()}
    short = set()
    for row in lived().rows:
        golem_id, consumed = row["golem_id"], row["credit_consumed_micros"]
        done = any(action["status"] == "executed" for action in row["actions"])
        collected = sum(p["fees_owed_micros"] for p in row["observation"]["positions"]) if done else 0
        assert credits[golem_id] + collected - consumed == row["credits_micros"]
        assert consumed <= row["cost"]["total_micros"]
        if consumed < row["cost"]["total_micros"]:
            assert row["credits_micros"] == 0
            short.add((golem_id, row["tick"]))
        credits[golem_id] = row["credits_micros"]
    broke = {(golem_id, tick) for golem_id, (tick, cause) in lived().deaths.items() if cause == "economic"}
    assert short <= broke
    assert bool(short) is (lived is poor_golems)


def jumping_market(bars: int) -> Market:
    """Return a market whose price and gas jump beyond the intervals of a golem that does not learn from its errors."""
    leaps = np.random.default_rng(5).choice([-1, 1], bars) * 60
    gas = np.where(np.arange(bars) % 2 == 0, 20.0, 60.0)
    return drawn_market((CALM_TICK + np.cumsum(leaps) % 900).tolist(), gas.tolist())


@pytest.mark.row("INH-1")
@pytest.mark.parametrize(("memory", "dies"), [(1.0, True), (0.92, False)])
def test_a_golem_dies_if_its_world_model_never_learns(memory: float, dies: bool) -> None:
    traits = Traits(rebalance_threshold=0.7, range_half_width_ticks=160, forecast_memory=memory)
    rich = replace(FOUNDING, lifespan_ticks=(5_000, 6_000), budget_micros=500_000_000)
    lived = live(jumping_market(600), lineages=range(2), founding=rich, traits=traits)
    causes = {cause for _, cause in lived.deaths.values()}
    assert causes == ({"epistemic"} if dies else set())


@pytest.mark.row("INH-1")
def test_a_golem_dies_at_the_end_of_its_lifespan() -> None:
    lived = live(still_market(900), lineages=range(5), founding=SHORT)
    assert {g: tick for g, (tick, _) in lived.deaths.items()} == {
        g: birth.lifespan_ticks for g, birth in lived.births.items()
    }
    assert {cause for _, cause in lived.deaths.values()} == {"stochastic"}
