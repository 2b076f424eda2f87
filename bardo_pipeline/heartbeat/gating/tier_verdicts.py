"""Later judgement of each tick's tier, from which experts and boundaries learn. Pure, over columns.

At each delta, the ticks since the last one are judged. A tick at T0 or `suppress` was right if the ticks after it were
quiet, or a deliberation met what happened. A tick at T1 was right if it found something to do, and one at T2 if acting
did not harm either. Verdicts of trials that close later re-score ticks of the delta before.
Source: HB S5 ("Outcome feedback"); HB online learning ("The Feedback Loop"); canon 29; docs/adr/0109.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from bardo_pipeline.arrays import BoolArray, Float64Array, Int8Array, Int64Array
from bardo_pipeline.heartbeat.defi.rebalance import Verdicts
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.heartbeat.gating.boundaries import after_verdicts
from bardo_pipeline.heartbeat.gating.event_router import learn_routes
from bardo_pipeline.heartbeat.gating.expert_weights import after_losses, bounded, expert_losses, expert_weights
from bardo_pipeline.heartbeat.gating.learned_gate import SUPPRESS, T1, T2, Weighing
from bardo_pipeline.policy import GatingPolicy, Policy

_PAST = ("signals", "tier", "decided", "explored", "found", "missed", "error", "worth", "effect", "closed")


def note_tick(
    fleet: Fleet, t: int, weighing: Weighing, tier: Int8Array, decided: BoolArray, found: BoolArray,
    error: Float64Array, worth: Float64Array,
) -> None:  # fmt: skip
    """Store what the next judgement needs of a tick. decided: a boundary chose the tier. found: as in a record."""
    at = t % len(fleet.past_tier)
    fleet.past_signals[at], fleet.past_decided[at] = weighing.signals, decided
    fleet.past_tier[at] = np.where(weighing.explored, weighing.discarded, tier)
    fleet.past_explored[at], fleet.past_found[at] = weighing.explored, found
    fleet.past_error[at], fleet.past_worth[at] = error, np.rint(worth)
    fleet.past_missed[at], fleet.past_closed[at] = False, 0


def note_effects(fleet: Fleet, t: int, verdicts: Verdicts | None) -> None:
    """Store the effects of trials that close at this tick with the tick of their decision."""
    if verdicts is None:
        return
    slot, golem = np.nonzero(verdicts.due)
    at = (t - fleet.tick[golem] + verdicts.decision_tick[slot, golem]) % len(fleet.past_tier)
    fleet.past_effect[at, golem] = verdicts.effect_ppm[slot, golem]
    fleet.past_closed[at, golem] = fleet.tick[golem]


def judge_tiers(fleet: Fleet, t: int, policy: Policy) -> None:
    """Judge the ticks of golems that end a delta, and update their experts and boundaries.

    A boundary learns from the ticks whose tier it chose. A needless deliberation at T1 raises that of T2 whatever
    chose it, because T2 would have been needless too.
    """
    rules, span = policy.gating, policy.gating.delta_ticks
    golem = np.flatnonzero(fleet.alive & (fleet.tick % span == 0))
    if not len(golem):
        return
    back = np.arange(2 * span + rules.window_ticks - 1, -1, -1)
    at = (t - back) % len(fleet.past_tier)
    past = {name: getattr(fleet, f"past_{name}")[at][..., golem] for name in _PAST}
    restless = _restless({name: past[name][span:] for name in ("tier", "explored", "error", "worth")}, rules)
    past = {name: column[: 2 * span] for name, column in past.items()}
    lived = fleet.tick[golem] > back[: 2 * span, None]
    missed, needless, judged = _verdicts(past, restless, lived, fleet.tick[golem] - span, rules)
    fleet.past_missed[at[: 2 * span, None], golem] |= missed
    important = missed | (_thinks(past["tier"]) & past["found"] & ~needless)
    losses = expert_losses(past["signals"], important.astype(np.float64), rules)
    sums = after_losses(fleet.expert_losses[:, golem], losses, judged, rules)
    fleet.expert_rounds[golem] += judged.sum(axis=0)
    sums = bounded(sums, fleet.expert_rounds[golem], rules)
    fleet.expert_losses[:, golem] = sums
    fleet.expert_weights[:, golem] = expert_weights(sums, fleet.expert_rounds[golem], rules)
    if len(fleet.past_route):
        learn_routes(fleet, golem, at[: 2 * span], judged, important, policy)
    shallow, chosen = past["tier"] == T1, past["decided"]
    raised = needless & (chosen | shallow), needless & chosen, np.zeros_like(needless)
    lowered = np.zeros_like(missed), missed & chosen, missed & chosen & (past["tier"] == SUPPRESS)
    up, down = (np.stack([ticks.sum(axis=0) for ticks in by_boundary]) for by_boundary in (raised, lowered))
    fleet.boundaries[..., golem] = after_verdicts(fleet.boundaries[..., golem], up, down, rules)


def _verdicts(
    past: dict[str, NDArray[Any]], restless: BoolArray, lived: BoolArray, last: Int64Array, rules: GatingPolicy
) -> tuple[BoolArray, BoolArray, BoolArray]:
    """Return missed events, needless escalations, and judged ticks, [2 x span, golems]; the last `span` are new.

    restless: of the new ticks. last: tick of the last judgement. An earlier tick is judged again if its trial closed
    since then.
    """
    span = len(restless)
    thinks, is_closed, is_late = _thinks(past["tier"]), past["closed"] > 0, past["closed"] > last
    missed = ~thinks & is_closed & (past["effect"] >= rules.effect_min_ppm)
    needless = (past["tier"] == T2) & past["found"] & is_closed & (past["effect"] <= 0)
    missed[:span] &= (is_late & ~past["missed"])[:span]
    needless[:span] &= is_late[:span]
    missed[span:] |= (~thinks & past["explored"] & past["found"])[span:] | (~thinks[span:] & restless)
    needless[span:] |= (thinks & ~past["found"])[span:]
    judged = missed | needless
    judged[span:] = True
    return missed & lived, needless & lived, judged & lived


def _restless(past: dict[str, NDArray[Any]], rules: GatingPolicy) -> BoolArray:
    """Return the ticks in whose window something happened without a deliberation, [ticks - window, golems].

    It is a surprise beyond that of a regime change alone, or a loss of worth.
    """
    thinks, event = _thinks(past["tier"]) | past["explored"], past["error"] >= rules.event_error_min
    events, thoughts = (
        sliding_window_view(column[1:], rules.window_ticks, axis=0).any(axis=-1) for column in (event, thinks)
    )
    worth = past["worth"]
    lost = worth[rules.window_ticks :] <= worth[: -rules.window_ticks] * (1.0 - rules.event_loss_min)
    return np.asarray((events | lost) & ~thoughts)


def _thinks(tier: Int64Array) -> BoolArray:
    return (tier == T1) | (tier == T2)
