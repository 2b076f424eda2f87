"""Adds loans to the record fields of positions, actions, outcome and deliberation. Pure. Source: HB S6."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.heartbeat.decide import EXECUTED, REVERTED, STATUS
from bardo_pipeline.heartbeat.defi.aave_loans import BORROW, LIQUIDATED, LOAN_ACTIONS, NOTHING, REPAY, Terms
from bardo_pipeline.heartbeat.defi.borrowing_rules import LOAN_WHY
from bardo_pipeline.heartbeat.records.arrow_builders import (
    booleans,
    concat_lists,
    concat_text,
    floats,
    integers,
    list_array,
    struct,
    text_of,
)
from bardo_pipeline.heartbeat.records.chunk_rows import Rows, loan_counts, record_type
from bardo_pipeline.market.market import ASSETS, LENDER, TICK_MAX

LOAN_TOOLS = (None, f"{LENDER}_borrow", f"{LENDER}_repay", f"{LENDER}_liquidation")
CAUSE = "price_move"
"""Cause of a liquidation in an outcome."""

_BASE = ASSETS.index("WETH")


def loan_positions(rows: Rows) -> tuple[Int64Array, pa.Array]:
    """Return the number of loans per row, and the loans as positions in row order."""
    counts = loan_counts(rows)
    wanted = record_type("observation").field("positions").type.value_type
    where = np.flatnonzero(counts)
    if not len(where):
        return counts, pa.array([], wanted)
    count, market = len(where), rows.chunk.tape.market
    lower, upper = _bearable(rows, where)
    names = concat_text(rows.golem_ids(where), "/loan-", rows.text("loan_tick", where))
    health = rows.of("loan_health", where)
    parts: dict[str, Any] = {
        "position_id": names,
        "protocol": LENDER,
        "pair": market.pair,
        "tick_lower": integers(lower),
        "tick_upper": integers(upper),
        "liquidity": floats(np.zeros(count)),
        "value_micros": integers(np.rint(rows.of("loan_value", where))),
        "fees_owed_micros": integers(np.zeros(count)),
        "impermanent_loss_micros": integers(np.rint(rows.of("loan_cost", where))),
        "in_range": booleans(health >= 1.0),
        "health_factor": floats(health),
    }
    return counts, struct(wanted, parts)


def _bearable(rows: Rows, where: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the pool ticks (lower, upper) between which each loan's health is at least 1."""
    reserves, t = rows.chunk.tape.reserves, rows.t[where]
    assert reserves is not None, "only a market with reserves lends"
    asset, shares = rows.of("loan_asset", where), rows.of("loan_shares", where)
    supplied, owed = shares[:, 0] * reserves.supply_index[asset, t], shares[:, 1] * reserves.borrow_index[1 - asset, t]
    bears = supplied * Terms.of(asset, rows.chunk.policy.lending).threshold
    with np.errstate(divide="ignore"):
        limit = np.where(asset == _BASE, owed / bears, bears / owed)
        tick = np.clip(np.log(1e12 / limit) / np.log(1.0001), -TICK_MAX, TICK_MAX)
    base = asset == _BASE  # a falling price (rising tick) lowers the health of loans with the base as collateral
    lower = np.where(base, -TICK_MAX, np.ceil(tick)).astype(np.int64)
    return lower, np.where(base, np.floor(tick), TICK_MAX).astype(np.int64)


