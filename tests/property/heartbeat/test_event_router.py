"""The router of chain events beside a fold of its records, and its bandits beside textbook forms and a library."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA
from bardo_pipeline.heartbeat.entry_names import EntryNames
from bardo_pipeline.heartbeat.fleet import CONTEXT, EVENT_RULES, EVENT_SCORES, ROUTES, Fleet
from bardo_pipeline.heartbeat.gating import event_router
from bardo_pipeline.heartbeat.gating.bandits import after_outcomes, after_reward, best_arms, greedy_routes, upper_bounds
from bardo_pipeline.heartbeat.gating.event_router import inherit_router, router_states
from bardo_pipeline.heartbeat.recall_table import nothing_known
from bardo_pipeline.heartbeat.records.build_records import records_of
from bardo_pipeline.heartbeat.records.chunk_rows import Buffers, Chunk
from bardo_pipeline.heartbeat.step import step
from bardo_pipeline.inheritance.bundle_inspection import faults_of
from bardo_pipeline.inheritance.learning_state import PLACES, Attention
from bardo_pipeline.inheritance.learning_state import learned as learning_states
from bardo_pipeline.inheritance.router_learning import router_faults, router_of
from bardo_pipeline.market.chain_events import EVENT_KINDS, chain_events
from bardo_pipeline.market.tick_series import tape_of
from bardo_pipeline.mortality.random_streams import STREAM_SHADOW, seed_of, uniform
from bardo_pipeline.policy import GatingPolicy, Policy
from bardo_pipeline.quality.reason_checks import contradictions
from tests.reference.learning import triage as twin
from tests.reference.learning.gating import verdicts
from tests.support.fleets.gated_fleets import GATED
from tests.support.fleets.loan_markets import RICH
from tests.support.fleets.memory_fleets import live, lively_market
from tests.support.fleets.routed_fleets import ROUTED, lives, market, routed
from tests.support.fleets.tier_rows import past_ticks
from tests.support.knowledge.handmade_bundles import bundle_of
from tests.support.records.stated_reasons import stated_in_rules

RULES = ROUTED.triage


def events_of(row: dict[str, Any], hours: float) -> list[twin.Event]:
    out = []
    for event in row["triage"]["events"]:
        applied = twin.applied_rules(row, event["kind"], event["value_micros"], ROUTED)
        context = twin.context_of(row, event, applied, hours)
        out.append(twin.Event(applied, [event["scores"][name] for name in twin.SCORES], context, event["route"]))
    return out


def replayed() -> Iterator[tuple[dict[str, Any], list[twin.Event], twin.Router]]:
    """Yield each record with its events, and its golem's twin before that tick."""
    for rows in lives().values():
        router, past, last = twin.Router(ROUTED), past_ticks(rows), -math.inf
        events: dict[int, list[twin.Event]] = {}
        for tick, row in sorted(rows.items()):
            at = row["observed_at"].timestamp()
            events[tick] = events_of(row, (at - last) / 3_600.0)
            yield row, events[tick], router
            last = at if any(event.route == "escalate" for event in events[tick]) else last
            if tick % ROUTED.gating.delta_ticks == 0:
                judged = []
                for seen, verdict in verdicts(past, tick, ROUTED.gating):
                    thinks = seen.tier in ("T1", "T2")
                    important = verdict == "missed" or (thinks and seen.found and verdict == "right")
                    chosen = rows[seen.tick]["triage"]
                    cell = ("low", "medium", "high").index(chosen["arousal_regime"]), chosen["arm"]
                    judged.append((events[seen.tick], cell, important))
                router.learn(judged)


