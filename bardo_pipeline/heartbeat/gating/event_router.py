"""Routes chain events: Hedge scores them, Thompson arms set thresholds, LinUCB decides borderline ones. Pure.

A discarded tick with an escalated event deliberates at T1. The epsilon-greedy baseline chooses a route for comparison,
and replaces a score or a bound that is NaN. All four learn from the later judgement of the tick.
Source: HB online learning ("AdaptiveTriageRouter"); canon 29, 31; docs/adr/0111.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int8Array, Int64Array, first_case
from bardo_pipeline.heartbeat.fleet import ROUTES, Fleet
from bardo_pipeline.heartbeat.gating.bandits import after_outcomes, after_reward, best_arms, greedy_routes, upper_bounds
from bardo_pipeline.heartbeat.gating.event_scores import contexts, event_scores, rule_scores
from bardo_pipeline.heartbeat.gating.expert_weights import (
    after_losses,
    bounded,
    combined,
    expert_losses,
    expert_weights,
    learning_rate,
)
from bardo_pipeline.heartbeat.observe import Sight
from bardo_pipeline.inheritance.router_learning import RouterState, matrices
from bardo_pipeline.market.chain_events import EVENT_KINDS
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.policy import GatingPolicy, Policy

ESCALATE, EMIT, COUNT, DISCARD = range(len(ROUTES))
BY_THRESHOLD, BY_CONTEXT, BY_BASELINE = range(3)
DECIDERS = ("threshold", "context", "baseline")
"""What decided a route: the arm's thresholds, LinUCB, or the baseline as fallback."""

ROUTED = ("scores", "score", "arm", "arousal_regime", "route", "decider", "shadow", "woke")
"""Figures that a record holds."""


@dataclass
class Routing:
    """Events of a tick, [kinds, golems].

    rules: [EVENT_RULES, kinds, golems]. scores: [EVENT_SCORES, kinds, golems]. context: [CONTEXT, kinds, golems].
    score: NaN if all experts sleep. arm, arousal_regime: [golems]. route, shadow: -1 without an event. decider: a code
    of DECIDERS. woke: golems whose discarded tick deliberates, [golems].
    """

    rules: Float64Array
    scores: Float64Array
    context: Float64Array
    score: Float64Array
    arm: Int64Array
    arousal_regime: Int64Array
    route: Int8Array
    decider: Int8Array
    shadow: Int8Array
    woke: BoolArray

    @property
    def escalates(self) -> BoolArray:
        """The golems with an escalated event."""
        return (self.route == ESCALATE).any(axis=0)


def route_events(fleet: Fleet, tape: Tape, t: int, sight: Sight, residual: Float64Array, policy: Policy) -> Routing:
    """Score and route the events since the last tick, and note them for their judgement.

    residual: signal of the expert `oracle`, [golems]
    """
    rules = policy.triage
    _draw(fleet, t, policy)
    applied = rule_scores(fleet, tape, t, sight, policy)
    scores = event_scores(fleet, tape, t, sight, residual, applied, policy)
    score = combined(fleet.score_weights[:, None], scores)
    regime = np.searchsorted(rules.arousal_edges, fleet.pad[1], side="right")
    arm = fleet.arms_drawn[t % policy.gating.delta_ticks, regime, np.arange(fleet.size)]
    limits = np.array(rules.arms)[arm].T
    context = contexts(fleet, tape, t, score, scores, applied)
    shadow = greedy_routes(fleet.seed, fleet.tick, fleet.route_mean, fleet.route_count, len(EVENT_KINDS), rules)
    route = first_case([score > limit for limit in limits], (ESCALATE, EMIT, COUNT), DISCARD).astype(np.int8)
    decider = np.zeros(route.shape, np.int8)
    kind, golem = np.nonzero(np.abs(score - limits[0]) < rules.borderline)
    if len(golem):
        at = context[:, kind, golem]
        bounds = upper_bounds(fleet.ucb_inverse[..., golem], fleet.ucb_theta[..., golem], at, rules.ucb_alpha)
        usable = np.isfinite(bounds).all(axis=0)
        route[kind, golem], decider[kind, golem] = np.argmax(bounds, axis=0), np.where(usable, BY_CONTEXT, BY_BASELINE)
    decider[np.isnan(score)] = BY_BASELINE
    route = np.where(decider == BY_BASELINE, shadow, route)
    is_missing = ~(tape.events.present[:, t, None] & fleet.alive)
    route[is_missing], shadow[is_missing] = -1, -1
    routing = Routing(applied, scores, context, score, arm, regime, route, decider, shadow, np.zeros(fleet.size, bool))
    fleet.escalated_us = np.where(routing.escalates, tape.at_us[t], fleet.escalated_us)
    at_past = t % len(fleet.past_route)
    for name in ("rules", "scores", "context", "route"):
        getattr(fleet, f"past_{name}")[at_past] = getattr(routing, name)
    fleet.past_arm[at_past] = regime * len(rules.arms) + arm
    return routing


