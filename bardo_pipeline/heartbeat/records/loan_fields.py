"""Records of loans: the loan as a position, and what was done with it, beside what the pool's position leaves. Pure.

A record has them in the fields that it has for positions and actions; rows of golems without a loan stay as they are.
Source: HB S6.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.heartbeat.decide import EXECUTED, REVERTED, STATUS
from bardo_pipeline.heartbeat.defi.aave_loans import BORROW, LIQUIDATED, LOAN_ACTIONS, NOTHING, REPAY, Terms
from bardo_pipeline.heartbeat.defi.borrowing_rules import LOAN_WHY
from bardo_pipeline.heartbeat.records.arrow_builders import (
    flag,
    joined,
    listed,
    lists_beside,
    real,
    same,
    struct,
    whole,
    word,
)
from bardo_pipeline.heartbeat.records.chunk_rows import Rows, kind, owing
from bardo_pipeline.market.aave_reserves import ASSETS, LENDER
from bardo_pipeline.market.market import TICK_MAX

LOAN_TOOLS = (None, f"{LENDER}_borrow", f"{LENDER}_repay", f"{LENDER}_liquidation")
CAUSE = "price_move"
"""What a liquidation comes from: the price left what the loan can bear."""

_BASE = ASSETS.index("WETH")


def loan_positions(rows: Rows) -> tuple[np.ndarray, pa.Array]:
    """(how many loans each living row has, the loans as positions, in row order)."""
    lent = owing(rows)
    wanted = kind("observation").field("positions").type.value_type
    where = np.flatnonzero(lent)
    if not len(where):
        return lent, pa.array([], wanted)
    count, market = len(where), rows.chunk.tape.market
    lower, upper = _bearable(rows, where)
    names = joined(
        rows.ids.take(pa.array(where)),
        same("/loan-", count, pa.string()),
        whole(rows.of("loan_tick", where)).cast(pa.string()),
    )
    health = rows.of("loan_health", where)
    parts = {
        "position_id": names,
        "protocol": same(LENDER, count, pa.string()),
        "pair": same(market.pair, count, pa.string()),
        "tick_lower": whole(lower),
        "tick_upper": whole(upper),
        "liquidity": real(np.zeros(count)),
        "value_micros": whole(np.rint(rows.of("loan_value", where))),
        "fees_owed_micros": whole(np.zeros(count)),
        "impermanent_loss_micros": whole(np.rint(rows.of("loan_cost", where))),
        "in_range": flag(health >= 1.0),
        "health_factor": real(health),
    }
    return lent, struct(wanted, parts)


def _bearable(rows: Rows, where: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pool's ticks between which each loan's health is 1 or more, int64."""
    reserves, t = rows.chunk.tape.reserves, rows.t[where]
    assert reserves is not None, "only a market with reserves lends"
    asset, shares = rows.of("loan_asset", where), rows.of("loan_shares", where)
    supplied, owed = shares[:, 0] * reserves.supply_index[asset, t], shares[:, 1] * reserves.borrow_index[1 - asset, t]
    bears = supplied * Terms.of(asset, rows.chunk.policy.lending).threshold
    with np.errstate(divide="ignore"):
        limit = np.where(asset == _BASE, owed / bears, bears / owed)
        tick = np.clip(np.log(1e12 / limit) / np.log(1.0001), -TICK_MAX, TICK_MAX)
    base = asset == _BASE  # a fall of the price, which is a rise of the tick, hurts whoever supplied the base
    lower = np.where(base, -TICK_MAX, np.ceil(tick)).astype(np.int64)
    return lower, np.where(base, np.floor(tick), TICK_MAX).astype(np.int64)