@pytest.mark.row("HB-8", "HB-31", "HB-5", "HB-6")
def test_the_state_of_every_delta_follows_from_the_verdicts_on_the_events_before() -> None:
    seen, moved = 0, Counter[str]()
    for row, _, router in replayed():
        state = row["triage"]["state"]
        assert (state is not None) == (row["tick"] % ROUTED.gating.delta_ticks == 1)
        if state is None:
            continue
        for name, expected in router.state().items():
            np.testing.assert_allclose(state[name], expected, rtol=1e-6, atol=1e-8, err_msg=f"{row['tick']} {name}")
            moved[name] += bool(row["tick"] > 1 and np.ptp(state[name]) > 0.0)
        seen += 1
    assert seen > 20
    assert all(moved[name] for name in ("log_weights", "rule_log_weights", "arms", "inverse", "theta", "route_means"))


@pytest.mark.row("HB-8", "HB-31")
def test_every_route_and_every_shadow_follows_from_the_scores_the_arm_the_context_and_the_state() -> None:
    counted = Counter[tuple[str, str, str]]()
    for row, events, router in replayed():
        regime = np.searchsorted(RULES.arousal_edges, row["pad_before"]["arousal"], side="right")
        assert row["triage"]["arousal_regime"] == ("low", "medium", "high")[int(regime)]
        seed, tick = np.array([seed_of(row["golem_id"])]), np.array([row["tick"]])
        for stated, event in zip(row["triage"]["events"], events, strict=True):
            score = router.scores.mean(event.scores, router.rounds)
            assert stated["score"] == (None if score is None else pytest.approx(score))
            assert event.scores[0] == pytest.approx(router.rules.mean(event.applied, router.rounds))
            stream = STREAM_SHADOW + 2 * twin.KINDS.index(stated["kind"])
            draw, random = (float(uniform(seed, tick, stream + i)[0]) for i in range(2))
            assert stated["shadow_route"] == router.baseline(draw, random)
            route, decider = router.route(stated["score"], row["triage"]["arm"], event.context, stated["shadow_route"])
            assert (stated["route"], stated["decider"]) == (route, decider)
            counted[stated["kind"][:4], route, decider] += 1
    for kind in ("swap", "loan"):
        assert {route for k, route, _ in counted if k == kind} >= {"escalate", "emit", "count"}, counted
    assert {decider for *_, decider in counted} >= {"threshold", "context"}


@pytest.mark.row("HB-31")
def test_the_five_scores_of_an_event_follow_from_the_record_and_the_market() -> None:
    tape, window, scales = tape_of(market(), ROUTED), RULES.event_window, ROUTED.gating
    place = {int(at): t for t, at in enumerate(tape.at_us.tolist())}
    rates = tape.reserves.borrow_rate  # type: ignore[union-attr]
    sizes = {"swap": tape.volume_micros.astype(float)}
    sizes |= {kind: np.abs(np.diff(rates[i], prepend=rates[i][0])) for i, kind in enumerate(twin.KINDS[1:])}
    for golem_rows in lives().values():
        for row in golem_rows.values():
            t = place[int(row["observed_at"].timestamp()) * 1_000_000]
            assert [e["kind"] for e in row["triage"]["events"]] == [k for k in twin.KINDS if sizes[k][t] > 0.0]
            for event in row["triage"]["events"]:
                size, scores = sizes[event["kind"]], event["scores"]
                happened = [v for v in size[: t + 1].tolist() if v > 0.0]
                nats = twin.log_deviation(happened, len(happened) - 1, window)
                assert scores["surprise"] == near(nats, scales.surprise_half_nats)
                share = None if t < window else float((size[t - window : t] > 0.0).mean())
                assert scores["novelty"] == (None if share is None else pytest.approx(1.0 - share, abs=1e-9))
                is_swap = event["kind"] == "swap"
                name = row["observation"]["protocol"] if is_swap else "aave_v3"
                held = next((p for p in row["observation"]["positions"] if p["protocol"] == name), None)
                if is_swap:
                    assert scores["error"] == row["gating"]["signals"]["oracle"]
                    assert scores["anomaly"] == (row["observation"]["anomaly_score"] if held else None)
                else:
                    before = happened[-window - 1 : -1]
                    excess = happened[-1] * window / sum(before) if len(before) == window else None
                    assert scores["error"] == near(excess, scales.oracle_half)
                    health = None if held is None else min(max(2.0 - held["health_factor"], 0.0), 1.0)
                    assert scores["anomaly"] == (None if health is None else pytest.approx(health))


