"""Wiring of a step: each value that a tick writes, computed again from the state before it and the market.

One walk of a fleet through a lively market is shared by the tests: steers, follow-ups, reorgs, a kill switch, inherited
entries and causal links. Attention, phases and prices of actions have walks of their own.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bardo_pipeline.curator.causality.variables import PRICE_EXCURSION, SCALE
from bardo_pipeline.curator.choice_rules import ENTER as CALLS
from bardo_pipeline.curator.choice_rules import LEAVE as LEAVES
from bardo_pipeline.curator.choice_rules import REPAYS, STAY_OUT, TRAIT
from bardo_pipeline.curator.state.grimoire_state import from_table
from bardo_pipeline.events.record.model import PROBES
from bardo_pipeline.heartbeat.causal_forecast import Foresight
from bardo_pipeline.heartbeat.decide import (
    ACTIONS,
    CALLED,
    COLLECT,
    COOLING,
    ENTER,
    HOLD,
    LEAVE,
    REBALANCE,
    TURMOIL,
    VOLATILE,
)
from bardo_pipeline.heartbeat.defi.aave_loans import BORROW, LIQUIDATED, REPAY, share_values
from bardo_pipeline.heartbeat.defi.rebalance import ACT
from bardo_pipeline.heartbeat.entry_names import EntryNames
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.heartbeat.gate import BIRTH, PHASE_TRANSITION, REORG, STEER, UNFORCED, settled_out
from bardo_pipeline.heartbeat.observe import observe
from bardo_pipeline.heartbeat.recall_table import Recall, nothing_known, recall_of
from bardo_pipeline.heartbeat.records.chunk_rows import Buffers
from bardo_pipeline.heartbeat.refusals import BLOCKED, EXECUTED, LIQUIDATION, POOL_SHARE, REVERTED
from bardo_pipeline.heartbeat.step import Interventions, step
from bardo_pipeline.heartbeat.threats import hear_threat
from bardo_pipeline.market.tick_series import Tape, tape_of
from bardo_pipeline.mortality.credit_partitions import GAS, INFERENCE
from bardo_pipeline.policy import Policy
from tests.support.fleets.loan_markets import indebted, lending
from tests.support.fleets.memory_fleets import drawn_market, lively_market
from tests.support.fleets.shared_fleets import cage, known
from tests.unit.heartbeat.test_choose import AWAY, CENTRE, entered, fleet_of, think

POLICY = Policy()
TICKS, GOLEMS = 420, 5
PRICE, GAS_PRICE, HEALTH = range(3)
T0, T1, T2, SUPPRESS = range(4)


@dataclass
class Walk:
    """A fleet's states before and after each tick, its tape, and the columns [golems, ticks, ...] that were written."""

    before: list[Any]
    after: list[Any]
    tape: Tape
    out: Buffers
    recall: Recall
    policy: Policy = POLICY

    def __getitem__(self, name: str) -> np.ndarray:
        return self.out[name]

    def state(self, name: str, *, after: bool = False) -> np.ndarray:
        """Return a column of the fleet before (or after) each tick, [golems, ticks] or [golems, ticks, items]."""
        states = self.after if after else self.before
        return np.moveaxis(np.stack([getattr(fleet, name) for fleet in states]), -1, 0)


def frozen(fleet: Fleet) -> SimpleNamespace:
    """Return a copy of a fleet's columns."""
    return SimpleNamespace(**{n: v.copy() for n, v in vars(fleet).items() if isinstance(v, np.ndarray)})


def walk(
    fleet: Fleet, tape: Tape, ticks: int, *, recall: Recall | None = None, oracle: bool = True,
    interventions: dict[int, Interventions] | None = None, killed: frozenset[int] = frozenset(),
    policy: Policy = POLICY, start: int = 0,
) -> Walk:  # fmt: skip
    """Step a fleet through these ticks."""
    out, recall = Buffers(fleet.size, ticks), recall or nothing_known(fleet.size, EntryNames())
    before, after = [], []
    for at in range(ticks):
        before.append(frozen(fleet))
        given = (interventions or {}).get(at)
        step(
            fleet, tape, start + at, recall=recall, policy=policy, out=out, at=at, interventions=given,
            killed=at in killed, oracle=oracle,
        )  # fmt: skip
        after.append(frozen(fleet))
    return Walk(before, after, tape, out, recall, policy)


STEERED, FOLLOWED, REORGED = (40, 41, 150), (60, 61, 220), (90, 91)
KILLED = frozenset({120, 121, 300})


def given() -> dict[int, Interventions]:
    """Return what owners and chain do in the shared walk."""
    some = np.arange(GOLEMS) < 3
    none = Interventions.none(GOLEMS)
    plan = {t: replace(none, steer=some) for t in STEERED}
    plan |= {t: replace(none, follow_up=np.arange(GOLEMS)) for t in FOLLOWED}
    return plan | {t: replace(none, reorg=~some) for t in REORGED}