def with_loan_acts(rows: Rows, parts: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """The parts of thought and action with what became of loans, in the order in which it was done.

    A loan is liquidated before a golem thinks, borrowed before there is a position, and repaid out of one.
    """
    out = dict(parts)
    if not rows.has("lent_action") or not (action := rows["lent_action"]).any():
        return out
    where = np.flatnonzero(action != NOTHING)
    own = parts["actions"]
    number = pc.list_value_length(own).to_numpy(zero_copy_only=False)
    out["actions"] = _in_order(action, _actions(rows, where), number, own)
    out["outcome"] = _outcomes(rows, where, parts["outcome"])
    out["deliberation"] = _deliberated(rows, parts["deliberation"])
    return out


def _in_order(action: np.ndarray, acts: pa.Array, number: np.ndarray, own: pa.Array) -> pa.Array:
    """The position's lists (own, of these lengths) with one act more where there is an action on the loan."""
    late = action == REPAY
    first, last = ((action != NOTHING) & ~late).astype(np.int64), late.astype(np.int64)
    is_late = pa.array(late[action != NOTHING])
    early = lists_beside(first, acts.filter(pc.invert(is_late)), number, own.flatten())
    return listed(own.type, first + number + last, lists_beside(first + number, early, last, acts.filter(is_late)))


def _actions(rows: Rows, where: np.ndarray) -> pa.Array:
    """What became of loans as actions. Of what the protocol did nobody permitted anything."""
    action, status = rows.of("lent_action", where), rows.of("lent_status", where)
    sent = (status == EXECUTED) | (status == REVERTED)
    count = len(where)
    permit = joined(
        same("permit-", count, pa.string()),
        rows.ids.take(pa.array(where)),
        same("-", count, pa.string()),
        whole(rows.of("tick", where)).cast(pa.string()),
        same("-loan", count, pa.string()),
    )
    own = action != LIQUIDATED
    parts = {
        "action_type": word(LOAN_ACTIONS, action),
        "tool_name": word(LOAN_TOOLS, action),
        "permit_id": pc.if_else(pa.array(sent & own), permit, pa.scalar(None, pa.string())),
        "tx_hash": pa.nulls(count, pa.string()),
        "status": word(STATUS, status),
        "block_reason": word(LOAN_WHY, rows.of("lent_why", where)),
        "gas_cost_micros": whole(rows.of("lent_gas", where)),
        "slippage_ppm": whole(rows.of("lent_slip_ppm", where), missing=~(own & (status == EXECUTED))),
        "value_micros": whole(rows.of("lent_value", where)),
    }
    return struct(kind("actions").value_type, parts)


def _outcomes(rows: Rows, where: np.ndarray, own: pa.Array) -> pa.Array:
    """Outcomes with what loans cost: of the tick as a whole, where the pool's position has one, too."""
    status = rows.of("lent_status", where)
    sent = where[(status == EXECUTED) | (status == REVERTED)]
    cost = -(rows.of("lent_gas", sent) + rows.of("lent_loss", sent))
    taken = rows.of("lent_action", sent) == LIQUIDATED
    place = np.full(rows.count, -1, np.int64)
    place[sent] = np.arange(len(sent))
    missing = place < 0
    at = pa.array(np.maximum(place, 0), mask=missing)
    expected, actual = _told(rows, sent, taken)
    known = own.is_valid()
    spent = pc.add(
        pc.if_else(known, pc.fill_null(own.field("pnl_impact_micros"), 0), 0), pc.fill_null(whole(cost).take(at), 0)
    )
    cause = word((None, CAUSE), taken.astype(np.int64)).take(at)
    parts = {
        "verified": flag(np.ones(rows.count, bool)),
        "expected": _said(known, own.field("expected"), expected.take(at)),
        "actual": _said(known, own.field("actual"), actual.take(at)),
        "pnl_impact_micros": spent,
        "ground_truth_source": same("trace", rows.count, pa.string()),
        "cause_variable": cause,
        "effect_variable": pa.nulls(rows.count, pa.string()),
    }
    nobody = missing & ~np.asarray(known)
    return struct(kind("outcome"), parts, missing=nobody)


def _told(rows: Rows, sent: np.ndarray, taken: np.ndarray) -> tuple[pa.Array, pa.Array]:
    """(what was expected of the loan, what came), a sentence each."""
    count = len(sent)
    act = word(LOAN_ACTIONS, rows.of("lent_action", sent))
    planned = joined(
        act, same(" slips about ", count, pa.string()),
        whole(rows.of("lent_expected_slip_ppm", sent)).cast(pa.string()), same(" ppm", count, pa.string()),
    )  # fmt: skip
    failed = rows.of("lent_status", sent) == REVERTED
    came = joined(
        act, word((" slipped ", " reverted: slippage above the limit; slipped "), failed.astype(np.int64)),
        whole(rows.of("lent_slip_ppm", sent)).cast(pa.string()), same(" ppm", count, pa.string()),
    )  # fmt: skip
    lost = joined(
        same("liquidated: health fell below 1, and the bonus took ", count, pa.string()),
        whole(rows.of("lent_loss", sent)).cast(pa.string()), same(" micro-dollars", count, pa.string()),
    )  # fmt: skip
    hit = pa.array(taken)
    return pc.if_else(hit, "the loan's health stays at 1 or above", planned), pc.if_else(hit, lost, came)


def _said(known: pa.Array, own: pa.Array, loan: pa.Array) -> pa.Array:
    """The loan's sentence before the position's own; one where there is one, empty where there is none."""
    mine = pc.if_else(known, own, pa.scalar(None, pa.string()))
    both = pc.binary_join_element_wise(loan, mine, "; ")
    return pc.coalesce(both, loan, mine, pa.scalar(""))


def _deliberated(rows: Rows, own: pa.Array) -> pa.Array:
    """Deliberations with the loan's tool call among the position's; its decision where that is to hold."""
    action = np.where(rows["lent_action"] == LIQUIDATED, NOTHING, rows["lent_action"])
    if not action.any():
        return own
    wanted, acts = own.type, np.flatnonzero(action)
    known = np.asarray(own.is_valid())
    calls = pc.if_else(own.is_valid(), own.field("tool_calls"), pa.scalar([], wanted.field("tool_calls").type))
    number = pc.list_value_length(calls).to_numpy(zero_copy_only=False)
    call = struct(
        wanted.field("tool_calls").type.value_type,
        {"tool": word(LOAN_TOOLS, action[acts]), "action_type": word(LOAN_ACTIONS, action[acts])},
    )
    held = pa.array((action != NOTHING) & (number == 0))
    act = word(LOAN_ACTIONS, np.where(action == NOTHING, -1, action))
    health = pc.cast(pa.array(np.round(np.nan_to_num(rows["loan_health"]), 2)), pa.string())
    why = pc.if_else(
        pa.array(action == BORROW), "; a loan is allowed", pc.binary_join_element_wise("; loan health ", health, "")
    )
    reason = joined(own.field("reasoning_summary"), why, same("; loan: ", len(own), pa.string()), act)
    changed = {
        "tool_calls": _in_order(action, call, number, calls),
        "decision": pc.if_else(held, act, own.field("decision")),
        "recommends_action": pc.or_(own.field("recommends_action"), pa.array(action != NOTHING)),
        "reasoning_summary": pc.if_else(pa.array(action != NOTHING), reason, own.field("reasoning_summary")),
    }
    kept = {field.name: own.field(field.name) for field in wanted}
    return struct(wanted, kept | changed, missing=~known)
