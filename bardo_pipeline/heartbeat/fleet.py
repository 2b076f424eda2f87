"""State of a fleet as columns over golems, and births of golems. Pure.

Source: architecture ("The fleet steps as columns over golems"); MEM (reserve), canon (lifespan drawn at birth).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array, UInt64Array
from bardo_pipeline.curator.choice_rules import Choices
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.events.life.events import Born, LoanGranted, Traits, golem_name
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.heartbeat.entry_names import EntryNames
from bardo_pipeline.inheritance.learning_state import PLACES
from bardo_pipeline.market.chain_events import EVENT_KINDS
from bardo_pipeline.market.market import ASSETS
from bardo_pipeline.mortality import random_streams as streams
from bardo_pipeline.mortality.credit_partitions import split
from bardo_pipeline.mortality.vitality import death_reserve_micros
from bardo_pipeline.policy import GatingPolicy, Policy

CHECK_SLOTS = 5
"""Maximum number of concurrent trials per golem: at least three acts, one decision to hold, one inaction."""

RECALL = 5
"""Entries retrieved for a deliberation (HB S3: top five)."""

HORIZONS = ("30_ticks", "4_hours", "24_hours")
"""Horizons of the trials of choices (choice_trials.py)."""

PRIORS = 3
"""Scars, propositions, and lessons of dreams, retrieved for a deliberation (KAT: top three)."""

EXPERTS = ("oracle", "surprise", "topology", "contradiction", "risk")
"""Experts of the learned gate (gating/expert_signals.py)."""

EVENT_SCORES = ("heuristic", "surprise", "error", "anomaly", "novelty")
"""Scores of a chain event (gating/event_scores.py)."""

EVENT_RULES = (
    "position_counterparty", "known_protocol", "large_value", "recent_counterparty", "gas", "creation",
)  # fmt: skip
"""Heuristic rules behind the first score."""

CONTEXT = 12
"""Number of features of an event's context."""

ITEMS = ("price", "gas", "liquidity", "volume", "usdc_rate", "weth_rate")
"""Items of the environment that a golem may attend to (attention_items.py)."""

ROUTES = ("escalate", "emit", "count", "discard")
"""Routes of an event: a deliberation, a line in the record, an update of statistics alone, nothing."""

CELLS = 5 * 5 * 3
"""Number of situations: regime x anomaly band x gas band."""

PATTERNS = 5 * 3 * 2
"""Number of situations of the decision cache: anomaly band x gas band x whether a position is open."""


@dataclass(frozen=True)
class Founding:
    """Terms of founding a run's golems: owners, budget in micro-dollars, bounds of the lifespan in ticks, loan.

    The budget is 50 dollars (INH S13). Credits are 1/40 of it (ours) and pay for inference and gas; the rest is
    capital. The lifespan of 2,000 to 8,000 minutes is ours. loan: terms that every golem may borrow at; None: no
    borrowing.
    """

    owners: tuple[str, ...] = ("owner-1", "owner-2")
    budget_micros: int = 50_000_000
    credit_share: float = 0.025
    lifespan_ticks: tuple[int, int] = (2_000, 8_000)
    loan: LoanGranted | None = None

    @property
    def credits_micros(self) -> int:
        """Credits at birth, including the death reserve."""
        return round(self.budget_micros * self.credit_share)

    @property
    def capital_micros(self) -> int:
        """Capital at birth."""
        return self.budget_micros - self.credits_micros


def born(
    *,
    lineage_id: str,
    generation: int,
    owner_id: str,
    founding: Founding,
    market: str,
    market_hash: str,
    derivation_id: str,
    policy: Policy,
    predecessor_id: str | None = None,
    bundle_hash: str | None = None,
    traits: Traits | None = None,
) -> tuple[str, Born]:
    """Build a golem's id and birth event. Lifespan and default traits are drawn from the golem's own seed.

    Raises ConfigError if the credits do not exceed the death reserve.
    """
    golem_id = golem_name(lineage_id, generation)
    seed, zero = np.array([streams.seed_of(golem_id)]), np.zeros(1, np.int64)
    low, high = founding.lifespan_ticks
    lifespan = low + int(streams.uniform(seed, zero, streams.STREAM_LIFESPAN)[0] * (high - low + 1))
    reserve = int(death_reserve_micros(np.array([founding.credits_micros]), policy)[0])
    if founding.credits_micros <= reserve:
        raise ConfigError(_too_poor(founding, reserve, policy))
    return golem_id, Born(
        owner_id=owner_id,
        generation=generation,
        lineage_id=lineage_id,
        predecessor_id=predecessor_id,
        bundle_hash=bundle_hash,
        credits_micros=founding.credits_micros - reserve,
        reserve_micros=reserve,
        capital_micros=founding.capital_micros,
        lifespan_ticks=lifespan,
        market=market,
        market_hash=market_hash,
        policy_hash=policy.hash,
        derivation_id=derivation_id,
        traits=traits or _drawn_traits(seed, zero, policy),
    )