@cache
def lived() -> Walk:
    """The shared walk. Golem 0 trusts a causal link, golem 1 has a candidate; all know the rules of `known`."""
    tape, fleet = tape_of(lively_market(900), POLICY), fleet_of(GOLEMS)
    ids, fleet.partitions[GAS, 4] = fleet.golem_ids, fleet.partitions[GAS, 4] // 2
    rows = [row | {"golem_id": g, "entry_id": f"{row['entry_id']}-{g}"} for g in ids for row in known().to_pylist()]
    state = from_table(pa.Table.from_pylist(rows, known().schema))
    recall = recall_of(state, ids, int(tape.at_us[0]), EntryNames(), POLICY)
    first = np.arange(GOLEMS) == 0
    graph = Foresight(np.array([PRICE_EXCURSION]), np.array([1]), -0.5 * first[None, :], first, np.arange(GOLEMS) == 1)
    recall = replace(recall, foresight=graph)
    return walk(fleet, tape, TICKS, recall=recall, interventions=given(), killed=KILLED)


def column(values: np.ndarray) -> np.ndarray:
    """Return a column of the tape as [1, ticks]."""
    return values[None, :TICKS]


# the twelve probes (HB S9)


@pytest.mark.row("HB-13")
def test_probes_of_the_market_are_its_changes_since_the_last_tick() -> None:
    here, probes = lived().tape, lived()["probes"]
    moved = np.r_[0.0, np.abs(np.diff(here.price) / here.price[:-1])]
    np.testing.assert_allclose(probes[..., 0], column(moved).repeat(GOLEMS, 0), atol=1e-9)
    flowed = np.r_[0.0, np.abs(np.diff(here.liquidity)) / here.liquidity[:-1]]
    np.testing.assert_allclose(probes[..., 1], column(flowed).repeat(GOLEMS, 0), atol=1e-9)
    np.testing.assert_allclose(probes[..., 3], column(here.gas_hour_ratio).repeat(GOLEMS, 0))
    macd = np.abs(here.macd) * POLICY.probes.macd_points
    np.testing.assert_allclose(probes[..., 5], column(np.minimum(np.abs(here.rsi - 50), macd)).repeat(GOLEMS, 0))
    for code in (0, 1, 3, 5):
        assert np.nanstd(probes[0, :, code]) > 0, "the market moves each probe of it"


@pytest.mark.row("HB-13")
def test_the_health_probe_is_that_of_the_range_at_this_price() -> None:
    run = lived()
    lower, upper, held = run.state("lower"), run.state("upper"), run.state("liquidity") > 0
    away = np.abs(column(run.tape.pool_tick) - (lower + upper) / 2) / ((upper - lower) / 2)
    np.testing.assert_allclose(run["probes"][..., 2], np.where(held, np.maximum(2 - away, 0), np.nan))
    assert 0 < held.mean() < 1


@pytest.mark.row("HB-13", "HB-30")
def test_the_credit_probe_is_the_lower_share_of_both_partitions() -> None:
    run = lived()
    shares = run.state("partitions") / run.state("allotted")
    np.testing.assert_allclose(run["probes"][..., 4], shares.min(axis=-1))
    assert (shares[..., INFERENCE] < shares[..., GAS]).any()
    assert (shares[..., GAS] < shares[..., INFERENCE]).any()


@pytest.mark.row("HB-13")
def test_the_circuit_breaker_is_the_drawdown_from_the_high_water_mark() -> None:
    run = lived()
    nav, mark = run["nav_seen"], run.state("high_water")
    np.testing.assert_allclose(run["probes"][..., 6], np.maximum(1 - nav / np.maximum(mark, nav), 0), atol=1e-12)
    assert run["probes"][..., 6].max() > 0.01


@pytest.mark.row("HB-13")
def test_the_kill_switch_raises_its_probe_in_exactly_its_ticks() -> None:
    thrown = np.array([t in KILLED for t in range(TICKS)], float)
    np.testing.assert_array_equal(lived()["probes"][..., 7], thrown[None].repeat(GOLEMS, 0))


@pytest.mark.row("HB-13")
def test_the_deviation_probe_is_the_largest_z_of_the_homeostatic_variables_after_thirty_ticks() -> None:
    run = lived()
    mean, var, last = (run.state(f"home_{n}") for n in ("mean", "var", "last"))
    z = (np.abs(last - mean) / np.sqrt(np.maximum(var, 1e-12))).max(axis=-1)
    seen = np.arange(TICKS) >= POLICY.probes.homeostatic_ticks_min
    np.testing.assert_allclose(run["probes"][..., 9], np.where(seen[None], z, np.nan))
    assert np.nanmax(run["probes"][..., 9]) > 1
    inference, gas = run["inference"], run["gas"]
    now = run.state("home_last", after=True)
    acted = (run["choice_action"] > 0) & np.isin(run["tier"], (T1, T2))
    np.testing.assert_array_equal(now[..., :3], np.stack([inference + gas, inference, gas], axis=-1))
    np.testing.assert_array_equal(now[..., 3], acted)
    np.testing.assert_array_equal(now[..., 4], run["error"])
    kept, delta, first = POLICY.probes.homeostatic_memory, now - mean, np.arange(TICKS)[None, :, None] == 0
    mean_after, var_after = (run.state(f"home_{n}", after=True) for n in ("mean", "var"))
    np.testing.assert_allclose(mean_after, np.where(first, now, mean + (1 - kept) * delta))
    np.testing.assert_allclose(var_after, np.where(first, 0.0, kept * (var + (1 - kept) * delta**2)))


