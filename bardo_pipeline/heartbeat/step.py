"""Step: one heartbeat of a whole fleet, nine steps in order. Pure, over columns.

observe, compare, gate, retrieve and deliberate, simulate, validate, execute, verify, reflect (HB S3; retrieval
after the gate, canon 24). What no golem can change is on the tape; what they leave behind goes into buffers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bardo_pipeline.heartbeat.buffers import Buffers
from bardo_pipeline.heartbeat.choose import Choice, choose, worth_after
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.heartbeat.gate import (
    adaptive_threshold,
    gate,
    prediction_error,
    prediction_error_fallback,
    transition_imminent,
)
from bardo_pipeline.heartbeat.probes import ProbeInputs, evaluate
from bardo_pipeline.heartbeat.recall import Recall
from bardo_pipeline.heartbeat.sense import Comparison, Sight, compare, deviation, forecast, health_now, observe, settle
from bardo_pipeline.heartbeat.tape import Tape
from bardo_pipeline.heartbeat.trial import judge
from bardo_pipeline.mortality.affect import appraise, emotion_codes
from bardo_pipeline.mortality.vitality import cause_of_death, phase_codes, predictive_fitness, vitality
from bardo_pipeline.policy import Policy


@dataclass(frozen=True)
class Interventions:
    """What owners want of golems this tick: bool and counts, [golems]."""

    steer: np.ndarray
    follow_up: np.ndarray


def step(
    fleet: Fleet,
    tape: Tape,
    t: int,
    *,
    recall: Recall,
    asked: Interventions | None,
    killed: bool,
    policy: Policy,
    out: Buffers,
    at: int,
    oracle: bool = True,
) -> np.ndarray:
    """Live one tick. Returns the cause of death of each golem, [golems]: a position in CAUSES, or -1.

    t: position on the tape. asked: interventions due now. killed: the kill switch is thrown. at: position in the
    buffers. oracle: whether golems predict; without it their surprise is the fallback's, and their fitness stays at
    its prior. Golems that are dead already keep their state and leave nothing.
    """
    size = fleet.size
    fleet.tick += fleet.alive
    sight = observe(fleet, tape, t, policy)
    seen = compare(fleet, tape, t, sight, policy)
    probes = evaluate(_probe_inputs(fleet, tape, t, sight, seen, killed, policy), policy)
    verdicts = judge(fleet, tape, t, policy)

    steer = asked.steer if asked is not None else np.zeros(size, bool)
    if asked is not None:
        fleet.follow_ups += asked.follow_up
    turned = np.full(size, t > 0 and tape.regime[t] != tape.regime[t - 1]) & (fleet.tick > 1)
    health_change = sight.health - fleet.health
    threat = np.full(size, np.nan)
    if oracle:
        expected, price = fleet.expected[0], np.full(size, tape.price[t])
        pending = fleet.follow_ups + steer
        error, sources = prediction_error(
            expected, price, turned, health_change, threat, pending, probes.anomaly_count, policy
        )
    else:
        error, sources = prediction_error_fallback(turned, health_change, threat, probes.anomaly_count, policy)
    pad_before, follow_ups = fleet.pad, fleet.follow_ups
    threshold = adaptive_threshold(fleet.composite, fleet.pad[1], fleet.confidence, policy)
    tier, forced = gate(error, threshold, steer, transition_imminent(fleet.composite, policy), fleet.tick == 1, policy)
    tier[~fleet.alive] = 0
    fleet.follow_ups = np.where(tier > 0, 0, follow_ups)

    choice = choose(fleet, tape, t, sight, tier, recall, policy)
    inference, gas, acted, consumed = _charge(fleet, choice)
    fleet.pad = appraise(pad_before, sight.change, error, threshold, seen.held_share, policy)
    fleet.nav, fleet.health = worth_after(fleet, tape.root[t]), health_now(fleet, tape.pool_tick[t])

    fitness = predictive_fitness(fleet.held_count, fleet.resolved_count, policy)
    life = vitality(fleet.credits, fleet.first_credits, fitness, fleet.tick, fleet.lifespan, policy)
    fleet.composite = life.composite
    cause = np.where(fleet.alive, cause_of_death(life), -1)
    settle(fleet, np.stack([inference + gas, inference, gas, acted, error]), policy)

    out.put(
        at,
        alive=fleet.alive,
        tick=fleet.tick,
        cycle_seen=fleet.cycle_seen,
        playbook_version=fleet.playbook_version,
        nav_seen=sight.nav,
        score=sight.score,
        open=sight.open,
        value=sight.value,
        loss=sight.loss,
        health=sight.health,
        inside=sight.inside > 0,
        position=sight.position,
        money=sight.money,
        severity=probes.severity,
        probe_value=probes.value,
        probe_threshold=probes.threshold,
        expected=seen.expected,
        half=seen.half,
        actual=seen.actual,
        resolved=seen.resolved,
        held=seen.held,
        pad_before=pad_before,
        pad_after=fleet.pad,
        emotion=emotion_codes(fleet.pad),
        error=error,
        sources=sources,
        threshold=threshold,
        tier=tier,
        forced=forced,
        steer=steer,
        follow_ups=follow_ups,
        life=np.stack([life.economic, life.epistemic, life.stochastic, life.composite]),
        phase=phase_codes(life.composite, policy),
        credits=fleet.credits,
        inference=inference,
        gas=gas,
        consumed=consumed,
    )
    if verdicts is not None:
        out.put(at, **{f"trial_{name}": np.moveaxis(value, 0, -2) for name, value in vars(verdicts).items()})
    _put_choice(out, at, choice, size)
    if oracle:
        forecast(fleet, tape, t, fleet.health, policy)
    dying = cause >= 0
    if dying.any():
        ends = np.stack([life.economic, life.epistemic, life.stochastic, life.composite])
        fleet.final_life = np.where(dying, ends, fleet.final_life)
        fleet.final_nav = np.where(dying, np.floor(fleet.nav).astype(np.int64), fleet.final_nav)
        fleet.final_at = np.where(dying, t, fleet.final_at)
        fleet.alive = fleet.alive & ~dying
    return cause


def _probe_inputs(
    fleet: Fleet, tape: Tape, t: int, sight: Sight, seen: Comparison, killed: bool, policy: Policy
) -> ProbeInputs:
    """What the twelve probes look at. Pheromones and causal graph have no source here: absent, not quiet."""
    size = fleet.size
    absent = np.full(size, np.nan)
    return ProbeInputs(
        price_change=np.full(size, np.expm1(tape.price_return[t])),
        liquidity_change=np.full(size, tape.liquidity_change[t]),
        health_factor=sight.health,
        gas_hour_ratio=np.full(size, tape.gas_hour_ratio[t]),
        credit_share=fleet.credits / fleet.first_credits,
        rsi=np.full(size, tape.rsi[t]),
        macd=np.full(size, tape.macd[t]),
        nav_drawdown=np.maximum(sight.drawdown, 0.0),
        kill_switch=np.full(size, killed),
        threat=absent,
        deviation_sigma=deviation(fleet, policy),
        drift=seen.drift,
        causal=absent,
    )


def _charge(fleet: Fleet, choice: Choice | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Pay for thought and gas from the credits, as far as they reach: who cannot pay dies of it.

    Returns inference and gas in micro-dollars, who acted, and what was really taken from the credits.
    """
    inference, gas, acted, consumed = (np.zeros(fleet.size, np.int64) for _ in range(4))
    if choice is not None:
        inference[choice.golem] = choice.cost_micros
        gas[choice.golem] = choice.gas_micros
        acted[choice.golem] = choice.action > 0
        consumed = np.minimum(inference + gas, fleet.credits)
        fleet.credits = fleet.credits - consumed
    return inference, gas, acted, consumed


_CHOICE_FIELDS = (
    "action",
    "status",
    "why",
    "blocker",
    "gas_micros",
    "slip_ppm",
    "expected_slip_ppm",
    "moved_micros",
    "swap_micros",
    "input_tokens",
    "output_tokens",
    "cost_micros",
    "certainty",
)
_RECALL_FIELDS = ("recalled", "likeness", "recency", "importance", "affect", "score")


def _put_choice(out: Buffers, at: int, choice: Choice | None, size: int) -> None:
    """Scatter what the thinkers chose into the fleet's columns."""
    if choice is None:
        return
    for name in (*_CHOICE_FIELDS, "threshold"):
        value = getattr(choice, name)
        column = np.zeros(size, value.dtype)
        column[choice.golem] = value
        out.put(at, **{f"choice_{name}": column})
    for name in _RECALL_FIELDS:
        value = getattr(choice, name)
        table = np.full((len(value), size), -1 if name == "recalled" else 0, value.dtype)
        table[:, choice.golem] = value
        out.put(at, **{f"choice_{name}": table})