def _too_poor(founding: Founding, reserve: int, policy: Policy) -> str:
    problem = (
        f"a budget of ${founding.budget_micros / 1e6:,.2f} gives ${founding.credits_micros / 1e6:,.2f} of credits, "
        f"and the death reserve alone takes ${reserve / 1e6:,.2f}"
    )
    if founding.credit_share <= 0.0 or policy.mortality.reserve_share >= 1.0:
        return f"{problem}: no budget is enough with this share of credits or of reserve"
    cent = 10_000
    budget_min = math.floor((policy.mortality.reserve_min_micros + 1) / founding.credit_share / cent) * cent
    while True:
        larger = replace(founding, budget_micros=budget_min)
        if larger.credits_micros > int(death_reserve_micros(np.array([larger.credits_micros]), policy)[0]):
            return f"{problem}: give --budget {budget_min / 1e6:.2f} or more"
        budget_min += cent


def _drawn_traits(seed: UInt64Array, zero: Int64Array, policy: Policy) -> Traits:
    base, width = policy.playbook.rebalance_threshold, policy.playbook.range_half_width_ticks
    rules = policy.traits
    step = int(streams.uniform(seed, zero, streams.STREAM_THRESHOLD)[0] * 3) - 1
    scale = rules.width_scales[int(streams.uniform(seed, zero, streams.STREAM_WIDTH)[0] * len(rules.width_scales))]
    memory = rules.forecast_memory_min + rules.forecast_memory_span * float(
        streams.uniform(seed, zero, streams.STREAM_FORECAST)[0]
    )
    return Traits(
        rebalance_threshold=round(base + rules.threshold_step * step, 4),
        range_half_width_ticks=int(width * scale) // 10 * 10,
        forecast_memory=round(memory, 4),
    )


def _whole(values: list[int]) -> Int64Array:
    return np.array(values, dtype=np.int64)


def prior_boundaries(rules: GatingPolicy, golems: int) -> Float64Array:
    """Return alpha and beta of each boundary at birth, [2, boundaries, golems]."""
    return np.repeat(np.array(rules.boundary_priors).T[:, :, None], golems, axis=2)


