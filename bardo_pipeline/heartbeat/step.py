"""Steps a whole fleet by one tick, in nine steps (HB S3). Pure, over columns.

Steps: observe, compare, gate, retrieve and deliberate, simulate, validate, execute, verify, reflect. To reflect is to
run the chain after the turn (after_turn.py). Retrieval follows the gate (canon 24). Inputs that golems cannot change
come from the tape; results go into column buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int8Array, Int64Array
from bardo_pipeline.heartbeat import gate, observe
from bardo_pipeline.heartbeat.after_turn import Turn, after_turn
from bardo_pipeline.heartbeat.choice_trials import ChoiceVerdicts, judge_choices
from bardo_pipeline.heartbeat.decide import HOLD, IS_CHANGED, Choice, choose
from bardo_pipeline.heartbeat.defi.aave_loans import LIQUIDATED, LoanActs, grow
from bardo_pipeline.heartbeat.defi.borrowing_rules import borrow, guard_health, repay
from bardo_pipeline.heartbeat.defi.rebalance import Verdicts, judge
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.heartbeat.gas_gate import age_payments, note_payment
from bardo_pipeline.heartbeat.gating.event_router import ROUTED, Routing, route_events, router_states
from bardo_pipeline.heartbeat.gating.expert_signals import expert_signals
from bardo_pipeline.heartbeat.gating.learned_gate import GATED, SUPPRESS, T0, T1, T2, Weighing, weigh
from bardo_pipeline.heartbeat.observe import Comparison, Sight
from bardo_pipeline.heartbeat.probes import Probes, evaluate
from bardo_pipeline.heartbeat.recall_table import Recall
from bardo_pipeline.heartbeat.recollection import Recollection, recollect
from bardo_pipeline.heartbeat.records.chunk_rows import Buffers
from bardo_pipeline.heartbeat.refusals import EXECUTED, Cut
from bardo_pipeline.heartbeat.rhythm.pending_ticks import merged
from bardo_pipeline.heartbeat.safety.decision_cache import Lookup, forget_regime, look_up
from bardo_pipeline.heartbeat.safety.spending import NO_MODEL, band_of, begin_day, lowered
from bardo_pipeline.heartbeat.threats import threat_now
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.mortality.credit_partitions import INFERENCE, pay_inference
from bardo_pipeline.mortality.vitality import Vitality
from bardo_pipeline.policy import Policy


@dataclass(frozen=True)
class Interventions:
    """Owner interventions due this tick, and golems whose chain was reorganised (None: none); [golems].

    dropped: probes of ticks that were dropped since the tick before, oldest first. cut: where the calls of this tick
    end; None: all are sent.
    """

    steer: BoolArray
    follow_up: Int64Array
    reorg: BoolArray | None = None
    dropped: tuple[Probes, ...] = ()
    cut: Cut | None = None

    @classmethod
    def none(cls, golems: int) -> Self:
        """Return no interventions."""
        return cls(np.zeros(golems, bool), np.zeros(golems, np.int64))


def step(
    fleet: Fleet,
    tape: Tape,
    t: int,
    *,
    recall: Recall,
    policy: Policy,
    out: Buffers,
    at: int,
    interventions: Interventions | None = None,
    killed: bool = False,
    oracle: bool = True,
    overseer: Overseer | None = None,
) -> Int64Array:
    """Step the fleet by one tick. Dead golems keep their state and write nothing.

    Parameters
    ----------
    t : position on the tape
    killed : state of the kill switch
    at : position in the buffers
    oracle : whether golems predict; without it the gate uses the fallback surprise, and fitness stays at its prior
    overseer : sees what the gate chose, and may replace it

    Returns
    -------
    cause of death by golem: a position in CAUSES, -1 for survivors
    """
    loans, sight, seen, threat, probes = _sense(fleet, tape, t, recall, policy, killed)
    out.put(at, **_fields(fleet, "allotted", "partitions", "hourly"))
    out.put(at, **_fields(fleet, "liquidity", "fees", "idle", "lower", "upper", "opened_tick"))
    interventions = interventions or Interventions.none(fleet.size)
    probes = merged(probes, interventions.dropped) if interventions.dropped else probes
    effects = judge(fleet, tape, t, policy)
    _put_senses(out, at, sight, seen, probes, effects)
    _put_trials(out, at, judge_choices(fleet, tape, t, sight, policy))
    is_learned = policy.gate.mode == "learned"
    signals = expert_signals(fleet, tape, t, seen, probes, policy) if is_learned else None
    is_routed = is_learned and policy.triage.mode == "routed"
    routing = route_events(fleet, tape, t, sight, signals[0], policy) if is_routed and signals is not None else None
    woken = _wake(fleet, tape, t, sight, probes, threat, interventions, policy, oracle, signals, routing)
    waking, judgement, weighing = woken
    if overseer is not None:
        waking.tier = overseer(fleet, tape, t, sight, waking, recall)
    _put_waking(out, at, waking, judgement, weighing)
    _put_routing(out, at, fleet, routing, policy)

    _put_loans(out, at, fleet, loans)
    memory, choice, found = _deliberate(fleet, tape, t, sight, waking, loans, recall, policy, interventions.cut)
    _put_thoughts(out, at, memory, choice, loans)
    if weighing is not None:
        out.put(at, gating_found=found)
    bill = _charge(fleet, choice, loans, int(tape.at_us[t]), policy)
    out.put(at, inference=bill[0], gas=bill[1], consumed=bill[2], pad_before=fleet.pad)
    turn = Turn(
        fleet, tape, t, sight, seen, waking.error, waking.threshold, waking.tier, waking.band, weighing,
        _is_decided(waking, weighing), found, effects, memory, choice, loans, bill, recall, policy, out, at,
        life=Vitality(*fleet.life), cause=np.full(fleet.size, -1),
    )  # fmt: skip
    after_turn(turn)
    if turn.failures:
        out.failures[at] = turn.failures
    _put_life(out, at, fleet, turn.life)
    if oracle:
        observe.forecast(fleet, tape, t, fleet.health, seen.sigma, policy, recall.foresight)
    _bury(fleet, t, turn.life, turn.cause >= 0)
    return turn.cause


def _is_decided(waking: Waking, weighing: Weighing | None) -> BoolArray:
    """Return the ticks whose tier a boundary of the learned gate chose, and nothing but exploration changed."""
    if weighing is None:
        return np.zeros(len(waking.tier), bool)
    return weighing.decided & (weighing.explored | (waking.tier == weighing.discarded))


def look(fleet: Fleet, tape: Tape, t: int, *, recall: Recall, policy: Policy, killed: bool) -> Probes:
    """Return the probes of a tick that is not executed. The fleet keeps its state."""
    return _sense(fleet.copied(), tape, t, recall, policy, killed)[-1]


def _sense(
    fleet: Fleet, tape: Tape, t: int, recall: Recall, policy: Policy, killed: bool
) -> tuple[LoanActs | None, Sight, Comparison, Float64Array, Probes]:
    """Begin a tick: let loans grow, observe, compare with predictions, and probe; return loans to probes."""
    fleet.tick += fleet.alive
    loans = grow(fleet, tape, t, policy)
    sight = observe.observe(fleet, tape, t, policy)
    age_payments(fleet, tape, t, policy)
    begin_day(fleet, int(tape.at_us[t]))
    seen = observe.compare(fleet, tape, t, sight, policy)
    threat = threat_now(fleet, int(tape.at_us[t]), policy)
    return loans, sight, seen, threat, _probe(fleet, tape, t, sight, seen, threat, killed, recall, policy)


@dataclass
class Waking:
    """Surprise, threshold and tier of each golem, [golems]; sources [6, golems].

    settling: one more than the code of the rule that made a deliberation needless, 0 for none. band, day_spent: of the
    day's spending. wanted: the tier before the decision cache answered or the band lowered it. cached: lookups in the
    cache; None without it.
    """

    steer: BoolArray
    follow_ups: Int64Array
    error: Float64Array
    sources: Float64Array
    threshold: Float64Array
    tier: Int8Array
    forced: Int8Array
    settling: Int64Array
    band: Int64Array
    day_spent: Int64Array
    wanted: Int8Array
    cached: Lookup | None


Overseer = Callable[[Fleet, Tape, int, Sight, Waking, Recall], Int8Array]
"""Sees a tick before its deliberations, and returns the tiers that count; for evaluations of gates."""


def _wake(
    fleet: Fleet, tape: Tape, t: int, sight: Sight, probes: Probes, threat: Float64Array,
    interventions: Interventions, policy: Policy, oracle: bool, signals: Float64Array | None, routing: Routing | None,
) -> tuple[Waking, gate.Attention | None, Weighing | None]:  # fmt: skip
    """Compute the surprise, apply the gate, and attention to ticks at T1. Without such ticks, attention is None.

    signals: of the experts; None without the learned gate. routing: of chain events; None without the router.

    Follow-ups stay pending up to the golem's next deliberation; attention does not pass over them.
    """
    steer = interventions.steer
    fleet.follow_ups += interventions.follow_up
    regime_changed = (fleet.tick > 1) & bool(t > 0 and tape.regime[t] != tape.regime[t - 1])
    error, sources = _surprise(fleet, tape, t, sight, probes, threat, steer, regime_changed, policy, oracle)
    follow_ups = fleet.follow_ups
    threshold = gate.adaptive_threshold(fleet.composite, fleet.pad[1], fleet.confidence, policy)
    imminent = gate.transition_imminent(fleet.composite, policy)
    tier, forced = gate.gate(error, threshold, steer, imminent, fleet.tick == 1, policy, interventions.reorg)
    unforced = forced == gate.UNFORCED
    weighing = None if signals is None else weigh(fleet, tape, t, signals, unforced, policy)
    if weighing is not None:
        tier = np.where(weighing.decided, np.where(weighing.explored, T1, weighing.discarded), tier)
        if routing is not None:
            routing.woke = weighing.decided & routing.escalates & ~_thinks(tier)
            tier[routing.woke] = T1
    unforced_t1 = fleet.alive & (tier == T1) & unforced & (fleet.follow_ups == 0)
    judgement, settling = None, np.zeros(fleet.size, np.int64)
    if unforced_t1.any():
        regime = int(tape.regime[t])
        settled = gate.settled_out(fleet, regime, sight, unforced_t1, policy)
        settling[settled] = fleet.presence_rule[regime, settled] + 1
        tier[settled] = SUPPRESS
        if weighing is not None:
            weighing.explored &= ~settled
        if routing is not None:
            routing.woke &= ~settled
        if policy.gate.mode == "attention":
            judgement = gate.attention(fleet, regime, sight, unforced_t1, policy)
            tier[judgement.suppressed] = SUPPRESS
    band = band_of(fleet.day_spent, policy)
    if weighing is not None:
        _stop_exploring(tier, band, weighing, routing)
    tier[~fleet.alive] = 0
    wanted, cached = tier, None
    if policy.cache.mode == "on":
        forget_regime(fleet, regime_changed)
        optional = np.zeros(fleet.size, bool) if weighing is None else _optional(weighing, routing)
        cached = look_up(fleet, tape, t, sight, unforced & _thinks(tier) & (fleet.follow_ups == 0) & ~optional, policy)
        tier = np.where(cached.answered, T0, tier).astype(np.int8)
    kept = tier
    tier = lowered(tier, band)
    # A steer that the budget keeps from a deliberation stays pending.
    fleet.follow_ups = np.where(_thinks(tier), 0, follow_ups + steer * (tier != kept))
    needless = band, fleet.day_spent.copy(), wanted, cached
    return Waking(steer, follow_ups, error, sources, threshold, tier, forced, settling, *needless), judgement, weighing


def _surprise(
    fleet: Fleet, tape: Tape, t: int, sight: Sight, probes: Probes, threat: Float64Array, steer: BoolArray,
    regime_changed: BoolArray, policy: Policy, oracle: bool,
) -> tuple[Float64Array, Float64Array]:  # fmt: skip
    """Return the surprise of each golem, and its sources [6, golems]."""
    health_change = sight.health - fleet.health
    anomaly_count = probes.anomaly_count
    if not oracle:
        return gate.prediction_error_fallback(regime_changed, health_change, threat, anomaly_count, policy)
    pending = fleet.follow_ups + steer
    return gate.prediction_error(
        fleet.expected[0], tape.price[t], regime_changed, health_change, threat, pending, anomaly_count, policy
    )


def _thinks(tier: Int8Array) -> BoolArray:
    """Return the golems that deliberate."""
    return (tier == T1) | (tier == T2)


def _stop_exploring(tier: Int8Array, band: Int64Array, weighing: Weighing, routing: Routing | None) -> None:
    """Discard ticks that would deliberate only to explore, or for a chain event, once no model may be asked."""
    stopped = _optional(weighing, routing) & (band >= NO_MODEL)
    tier[stopped] = weighing.discarded[stopped]
    weighing.explored &= ~stopped
    if routing is not None:
        routing.woke &= ~stopped


def _optional(weighing: Weighing, routing: Routing | None) -> BoolArray:
    """Return the ticks that deliberate only to explore, or for a chain event."""
    return weighing.explored if routing is None else weighing.explored | routing.woke


def _deliberate(
    fleet: Fleet, tape: Tape, t: int, sight: Sight, waking: Waking, loans: LoanActs | None, recall: Recall,
    policy: Policy, cut: Cut | None,
) -> tuple[Recollection | None, Choice | None, BoolArray]:  # fmt: skip
    """Let woken golems retrieve, decide and act, on their loans too; count their thoughts for attention.

    Return what they retrieved and chose, None if the gate passed no golem, and the golems that found something to do:
    an executed action, or a decision that priors changed.
    """
    borrow(fleet, tape, t, waking.tier, loans, policy, cut)
    settling = None if loans is None else loans.action == LIQUIDATED
    memory = recollect(fleet, tape, t, sight.score, waking.tier, waking.error, recall, policy)
    choice = choose(fleet, tape, t, sight, waking.tier, recall, policy, settling, memory, cut)
    repay(fleet, tape, t, waking.tier, loans, policy, cut)
    guard_health(fleet, tape, t, waking.tier, loans, policy, cut)
    found = np.zeros(fleet.size, bool)
    if choice is not None:
        acted = (choice.action != HOLD) & (choice.status == EXECUTED)
        acted |= False if loans is None else loans.executed[choice.golem]
        gate.count_thoughts(fleet, int(tape.regime[t]), sight, choice.golem, acted, policy)
        found[choice.golem] = acted | IS_CHANGED[choice.rule]
    return memory, choice, found


def _bury(fleet: Fleet, t: int, life: Vitality, dying: BoolArray) -> None:
    """Store the final vitality, net asset value and position on the tape of golems that die in this tick."""
    if dying.any():
        components = np.array((life.economic, life.epistemic, life.stochastic, life.composite))
        fleet.final_life = np.where(dying, components, fleet.final_life)
        fleet.final_nav = np.where(dying, np.floor(fleet.nav).astype(np.int64), fleet.final_nav)
        fleet.final_at = np.where(dying, t, fleet.final_at)
        fleet.alive = fleet.alive & ~dying


def _probe(
    fleet: Fleet, tape: Tape, t: int, sight: Sight, seen: Comparison, threat: Float64Array, killed: bool,
    recall: Recall, policy: Policy,
) -> Probes:  # fmt: skip
    return evaluate(
        price_change=np.expm1(tape.price_return[t]),
        liquidity_change=tape.liquidity_change[t],
        health_factor=sight.health,
        gas_hour_ratio=tape.gas_hour_ratio[t],
        credit_share=np.minimum(*(fleet.partitions / np.maximum(fleet.allotted, 1))),
        rsi=tape.rsi[t],
        macd=tape.macd[t],
        nav_drawdown=np.maximum(sight.drawdown, 0.0),
        kill_switch=killed,
        threat=threat,
        deviation_sigma=observe.deviation(fleet, policy),
        drift=seen.drift,
        causal=recall.foresight.look(tape, t, fleet.foreseen, policy),
        policy=policy,
    )


def _charge(fleet: Fleet, choice: Choice | None, loans: LoanActs | None, at_us: int, policy: Policy) -> Int64Array:
    """Charge inference to the credits, down to zero; a golem without credits dies. Gas was paid when it was sent.

    Return inference, gas and credits really consumed, in micro-dollars, and whether the golem acted, [4, golems].
    """
    bill = np.zeros((4, fleet.size), np.int64)
    inference, gas, consumed, acted = bill
    if choice is not None:
        inference[choice.golem], gas[choice.golem] = choice.cost_micros, choice.gas_micros
        acted[choice.golem] = choice.action > 0
        if loans is not None:
            gas += loans.gas
            acted |= loans.action > 0
        fleet.partitions, paid = pay_inference(fleet.partitions, inference, policy)
        note_payment(fleet, INFERENCE, np.arange(fleet.size), paid, at_us)
        consumed[:] = paid + gas
    return bill


def _fields(source: object, *names: str) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def _put_senses(
    out: Buffers, at: int, sight: Sight, seen: Comparison, probes: Probes, verdicts: Verdicts | None
) -> None:
    """Write observations, resolved predictions, probe values and closed trials."""
    out.put(at, nav_seen=sight.nav, health=sight.range_health, inside=sight.inside > 0, probes=probes.value)
    out.put(at, **_fields(sight, "score", "open", "value", "loss"))
    out.put(at, **_fields(seen, "expected", "half", "actual", "resolved", "held"))
    if verdicts is not None:
        out.put(at, **{f"trial_{name}": np.moveaxis(value, 0, -2) for name, value in vars(verdicts).items()})


def _put_trials(out: Buffers, at: int, verdicts: ChoiceVerdicts | None) -> None:
    """Write the judged alternatives of closed windows."""
    if verdicts is not None:
        flat = (value.reshape(-1, value.shape[-1]) for value in vars(verdicts).values())
        out.put(at, **{f"window_{name}": value for name, value in zip(vars(verdicts), flat, strict=True)})


def _put_waking(
    out: Buffers, at: int, waking: Waking, judgement: gate.Attention | None, weighing: Weighing | None
) -> None:
    """Write surprise, threshold and tier, and the figures of attention or of the learned gate."""
    out.put(at, **{name: value for name, value in vars(waking).items() if name != "cached"})
    if waking.cached is not None:
        out.put(at, **{f"cache_{name}": value for name, value in vars(waking.cached).items()})
    if weighing is not None:
        out.put(at, **{f"gating_{name}": getattr(weighing, name) for name in GATED})
    if judgement is not None:
        out.put(at, **{f"attention_{name}": value for name, value in vars(judgement).items()})


def _put_routing(out: Buffers, at: int, fleet: Fleet, routing: Routing | None, policy: Policy) -> None:
    """Write the routed events, and the router's learning state of golems that begin a delta."""
    if routing is None:
        return
    begins = fleet.tick % policy.gating.delta_ticks == 1 % policy.gating.delta_ticks
    out.put(at, triage_begins=begins, **{f"triage_{name}": getattr(routing, name) for name in ROUTED})
    if begins.any() or "triage_theta" not in out:
        out.put(at, **{f"triage_{name}": value for name, value in router_states(fleet).items()})


