"""Scores of chain events, and the context in which they are routed. Pure, over columns.

Arrays have the axes [EVENT_KINDS, golems] last. A score or a rule without a source is NaN, and its expert sleeps.
Source: HB online learning (Hedge for heuristic selection; LinUCB's context); docs/adr/0111.
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.arrays import Float64Array
from bardo_pipeline.heartbeat.fleet import CONTEXT, EVENT_RULES, EVENT_SCORES, Fleet
from bardo_pipeline.heartbeat.gating.expert_weights import combined
from bardo_pipeline.heartbeat.observe import Sight
from bardo_pipeline.market.chain_events import EVENT_KINDS, SWAP
from bardo_pipeline.market.market import LENDER
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.policy import Policy

_HOUR_US = 3_600_000_000
_LOGS, _MINUTES = 10.0, 10.0
"""Divisors that bring the logarithm of a value and the minutes behind into the range of the other features."""


def rule_scores(fleet: Fleet, tape: Tape, t: int, sight: Sight, policy: Policy) -> Float64Array:
    """Return 1 where a heuristic rule applies to an event, else 0, [EVENT_RULES, kinds, golems].

    position_counterparty: the swaps traded through the golem's range, or it has a loan. known_protocol: the policy cage
    allows it. large_value: swapped. recent_counterparty: the golem opened a position or a loan there in the last ticks.
    gas and creation: NaN, because a trace of bars has no single transaction.
    """
    rules, out = policy.triage, np.full((len(EVENT_RULES), len(EVENT_KINDS), fleet.size), np.nan)
    is_open, has_loan = sight.open, fleet.collateral_shares > 0.0
    out[0, SWAP], out[0, SWAP + 1 :] = is_open & (sight.inside > 0.0), has_loan
    out[1, SWAP], out[1, SWAP + 1 :] = (name in policy.cage.protocols for name in (tape.market.protocol, LENDER))
    out[2] = (tape.events.value_micros[:, t] > rules.large_value_micros)[:, None]
    recent = fleet.tick - rules.recent_ticks
    out[3, SWAP], out[3, SWAP + 1 :] = is_open & (fleet.opened_tick > recent), has_loan & (fleet.loan_tick > recent)
    return out


def event_scores(
    fleet: Fleet, tape: Tape, t: int, sight: Sight, residual: Float64Array, rules: Float64Array, policy: Policy
) -> Float64Array:
    """Return the scores of EVENT_SCORES, in [0, 1], [scores, kinds, golems].

    heuristic: mean of the rules by their weights. surprise: of the event's size. error: the golem's price residual for
    swaps, the change of the rate for loans. anomaly: of the position for swaps, of the loan's health for loans.
    novelty: share of earlier ticks without such an event.

    residual: signal of the expert `oracle`, [golems]
    """
    scales, out = policy.gating, np.empty((len(EVENT_SCORES), len(EVENT_KINDS), fleet.size))
    events = tape.events
    nats, excess = events.surprise_nats[:, t], events.excess[:, t]
    out[0] = combined(fleet.rule_weights[:, None], rules)
    out[1] = (nats / (nats + scales.surprise_half_nats))[:, None]
    out[2, SWAP], out[2, SWAP + 1 :] = residual, (excess / (excess + scales.oracle_half))[SWAP + 1 :, None]
    out[3, SWAP], out[3, SWAP + 1 :] = np.where(sight.open, sight.score, np.nan), 2.0 - fleet.loan_health
    out[4] = (1.0 - events.share[:, t])[:, None]
    return out.clip(0.0, 1.0, out=out)


def contexts(
    fleet: Fleet, tape: Tape, t: int, score: Float64Array, scores: Float64Array, rules: Float64Array
) -> Float64Array:
    """Return LinUCB's features of each event, [CONTEXT, kinds, golems]; an absent score is 0.

    Score, surprise, error, anomaly, arousal, pleasure, whether the golem's position or loan is concerned, whether the
    protocol is known, gas over its hourly mean, logarithm of the value in dollars, minutes since the last tick, hours
    since the last escalation (1 at most).
    """
    events, out = tape.events, np.empty((CONTEXT, *score.shape))
    out[0], out[1:4] = score, scores[1:4]
    out[4], out[5] = fleet.pad[1], fleet.pad[0]
    out[6], out[7] = rules[0], rules[1]
    out[8] = tape.gas_hour_ratio[t]
    out[9] = (np.log10(np.maximum(events.value_micros[:, t] / 1e6, 1.0)) / _LOGS)[:, None]
    out[10] = tape.interval_seconds[t] / 60.0 / _MINUTES
    out[11] = np.minimum((tape.at_us[t] - fleet.escalated_us) / _HOUR_US, 1.0)
    return np.nan_to_num(out, copy=False)