@pytest.mark.row("HB-13")
def test_the_drift_probe_is_the_mean_relative_error_of_the_predictions_due_now() -> None:
    run = lived()
    expected = run.state("expected")
    health = run["probes"][..., 2]
    actual = np.stack(
        [column(run.tape.price).repeat(GOLEMS, 0), column(run.tape.gas_gwei).repeat(GOLEMS, 0), health], -1
    )
    scale = np.stack([expected[..., 0], expected[..., 1], np.ones_like(health)], -1)
    relative = np.abs(actual - expected) / scale
    known_ones = (~np.isnan(relative)).sum(axis=-1)
    drift = np.where(known_ones > 0, np.nansum(relative, axis=-1) / np.maximum(known_ones, 1), np.nan)
    np.testing.assert_allclose(run["probes"][..., 10], drift)
    assert np.nanmax(drift) > POLICY.probes.drift_low


@pytest.mark.row("HB-13", "MEM-22")
def test_the_causal_probe_is_raised_for_a_candidate_and_for_a_broken_link_only() -> None:
    run, rules = lived(), POLICY.causal
    probe = run["probes"][..., 11]
    assert np.isnan(probe[2:]).all(), "golems without a graph have no such probe"
    assert set(probe[1]) == {1.0}, "a candidate waits"
    foreseen = run.state("foreseen")[0]
    spread = run.tape.spread_ppm[np.maximum(np.arange(TICKS) - 1, 0)]
    moved = run.tape.price_return[:TICKS] * 1e6 / spread
    broken = (np.abs(foreseen) >= rules.probe_shift) & (np.abs(moved - foreseen) >= rules.probe_sigma)
    broken &= foreseen * moved < 0
    assert broken.any()
    assert probe[0].tolist() == np.where(broken, 2.0, 0.0).tolist()


# surprise, threshold and tier (HB S3-S5)


@pytest.mark.row("HB-2")
def test_each_source_of_surprise_is_fed_by_its_own_observation() -> None:
    run, rules = lived(), POLICY.gate
    sources = np.moveaxis(run["sources"], -1, 0)
    price = column(run.tape.price)
    expected = run.state("expected")[..., PRICE]
    np.testing.assert_allclose(sources[0], rules.price_weight * np.abs(price - expected) / expected)
    regime = run.tape.regime[:TICKS]
    turned = np.r_[False, regime[1:] != regime[:-1]]
    np.testing.assert_allclose(sources[1], rules.regime_weight * column(turned).repeat(GOLEMS, 0))
    change = np.abs(run["probes"][..., 2] - run.state("health"))
    weighted = rules.health_weight * np.minimum(change, rules.health_delta_max) * (change > rules.health_delta_min)
    np.testing.assert_allclose(sources[2], np.where(np.isnan(change), np.nan, weighted))
    assert np.isnan(sources[3]).all()
    steered, followed = interventions()
    pending = run.state("follow_ups") + followed + steered
    np.testing.assert_allclose(sources[4], rules.intervention_weight * np.minimum(pending, rules.intervention_max))
    count = raised(run).sum(axis=-1)
    np.testing.assert_allclose(sources[5], rules.anomaly_weight * np.minimum(count, rules.anomaly_max))
    np.testing.assert_allclose(run["error"], np.minimum(np.nansum(sources, axis=0), 1.0))
    assert all((sources[i] > 0).any() for i in (0, 1, 2, 4, 5))


@pytest.mark.row("KAT-9")
@pytest.mark.parametrize("oracle", [True, False])
def test_a_threat_reaches_the_probe_and_the_surprise_of_the_golem_that_heard_it(oracle: bool) -> None:
    tape, fleet = tape_of(lively_market(200), POLICY), fleet_of(2)
    hear_threat(fleet, 0, 0.9, int(tape.at_us[0]), POLICY)
    run = walk(fleet, tape, 60, oracle=oracle)
    days = (tape.at_us[:60] - tape.at_us[0]) / 86_400_000_000
    expected = np.stack([0.9 * 0.5**days, np.full(60, np.nan)])
    np.testing.assert_allclose(run["probes"][..., PROBES.index("pheromone_threat")], expected)
    weight = POLICY.gate.threat_weight if oracle else 1.0
    np.testing.assert_allclose(run["sources"][..., 3], weight * expected)


def interventions() -> tuple[np.ndarray, np.ndarray]:
    """Return steers and new follow-ups of the shared walk, [golems, ticks]."""
    steered, followed = np.zeros((2, GOLEMS, TICKS), int)
    for t, acts in given().items():
        steered[:, t], followed[:, t] = acts.steer, acts.follow_up
    return steered, followed


def raised(run: Walk) -> np.ndarray:
    """Return which probes are at high, by HB S9's limits, [golems, ticks, 12]."""
    high = np.array([0.02, 0.05, -1.2, 5.0, -0.1, 30.0, 0.1, 0.0, 0.7, 2.0, 0.25, 1.0])
    sign = np.where(np.arange(12) == 2, -1, np.where(np.arange(12) == 4, -1, 1))
    return run["probes"] * sign > high