def _put_life(out: Buffers, at: int, fleet: Fleet, life: Vitality) -> None:
    """Write vitality and the mood after the tick."""
    out.put(at, pad_after=fleet.pad, **vars(life))
    out.put(at, **_fields(fleet, "alive", "tick", "cycle_seen", "playbook_version", "credits"))


def _put_loans(out: Buffers, at: int, fleet: Fleet, loans: LoanActs | None) -> None:
    """Write loans before any action of this tick; nothing in a market without reserves."""
    if loans is not None:
        shares = np.stack([fleet.collateral_shares, fleet.debt_shares])
        columns = {"value": fleet.loan_value, "health": fleet.loan_health, "cost": fleet.loan_cost, "shares": shares}
        out.put(at, **{f"loan_{name}": value for name, value in columns.items()})
        out.put(at, loan_asset=fleet.collateral_asset, loan_tick=fleet.loan_tick)


def _put_thoughts(
    out: Buffers, at: int, memory: Recollection | None, choice: Choice | None, loans: LoanActs | None
) -> None:
    """Write what deliberating golems retrieved and chose, and the actions on loans."""
    if loans is not None:
        out.put(at, **{f"lent_{name}": value for name, value in vars(loans).items()})
    for prefix, thought in (("choice", choice), ("memory", memory)):
        if thought is not None:
            columns = {f"{prefix}_{name}": value for name, value in vars(thought).items() if name != "golem"}
            out.scatter(at, thought.golem, **columns)