def near(size: float | None, half: float) -> Any:
    return None if size is None else pytest.approx(size / (size + half), rel=1e-6, abs=1e-9)


@pytest.mark.row("HB-8", "HB-4")
def test_an_escalated_event_wakes_a_discarded_tick_and_its_reason_says_so() -> None:
    records = routed().records
    assert stated_in_rules(records) == len(records)
    assert contradictions(records) == []
    woken = 0
    for rows in lives().values():
        for row in rows.values():
            escalates = any(e["route"] == "escalate" for e in row["triage"]["events"])
            limit, figures = row["gating"]["boundary_t1"]["threshold"], row["gating"]
            discarded = limit is not None and figures["composite"] <= limit and not figures["explored"]
            settled = "stays out" in row["gating_reason"]
            assert row["triage"]["woke"] is (escalates and discarded and not settled)
            if row["triage"]["woke"]:
                assert row["tier"] == "T1"
                assert row["deliberation"] is not None
                changed = copy.deepcopy(row)
                changed["triage"]["woke"] = False
                assert contradictions(records.from_pylist([changed], records.schema))
                woken += 1
    assert woken > 3


@pytest.mark.row("HB-8")
@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 2**16), st.sampled_from([0.0, 1.0])), min_size=1, max_size=40))
def test_sherman_and_morrison_give_the_ridge_regression_that_is_solved_anew(rounds: list[tuple[int, float]]) -> None:
    linear, inverse, theta = twin.Linear(), np.eye(CONTEXT)[..., None], np.zeros((CONTEXT, 1))
    for seed, reward in rounds:
        x = np.random.default_rng(seed).uniform(-1.0, 2.0, CONTEXT)
        linear.update(x.tolist(), reward)
        inverse, theta = after_reward(inverse, theta, x[:, None], np.array([reward]))
    np.testing.assert_allclose(inverse[..., 0], np.linalg.inv(linear.a), atol=1e-10)
    np.testing.assert_allclose(theta[:, 0], np.linalg.solve(linear.a, linear.b), atol=1e-10)
    x = np.random.default_rng(0).uniform(0.0, 1.0, CONTEXT)
    bound = upper_bounds(inverse[None], theta[None], x[:, None], 0.7)[0, 0]
    assert bound == pytest.approx(linear.bound(x.tolist(), 0.7))


@pytest.mark.row("HB-8", "HB-31")
@given(seed=st.integers(0, 2**32 - 1), alpha=st.floats(0.0, 2.0))
@settings(deadline=None)
def test_linucb_bounds_and_chooses_as_mabwiser_does(seed: int, alpha: float) -> None:
    from mabwiser.mab import MAB, LearningPolicy  # it takes seconds to import

    chance, arms, rewards = np.random.default_rng(seed), 3, 100
    contexts, arm = chance.uniform(-1.0, 2.0, (rewards, CONTEXT)), chance.integers(0, arms, rewards)
    reward, questions = chance.integers(0, 2, rewards).astype(float), chance.uniform(-1.0, 2.0, (20, CONTEXT))
    peer = MAB(list(range(arms)), LearningPolicy.LinUCB(alpha=alpha, l2_lambda=1.0))
    peer.fit(arm, reward, contexts)
    inverse, theta = np.repeat(np.eye(CONTEXT)[None, ..., None], arms, axis=0), np.zeros((arms, CONTEXT, 1))
    for a, x, paid in zip(arm, contexts, reward, strict=True):
        inverse[a], theta[a] = after_reward(inverse[a], theta[a], x[:, None], np.array([paid]))
    inverse, theta = (np.repeat(own, len(questions), axis=-1) for own in (inverse, theta))
    bounds = upper_bounds(inverse, theta, questions.T, alpha)
    theirs = np.array([list(expected.values()) for expected in peer.predict_expectations(questions)])
    np.testing.assert_allclose(bounds.T, theirs, atol=1e-9)
    assert peer.predict(questions) == np.argmax(bounds, axis=0).tolist()


