"""Deliberation by rules: retrieve, decide, simulate, validate, execute (steps 2 and 5-8). Pure, over columns.

Only golems that passed the gate deliberate; others keep their position. The playbook's threshold decides, a warning can
block the decision, and the policy cage has the last word. Source: HB S3, S10; canon 24, 27; MEM (immune memory).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int8Array, Int64Array
from bardo_pipeline.heartbeat.defi import rebalance
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.heartbeat.observe import Sight
from bardo_pipeline.heartbeat.recall_table import Recall, cells
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.market.uniswap_v3 import amounts, liquidity_for, worth
from bardo_pipeline.mortality.affect import pad_congruence
from bardo_pipeline.mortality.random_streams import STREAM_EXECUTION, uniform
from bardo_pipeline.policy import Policy

HOLD, REBALANCE, ENTER, LEAVE, COLLECT = range(5)
ACTIONS = ("hold", "rebalance", "add_liquidity", "remove_liquidity", "collect_fees")
EXECUTED, BLOCKED, DEFERRED, REVERTED = range(4)
STATUS = ("executed", "blocked", "deferred", "reverted")
(
    WHY_NONE, WHY_WARNING, WHY_SIMULATED, WHY_POOL, WHY_GAS_VALUE, WHY_GAS_CREDIT, WHY_SLIPPED, WHY_PROTOCOL, WHY_LOAN,
) = range(9)  # fmt: skip
WHY = (
    None,
    "a warning stands against acting here",
    "simulation: slippage above the limit",
    "policy cage: share of the pool above the limit",
    "gas gate: gas above its share of the position's value",
    "gas gate: gas above its share of available credits",
    "slippage above the limit on inclusion",
    "policy cage: this protocol may not be touched",
    "its loan is being liquidated",
)
VOLATILE = 3
_INTEGER_FIELDS = (
    "action", "status", "why", "gas_micros", "slip_ppm", "expected_slip_ppm", "moved_micros", "swap_micros",
    "input_tokens", "output_tokens", "cost_micros",
)  # fmt: skip


@dataclass
class Choice:
    """Choices of deliberating golems, [thinkers]; recalled entries and factors [RECALL, thinkers], -1 without entry."""

    golem: Int64Array
    action: Int64Array
    status: Int64Array
    why: Int64Array
    threshold: Float64Array
    blocker: Int64Array
    recalled: Int64Array
    likeness: Float64Array
    recency: Float64Array
    importance: Float64Array
    affect: Float64Array
    score: Float64Array
    gas_micros: Int64Array
    slip_ppm: Int64Array
    expected_slip_ppm: Int64Array
    moved_micros: Int64Array
    swap_micros: Int64Array
    certainty: Float64Array
    input_tokens: Int64Array
    output_tokens: Int64Array
    cost_micros: Int64Array


def choose(
    fleet: Fleet, tape: Tape, t: int, sight: Sight, tier: Int8Array, recall: Recall, policy: Policy,
    settling: BoolArray | None = None,
) -> Choice | None:  # fmt: skip
    """Let golems at T1 and T2 deliberate, act and pay for it; None if the gate passed no golem.

    settling: golems whose loan is being liquidated; they defer their action to the next deliberation.
    """
    golem = np.flatnonzero((tier == 1) | (tier == 2))
    if not len(golem):
        return None
    deep = tier[golem] == 2
    cell = cells(int(tape.regime[t]), sight.score[golem], tape.gas_hour_ratio[t], policy.curator)
    choice = _remember(fleet, tape, t, golem, cell, recall, policy)
    _decide(fleet, tape, t, sight, choice, recall.block[cell, golem], policy)
    plan = _plan(fleet, tape, t, sight, choice, policy)
    liquidating = np.zeros(len(golem), bool) if settling is None else settling[golem]
    _check(fleet, tape, t, choice, plan, deep, liquidating, policy)
    _try(fleet, tape, t, sight, choice, plan, recall, policy)
    _execute(fleet, choice, plan, sight, tape.root[t], policy)
    _price(choice, deep, policy)
    return choice


def _remember(
    fleet: Fleet, tape: Tape, t: int, golem: Int64Array, cell: Int64Array, recall: Recall, policy: Policy
) -> Choice:
    """Rank the recalled entries by likeness of the situation, recency, importance and mood congruence."""
    weights = policy.retrieval
    entry = recall.top[:, cell, golem]
    exists = entry >= 0
    recency, importance = recall.factors(entry, int(tape.at_us[t]))
    likeness = recall.likeness[:, cell, golem]
    mood = np.broadcast_to(fleet.pad[:, None, golem], (3, *entry.shape))
    affect = pad_congruence(recall.pad[:, entry], mood)
    score = weights.semantic * likeness + weights.recency * recency
    score = np.minimum(score + weights.importance * importance + weights.affect * affect, 1.0)
    order = np.argsort(np.where(exists, -score, 1.0), axis=0, kind="stable")

    def take(values: Float64Array) -> Float64Array:
        return np.take_along_axis(np.where(exists, values, 0.0), order, axis=0)

    return Choice(
        golem=golem,
        threshold=np.zeros(len(golem)),
        blocker=np.full(len(golem), -1),
        recalled=np.take_along_axis(entry, order, axis=0),
        likeness=take(likeness),
        recency=take(recency),
        importance=take(importance),
        affect=take(affect),
        score=take(score),
        certainty=np.zeros(len(golem)),
        **{name: np.zeros(len(golem), np.int64) for name in _INTEGER_FIELDS},
    )


def _decide(fleet: Fleet, tape: Tape, t: int, sight: Sight, choice: Choice, block: Int64Array, policy: Policy) -> None:
    """Apply the rules: leave a losing position, enter without one, re-centre from the threshold on, else hold."""
    golem, regime = choice.golem, int(tape.regime[t])
    held, score = sight.open[golem], sight.score[golem]
    choice.threshold = fleet.rebalance_threshold[regime, golem]
    born = fleet.tick[golem] == 1
    enter = ~held & (born | ((fleet.tick[golem] >= fleet.cooldown[golem]) & (regime != VOLATILE)))
    leave = held & (sight.drawdown[golem] >= policy.probes.nav_high)
    move = held & ~leave & (score >= choice.threshold)
    collect = held & ~leave & ~move & (fleet.fees[golem] >= policy.playbook.collect_fees_micros)
    choice.action = np.select([enter, leave, move, collect], [ENTER, LEAVE, REBALANCE, COLLECT], HOLD).astype(np.int64)
    warned = move & (block >= 0)
    choice.blocker = np.where(warned, block, -1)
    choice.status[warned], choice.why[warned] = BLOCKED, WHY_WARNING
    rules = policy.playbook
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
    mints = np.isin(choice.action, (REBALANCE, ENTER))
    swap = np.where(mints, centre.swap, np.where(choice.action == LEAVE, centre.value * centre.share, 0.0))
    units = np.array(
        [policy.cost.rebalance_gas_units] * 2
        + [policy.cost.enter_gas_units, policy.cost.exit_gas_units, policy.cost.collect_gas_units]
    )[choice.action]
    luck = uniform(fleet.seed[golem], fleet.tick[golem], STREAM_EXECUTION)
    return Plan(
        centre=centre,
        swap=swap,
        gas=rebalance.gas_micros(tape, t, units).astype(np.int64),
        slip=rebalance.slips(tape, t, swap, luck),
        expected_slip=rebalance.slips(tape, t, swap, rebalance.MEDIAN_LUCK),
    )


def _check(
    fleet: Fleet, tape: Tape, t: int, choice: Choice, plan: Plan, deep: BoolArray, liquidating: BoolArray,
    policy: Policy,
) -> None:  # fmt: skip
    """Simulate (T2), validate against the cage and the gas gate (T1 and T2), and apply the slippage on inclusion."""
    cage, golem = policy.cage, choice.golem
    limit = round(cage.slippage_max * 1e6)
    centre = plan.centre
    fits = liquidity_for(centre.value, centre.root_lower, centre.root_upper, tape.root[t])
    mints = np.isin(choice.action, (REBALANCE, ENTER))
    exceeds_pool_share = mints & (fits / (tape.liquidity[t] + fits) > cage.pool_share_max)
    exceeds_value_share = plan.gas > cage.gas_share_max * centre.value
    exceeds_credit_share = plan.gas > cage.gas_credit_share_max * fleet.credits[golem]
    urgent = choice.action == LEAVE
    forbidden_protocol = np.full(len(golem), tape.market.protocol not in cage.protocols)
    for mask, status, why in (
        (forbidden_protocol, BLOCKED, WHY_PROTOCOL),
        (liquidating, DEFERRED, WHY_LOAN),
        (deep & (plan.expected_slip > limit), BLOCKED, WHY_SIMULATED),
        (exceeds_pool_share, BLOCKED, WHY_POOL),
        (exceeds_value_share & ~urgent, DEFERRED, WHY_GAS_VALUE),
        (exceeds_credit_share & ~urgent, DEFERRED, WHY_GAS_CREDIT),
        (plan.slip > limit, REVERTED, WHY_SLIPPED),
    ):
        hit = mask & (choice.action != HOLD) & (choice.why == WHY_NONE)
        choice.status[hit], choice.why[hit] = status, why
    sent = (choice.action != HOLD) & ((choice.status == EXECUTED) | (choice.status == REVERTED))
    choice.gas_micros = np.where(sent, plan.gas, 0)
    choice.slip_ppm = np.where(choice.status == EXECUTED, plan.slip, 0)
    choice.expected_slip_ppm = plan.expected_slip
    choice.swap_micros = np.where(choice.status == EXECUTED, np.rint(plan.swap), 0).astype(np.int64)
    choice.moved_micros = np.where(choice.action != HOLD, np.rint(centre.value), 0).astype(np.int64)


def _try(
    fleet: Fleet, tape: Tape, t: int, sight: Sight, choice: Choice, plan: Plan, recall: Recall, policy: Policy
) -> None:
    """Open a paired trial of re-centring versus holding, whichever was chosen."""
    golem = choice.golem
    acted = (choice.action == REBALANCE) & (choice.status == EXECUTED)
    weighed = np.isin(choice.action, (HOLD, COLLECT)) & (sight.score[golem] >= policy.playbook.trial_score_min)
    refused = (choice.action == REBALANCE) & (choice.status != EXECUTED)
    pick = np.flatnonzero(sight.open[golem] & (acted | weighed | refused))
    if not len(pick):
        return
    slip = np.where(acted[pick], plan.slip[pick], plan.centre.expected_slip[pick])
    recalled = choice.recalled[:, pick]
    codes = np.where(recalled >= 0, recall.code[recalled], -1)
    rebalance.try_recentring(fleet, tape, t, sight, plan.centre.take(pick), acted[pick], slip, codes, policy)


def _execute(fleet: Fleet, choice: Choice, plan: Plan, sight: Sight, root: float, policy: Policy) -> None:
    """Apply executed actions: collect fees into credits, swap with slippage, mint a new position or hold cash.

    Collected fees are withdrawals, not losses: the high-water mark falls by the same share as the net asset value.
    """
    executed = (choice.action != HOLD) & (choice.status == EXECUTED)
    golem = choice.golem[executed]
    if not len(golem):
        return
    action = choice.action[executed]
    collected = np.floor(fleet.fees[golem]).astype(np.int64)
    fleet.credits[golem] += collected
    fleet.earned[golem] += collected
    fleet.fees[golem] -= collected
    fleet.high_water[golem] *= 1.0 - collected / np.maximum(sight.nav[golem], 1.0)
    centre = plan.centre.take(executed)
    kept = centre.value - plan.swap[executed] * choice.slip_ppm[executed] * 1e-6
    mint = np.isin(action, (REBALANCE, ENTER))
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
    held = np.where(fleet.liquidity > 0, worth(fleet.liquidity, fleet.root_lower, fleet.root_upper, root), 0.0)
    return held + fleet.fees + fleet.idle + fleet.loan_value
