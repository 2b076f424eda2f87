"""Adds loans to the record fields of positions, actions, outcome and deliberation. Pure. Source: HB S6."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.heartbeat.defi.aave_loans import BORROW, LIQUIDATED, LOAN_ACTIONS, NOTHING, REPAY, loan_term
from bardo_pipeline.heartbeat.records import arrow_builders as arrow
from bardo_pipeline.heartbeat.records.chunk_rows import Rows, loan_counts, record_type
from bardo_pipeline.heartbeat.refusals import EXECUTED, REVERTED, STATUS, refusal_texts
from bardo_pipeline.market.market import ASSETS, LENDER, TICK_MAX

LOAN_TOOLS = (None, f"{LENDER}_borrow", f"{LENDER}_repay", f"{LENDER}_liquidation")
CAUSE = "price_move"
"""Cause of a liquidation in an outcome."""

_LEARNED = (
    "; the playbook takes no loan in this regime, rule ", "; the playbook borrows in this regime, rule ",
    "; the playbook repays in this regime, rule ", "",
)  # fmt: skip
"""Words before the id of the learned rule, by action."""

_BASE = ASSETS.index("WETH")


def loan_positions(rows: Rows) -> tuple[Int64Array, pa.Array]:
    """Return the number of loans per row, and the loans as positions in row order."""
    counts = loan_counts(rows)
    wanted = record_type("observation").field("positions").type.value_type
    if not counts.any():
        return counts, pa.array([], wanted)
    loans = rows.take(np.flatnonzero(counts))
    lower, upper = _bearable(loans)
    parts = {
        "position_id": arrow.concat_text(loans.golem_ids, "/loan-", loans.text("loan_tick")),
        "protocol": LENDER,
        "pair": rows.chunk.tape.market.pair,
        "tick_lower": lower,
        "tick_upper": upper,
        "liquidity": 0.0,
        "value_micros": np.rint(loans["loan_value"]),
        "fees_owed_micros": 0,
        "impermanent_loss_micros": np.rint(loans["loan_cost"]),
        "in_range": loans["loan_health"] >= 1.0,
        "health_factor": loans["loan_health"],
    }
    return counts, arrow.struct(wanted, parts)


def _bearable(loans: Rows) -> tuple[Int64Array, Int64Array]:
    """Return the pool ticks (lower, upper) between which each loan's health is at least 1."""
    reserves, t = loans.chunk.tape.reserves, loans.t
    assert reserves is not None, "only a market with reserves lends"
    asset, shares = loans["loan_asset"], loans["loan_shares"]
    supplied, owed = shares[:, 0] * reserves.supply_index[asset, t], shares[:, 1] * reserves.borrow_index[1 - asset, t]
    bears = supplied * loan_term("threshold", asset, loans.chunk.policy.lending)
    base = asset == _BASE  # a falling price (rising tick) lowers the health of loans with the base as collateral
    with np.errstate(divide="ignore"):
        limit = np.where(base, owed / bears, bears / owed)
        tick = np.clip(np.log(1e12 / limit) / np.log(1.0001), -TICK_MAX, TICK_MAX)
    lower = np.where(base, -TICK_MAX, np.ceil(tick)).astype(np.int64)
    return lower, np.where(base, np.floor(tick), TICK_MAX).astype(np.int64)