@pytest.mark.row("HB-3")
def test_the_threshold_follows_vitality_arousal_and_confidence_before_the_tick() -> None:
    run, rules = lived(), POLICY.gate
    vitality, arousal = run.state("composite"), run.state("pad")[..., 1]
    trust = run.state("confidence", after=True)  # verdicts of this tick count
    factor = (1 + rules.confidence_gain * trust) * (1 - rules.mortality_gain * (1 - vitality))
    factor *= 1 - rules.arousal_gain * np.clip(arousal, 0, 1)
    np.testing.assert_allclose(run["threshold"], np.clip(rules.base_threshold * factor, 0.05, 0.8))
    assert all(values.std() > 0 for values in (vitality, arousal, trust))


@pytest.mark.row("HB-4")
def test_the_tier_follows_surprise_unless_a_force_demands_t2() -> None:
    run = lived()
    steered, _ = interventions()
    reorged = np.zeros_like(steered)
    for t in REORGED:
        reorged[3:, t] = 1
    vitality, margin = run.state("composite"), POLICY.gate.transition_margin
    imminent = (vitality >= 0.1) & (vitality <= 0.1 + margin)
    first = np.arange(TICKS)[None] == 0
    forced = np.select([steered > 0, reorged > 0, imminent, first], [STEER, REORG, PHASE_TRANSITION, BIRTH], UNFORCED)
    np.testing.assert_array_equal(run["forced"], forced)
    error, threshold = run["error"], run["threshold"]
    tier = np.where(error >= 2 * threshold, T2, np.where(error >= threshold, T1, T0))
    tier = np.where(forced != UNFORCED, T2, tier)
    passed = run["tier"] == SUPPRESS
    assert (tier[passed] == T1).all()
    np.testing.assert_array_equal(run["tier"][~passed], tier[~passed])
    assert {STEER, REORG, BIRTH} <= set(forced.ravel())


@pytest.mark.row("HB-4")
@pytest.mark.parametrize(("vitality", "forced"), [(0.105, PHASE_TRANSITION), (0.2, UNFORCED), (0.05, UNFORCED)])
def test_an_imminent_terminal_phase_forces_t2(vitality: float, forced: int) -> None:
    fleet, tape = entered(2)
    fleet.composite[:] = vitality
    fleet.tick[:] = 50
    run = walk(fleet, tape, 1, start=1)
    assert run["forced"][:, 0].tolist() == [forced] * 2
    assert (run["tier"][:, 0] == T2).all() == (forced == PHASE_TRANSITION)