def with_loan_acts(rows: Rows, parts: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """Add loan actions to the record fields `parts`, in order of execution.

    Liquidations and borrowing precede the position's action; a repayment follows it.
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


def _in_order(action: Int64Array, acts: pa.Array, counts: Int64Array, own: pa.Array) -> pa.Array:
    """Add loan acts to the position's lists `own` of these lengths: repayments last, others first."""
    repays = action == REPAY
    first, last = ((action != NOTHING) & ~repays).astype(np.int64), repays.astype(np.int64)
    is_last = pa.array(repays[action != NOTHING])
    leading = concat_lists(first, acts.filter(pc.invert(is_last)), counts, own.flatten())
    return list_array(
        own.type, first + counts + last, concat_lists(first + counts, leading, last, acts.filter(is_last))
    )


def _actions(rows: Rows, where: Int64Array) -> pa.Array:
    """Build loan actions. Liquidations have no permit, because the protocol executes them."""
    action, status = rows.of("lent_action", where), rows.of("lent_status", where)
    sent = (status == EXECUTED) | (status == REVERTED)
    permit = concat_text("permit-", rows.golem_ids(where), "-", rows.text("tick", where), "-loan")
    own = action != LIQUIDATED
    parts = {
        "action_type": text_of(LOAN_ACTIONS, action),
        "tool_name": text_of(LOAN_TOOLS, action),
        "permit_id": pc.if_else(pa.array(sent & own), permit, pa.scalar(None, pa.string())),
        "status": text_of(STATUS, status),
        "block_reason": text_of(LOAN_WHY, rows.of("lent_why", where)),
        "gas_cost_micros": integers(rows.of("lent_gas", where)),
        "slippage_ppm": integers(rows.of("lent_slip_ppm", where), missing=~(own & (status == EXECUTED))),
        "value_micros": integers(rows.of("lent_value", where)),
    }
    return struct(record_type("actions").value_type, parts)


def _outcomes(rows: Rows, where: Int64Array, own: pa.Array) -> pa.Array:
    """Merge the costs of loans into the outcomes of the position's actions."""
    status = rows.of("lent_status", where)
    sent = where[(status == EXECUTED) | (status == REVERTED)]
    cost = -(rows.of("lent_gas", sent) + rows.of("lent_loss", sent))
    taken = rows.of("lent_action", sent) == LIQUIDATED
    place = np.full(rows.count, -1, np.int64)
    place[sent] = np.arange(len(sent))
    missing = place < 0
    at = pa.array(np.maximum(place, 0), mask=missing)
    expected, actual = _sentences(rows, sent, taken)
    has_own = own.is_valid()
    spent = pc.add(
        pc.if_else(has_own, pc.fill_null(own.field("pnl_impact_micros"), 0), 0),
        pc.fill_null(integers(cost).take(at), 0),
    )
    cause = text_of((None, CAUSE), taken.astype(np.int64)).take(at)
    parts = {
        "verified": True,
        "expected": _both(has_own, own.field("expected"), expected.take(at)),
        "actual": _both(has_own, own.field("actual"), actual.take(at)),
        "pnl_impact_micros": spent,
        "ground_truth_source": "trace",
        "cause_variable": cause,
    }
    return struct(record_type("outcome"), parts, missing=missing & ~np.asarray(has_own))


def _sentences(rows: Rows, sent: Int64Array, taken: BoolArray) -> tuple[pa.Array, pa.Array]:
    """Return the expected and the actual result of each loan action, one sentence each."""
    act = text_of(LOAN_ACTIONS, rows.of("lent_action", sent))
    planned = concat_text(
        act, " slips about ",
        rows.text("lent_expected_slip_ppm", sent), " ppm",
    )  # fmt: skip
    failed = rows.of("lent_status", sent) == REVERTED
    slipped = concat_text(
        act, text_of((" slipped ", " reverted: slippage above the limit; slipped "), failed.astype(np.int64)),
        rows.text("lent_slip_ppm", sent), " ppm",
    )  # fmt: skip
    lost = concat_text(
        "liquidated: health fell below 1, and the bonus took ",
        rows.text("lent_loss", sent), " micro-dollars",
    )  # fmt: skip
    hit = pa.array(taken)
    return pc.if_else(hit, "the loan's health stays at 1 or above", planned), pc.if_else(hit, lost, slipped)


def _both(has_own: pa.Array, own: pa.Array, loan: pa.Array) -> pa.Array:
    """Join the loan's sentence and the position's own, as far as they exist."""
    own = pc.if_else(has_own, own, pa.scalar(None, pa.string()))
    both = pc.binary_join_element_wise(loan, own, "; ")
    return pc.coalesce(both, loan, own, pa.scalar(""))


def _deliberated(rows: Rows, own: pa.Array) -> pa.Array:
    """Add the loan's tool call to deliberations, and its decision to those that hold the position."""
    action = np.where(rows["lent_action"] == LIQUIDATED, NOTHING, rows["lent_action"])
    if not action.any():
        return own
    acts = np.flatnonzero(action)
    call_type = own.type.field("tool_calls").type
    calls = pc.if_else(own.is_valid(), own.field("tool_calls"), pa.scalar([], call_type))
    number = pc.list_value_length(calls).to_numpy(zero_copy_only=False)
    call = struct(
        call_type.value_type,
        {"tool": text_of(LOAN_TOOLS, action[acts]), "action_type": text_of(LOAN_ACTIONS, action[acts])},
    )
    held = pa.array((action != NOTHING) & (number == 0))
    act = text_of(LOAN_ACTIONS, np.where(action == NOTHING, -1, action))
    health = pc.cast(pa.array(np.round(np.nan_to_num(rows["loan_health"]), 2)), pa.string())
    why = pc.if_else(
        pa.array(action == BORROW), "; a loan is allowed", pc.binary_join_element_wise("; loan health ", health, "")
    )
    reason = concat_text(own.field("reasoning_summary"), why, "; loan: ", act)
    changed = {
        "tool_calls": _in_order(action, call, number, calls),
        "decision": pc.if_else(held, act, own.field("decision")),
        "recommends_action": pc.or_(own.field("recommends_action"), pa.array(action != NOTHING)),
        "reasoning_summary": pc.if_else(pa.array(action != NOTHING), reason, own.field("reasoning_summary")),
    }
    unchanged = {field.name: own.field(field.name) for field in own.type}
    return struct(own.type, unchanged | changed, missing=~np.asarray(own.is_valid()))