def learn_routes(
    fleet: Fleet, golem: Int64Array, at: Int64Array, judged: BoolArray, important: BoolArray, policy: Policy
) -> None:
    """Update the router of golems by the judged ticks of a delta.

    Parameters
    ----------
    at : positions of past ticks, in order, [ticks]
    judged, important : [ticks, golems]
    """
    past = {name: getattr(fleet, f"past_{name}")[at][..., golem] for name in ("rules", "scores", "context", "route")}
    ticks, kinds = past["route"].shape[:2]
    route = past["route"].reshape(ticks * kinds, -1)
    counts = judged.repeat(kinds, axis=0) & (route >= 0)
    matters = important.repeat(kinds, axis=0)
    reward = ((route == ESCALATE) == matters).astype(np.float64)
    exponential = policy.gating.model_copy(update={"combiner": "exponential"})
    fleet.event_rounds[golem] += counts.sum(axis=0)
    for name, part in (("score", "scores"), ("rule", "rules")):
        signals = np.moveaxis(past[part], 2, 1).reshape(ticks * kinds, past[part].shape[1], -1)
        _learn_weights(fleet, golem, name, signals, counts, matters, exponential)
    _learn_arms(fleet, golem, fleet.past_arm[at][:, golem], judged, important, past["route"], policy)
    for code in range(len(ROUTES)):
        taken = counts & (route == code)
        number, before = taken.sum(axis=0), fleet.route_count[code, golem]
        whole = fleet.route_mean[code, golem] * before + (reward * taken).sum(axis=0)
        fleet.route_count[code, golem] = before + number
        fleet.route_mean[code, golem] = whole / np.maximum(before + number, 1.0)
    context = np.moveaxis(past["context"], 2, 1).reshape(ticks * kinds, past["context"].shape[1], -1)
    for row in np.flatnonzero((counts & (route != DISCARD)).any(axis=1)):  # each update needs the one before
        for arm in range(DISCARD):
            place = np.flatnonzero(counts[row] & (route[row] == arm))
            if len(place):
                own = golem[place]
                fleet.ucb_inverse[arm][..., own], fleet.ucb_theta[arm][:, own] = after_reward(
                    fleet.ucb_inverse[arm][..., own], fleet.ucb_theta[arm][:, own], context[row][:, place],
                    reward[row, place],
                )  # fmt: skip


def _learn_weights(
    fleet: Fleet, golem: Int64Array, name: str, signals: Float64Array, counts: BoolArray, matters: BoolArray,
    rules: GatingPolicy,
) -> None:  # fmt: skip
    """Update the losses and the weights of scores or of rules; signals [events, experts, golems]."""
    losses, weights = getattr(fleet, f"{name}_losses"), getattr(fleet, f"{name}_weights")
    new = expert_losses(signals, matters.astype(np.float64), rules)
    sums = bounded(after_losses(losses[:, golem], new, counts, rules), fleet.event_rounds[golem], rules)
    losses[:, golem], weights[:, golem] = sums, expert_weights(sums, fleet.event_rounds[golem], rules)


def _learn_arms(
    fleet: Fleet, golem: Int64Array, arm: Int64Array, judged: BoolArray, important: BoolArray, route: Int8Array,
    policy: Policy,
) -> None:  # fmt: skip
    """Count useful escalations for the arms that made them, and useless ones and misses against them."""
    escalated, any_event = (route == ESCALATE).any(axis=1), (route >= 0).any(axis=1)
    useful, useless = judged & escalated & important, judged & any_event & (escalated != important)
    cells = np.arange(fleet.arm_shapes[0, ..., 0].size)[:, None, None]
    shape = fleet.arm_shapes.shape[1:3]
    helped, harmed = (((arm == cells) & seen).sum(axis=1).reshape(*shape, -1) for seen in (useful, useless))
    fleet.arm_shapes[..., golem] = after_outcomes(fleet.arm_shapes[..., golem], helped, harmed, policy.triage)


def _draw(fleet: Fleet, t: int, policy: Policy) -> None:
    """Draw the arms of golems that begin a delta, for all its ticks and all regimes of arousal at once."""
    span = policy.gating.delta_ticks
    begins = fleet.alive & ((fleet.tick - 1) % span == 0)
    if begins.any():
        golem, later = np.flatnonzero(begins), np.arange(span)
        drawn = best_arms(fleet.seed[golem], fleet.tick[golem] + later[:, None], fleet.arm_shapes[..., golem])
        fleet.arms_drawn[((t + later) % span)[:, None], :, golem] = drawn.swapaxes(1, 2)


def router_states(fleet: Fleet) -> dict[str, Float64Array]:
    """Return the learning state by field of RouterState, [values, golems]."""
    upper, size = np.triu_indices(fleet.ucb_theta.shape[1]), fleet.size
    logs = [np.log(w / w.max(axis=0)) for w in (fleet.score_weights, fleet.rule_weights)]
    inverse = fleet.ucb_inverse[:, upper[0], upper[1]]
    parts: list[Any] = [
        *logs, fleet.arm_shapes, inverse, fleet.ucb_theta, fleet.route_mean, fleet.route_count, fleet.event_rounds,
    ]  # fmt: skip
    return {name: part.reshape(-1, size) for name, part in zip(RouterState._fields, parts, strict=True)}


def inherit_router(fleet: Fleet, i: int, state: RouterState | None, policy: Policy) -> None:
    """Start golem i with its predecessor's router; None: none."""
    if state is None:
        return
    exponential = policy.gating.model_copy(update={"combiner": "exponential"})
    one = slice(i, i + 1)
    fleet.event_rounds[i] = state.rounds[0]
    for name, logs in (("score", state.log_weights), ("rule", state.rule_log_weights)):
        losses, weights = getattr(fleet, f"{name}_losses"), getattr(fleet, f"{name}_weights")
        losses[:, one] = -np.array(logs)[:, None] / learning_rate(len(logs), fleet.event_rounds[one], exponential)
        weights[:, one] = expert_weights(losses[:, one], fleet.event_rounds[one], exponential)
    fleet.ucb_inverse[..., i] = matrices(state.inverse)
    fleet.ucb_theta[..., i] = np.array(state.theta).reshape(fleet.ucb_theta.shape[:-1])
    fleet.arm_shapes[..., i] = np.array(state.arms).reshape(fleet.arm_shapes.shape[:-1])
    fleet.route_mean[:, i], fleet.route_count[:, i] = state.route_means, state.route_counts