def with_loan_acts(rows: Rows, parts: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """Add loan actions to the record fields `parts`, in order of execution.

    Liquidations and borrowing precede the position's action; a repayment follows it.
    """
    out = dict(parts)
    if not rows.has("lent_action") or not ((action := rows["lent_action"]) | rows["lent_rule"]).any():
        return out
    own = parts["actions"]
    number = pc.list_value_length(own).to_numpy(zero_copy_only=False)
    acts = arrow.struct(own.type.value_type, _actions(rows.take(np.flatnonzero(action != NOTHING))))
    out["actions"] = _in_order(action, acts, number, own)
    out["outcome"] = _outcomes(rows, parts["outcome"])
    out["deliberation"] = _deliberated(rows, parts["deliberation"])
    return out


def _in_order(action: Int64Array, acts: pa.Array, counts: Int64Array, own: pa.Array) -> pa.Array:
    """Add loan acts to the position's lists `own` of these lengths: repayments last, others first."""
    repays = action == REPAY
    first, last = ((action != NOTHING) & ~repays).astype(np.int64), repays.astype(np.int64)
    is_last = pa.array(repays[action != NOTHING])
    leading = arrow.concat_lists(first, acts.filter(pc.invert(is_last)), counts, own.flatten())
    values = arrow.concat_lists(first + counts, leading, last, acts.filter(is_last))
    return arrow.list_array(own.type, first + counts + last, values)


def _actions(acts: Rows) -> dict[str, pa.Array | Int64Array]:
    """Build loan actions. Liquidations have no permit, because the protocol executes them."""
    action, status = acts["lent_action"], acts["lent_status"]
    sent = (status == EXECUTED) | (status == REVERTED)
    permit = arrow.concat_text("permit-", acts.golem_ids, "-", acts.text("tick"), "-loan")
    own = action != LIQUIDATED
    return {
        "action_type": arrow.text_of(LOAN_ACTIONS, action),
        "tool_name": arrow.text_of(LOAN_TOOLS, action),
        "permit_id": pc.if_else(pa.array(sent & own), permit, pa.scalar(None, pa.string())),
        "status": arrow.text_of(STATUS, status),
        "block_reason": refusal_texts(acts["lent_why"], acts["lent_why_size"], acts["lent_why_limit"]),
        "gas_cost_micros": acts["lent_gas"],
        "slippage_ppm": pa.array(acts["lent_slip_ppm"], mask=~(own & (status == EXECUTED))),
        "value_micros": acts["lent_value"],
    }


def _outcomes(rows: Rows, own: pa.Array) -> pa.Array:
    """Merge the costs of loans into the outcomes of the position's actions."""
    where = np.flatnonzero((rows["lent_action"] != NOTHING) & np.isin(rows["lent_status"], (EXECUTED, REVERTED)))
    sent = rows.take(where)
    taken = sent["lent_action"] == LIQUIDATED
    place = np.full(rows.count, -1, np.int64)
    place[where] = np.arange(len(where))
    missing = place < 0
    at = pa.array(np.maximum(place, 0), mask=missing)
    expected, actual = _sentences(sent, taken)
    has_own = own.is_valid()
    cost = pa.array(-(sent["lent_gas"] + sent["lent_loss"])).take(at)
    parts = {
        "verified": True,
        "expected": _both(has_own, own.field("expected"), expected.take(at)),
        "actual": _both(has_own, own.field("actual"), actual.take(at)),
        "pnl_impact_micros": pc.add(
            pc.if_else(has_own, pc.fill_null(own.field("pnl_impact_micros"), 0), 0), pc.fill_null(cost, 0)
        ),
        "ground_truth_source": "trace",
        "cause_variable": arrow.text_of((None, CAUSE), taken.astype(np.int64)).take(at),
    }
    return arrow.struct(record_type("outcome"), parts, missing=missing & ~np.asarray(has_own))


def _sentences(sent: Rows, taken: BoolArray) -> tuple[pa.Array, pa.Array]:
    """Return the expected and the actual result of each loan action, one sentence each."""
    act = arrow.text_of(LOAN_ACTIONS, sent["lent_action"])
    planned = arrow.concat_text(act, " slips about ", sent.text("lent_expected_slip_ppm"), " ppm")
    failed = sent["lent_status"] == REVERTED
    reverted = refusal_texts(sent["lent_why"], sent["lent_why_size"], sent["lent_why_limit"])
    slipped = pc.if_else(
        pa.array(failed), arrow.concat_text(act, " reverted: ", reverted),
        arrow.concat_text(act, " slipped ", sent.text("lent_slip_ppm"), " ppm"),
    )  # fmt: skip
    lost = arrow.concat_text(
        "liquidated: health fell below 1, and the bonus took ", sent.text("lent_loss"), " micro-dollars"
    )
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
    rule = rows["lent_rule"]
    if not (action | rule).any():
        return own
    acts = action[action != NOTHING]
    call_type = own.type.field("tool_calls").type
    calls = pc.if_else(own.is_valid(), own.field("tool_calls"), pa.scalar([], call_type))
    number = pc.list_value_length(calls).to_numpy(zero_copy_only=False)
    call = {"tool": arrow.text_of(LOAN_TOOLS, acts), "action_type": arrow.text_of(LOAN_ACTIONS, acts)}
    held = pa.array((action != NOTHING) & (number == 0))
    act = arrow.text_of(LOAN_ACTIONS, np.where(action == NOTHING, -1, action))
    health = pc.cast(pa.array(np.round(np.nan_to_num(rows["loan_health"]), 2)), pa.string())
    why = pc.if_else(
        pa.array(action == BORROW), "; a loan is allowed", pc.binary_join_element_wise("; loan health ", health, "")
    )
    learned = arrow.concat_text(arrow.text_of(_LEARNED, action), rows.entry_ids(rule - 1))
    summary, is_act = own.field("reasoning_summary"), pa.array(action != NOTHING)
    acted = arrow.concat_text(summary, why, pc.coalesce(learned, ""), "; loan: ", act)
    reason = pc.if_else(is_act, acted, pc.coalesce(arrow.concat_text(summary, learned), summary))
    changed = {
        "tool_calls": _in_order(action, arrow.struct(call_type.value_type, call), number, calls),
        "decision": pc.if_else(held, act, own.field("decision")),
        "recommends_action": pc.or_(own.field("recommends_action"), is_act),
        "reasoning_summary": reason,
    }
    unchanged = {field.name: own.field(field.name) for field in own.type}
    return arrow.struct(own.type, unchanged | changed, missing=~np.asarray(own.is_valid()))