class Fleet:
    """State of golems, arrays [golems] (further axes first). Times in microseconds, money in micro-dollars.

    rebalance_threshold, range_width (0: the trait), range_rule, presence, presence_rule, loan_choice, loan_rule
    [regimes, golems], playbook_version and cycle_seen come from the golem's last closed cycle.
    """

    def __init__(self, golem_ids: list[str], births: list[Born], policy: Policy) -> None:
        self.golem_ids, self.births = list(golem_ids), list(births)
        self._init_life(policy)
        self._init_position()
        self._init_choices()
        self._init_loan()
        self._init_mind(policy)
        self._init_gating(policy)
        self._init_router(policy)
        self._init_cache(policy)
        self._init_items(policy)
        self._init_ending()
        self._init_trials()

    def _init_life(self, policy: Policy) -> None:
        """Seeds, birth data, credit partitions [2, golems], and the playbook of the last closed cycle.

        paid, paid_hours: discounted payments, and hours with a payment. paid_hour: the last such hour. day_spent: cost
        of the ticks of the UTC day `spent_day`.
        """
        births = self.births
        self.seed = np.array([streams.seed_of(g) for g in self.golem_ids], dtype=np.uint64)
        self.alive = np.ones(self.size, bool)
        self.tick = self._ints()
        self.lifespan = _whole([b.lifespan_ticks for b in births])
        self.first_credits = _whole([b.credits_micros for b in births])
        self.allotted = split(self.first_credits, policy)
        self.partitions, self.hourly = self.allotted.copy(), self._ints(2)
        self.paid, self.paid_hours, self.paid_hour = self._reals(2), self._reals(2), self._ints(2, fill=-1)
        self.day_spent, self.spent_day = self._ints(), self._ints(fill=-1)
        self.idle = _whole([b.capital_micros for b in births])
        self.earned = self._ints()
        self.half_width = _whole([b.traits.range_half_width_ticks for b in births])
        self.forecast_memory = np.array([b.traits.forecast_memory for b in births])
        base = np.array([b.traits.rebalance_threshold for b in births])
        self.rebalance_threshold = np.repeat(base[None, :], len(REGIMES), axis=0)
        self.playbook_version, self.cycle_seen = self._ints(), self._ints()

    def _init_position(self) -> None:
        """No position: all capital is idle."""
        self.liquidity = self._reals()
        self.root_lower, self.root_upper = self._reals(fill=1.0), self._reals(fill=2.0)
        self.lower, self.upper = self._ints(), self._ints(fill=1)
        self.opened_tick = self._ints()
        self.hold0, self.hold1, self.fees = self._reals(), self._reals(), self._reals()
        self.high_water = self.idle.astype(np.float64)
        self.nav = self.idle.astype(np.float64)
        self.cooldown = self._ints()

    def _init_choices(self) -> None:
        """Choices of the playbook by regime, with the codes of their rules, and open windows of their trials.

        range_width: 0 for the trait. presence: a code of PRESENCE. loan_choice: a code of LOANS. *_rule: codes in the
        run's EntryNames, -1 for none. window_at: position of the window's first tick on the tape, -1 for none.
        window_range: half-width of a new range; window_width: of the position held, 0 without one. window_supplied,
        window_owed: shares of the loan.
        """
        regimes, horizons = len(REGIMES), len(HORIZONS)
        self.range_width, self.presence = self._ints(regimes), self._ints(regimes)
        self.range_rule, self.presence_rule = self._ints(regimes, fill=-1), self._ints(regimes, fill=-1)
        self.loan_choice, self.loan_rule = self._ints(regimes), self._ints(regimes, fill=-1)
        self.window_supplied, self.window_owed = self._reals(horizons), self._reals(horizons)
        self.window_at, self.window_tick = self._ints(horizons, fill=-1), self._ints(horizons)
        self.window_score, self.window_value = self._reals(horizons), self._reals(horizons)
        self.window_liquidity, self.window_width = self._reals(horizons), self._ints(horizons)
        self.window_range = self._ints(horizons, fill=1)
        self.window_lower, self.window_upper = self._ints(horizons), self._ints(horizons, fill=1)

    def half_width_in(self, regime: int) -> Int64Array:
        """Return the half-width of a new range in a regime: the playbook's, else the trait's."""
        learned = self.range_width[regime]
        return np.where(learned > 0, learned, self.half_width)

    def _init_loan(self) -> None:
        """No loan. Collateral and debt are in shares of the reserves.

        collateral_asset: a position in ASSETS; the debt is in the other asset. loan_value: net of the debt. loan_cost:
        interest and liquidation bonuses so far. loan_ratio: allowed loan to value, 0 if the golem may not borrow.
        """
        self.loan_ratio, self.collateral_asset = self._reals(), self._ints()
        self.collateral_shares, self.debt_shares = self._reals(), self._reals()
        self.loan_value, self.loan_health, self.loan_cost = self._reals(), self._reals(fill=np.nan), self._reals()
        self.loan_tick = self._ints()

    def _init_mind(self, policy: Policy) -> None:
        """Mood, confidence, forecasts, homeostatic means, attention, and the last tick with a deliberation.

        threat, threat_us: intensity of the strongest threat that was heard, at its time; NaN without one.
        """
        rules = policy.prediction
        self.pad = self._reals(3)
        self.confidence = self._reals(fill=rules.first_confidence)
        self.composite = self._reals(fill=rules.fitness_prior)
        self.health = self._reals(fill=np.nan)
        first = (rules.first_variance_price, rules.first_variance_gas, rules.first_variance_health)
        self.forecast_var = np.repeat(np.array(first)[:, None], self.size, axis=1)
        self.expected, self.half = self._reals(3, fill=np.nan), self._reals(3, fill=np.nan)
        self.foreseen = self._reals()
        self.ring, self.ring_at = self._flags(rules.fitness_window), self._ints()
        self.held_count, self.resolved_count = self._ints(), self._ints()
        self.home_mean, self.home_var, self.home_last = self._reals(5), self._reals(5), self._reals(5)
        self.home_seen = self._ints()
        self.follow_ups = self._ints()
        self.thoughts, self.vain = self._reals(PLACES), self._reals(PLACES)
        self.thought_tick = self._ints()
        self.threat, self.threat_us = self._reals(fill=np.nan), self._ints()

    def _init_gating(self, policy: Policy) -> None:
        """State of the learned gate, and the past ticks that its next judgement needs; no past ticks in other modes.

        expert_losses, expert_rounds: as in gating.expert_weights; expert_weights follow from them. boundaries: alpha
        and beta [2, boundaries, golems]. drawn: sampled boundaries, descending, by position on the tape modulo a delta.
        is_taught: whether the golem inherited this state. past_*: by position on the tape modulo `past`. past_tier:
        before exploration. past_closed: tick that closed the trial, 0 for none.
        """
        rules = policy.gating
        past = 2 * rules.delta_ticks + rules.window_ticks + 1 if policy.gate.mode == "learned" else 0
        self.contradiction, self.is_taught = self._reals(fill=np.nan), self._flags()
        self.expert_losses, self.expert_rounds = self._reals(len(EXPERTS)), self._ints()
        self.expert_weights = self._reals(len(EXPERTS), fill=1.0 / len(EXPERTS))
        self.boundaries = prior_boundaries(rules, self.size)
        self.drawn = self._reals(min(past, rules.delta_ticks), len(rules.boundary_priors))
        self.past_signals, self.past_tier = self._reals(past, len(EXPERTS)), self._ints(past)
        self.past_decided, self.past_explored = self._flags(past), self._flags(past)
        self.past_found, self.past_missed = self._flags(past), self._flags(past)
        self.past_error, self.past_worth = self._reals(past), self._reals(past)
        self.past_effect, self.past_closed = self._ints(past), self._ints(past)

    def _init_router(self, policy: Policy) -> None:
        """State of the router of chain events; no past events without it.

        score_losses, rule_losses, event_rounds: as in gating.expert_weights; score_weights, rule_weights follow from
        them. arm_shapes: alpha and beta [2, regimes of arousal, arms, golems]. arms_drawn: best arm by position on the
        tape modulo a delta. ucb_inverse, ucb_theta: A^-1 and theta by route but the last. past_*: as in _init_gating.
        """
        rules, routed = policy.triage, policy.triage.mode == "routed" and policy.gate.mode == "learned"
        span, arms, regimes = policy.gating.delta_ticks, len(rules.arms), len(rules.arousal_edges) + 1
        past = (2 * span + policy.gating.window_ticks + 1) * routed
        self.event_rounds, self.escalated_us = self._ints(), self._ints()
        scores, heuristics = len(EVENT_SCORES), len(EVENT_RULES)
        self.score_losses, self.score_weights = self._reals(scores), self._reals(scores, fill=1.0 / scores)
        self.rule_losses, self.rule_weights = self._reals(heuristics), self._reals(heuristics, fill=1.0 / heuristics)
        self.arm_shapes = self._reals(2, regimes, arms) + np.array(rules.arm_priors)[:, None]
        self.arms_drawn = self._ints(span * routed, regimes)
        linear = len(ROUTES) - 1
        self.ucb_inverse = self._reals(linear, CONTEXT, CONTEXT) + np.eye(CONTEXT)[..., None]
        self.ucb_theta = self._reals(linear, CONTEXT)
        self.route_mean, self.route_count = self._reals(len(ROUTES)), self._reals(len(ROUTES))
        kinds = len(EVENT_KINDS)
        self.past_rules = self._reals(past, len(EVENT_RULES), kinds)
        self.past_scores = self._reals(past, len(EVENT_SCORES), kinds)
        self.past_context = self._reals(past, CONTEXT, kinds)
        self.past_route, self.past_arm = self._ints(past, kinds, fill=-1), self._ints(past)

    def _init_cache(self, policy: Policy) -> None:
        """Empty decision cache by situation; no room without it.

        cache_outcomes: like outcomes in a row. cache_outcome: what they decided. cache_us, cache_regime, cache_context,
        cache_rules, cache_conditions: moment, regime, context's revision, playbook and conditions of the last one.
        """
        room = PATTERNS * (policy.cache.mode == "on")
        self.cache_outcomes, self.cache_outcome = self._ints(room), self._ints(room)
        self.cache_us, self.cache_context = self._ints(room), self._ints(room)
        self.cache_regime = self._ints(room, fill=-1)
        self.cache_rules, self.cache_conditions = self._reals(3, room), self._reals(4, room)

    def _init_items(self, policy: Policy) -> None:
        """No item is known. [items, golems]: level of attention, logarithm at the last reading, variance of a change,
        deltas without a violation, and residuals since the last digest.
        """
        items = len(ITEMS)
        self.item_level, self.item_quiet = self._ints(items), self._ints(items)
        self.item_last = self._reals(items, fill=np.nan)
        self.item_variance = self._reals(items, fill=policy.watch.first_sigma**2)
        self.item_resolved, self.item_violations = self._ints(items), self._ints(items)
        self.item_sum, self.item_square = self._reals(items), self._reals(items)

    def _init_ending(self) -> None:
        """Latest vitality, and vitality, net asset value and position on the tape at death."""
        self.life = self._reals(4, fill=1.0)
        self.final_life, self.final_nav, self.final_at = self._reals(4), self._ints(), self._ints(fill=-1)

    def _init_trials(self) -> None:
        """Open trials [slots, golems], each with two branches."""
        self.trial_due, self.trial_tick = self._ints(CHECK_SLOTS, fill=-1), self._ints(CHECK_SLOTS)
        self.trial_chosen, self.trial_thought = self._flags(CHECK_SLOTS), self._flags(CHECK_SLOTS)
        self.trial_regime = self._ints(CHECK_SLOTS)
        self.trial_score, self.trial_gas = self._reals(CHECK_SLOTS), self._reals(CHECK_SLOTS)
        self.trial_value = self._reals(CHECK_SLOTS)
        self.trial_recalled = self._ints(RECALL, CHECK_SLOTS, fill=-1)
        branches = (2, CHECK_SLOTS)
        self.branch_liquidity, self.branch_idle = self._reals(*branches), self._reals(*branches)
        self.branch_fees = self._reals(*branches)
        self.branch_root_lower = self._reals(*branches, fill=1.0)
        self.branch_root_upper = self._reals(*branches, fill=2.0)
        self.branch_lower, self.branch_upper = self._reals(*branches), self._reals(*branches, fill=1.0)

    def _reals(self, *axes: int, fill: float = 0.0) -> Float64Array:
        return np.full((*axes, self.size), fill)

    def _ints(self, *axes: int, fill: int = 0) -> Int64Array:
        return np.full((*axes, self.size), fill, dtype=np.int64)

    def _flags(self, *axes: int) -> BoolArray:
        return np.zeros((*axes, self.size), dtype=bool)

    @property
    def size(self) -> int:
        """Number of golems, including dead ones that `keep` has not removed."""
        return len(self.golem_ids)

    @property
    def credits(self) -> Int64Array:
        """Credits of each golem: the sum of its partitions."""
        inference, gas = self.partitions
        return inference + gas

    def begin_with(
        self,
        i: int,
        forecast_variance: Sequence[float | None],
        attention: tuple[Sequence[float], Sequence[float]] = ((), ()),
    ) -> None:
        """Start golem i with its predecessor's learning state.

        forecast_variance: price, gas, health; None keeps the default. attention: (thoughts, vain thoughts) by
        situation, or empty.
        """
        for count, values in zip((self.thoughts, self.vain), attention, strict=True):
            if len(values):
                count[:, i] = values
        for quantity, variance in enumerate(forecast_variance):
            if variance is not None:
                self.forecast_var[quantity, i] = variance

    def follow(self, i: int, version: int, thresholds: Sequence[float], choices: Choices, names: EntryNames) -> None:
        """Let golem i act by a playbook. names: the run's entry ids; new ids of deciding rules are added."""
        self.playbook_version[i], self.rebalance_threshold[:, i] = version, thresholds
        self.range_width[:, i], self.presence[:, i] = choices.width, choices.presence
        self.loan_choice[:, i] = choices.loan
        self.range_rule[:, i], self.presence_rule[:, i], self.loan_rule[:, i] = map(
            names.codes, (choices.width_rule, choices.presence_rule, choices.loan_rule)
        )

    def grant(self, i: int, loan: LoanGranted) -> None:
        """Allow golem i to borrow on these terms."""
        self.loan_ratio[i], self.collateral_asset[i] = loan.loan_to_value, ASSETS.index(loan.collateral)

    def copied(self) -> Fleet:
        """Return a fleet with the same golems and copies of their state."""
        twin = copy.copy(self)
        twin.golem_ids, twin.births = list(self.golem_ids), list(self.births)
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                setattr(twin, name, value.copy())
        return twin

    def keep(self, mask: BoolArray) -> None:
        """Remove the golems outside the mask."""
        count = self.size
        chosen = np.flatnonzero(mask)
        self.golem_ids = [self.golem_ids[i] for i in chosen]
        self.births = [self.births[i] for i in chosen]
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray) and value.shape[-1] == count:
                setattr(self, name, np.ascontiguousarray(value[..., chosen]))

    def join(self, other: Fleet) -> None:
        """Append the golems of another fleet."""
        self.golem_ids += other.golem_ids
        self.births += other.births
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                setattr(self, name, np.concatenate([value, getattr(other, name)], axis=-1))