@pytest.mark.row("HB-8")
def test_linucb_finds_the_route_that_each_context_pays() -> None:
    chance = np.random.default_rng(1)
    inverse, theta = np.repeat(np.eye(CONTEXT)[None, ..., None], 3, axis=0), np.zeros((3, CONTEXT, 1))
    right = []
    for _ in range(1_500):
        x = np.zeros(CONTEXT)
        x[0], x[6] = 1.0, chance.integers(0, 2)
        route = int(np.argmax(upper_bounds(inverse, theta, x[:, None], 1.0)[:, 0]))
        paid = chance.random() < (0.9 if route == (0 if x[6] else 2) else 0.2)
        inverse[route], theta[route] = after_reward(inverse[route], theta[route], x[:, None], np.array([float(paid)]))
        right.append(route == (0 if x[6] else 2))
    assert np.mean(right[500:]) > 0.9


@pytest.mark.row("HB-8")
def test_a_degenerate_matrix_and_an_absent_score_leave_the_route_to_the_baseline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stepped(spoil: bool) -> Fleet:
        fleet = Fleet(["g-0"], [next(iter(routed().births.values()))], ROUTED)
        tape, out, recall = tape_of(market(), ROUTED), Buffers(1, 1), nothing_known(1, EntryNames())
        if spoil:
            fleet.ucb_inverse[0, ..., 0] = -np.eye(CONTEXT)
        for t in range(30):
            step(fleet, tape, t, recall=recall, policy=always, out=out, at=0)
            codes.update(zip(out["triage_decider"].ravel().tolist(), out["triage_route"].ravel().tolist(), strict=True))
            same.append(
                (out["triage_route"] == out["triage_shadow"])[out["triage_decider"] == event_router.BY_BASELINE]
            )
        return fleet

    always = ROUTED.model_copy(update={"triage": ROUTED.triage.model_copy(update={"borderline": 1.0})})
    codes, same = Counter[tuple[int, int]](), list[Any]()
    stepped(False)
    assert {decider for decider, route in codes if route >= 0} == {event_router.BY_CONTEXT}
    codes.clear()
    stepped(True)
    assert {decider for decider, route in codes if route >= 0} == {event_router.BY_BASELINE}
    codes.clear()
    monkeypatch.setattr(event_router, "event_scores", lambda *_: np.full((5, len(EVENT_KINDS), 1), np.nan))
    stepped(False)
    assert {decider for decider, route in codes if route >= 0} == {event_router.BY_BASELINE}
    assert np.concatenate(same).all()


@pytest.mark.row("HB-6")
def test_an_arm_is_chosen_as_often_as_its_draw_is_the_largest() -> None:
    alpha, beta = np.array([2.0, 1.0, 6.0]), np.array([2.0, 1.0, 4.0])
    shapes = np.stack([alpha, beta])[:, None, :, None]
    chosen = best_arms(np.array([7], np.uint64), np.arange(1, 6_001)[:, None], shapes)[:, 0, 0]
    for arm in range(3):
        others = [i for i in range(3) if i != arm]
        share, _ = integrate.quad(
            lambda x, arm=arm, others=others: (
                stats.beta.pdf(x, alpha[arm], beta[arm])
                * math.prod(stats.beta.cdf(x, alpha[i], beta[i]) for i in others)
            ),
            0.0, 1.0,
        )  # fmt: skip
        assert np.mean(chosen == arm) == pytest.approx(share, abs=0.025)


