"""The chain after a turn: nine subsystems in fixed order, each reading what those before it wrote. Pure, over columns.

A subsystem that fails is recorded with its error and stops nothing: the later ones read what stood before it.
Source: HB S3 (step 9: heartbeat, lifespan, daimon, memory, risk, dream, cybernetics, clade, telemetry).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int8Array, Int64Array
from bardo_pipeline.heartbeat import observe
from bardo_pipeline.heartbeat.attention_items import Attending, Digest, attend, digest
from bardo_pipeline.heartbeat.decide import ACTIONS, Choice, worth_after
from bardo_pipeline.heartbeat.defi.aave_loans import LoanActs
from bardo_pipeline.heartbeat.defi.rebalance import Verdicts, try_inaction
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.heartbeat.gating.expert_signals import note_contradictions
from bardo_pipeline.heartbeat.gating.learned_gate import Weighing
from bardo_pipeline.heartbeat.gating.tier_verdicts import judge_tiers, note_effects, note_tick
from bardo_pipeline.heartbeat.observe import Comparison, Sight
from bardo_pipeline.heartbeat.recall_table import Recall
from bardo_pipeline.heartbeat.recollection import Recollection
from bardo_pipeline.heartbeat.records.chunk_rows import Buffers
from bardo_pipeline.heartbeat.safety.decision_cache import note_outcomes
from bardo_pipeline.heartbeat.safety.spending import NO_QUERY, spend
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.mortality.affect import appraise
from bardo_pipeline.mortality.vitality import Vitality, cause_of_death, predictive_fitness, vitality
from bardo_pipeline.policy import Policy


@dataclass
class Turn:
    """A tick whose actions are done. bill: inference, gas, credits consumed, and whether it acted, [4, golems].

    decided: the learned gate chose the tier. found: the deliberation found something to do. life, cause, attending and
    digest are what the subsystems write for later ones. failures: name and error of those that failed.
    """

    fleet: Fleet
    tape: Tape
    t: int
    sight: Sight
    seen: Comparison
    error: Float64Array
    threshold: Float64Array
    tier: Int8Array
    band: Int64Array
    weighing: Weighing | None
    decided: BoolArray
    found: BoolArray
    effects: Verdicts | None
    memory: Recollection | None
    choice: Choice | None
    loans: LoanActs | None
    bill: Int64Array
    recall: Recall
    policy: Policy
    out: Buffers
    at: int
    life: Vitality
    cause: Int64Array
    attending: Attending | None = None
    digest: Digest | None = None
    failures: list[tuple[str, str]] = field(default_factory=list)


def after_turn(turn: Turn) -> None:
    """Run the chain."""
    for name, subsystem in SUBSYSTEMS:
        try:
            subsystem(turn)
        except Exception as error:
            turn.failures.append((name, f"{type(error).__name__}: {error}"))


def _heartbeat(turn: Turn) -> None:
    """Value the golem after acting, update homeostatic means, and read the attended items."""
    fleet, tape, t = turn.fleet, turn.tape, turn.t
    fleet.nav, fleet.health = turn.sight.nav, turn.sight.health
    if turn.choice is not None:  # only a deliberation changes what was observed
        fleet.nav, fleet.health = worth_after(fleet, tape.root[t]), observe.health_now(fleet, tape.pool_tick[t])
    inference, gas, _, acted = turn.bill
    observe.settle(fleet, np.array((inference + gas, inference, gas, acted, turn.error)), turn.policy)
    turn.attending = attend(fleet, tape, t, turn.band < NO_QUERY, turn.policy)


def _lifespan(turn: Turn) -> None:
    """Compute the vitality, and find the causes of death."""
    fleet, policy = turn.fleet, turn.policy
    fitness = predictive_fitness(fleet.held_count, fleet.resolved_count, policy)
    turn.life = vitality(fleet.credits, fleet.first_credits, fitness, fleet.tick, fleet.lifespan, policy)
    fleet.composite = turn.life.composite
    fleet.life = np.array([getattr(turn.life, name) for name in COMPONENTS])
    turn.cause = np.where(fleet.alive, cause_of_death(turn.life), -1)


def _daimon(turn: Turn) -> None:
    """Appraise the tick: update the mood."""
    fleet = turn.fleet
    fleet.pad = appraise(fleet.pad, turn.sight.change, turn.error, turn.threshold, turn.seen.held_share, turn.policy)


def _memory(turn: Turn) -> None:
    """Note what was decided in the decision cache, and what retrieved entries contradicted."""
    if turn.choice is not None and turn.policy.cache.mode == "on":
        lent = 0 if turn.loans is None else turn.loans.action[turn.choice.golem]
        outcome = turn.choice.action + len(ACTIONS) * lent
        note_outcomes(turn.fleet, turn.tape, turn.t, turn.sight, turn.choice.golem, outcome, turn.policy)
    if turn.weighing is not None:
        note_contradictions(turn.fleet, turn.memory, turn.recall)


def _risk(turn: Turn) -> None:
    """Add the cost of the tick to the day's spending."""
    spend(turn.fleet, turn.bill[0] + turn.bill[1])


def _dream(turn: Turn) -> None:
    """Open counterfactuals: what acting would have brought suppressed golems."""
    try_inaction(turn.fleet, turn.tape, turn.t, turn.sight, turn.tier, turn.policy)


def _cybernetics(turn: Turn) -> None:
    """Note the tick for the learned gate, and judge earlier tiers at a delta."""
    if turn.weighing is not None:
        fleet = turn.fleet
        note_effects(fleet, turn.t, turn.effects)
        note_tick(fleet, turn.t, turn.weighing, turn.tier, turn.decided, turn.found, turn.error, turn.sight.nav)
        judge_tiers(fleet, turn.t, turn.policy)


def _clade(turn: Turn) -> None:
    """Digest the residuals of attended items at a delta; siblings read the digest in the record."""
    turn.digest = digest(turn.fleet, turn.policy)


def _telemetry(turn: Turn) -> None:
    """Write the changes of attention and the digest."""
    out, at = turn.out, turn.at
    if turn.attending is not None and turn.attending.cause.any():
        out.put(at, **{f"item_{name}": value for name, value in vars(turn.attending).items()})
    if turn.digest is not None:
        out.put(at, **{f"digest_{name}": value for name, value in vars(turn.digest).items()})


COMPONENTS = ("economic", "epistemic", "stochastic", "composite")

SUBSYSTEMS: tuple[tuple[str, Callable[[Turn], None]], ...] = (
    ("heartbeat", _heartbeat),
    ("lifespan", _lifespan),
    ("daimon", _daimon),
    ("memory", _memory),
    ("risk", _risk),
    ("dream", _dream),
    ("cybernetics", _cybernetics),
    ("clade", _clade),
    ("telemetry", _telemetry),
)
"""The chain, in its order."""
