"""Deliberation by rules: decide, simulate, validate, execute (steps 5-8). Pure, over columns.

Only golems that passed the gate deliberate; others keep their position. The playbook's threshold decides, a warning can
block the decision, and the policy cage or gas gate refuse it. Source: HB S3, S10; canon 24, 27; MEM (immune memory).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int8Array, Int64Array, UInt64Array, first_case
from bardo_pipeline.curator.choice_rules import ENTER as ENTERS
from bardo_pipeline.curator.choice_rules import LEAVE as LEAVES
from bardo_pipeline.curator.choice_rules import STAY_OUT
from bardo_pipeline.heartbeat import refusals
from bardo_pipeline.heartbeat.caution import lesson_weight, moved_threshold, prior_weight
from bardo_pipeline.heartbeat.defi import rebalance
from bardo_pipeline.heartbeat.defi.risk_engine import Stake, risk_stops
from bardo_pipeline.heartbeat.fleet import RECALL, Fleet
from bardo_pipeline.heartbeat.gas_gate import gas_stops, pay_gas
from bardo_pipeline.heartbeat.observe import Sight
from bardo_pipeline.heartbeat.recall_table import Recall, cells
from bardo_pipeline.heartbeat.recollection import Recollection
from bardo_pipeline.heartbeat.refusals import BLOCKED, DEFERRED, EXECUTED, REVERTED
from bardo_pipeline.heartbeat.safety.permits import Permits, accuracy_stop, issue
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.market.uniswap_v3 import amounts, liquidity_for, worth
from bardo_pipeline.mortality.credit_partitions import split
from bardo_pipeline.mortality.random_streams import STREAM_EXECUTION, uniform
from bardo_pipeline.policy import Policy

HOLD, REBALANCE, ENTER, LEAVE, COLLECT = range(5)
ACTIONS = ("hold", "rebalance", "add_liquidity", "remove_liquidity", "collect_fees")
RULES = (
    ("anomaly ", " is below the playbook's "),
    ("anomaly ", " reaches the playbook's "),
    ("no position in the first tick of a life",),
    ("no position; tick ", " reaches the end of the cool-down, tick "),
    ("drawdown ", " reaches the halt at "),
    ("fees of ", " micro-dollars reach the playbook's "),
    ("no position; tick ", " is before the end of the cool-down, tick "),
    ("no position; a volatile regime is not entered",),
    ("no position; the playbook stays out of this regime",),
    ("the playbook leaves this regime",),
    ("no position; the playbook enters this regime",),
    ("anomaly ", " is below the threshold that scars and propositions raise to "),
    ("anomaly ", " reaches the threshold that propositions lower to "),
    ("anomaly ", " is below the threshold that lessons of dreams raise to "),
    ("anomaly ", " reaches the threshold that lessons of dreams lower to "),
)
"""Words of each rule of the playbook, around its two numbers, or alone."""
(
    STAY, MOVE, BORN, REENTER, FALLEN, FEES, COOLING, TURMOIL, OUTSIDE, GONE, CALLED, WARY, URGED, TAUGHT_TO_WAIT,
    TAUGHT_TO_MOVE,
) = range(len(RULES))  # fmt: skip
IS_CHANGED = np.isin(np.arange(len(RULES)), (WARY, URGED, TAUGHT_TO_WAIT, TAUGHT_TO_MOVE))
"""Whether retrieved priors changed a decision, by its rule."""
_IS_LEARNED = np.isin(np.arange(len(RULES)), (OUTSIDE, GONE, CALLED))
VOLATILE = 3
_INTEGER_FIELDS = (
    "action", "status", "rule", "why", "why_size", "why_limit", "gas_micros", "slip_ppm", "expected_slip_ppm",
    "moved_micros", "swap_micros", "input_tokens", "output_tokens", "cost_micros", "width",
    "expires_us",
)  # fmt: skip


@dataclass
class Choice:
    """Choices of deliberating golems, [thinkers]; recalled entries [RECALL, thinkers], -1 without entry.

    rule: the rule of the playbook that chose the action, with its two numbers. why: the refusal, with its two numbers.
    width: half-width of the new range, 0 without one. width_rule, presence_rule: codes of the learned rules that chose
    the half-width, and whether to be in the market; -1 for the trait.
    permitted, market_state, expires_us, accuracy, simulated: of the permit by which the action was sent.
    prior_weight: of the priors, which move the playbook's threshold to `threshold`. lesson_weight: the part of it that
    lessons of dreams have.
    """

    golem: Int64Array
    action: Int64Array
    status: Int64Array
    rule: Int64Array
    rule_size: Float64Array
    rule_limit: Float64Array
    why: Int64Array
    why_size: Int64Array
    why_limit: Int64Array
    prior_weight: Float64Array
    lesson_weight: Float64Array
    threshold: Float64Array
    blocker: Int64Array
    recalled: Int64Array
    gas_micros: Int64Array
    slip_ppm: Int64Array
    expected_slip_ppm: Int64Array
    moved_micros: Int64Array
    swap_micros: Int64Array
    certainty: Float64Array
    input_tokens: Int64Array
    output_tokens: Int64Array
    cost_micros: Int64Array
    width: Int64Array
    width_rule: Int64Array
    presence_rule: Int64Array
    permitted: BoolArray
    market_state: UInt64Array
    expires_us: Int64Array
    accuracy: Float64Array
    simulated: BoolArray


def choose(
    fleet: Fleet, tape: Tape, t: int, sight: Sight, tier: Int8Array, recall: Recall, policy: Policy,
    settling: BoolArray | None = None, memory: Recollection | None = None, cut: refusals.Cut | None = None,
) -> Choice | None:  # fmt: skip
    """Let golems at T1 and T2 deliberate, act and pay for it; None if the gate passed no golem.

    settling: golems whose loan is being liquidated; they defer their action to the next deliberation. memory: what
    these golems retrieved; None: nothing. cut: where the calls of this tick end; None: all are sent.
    """
    golem = np.flatnonzero((tier == 1) | (tier == 2))
    if not len(golem):
        return None
    deep = tier[golem] == 2
    liquidating = np.zeros(len(golem), bool) if settling is None else settling[golem]
    choice, plan = considered(fleet, tape, t, sight, golem, deep, recall, policy, liquidating, memory, cut)
    _price(choice, deep, policy)
    permits = issue(fleet, tape, t, golem, choice.action, choice.status, deep, policy)
    execute(fleet, tape, t, sight, choice, plan, permits, recall, policy)
    if cut is not None:
        sent = (choice.action != HOLD) & ((choice.status == EXECUTED) | (choice.status == REVERTED))
        cut.note(golem[sent])
    return choice


def execute(
    fleet: Fleet, tape: Tape, t: int, sight: Sight, choice: Choice, plan: Plan, permits: Permits, recall: Recall,
    policy: Policy,
) -> None:  # fmt: skip
    """Execute decided actions by their permits, at the tick of the decision or later; actions without one are deferred.

    sight: of tick t. The permits are void afterwards.
    """
    allowed = permits.use(fleet, tape, t, choice.action)
    _defer_unpermitted(choice, allowed)
    choice.permitted, choice.simulated, choice.accuracy = allowed, permits.simulated & allowed, permits.accuracy
    choice.market_state[:], choice.expires_us[:] = permits.market_state, permits.expires_us
    _try(fleet, tape, t, sight, choice, plan, recall, policy)
    _execute(fleet, choice, plan, sight, tape, t, policy)


def _defer_unpermitted(choice: Choice, allowed: BoolArray) -> None:
    """Defer the actions that would be sent without a permit; nothing is paid for them."""
    sent = (choice.action != HOLD) & ((choice.status == EXECUTED) | (choice.status == REVERTED))
    stopped = sent & ~allowed
    choice.status[stopped], choice.why[stopped] = DEFERRED, refusals.NO_PERMIT
    choice.why_size[stopped], choice.why_limit[stopped] = 0, 0
    for column in (choice.gas_micros, choice.slip_ppm, choice.swap_micros):
        column[~allowed] = 0


def considered(
    fleet: Fleet, tape: Tape, t: int, sight: Sight, golem: Int64Array, deep: BoolArray, recall: Recall, policy: Policy,
    liquidating: BoolArray, memory: Recollection | None, cut: refusals.Cut | None = None,
) -> tuple[Choice, Plan]:  # fmt: skip
    """Return the choices of these golems (positions) and their plans, without acting.

    deep: golems at T2. liquidating, memory: as in `choose`, [thinkers].
    """
    cell = cells(int(tape.regime[t]), sight.score[golem], tape.gas_hour_ratio[t], policy.curator)
    choice = _unchosen(golem, memory)
    choice.prior_weight = prior_weight(memory, recall, len(golem))
    choice.lesson_weight = lesson_weight(memory, recall, len(golem))
    _decide(fleet, tape, t, sight, choice, recall.block[cell, golem], policy)
    plan = _plan(fleet, tape, t, sight, choice, policy)
    _check(fleet, tape, t, sight, choice, plan, deep, liquidating, policy, cut)
    return choice, plan


def _unchosen(golem: Int64Array, memory: Recollection | None) -> Choice:
    """Return choices of these golems before any decision, with what they retrieved."""
    recalled = np.full((RECALL, len(golem)), -1) if memory is None else memory.recalled
    columns: dict[str, Any] = {name: np.zeros(len(golem), np.int64) for name in _INTEGER_FIELDS}
    columns |= {
        name: np.zeros(len(golem))
        for name in ("rule_size", "rule_limit", "prior_weight", "lesson_weight", "threshold", "certainty")
    }
    columns |= {name: np.zeros(len(golem), bool) for name in ("permitted", "simulated")}
    columns |= {"market_state": np.zeros(len(golem), np.uint64), "accuracy": np.zeros(len(golem))}
    columns |= {name: np.full(len(golem), -1) for name in ("blocker", "width_rule", "presence_rule")}
    return Choice(golem=golem, recalled=recalled, **columns)


def _decide(fleet: Fleet, tape: Tape, t: int, sight: Sight, choice: Choice, block: Int64Array, policy: Policy) -> None:
    """Apply the rules: leave a losing position, enter without one, re-centre from the threshold on, else hold.

    The playbook may say for a regime to leave, to stay out, or to enter although it is volatile.
    """
    golem, regime = choice.golem, int(tape.regime[t])
    held, score = sight.open[golem], sight.score[golem]
    threshold = fleet.rebalance_threshold[regime, golem]
    choice.threshold = moved_threshold(threshold, choice.prior_weight, score, policy)
    born = fleet.tick[golem] == 1
    tick, cooldown, rules = fleet.tick[golem], fleet.cooldown[golem], policy.playbook
    cool = tick >= cooldown
    learned = fleet.presence[regime, golem]
    stays_out, called = ~held & (learned >= STAY_OUT), ~held & (learned == ENTERS) & cool
    enter = (~held & ~stays_out & (born | (cool & (regime != VOLATILE)))) | called
    fallen = held & (sight.drawdown[golem] >= policy.probes.nav_high)
    gone = held & ~fallen & (learned == LEAVES)
    leave = fallen | gone
    move = held & ~leave & (score >= choice.threshold)
    collect = held & ~leave & ~move & (fleet.fees[golem] >= rules.collect_fees_micros)
    choice.action = first_case([enter, leave, move, collect], [ENTER, LEAVE, REBALANCE, COLLECT], HOLD)
    wary, urged = held & ~leave & (score >= threshold) & ~move & ~collect, move & (score < threshold)
    untaught = moved_threshold(threshold, choice.prior_weight - choice.lesson_weight, score, policy)
    waits, moves = wary & (score >= untaught), urged & (score < untaught)  # it is the lessons that decide
    cases = [called, enter & born, enter, fallen, gone, moves, urged, move, collect, waits, wary, held, stays_out, cool]
    rules_of_cases = [
        CALLED, BORN, REENTER, FALLEN, GONE, TAUGHT_TO_MOVE, URGED, MOVE, FEES, TAUGHT_TO_WAIT, WARY, STAY, OUTSIDE,
        TURMOIL,
    ]  # fmt: skip
    choice.rule = first_case(cases, rules_of_cases, COOLING)
    mints, width = enter | move, fleet.half_width_in(regime)[golem]
    choice.width, choice.width_rule = np.where(mints, width, 0), np.where(mints, fleet.range_rule[regime, golem], -1)
    choice.presence_rule = np.where(_IS_LEARNED[choice.rule], fleet.presence_rule[regime, golem], -1)
    choice.rule_size = first_case([fallen, collect, held], [sight.drawdown[golem], fleet.fees[golem], score], tick)
    limits = policy.probes.nav_high, rules.collect_fees_micros
    anomaly_limit = np.where(wary | urged, choice.threshold, threshold)
    choice.rule_limit = first_case([fallen, collect, held], [*limits, anomaly_limit], cooldown)
    warned = move & (block >= 0)
    choice.blocker = np.where(warned, block, -1)
    choice.status[warned], choice.why[warned] = BLOCKED, refusals.WARNING
    distance = np.minimum(np.abs(score - choice.threshold) / rules.sure_distance, 1.0)
    sureness = np.where(held, distance, rules.sureness_away)
    choice.certainty = rules.certainty_past * fleet.confidence[golem] + (1.0 - rules.certainty_past) * sureness


@dataclass
class Plan:
    """Requirements of the chosen action, [thinkers]: micro-dollars to swap, gas in micro-dollars, slippage in ppm.

    centre: re-centring, whichever action was chosen, because it is judged in a trial.
    """

    centre: rebalance.Recentring
    swap: Float64Array
    gas: Int64Array
    slip: Int64Array
    expected_slip: Int64Array


def _plan(fleet: Fleet, tape: Tape, t: int, sight: Sight, choice: Choice, policy: Policy) -> Plan:
    """Compute the new range around the price, the swap to reach it, and the gas."""
    golem, centre = choice.golem, rebalance.recentring(fleet, tape, t, sight, choice.golem)
    mints = (choice.action == REBALANCE) | (choice.action == ENTER)
    swap = np.where(mints, centre.swap, np.where(choice.action == LEAVE, centre.value * centre.share, 0.0))
    units = np.array(
        [policy.cost.rebalance_gas_units] * 2
        + [policy.cost.enter_gas_units, policy.cost.exit_gas_units, policy.cost.collect_gas_units]
    )[choice.action]
    slip = np.zeros(len(golem), np.int64)
    if swap.any():
        slip = rebalance.slips(tape, t, swap, uniform(fleet.seed[golem], fleet.tick[golem], STREAM_EXECUTION))
    return Plan(
        centre=centre,
        swap=swap,
        gas=rebalance.gas_micros(tape, t, units).astype(np.int64),
        slip=slip,
        expected_slip=rebalance.slips(tape, t, swap, rebalance.MEDIAN_LUCK),
    )


def _check(
    fleet: Fleet, tape: Tape, t: int, sight: Sight, choice: Choice, plan: Plan, deep: BoolArray, liquidating: BoolArray,
    policy: Policy, cut: refusals.Cut | None,
) -> None:  # fmt: skip
    """Simulate (T2), validate (T1 and T2), and apply the slippage on inclusion. The first refusal counts."""
    acts, centre = choice.action != HOLD, plan.centre
    stops = _stops(fleet, tape, t, sight, choice, plan, deep, liquidating, policy, cut) if acts.any() else ()
    for mask, status, why, size, most in stops:
        hit = mask & acts & (choice.why == refusals.NO_REFUSAL)
        if hit.any():
            choice.status[hit], choice.why[hit] = status, why
            choice.why_size[hit], choice.why_limit[hit] = size[hit], most[hit]
    sent = acts & ((choice.status == EXECUTED) | (choice.status == REVERTED))
    choice.gas_micros = np.where(sent, plan.gas, 0)
    choice.slip_ppm = np.where(choice.status == EXECUTED, plan.slip, 0)
    choice.expected_slip_ppm = plan.expected_slip
    choice.swap_micros = np.where(choice.status == EXECUTED, np.rint(plan.swap), 0).astype(np.int64)
    choice.moved_micros = np.where(acts, np.rint(centre.value), 0).astype(np.int64)


def _stops(
    fleet: Fleet, tape: Tape, t: int, sight: Sight, choice: Choice, plan: Plan, deep: BoolArray, liquidating: BoolArray,
    policy: Policy, cut: refusals.Cut | None,
) -> tuple[refusals.Stop, ...]:  # fmt: skip
    """Return what stops the chosen actions: policy cage, gas gate, risk engine and accuracy gate, in this order."""
    cage, golem = policy.cage, choice.golem
    limit = round(cage.slippage_max * 1e6)
    centre = plan.centre
    fits = liquidity_for(centre.value, centre.root_lower, centre.root_upper, tape.root[t])
    mints = (choice.action == REBALANCE) | (choice.action == ENTER)
    pool_share = fits / (tape.liquidity[t] + fits)
    value_limit = np.floor(cage.gas_share_max * centre.value).astype(np.int64)
    forbidden_protocol = np.full(len(golem), tape.market.protocol not in cage.protocols)
    nothing, limits = np.zeros(len(golem), np.int64), np.full(len(golem), limit)
    pool_limits = np.full(len(golem), refusals.ppm_of(cage.pool_share_max))
    pool_ppm = np.ceil(pool_share * 1e6).astype(np.int64)
    return (
        *(() if cut is None else cut.stops(golem)),
        (forbidden_protocol, BLOCKED, refusals.PROTOCOL, nothing, nothing),
        (liquidating, DEFERRED, refusals.LIQUIDATION, nothing, nothing),
        (deep & (plan.expected_slip > limit), BLOCKED, refusals.SIMULATION, plan.expected_slip, limits),
        (mints & (pool_share > cage.pool_share_max), BLOCKED, refusals.POOL_SHARE, pool_ppm, pool_limits),
        (plan.gas > value_limit, DEFERRED, refusals.VALUE_SHARE, plan.gas, value_limit),
        *((mask, DEFERRED, why, plan.gas, most) for mask, why, most in gas_stops(fleet, golem, plan.gas, policy)),
        *risk_stops(fleet, tape, t, golem, sight.nav[golem], _stake(choice, plan, deep, mints), policy),
        accuracy_stop(fleet, golem, mints, policy),
        (plan.slip > limit, REVERTED, refusals.SLIPPAGE, plan.slip, limits),
    )


def _stake(choice: Choice, plan: Plan, deep: BoolArray, mints: BoolArray) -> Stake:
    """Return what the chosen actions put at risk; a new position could be left by swapping half of it."""
    value = plan.centre.value
    return Stake(
        risky=mints,
        deep=deep & (choice.action != HOLD),
        cost=plan.gas + plan.swap * plan.expected_slip * 1e-6,
        value=value,
        borrowed=np.zeros(len(value)),
        exit_swap=np.where(mints, 0.5 * value, 0.0),
    )


def _try(
    fleet: Fleet, tape: Tape, t: int, sight: Sight, choice: Choice, plan: Plan, recall: Recall, policy: Policy
) -> None:
    """Open a paired trial of re-centring versus holding, whichever was chosen."""
    golem = choice.golem
    acted = (choice.action == REBALANCE) & (choice.status == EXECUTED)
    weighed = ((choice.action == HOLD) | (choice.action == COLLECT)) & (
        sight.score[golem] >= policy.playbook.trial_score_min
    )
    refused = (choice.action == REBALANCE) & (choice.status != EXECUTED)
    pick = np.flatnonzero(sight.open[golem] & (acted | weighed | refused))
    if not len(pick):
        return
    slip = np.where(acted[pick], plan.slip[pick], plan.centre.expected_slip[pick])
    recalled = choice.recalled[:, pick]
    codes = np.where(recalled >= 0, recall.code[recalled], -1)
    rebalance.try_recentring(fleet, tape, t, sight, plan.centre.take(pick), acted[pick], slip, codes, policy)


def _execute(fleet: Fleet, choice: Choice, plan: Plan, sight: Sight, tape: Tape, t: int, policy: Policy) -> None:
    """Pay gas, apply executed actions: collect fees into credits, swap with slippage, mint a position or hold cash.

    Collected fees are withdrawals, not losses: the high-water mark falls by the same share as the net asset value.
    """
    if not choice.permitted.any():  # nothing was sent
        return
    pay_gas(fleet, choice.golem, choice.gas_micros, int(tape.at_us[t]))
    executed = (choice.action != HOLD) & (choice.status == EXECUTED)
    golem = choice.golem[executed]
    if not len(golem):
        return
    action, root = choice.action[executed], tape.root[t]
    collected = np.floor(fleet.fees[golem]).astype(np.int64)
    fleet.partitions[:, golem] += split(collected, policy)
    fleet.earned[golem] += collected
    fleet.fees[golem] -= collected
    fleet.high_water[golem] *= 1.0 - collected / np.maximum(sight.nav[golem], 1.0)
    centre = plan.centre.take(executed)
    kept = centre.value - plan.swap[executed] * choice.slip_ppm[executed] * 1e-6
    mint = (action == REBALANCE) | (action == ENTER)
    to, value = golem[mint], kept[mint]
    lower, upper = centre.root_lower[mint], centre.root_upper[mint]
    fleet.root_lower[to], fleet.root_upper[to] = lower, upper
    fleet.lower[to], fleet.upper[to] = centre.lower[mint], centre.upper[mint]
    fleet.liquidity[to] = liquidity_for(value, lower, upper, root)
    fleet.hold0[to], fleet.hold1[to] = amounts(fleet.liquidity[to], lower, upper, root)
    fleet.opened_tick[to] = fleet.tick[to]
    fleet.idle[golem[action == ENTER]] = 0
    out = golem[action == LEAVE]
    fleet.idle[out] += np.floor(kept[action == LEAVE]).astype(np.int64)
    fleet.liquidity[out] = 0.0
    fleet.cooldown[out] = fleet.tick[out] + policy.playbook.reentry_ticks
    fleet.high_water[out] = fleet.idle[out]


def _price(choice: Choice, deep: BoolArray, policy: Policy) -> None:
    """Compute the price of a deliberation from its input and output tokens (HB S3's price classes)."""
    cost = policy.cost
    entries = (choice.recalled >= 0).sum(axis=0)
    choice.input_tokens = np.where(deep, cost.t2_context_tokens, cost.t1_context_tokens) + cost.entry_tokens * entries
    choice.output_tokens = np.where(deep, cost.t2_output_tokens, cost.t1_output_tokens)
    rate_in = np.where(deep, cost.t2_input_micros_per_token, cost.t1_input_micros_per_token)
    rate_out = np.where(deep, cost.t2_output_micros_per_token, cost.t1_output_micros_per_token)
    choice.cost_micros = np.rint(choice.input_tokens * rate_in + choice.output_tokens * rate_out).astype(np.int64)


def worth_after(fleet: Fleet, root: float) -> Float64Array:
    """Return the net asset value after acting, in micro-dollars."""
    held = worth(fleet.liquidity, fleet.root_lower, fleet.root_upper, root)
    return held + fleet.fees + fleet.idle + fleet.loan_value