@pytest.mark.row("HB-6")
def test_outcomes_move_an_arm_and_fade_towards_one() -> None:
    none, some = np.zeros((1, 5, 1)), np.full((1, 5, 1), 3.0)
    shapes = np.ones((2, 1, 5, 1)) * 2.0
    moved = after_outcomes(shapes, some, none, RULES)
    np.testing.assert_allclose(moved[0], 1.0 + RULES.arm_memory + 3.0)
    np.testing.assert_allclose(moved[1], 1.0 + RULES.arm_memory)
    for _ in range(2_000):
        moved = after_outcomes(moved, none, none, RULES)
    np.testing.assert_allclose(moved, 1.0, atol=1e-9)
    priors = Policy().triage
    assert priors.arms[0] == (0.8, 0.5, 0.2)
    assert (priors.arm_priors, priors.arousal_edges) == ((2.0, 1.0, 1.0, 1.0, 1.0), (0.3, 0.7))


@pytest.mark.row("HB-8")
def test_the_baseline_explores_a_fifth_at_birth_and_a_hundredth_after_2995_events() -> None:
    def explored(events: int) -> float:
        mean, count = np.zeros((4, 1)), np.zeros((4, 1))
        mean[2], count[2] = 1.0, events
        ticks = np.arange(1, 20_001)
        routes = greedy_routes(np.array([3], np.uint64), ticks, mean, count, 1, Policy().triage)
        return float(np.mean(routes != 2) * 4.0 / 3.0)

    assert 0.2 * 0.999**2_995 <= 0.01 < 0.2 * 0.999**2_994
    assert explored(0) == pytest.approx(0.2, abs=0.01)
    assert explored(1_000) == pytest.approx(0.2 * 0.999**1_000, abs=0.01)
    assert explored(100_000) == pytest.approx(0.01, abs=0.003)


@pytest.mark.row("HB-5")
def test_the_nested_weights_favour_the_rule_that_foretells_importance() -> None:
    experts = twin.Experts([0.0] * len(EVENT_RULES))
    for round_ in range(400):
        matters = round_ % 2
        experts.update([float(matters), 1.0, 0.0, float(not matters), None, None], float(matters), 1.0)
        experts.bound(round_ + 1, GatingPolicy().weight_ratio_min)
    shares = experts.shares(400)
    assert shares[0] > shares[1] > shares[3]
    assert shares[0] == pytest.approx(10.0 * shares[3])


@pytest.mark.row("HB-31")
def test_a_market_without_a_lender_has_swaps_alone_and_minutes_without_swaps_no_event() -> None:
    volume = np.array([5, 0, 7, 3], np.int64)
    events = chain_events(volume, None, 2)
    np.testing.assert_array_equal(events.present, [[True, False, True, True], [False] * 4, [False] * 4])
    np.testing.assert_array_equal(events.value_micros[0], volume)
    assert np.isnan(events.surprise_nats[0, :3]).all()
    assert events.surprise_nats[0, 3] == pytest.approx(twin.log_deviation([5.0, 7.0, 3.0], 2, 2))


def state_left() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return one golem's learning state, and the last record that holds its router."""
    golem_id, rows = next(iter(lives().items()))
    records = routed().of(golem_id)
    none = Attention(thoughts=[0] * PLACES, vain=[0] * PLACES)
    state = learning_states(records, {golem_id: 0.9}, {golem_id: none}, ROUTED)[golem_id]
    last = max(tick for tick, row in rows.items() if row["triage"]["state"] is not None)
    return orjson.loads(orjson.dumps(state)), rows[last]