@pytest.mark.row("HB-4")
@pytest.mark.parametrize("age", [0, 200])
def test_attention_silences_t1_alone_and_only_after_a_hundred_ticks(age: int) -> None:
    fleet, tape = fleet_of(6), tape_of(lively_market(900), POLICY)
    near = POLICY.model_copy(update={"gate": POLICY.gate.model_copy(update={"deliberate_ratio": 1.25})})
    fleet.thoughts[:] = fleet.vain[:] = 1e9
    fleet.tick[:] = age
    pending = Interventions(np.zeros(6, bool), np.arange(6) // 3)
    run = walk(fleet, tape, 380, interventions=dict.fromkeys(range(0, 380, 7), pending), policy=near)
    error, threshold, tier = run["error"], run["threshold"], run["tier"]
    unforced, deep = (run["forced"] == UNFORCED) & run.state("alive"), error >= 1.25 * threshold
    held = run["open"] & (run["probes"][..., 6] < POLICY.probes.nav_high)
    judged = unforced & (error >= threshold) & ~deep & held & (run.state("tick") + 1 > 100) & (run["follow_ups"] == 0)
    assert (tier[judged] == SUPPRESS).all(), "the chance is almost one"
    assert (tier[~judged] != SUPPRESS).all()
    assert (tier[unforced & deep] == T2).all()
    assert judged.any()
    assert (unforced & deep & held & (run.state("tick") + 1 > 100) & (run["follow_ups"] == 0)).sum() > 2
    assert (unforced & (error >= threshold) & ~deep & held & (run["follow_ups"] > 0)).any()
    assert ((run.state("tick") + 1 <= 100).any()) == (age == 0)


@pytest.mark.row("HB-9", "HB-24")
def test_nothing_is_settled_for_a_golem_with_a_position_or_a_loan() -> None:
    fleet, tape = entered(4)
    fleet.presence[:, :3], fleet.tick[:] = STAY_OUT, 200
    fleet.liquidity[1:], fleet.debt_shares[2] = 0.0, 1.0
    sight = observe(fleet, tape, 1, POLICY)
    settled = settled_out(fleet, int(tape.regime[1]), sight, np.ones(4, bool), POLICY)
    assert settled.tolist() == [False, True, False, False], "a position, nothing, a debt, no rule"


@pytest.mark.row("HB-9", "HB-4")
def test_thoughts_are_counted_by_situation_and_vain_ones_without_an_executed_action() -> None:
    run, memory = lived(), POLICY.gate.attention_memory
    thinking = np.isin(run["tier"], (T1, T2))
    acted = thinking & (run["choice_action"] != HOLD) & (run["choice_status"] == EXECUTED)
    edges = POLICY.curator.anomaly_edges
    for golem in range(GOLEMS):
        counts = np.zeros((2, run.state("thoughts").shape[-1]))
        for t in np.flatnonzero(thinking[golem]):
            place = int(run.tape.regime[t]) * 5 + sum(edge <= run["score"][golem, t] for edge in edges)
            counts[:, place] = memory * counts[:, place] + (1.0, not acted[golem, t])
        np.testing.assert_allclose(counts[0], run.after[-1].thoughts[:, golem])
        np.testing.assert_allclose(counts[1], run.after[-1].vain[:, golem])


@pytest.mark.row("HB-4")
def test_a_follow_up_stays_pending_up_to_the_next_deliberation() -> None:
    run = lived()
    _, followed = interventions()
    before, after = run.state("follow_ups"), run.state("follow_ups", after=True)
    thinks = np.isin(run["tier"], (T1, T2))
    np.testing.assert_array_equal(after, np.where(thinks, 0, before + followed))
    assert (after > 0).any()


# predictions (HB-24)


@pytest.mark.row("HB-24", "MEM-22")
def test_predictions_are_made_from_this_tick_alone_and_judged_at_the_next() -> None:
    run = lived()
    expected = run.state("expected", after=True)
    price = column(run.tape.price).repeat(GOLEMS, 0)
    np.testing.assert_array_equal(expected[1:, :, PRICE], price[1:])
    shift = np.clip(-0.5 * run.tape.readings[:TICKS, PRICE_EXCURSION] / SCALE, -4, 4)
    np.testing.assert_allclose(run.state("foreseen", after=True)[0], shift)
    moved = np.exp(run.state("foreseen", after=True)[0] * run.tape.spread_ppm[:TICKS] / 1e6)
    np.testing.assert_allclose(expected[0, :, PRICE], price[0] * moved)
    assert (moved != 1.0).any()
    np.testing.assert_array_equal(expected[..., GAS_PRICE], column(run.tape.gas_gwei).repeat(GOLEMS, 0))
    np.testing.assert_array_equal(expected[..., HEALTH], run.state("health", after=True))
    np.testing.assert_array_equal(run["expected"][:, 1:], expected[:, :-1])
    np.testing.assert_array_equal(run["held"], np.abs(run["actual"] - run["expected"]) <= run["half"])
    assert run["held"].mean() > 0.5


@pytest.mark.row("HB-24")
def test_an_interval_has_the_width_of_past_errors() -> None:
    run, rules = lived(), POLICY.prediction
    variance, memory = run.state("forecast_var"), run.state("forecast_memory")
    expected = run.state("expected")
    scale = np.stack([expected[..., 0], expected[..., 1], np.ones(expected.shape[:2])], -1)
    relative = (run["actual"] - expected) / scale
    learned = memory[..., None] * variance + (1 - memory[..., None]) * relative**2
    learned = np.where(np.isnan(relative), variance, learned)
    np.testing.assert_allclose(run.state("forecast_var", after=True), learned)
    floors = (rules.sigma_floor_price, rules.sigma_floor_gas, rules.sigma_floor_health)
    now = run.state("expected", after=True)
    now = np.stack([now[..., 0], now[..., 1], np.where(np.isnan(now[..., 2]), np.nan, 1.0)], -1)
    np.testing.assert_allclose(
        run.state("half", after=True)[..., :2], (rules.interval_z * np.maximum(np.sqrt(learned), floors) * now)[..., :2]
    )


@pytest.mark.row("HB-24")
def test_inaction_of_quiet_golems_is_tried() -> None:
    run = lived()
    opened = (run.state("trial_due", after=True) >= 0) & (run.state("trial_due") < 0)
    quiet = np.isin(run["tier"], (T0, SUPPRESS))
    off = run["open"] & (run["score"] >= POLICY.playbook.trial_score_min)
    alone = (run.state("trial_due") < 0).all(axis=-1) | (
        run.state("trial_due") == run.state("tick")[..., None] + 1
    ).all(-1)
    assert (quiet & off & alone).sum() > 2
    assert opened.any(axis=-1)[quiet & off & alone].all()


@pytest.mark.row("HB-2")
def test_a_golem_without_an_oracle_makes_no_prediction() -> None:
    fleet, tape = fleet_of(2), tape_of(lively_market(200), POLICY)
    run = walk(fleet, tape, 60, oracle=False)
    assert np.isnan(fleet.expected).all()
    assert not run["resolved"].any()


# mood, credits and death


@pytest.mark.row("HB-28")
def test_mood_follows_value_surprise_and_the_share_of_predictions_that_held() -> None:
    run, rules = lived(), POLICY.affect
    before, after = run["pad_before"], run["pad_after"]
    change = (run["nav_seen"] - run.state("nav")) / np.maximum(run.state("nav"), 1.0)
    pleasure = rules.memory * before[..., 0] + rules.pleasure_gain * change
    inner = np.abs(pleasure) < 1
    assert np.corrcoef(after[..., 0][inner], pleasure[inner])[0, 1] > 0.99
    surprise = run["error"] - rules.arousal_pivot * run["threshold"]
    arousal = rules.memory * before[..., 1] + rules.arousal_gain * surprise
    assert np.corrcoef(after[..., 1].ravel(), np.clip(arousal, -1, 1).ravel())[0, 1] > 0.99
    count = run["resolved"].sum(axis=-1)
    share = run["held"].sum(axis=-1) / np.maximum(count, 1)
    known_ones = count > 0
    dominance = (after[..., 2] - rules.memory * before[..., 2])[known_ones]
    assert np.corrcoef(dominance, share[known_ones])[0, 1] > 0.9


@pytest.mark.row("HB-30", "INH-1")
def test_bills_are_paid_by_their_partitions_and_collected_fees_are_split() -> None:
    run = lived()
    inference, gas, consumed = run["inference"], run["gas"], run["consumed"]
    thinking = np.isin(run["tier"], (T1, T2))
    np.testing.assert_array_equal(inference, np.where(thinking, run["choice_cost_micros"], 0))
    np.testing.assert_array_equal(gas, np.where(thinking, run["choice_gas_micros"], 0))
    np.testing.assert_array_equal(consumed, inference + gas)
    assert (inference[thinking] > 0).all()
    earned = run.state("earned", after=True) - run.state("earned")
    for_gas = earned // 1_000_000 * 400_000 + earned % 1_000_000 * 400_000 // 1_000_000
    spent = run.state("partitions") - run.state("partitions", after=True)
    np.testing.assert_array_equal(spent[..., GAS], gas - for_gas)
    np.testing.assert_array_equal(spent[..., INFERENCE], inference - (earned - for_gas))
    assert (earned > 0).any()
    assert (gas > 0).any()


@pytest.mark.row("HB-30")
def test_payments_count_into_the_average_hourly_cost_of_their_partition() -> None:
    run = lived()
    rate = 2.0 ** (-np.diff(run.tape.at_us[:TICKS], prepend=run.tape.at_us[0]) / 86_400_000_000)
    paid = run.state("paid") * rate[None, :, None] + np.stack([run["inference"], run["gas"]], -1)
    np.testing.assert_allclose(run.state("paid", after=True), paid)
    hour = run.tape.at_us[:TICKS] // 3_600_000_000
    now = np.stack([run["inference"], run["gas"]], -1) > 0
    new = now & (run.state("paid_hour") != hour[None, :, None])
    np.testing.assert_allclose(run.state("paid_hours", after=True), run.state("paid_hours") * rate[None, :, None] + new)
    hourly = run["hourly"][..., GAS]
    usual = POLICY.cost.rebalance_gas_units * run.tape.gas_gwei / run.tape.gas_hour_ratio * 1e-9
    usual = column(usual * run.tape.market.native_usd_micros)
    before = run.state("paid")[..., GAS] * rate, run.state("paid_hours")[..., GAS] * rate
    np.testing.assert_allclose(hourly, (before[0] + usual) / (before[1] + 1), atol=0.51)


@pytest.mark.row("INH-1")
def test_the_dead_keep_their_state_and_are_not_woken() -> None:
    fleet, tape = entered(3)
    fleet.partitions[:, 1] = 0
    walk(fleet, tape, 1, start=1)
    assert fleet.alive.tolist() == [True, False, True]
    assert fleet.final_at[1] == 1
    assert fleet.final_nav[1] == np.floor(fleet.nav[1]) > 1_000_000
    assert fleet.final_life[0, 1] == fleet.final_life[3, 1] == 0.0, "no credits, no vitality"
    age = fleet.tick.copy()
    run = walk(fleet, tape, 1, start=2, interventions={0: Interventions(np.ones(3, bool), np.zeros(3, int))})
    assert run["tier"][:, 0].tolist() == [T2, T0, T2]
    assert (fleet.tick - age).tolist() == [1, 0, 1]


# actions


@pytest.mark.row("HB-9", "HB-24")
def test_a_thought_that_only_repays_a_loan_is_not_vain() -> None:
    fleet, tape = fleet_of(2), tape_of(lending([CENTRE] * 4), POLICY)
    walk(fleet, tape, 1)
    supplied, owed = share_values(tape, 0, fleet.collateral_asset)
    fleet.collateral_shares[0], fleet.debt_shares[0] = 30e6 / supplied[0], 10e6 / owed[0]
    fleet.loan_choice[:] = REPAYS
    vain = fleet.vain.sum(axis=0)
    run = walk(fleet, tape, 1, start=1, interventions={0: Interventions(np.ones(2, bool), np.zeros(2, np.int64))})
    assert run["choice_action"][:, 0].tolist() == [HOLD, HOLD]
    assert run["lent_action"][:, 0].tolist() == [REPAY, 0]
    assert fleet.debt_shares.tolist() == [0.0, 0.0]
    assert (fleet.vain.sum(axis=0) > vain).tolist() == [False, True]


def off_centre(policy: Policy = POLICY, **fields: Any) -> tuple[Fleet, Tape]:
    """Return golems that want to re-centre at tick 1."""
    fleet, tape = entered(2, **fields)
    fleet.rebalance_threshold[:] = 0.0
    return fleet, tape


@pytest.mark.row("HB-1")
def test_the_cage_bounds_the_share_of_a_pool() -> None:
    liquidity = np.full(4, 2e18)
    for thin, status in ((1.0, EXECUTED), (1e-6, BLOCKED)):
        fleet, tape = off_centre(liquidity=liquidity * np.array([1.0, thin, thin, thin]))
        choice, _ = think(
            fleet, tape, 1, POLICY.model_copy(update={"cage": POLICY.cage.model_copy(update={"slippage_max": 1.0})})
        )
        assert choice.action.tolist() == [REBALANCE] * 2
        assert choice.status.tolist() == [status] * 2
        assert choice.why.tolist() == [POOL_SHARE if status == BLOCKED else 0] * 2
        assert ((fleet.lower + fleet.upper) / 2 == pytest.approx(AWAY, abs=10)) is (status == EXECUTED)


@pytest.mark.row("HB-1")
def test_a_golem_enters_at_birth_and_later_after_its_cool_down_outside_of_turmoil() -> None:
    tape, fleet = tape_of(drawn_market([CENTRE] * 6), POLICY), fleet_of(4)
    fleet.tick[:] = [0, 9, 8, 19]
    fleet.cooldown[:] = [5, 10, 10, 0]
    choice, _ = think(fleet, tape, 0)
    assert choice.action.tolist() == [ENTER, ENTER, HOLD, ENTER]
    tape.regime[1] = VOLATILE
    wild = fleet_of(2)
    wild.tick[:] = [0, 19]
    choice, _ = think(wild, tape, 1)
    assert choice.action.tolist() == [ENTER, HOLD]


@pytest.mark.row("HB-1", "HB-24")
def test_a_rule_to_enter_calls_into_turmoil_but_not_before_the_end_of_the_cool_down() -> None:
    tape, fleet = tape_of(drawn_market([CENTRE] * 6), POLICY), fleet_of(4)
    tape.regime[1] = VOLATILE
    fleet.tick[:], fleet.cooldown[:] = 19, [0, 20, 21, 0]
    fleet.presence[VOLATILE] = [CALLS, CALLS, CALLS, TRAIT]
    choice, _ = think(fleet, tape, 1)
    assert choice.action.tolist() == [ENTER, ENTER, HOLD, HOLD]
    assert choice.rule.tolist() == [CALLED, CALLED, COOLING, TURMOIL]


@pytest.mark.row("HB-1")
def test_each_action_pays_its_own_units_of_gas() -> None:
    tape, fleet, cost = tape_of(drawn_market([CENTRE] * 6), POLICY), fleet_of(4), POLICY.cost
    think(fleet, tape, 0)
    fleet.fees[1] = 2.0 * POLICY.playbook.collect_fees_micros
    fleet.rebalance_threshold[:, 2] = 0.0
    fleet.presence[:, 3] = LEAVES
    fleet.tick += 8
    fleet.liquidity[0], fleet.idle[0] = 0.0, 50_000_000
    choice, _ = think(fleet, tape, 1)
    assert choice.action.tolist() == [ENTER, COLLECT, REBALANCE, LEAVE]
    units = np.array([cost.enter_gas_units, cost.collect_gas_units, cost.rebalance_gas_units, cost.exit_gas_units])
    assert len(set(units.tolist())) == 4
    paid = np.rint(units * tape.gas_gwei[1] * 1e-9 * tape.market.native_usd_micros)
    assert choice.gas_micros.tolist() == paid.tolist()


@pytest.mark.row("HB-1")
def test_leaving_needs_a_deep_drawdown_and_begins_a_cool_down_without_a_position() -> None:
    for loss, action in ((0.1001, LEAVE), (0.0999, HOLD)):
        fleet, tape = entered(1)
        sight = think(copy.deepcopy(fleet), tape, 1)[1]
        fleet.high_water[:] = sight.nav / (1 - loss)
        choice, _ = think(fleet, tape, 1)
        assert choice.action.tolist() == [action]
        if action == LEAVE:
            assert fleet.liquidity[0] == 0
            assert fleet.cooldown[0] == fleet.tick[0] + POLICY.playbook.reentry_ticks
            slip = int(choice.swap_micros[0]) * int(choice.slip_ppm[0]) * 1e-6
            assert slip > 0
            assert fleet.idle[0] == pytest.approx(sight.value[0] - slip, abs=2)
            assert fleet.high_water[0] == fleet.idle[0]


@pytest.mark.row("HB-1")
@pytest.mark.parametrize(("share", "action"), [(1.01, COLLECT), (0.99, HOLD)])
def test_fees_are_collected_from_their_limit_on(share: float, action: int) -> None:
    fleet, tape = entered(1, volume_usd_micros=np.array([1, 0, 0, 0]))
    fleet.fees[:] = share * POLICY.playbook.collect_fees_micros
    choice, _ = think(fleet, tape, 1)
    assert choice.action.tolist() == [action]


@pytest.mark.row("HB-1", "HB-24")
def test_a_swap_reverts_and_is_tried_by_its_own_slippage_and_not_by_the_expected_one() -> None:
    wide = {"price_high": drawn_market([CENTRE, *[AWAY] * 3]).price * 1.004}
    fleet, tape = off_centre(**wide)
    choice, _ = think(fleet, tape, 1)
    limit = int(choice.slip_ppm.mean())
    assert choice.slip_ppm.min() < limit < choice.slip_ppm.max()
    np.testing.assert_allclose(fleet.branch_liquidity[ACT, 0], fleet.liquidity)
    fleet, tape = off_centre(**wide)
    limited, _ = think(fleet, tape, 1, cage(slippage_max=limit * 1e-6))
    assert limited.status.tolist() == np.where(choice.slip_ppm > limit, REVERTED, EXECUTED).tolist()


@pytest.mark.row("HB-1")
def test_a_reverted_swap_costs_gas_and_moves_nothing() -> None:
    fleet, tape = off_centre()
    lower, liquidity = fleet.lower.copy(), fleet.liquidity.copy()
    choice, _ = think(fleet, tape, 1, cage(slippage_max=0.0))
    assert choice.status.tolist() == [REVERTED] * 2
    assert (choice.gas_micros > 0).all()
    assert (fleet.lower == lower).all()
    assert (fleet.liquidity == liquidity).all()


@pytest.mark.row("HB-1")
def test_a_deliberation_costs_its_tokens_at_the_prices_of_its_tier() -> None:
    run, cost = lived(), POLICY.cost
    deep = run["tier"] == T2
    thinking = np.isin(run["tier"], (T1, T2))
    entries = (run["memory_recalled"] >= 0).sum(axis=-1)
    tokens = np.where(deep, cost.t2_context_tokens, cost.t1_context_tokens) + cost.entry_tokens * entries
    price_in = np.where(deep, cost.t2_input_micros_per_token, cost.t1_input_micros_per_token)
    price_out = np.where(deep, cost.t2_output_micros_per_token, cost.t1_output_micros_per_token)
    output = np.where(deep, cost.t2_output_tokens, cost.t1_output_tokens)
    expected = np.where(thinking, np.rint(tokens * price_in + output * price_out), 0)
    np.testing.assert_array_equal(run["choice_cost_micros"] * thinking, expected)
    assert (entries[thinking] > 0).any()


@pytest.mark.row("HB-28", "MEM-9")
def test_recalled_entries_are_ranked_by_four_factors_mood_included() -> None:
    run, weights = lived(), POLICY.retrieval
    thinking = np.isin(run["tier"], (T1, T2))
    parts = {n: run[f"memory_{n}"][thinking] for n in ("likeness", "recency", "importance", "affect", "score")}
    present = run["memory_recalled"][thinking] >= 0
    score = weights.semantic * parts["likeness"] + weights.recency * parts["recency"]
    score += weights.importance * parts["importance"] + weights.affect * parts["affect"]
    awake = run.recall.regime[run["memory_recalled"][thinking]] == run.tape.regime[np.nonzero(thinking)[1]][:, None]
    sure = present & awake
    assert sure.sum() > 20
    np.testing.assert_allclose(parts["score"][sure], np.minimum(score, 1)[sure], atol=4e-6)
    assert (parts["score"][present] <= score[present] + 4e-6).all(), "fading entries weigh less"
    ordered = np.where(present, parts["score"], -1.0)
    assert (np.diff(ordered, axis=-1) <= 1e-12).all()
    assert present.sum() > 20
    mood, entry = run.state("pad")[thinking], run["memory_recalled"][thinking]
    mood = np.where(run["memory_contrarian"][thinking][:, None], -mood, mood)
    there = run.recall.pad[:, entry]
    length = np.sqrt((mood**2).sum(-1))[:, None] * np.sqrt((there**2).sum(0))
    cosine = (mood[:, None, :] * np.moveaxis(there, 0, -1)).sum(-1) / np.where(length > 0, length, 1)
    sure = present & (length > 0)
    np.testing.assert_allclose(parts["affect"][sure], np.maximum(cosine, 0)[sure], atol=1e-9)


@pytest.mark.row("HB-1")
def test_a_decision_is_sure_by_its_distance_from_the_threshold_and_by_past_verdicts() -> None:
    run, rules = lived(), POLICY.playbook
    thinking = np.isin(run["tier"], (T1, T2)) & run["open"]
    away = np.minimum(np.abs(run["score"] - run["choice_threshold"]) / rules.sure_distance, 1)
    past = run.state("confidence", after=True)
    expected = rules.certainty_past * past + (1 - rules.certainty_past) * away
    np.testing.assert_allclose(run["choice_certainty"][thinking], expected[thinking])


# loans


@pytest.mark.row("HB-27", "HB-15")
def test_a_fleet_borrows_repays_and_does_nothing_else_while_it_is_liquidated() -> None:
    calm, low = 200_000, 205_000
    gone = indebted(lending([calm] * 12 + [low] * 20), 0.7).records.to_pylist()
    acts = [(a["action_type"], a["status"], a["block_reason"]) for row in gone for a in row["actions"]]
    names = {name for name, _, _ in acts}
    assert "borrow" in names
    assert {"liquidated", "repay"} & names
    for row in gone:
        kinds = [a["action_type"] for a in row["actions"]]
        if "liquidated" in kinds:
            own = [a for a in row["actions"] if a["action_type"] in ACTIONS]
            assert all((a["status"], a["block_reason"]) == ("deferred", "its loan is being liquidated") for a in own)
    assert (BORROW, REPAY, LIQUIDATED, LIQUIDATION) == (1, 2, 3, 9)
    assert not math.isnan(gone[-1]["observation"]["net_asset_value_micros"])