@pytest.mark.row("HB-10")
def test_an_heir_starts_with_the_router_of_its_predecessor_and_uses_it_at_once() -> None:
    learning, last = state_left()
    assert 2_000 < len(orjson.dumps(learning["router"])) < 4_200
    founder = routed().births[last["golem_id"]]
    fleet, tape = Fleet(["g-orphan", "g-heir"], [founder] * 2, ROUTED), tape_of(market(), ROUTED)
    inherit_router(fleet, 0, router_of({}), ROUTED)
    inherit_router(fleet, 1, router_of(learning), ROUTED)
    for name, values in router_states(fleet).items():
        np.testing.assert_allclose(values[:, 1], last["triage"]["state"][name], rtol=1e-6, atol=2e-3)
    out, recall = Buffers(2, 40), nothing_known(2, EntryNames())
    for t in range(40):
        step(fleet, tape, t, recall=recall, policy=ROUTED, out=out, at=t)
    rows = records_of(Chunk(out, tape, 0, fleet.golem_ids, recall, None, ROUTED)).to_pylist()
    first = {row["golem_id"]: row["triage"]["state"] for row in rows if row["tick"] == 1}
    assert first["g-orphan"]["rounds"] == [0.0]
    np.testing.assert_allclose(first["g-heir"]["theta"], last["triage"]["state"]["theta"], atol=1e-8)
    scores = {g: [e["score"] for row in rows if row["golem_id"] == g for e in row["triage"]["events"]] for g in first}
    assert scores["g-heir"] != scores["g-orphan"]


@pytest.mark.row("HB-10")
def test_a_run_gives_the_state_of_a_bundle_to_the_heir() -> None:
    learning, last = state_left()
    none = ENTRY_SCHEMA.empty_table()
    heirs = live(lively_market(120), founding=RICH, policy=ROUTED, inherited=none, learning=learning)
    first = next(row for row in heirs.rows if row["tick"] == 1)
    for name, stored in first["triage"]["state"].items():
        np.testing.assert_allclose(stored, last["triage"]["state"][name], rtol=1e-6, atol=2e-3)
    weights = first["gating"]["weights"]
    logs = [math.log(weights[name] / max(weights.values())) for name in weights]
    np.testing.assert_allclose(logs, np.array(learning["gate"]["log_weights"]) * 1e-6, atol=1e-6)


@pytest.mark.row("HB-10")
@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("log_weights", [0] * 4), ("log_weights", [-5] * 5), ("log_weights", [1, 0, 0, 0, 0]), ("log_weights", None),
        ("rule_log_weights", [0.0] * 6), ("arms", [999] * 30), ("arms", [1_000] * 29), ("theta", [0] * 35),
        ("theta", [10**12] * 36), ("inverse", [0] * 234), ("inverse", [float("nan")] * 234), ("inverse", "x"),
        ("route_means", [2 * 10**9, 0, 0, 0]), ("route_counts", [-1, 0, 0, 0]), ("rounds", [True]), ("rounds", []),
    ],
)  # fmt: skip
def test_a_router_outside_its_ranges_is_a_fault_of_its_bundle_and_is_not_used(part: str, value: object) -> None:
    learning, _ = state_left()
    assert router_faults(learning) == []
    assert not [f for f in faults_of(bundle_of(learning=learning).files, ROUTED.inheritance) if "router" in f]
    spoilt = {**learning, "router": {**learning["router"], part: value}}
    if "nan" not in repr(value):  # no JSON holds it
        assert [f for f in faults_of(bundle_of(learning=spoilt).files, ROUTED.inheritance) if part in f]
    assert [f for f in router_faults(spoilt) if part in f]
    assert router_of(spoilt) is None
    assert router_of({"router": 3}) is None


@pytest.mark.row("HB-8")
def test_names_of_the_columns_are_those_of_the_records() -> None:
    assert (twin.KINDS, twin.SCORES, twin.ROUTES) == (EVENT_KINDS, EVENT_SCORES, ROUTES)
    off = Fleet(["g-0"], [next(iter(routed().births.values()))], GATED)
    assert len(off.past_route) == 0
    assert SimpleNamespace(**router_states(off)).theta.shape == (36, 1)
