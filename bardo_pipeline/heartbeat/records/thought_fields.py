"""Record fields of deliberating golems: context, retrieval, deliberation, actions, outcome. Pure. Source: HB S6."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.events.record.model import PROBES, REGIMES, TIERS
from bardo_pipeline.grimoire.entries import ENTRY_KINDS
from bardo_pipeline.heartbeat.decide import (
    ACTIONS,
    FALLEN,
    MOVE,
    RULES,
    STAY,
    TAUGHT_TO_MOVE,
    TAUGHT_TO_WAIT,
    URGED,
    WARY,
)
from bardo_pipeline.heartbeat.probes import fixed
from bardo_pipeline.heartbeat.records import arrow_builders as arrow
from bardo_pipeline.heartbeat.records.chunk_rows import Rows, lists_of, loan_counts, record_type
from bardo_pipeline.heartbeat.refusals import BLOCKED, DEFERRED, EXECUTED, REVERTED, STATUS, refusal_texts
from bardo_pipeline.katabasis.priors import PRIOR_KINDS
from bardo_pipeline.retrieval.scoring import FACTORS
from bardo_pipeline.retrieval.situation import reason_text, skips

TOOLS = (None, "uniswap_v3_rebalance", "uniswap_v3_mint", "uniswap_v3_burn", "uniswap_v3_collect")
MODELS = (None, "rules-1/fast", "rules-1/full")
_FACTORS = ("score", "likeness", "recency", "importance", "affect")


def thought(rows: Rows) -> dict[str, pa.Array]:
    """Build the fields that only deliberating golems fill; empty or null in all other rows."""
    count, where = rows.count, np.flatnonzero(rows.thinking)
    if not len(where):
        structs = ("context_bundle_summary", "deliberation", "outcome", "retrieval")
        lists = ("retrieved_entries", "actions", "somatic_markers_fired")
        fields = {name: arrow.missing_part(record_type(name), count) for name in structs}
        return fields | {name: arrow.empty_lists(record_type(name), count) for name in lists}
    thinkers = rows.take(where)
    acts = thinkers["choice_action"] > 0
    place = np.full(count, -1, np.int64)
    place[where] = np.arange(len(where))
    entry_counts, action_counts = np.zeros((2, count), np.int64)
    entry_counts[where], action_counts[where] = (thinkers["choice_recalled"] >= 0).sum(axis=1), acts
    retrieved, markers = _retrieved(rows, where)
    return {
        "context_bundle_summary": arrow.scattered(_context(thinkers), place),
        "retrieved_entries": arrow.list_array(record_type("retrieved_entries"), entry_counts, retrieved),
        "somatic_markers_fired": markers,
        "deliberation": arrow.scattered(_deliberation(thinkers), place),
        "actions": lists_of("actions", action_counts, _actions(thinkers.take(np.flatnonzero(acts))))
        if acts.any()
        else arrow.empty_lists(record_type("actions"), count),
        "outcome": arrow.scattered(_outcome(thinkers), place),
        "retrieval": arrow.scattered(_retrieval(thinkers), place),
    }


def _retrieved(rows: Rows, where: Int64Array) -> tuple[pa.Array, pa.Array]:
    """Build retrieved entries and somatic markers: retrieved rules about exactly the golem's situation."""
    recall, thinkers = rows.chunk.recall, rows.take(where)
    recalled = thinkers["choice_recalled"]
    pick = (recalled >= 0).reshape(-1)
    entry = recalled.reshape(-1)[pick]
    column = {name: thinkers[f"memory_{name}"].reshape(-1)[pick] for name in _FACTORS}
    ids = rows.entry_ids(recall.code[entry])
    kinds = arrow.text_of(ENTRY_KINDS, recall.kind[entry])
    parts = column | {"entry_id": ids, "kind": kinds, "semantic": column["likeness"]}
    fires = (column["likeness"] >= 1.0 - 1e-9) & (recall.sign[entry] != 0)
    owner = np.repeat(where, (recalled >= 0).sum(axis=1))[fires]
    regime = arrow.text_of(REGIMES, rows.chunk.tape.regime[rows.t[owner]])
    markers = {
        "entry_id": ids.filter(pa.array(fires)),
        "situation": arrow.concat_text(regime, ", the situation of a rule"),
        "valence": recall.sign[entry[fires]] * recall.confidence[entry[fires]] / 1e6,
    }
    entries = arrow.struct(record_type("retrieved_entries").value_type, parts)
    return entries, lists_of("somatic_markers_fired", np.bincount(owner, minlength=rows.count), markers)


def _retrieval(thinkers: Rows) -> pa.Array:
    """Build the rule by which each golem retrieved or skipped, with its numbers, and what was dormant."""
    columns = ("rule", "coverage", "regime_before", "before_weight", "contrarian", "awake", "asleep")
    rule, coverage, before, weight, contrarian, awake, asleep = (thinkers[f"memory_{n}"] for n in columns)
    rules, tape = thinkers.chunk.policy.retrieval, thinkers.chunk.tape
    numbers = zip(
        rule.tolist(), thinkers["tick"].tolist(), thinkers["pad_before"][:, 1].tolist(), thinkers["error"].tolist(),
        coverage.tolist(), strict=True,
    )  # fmt: skip
    reasons = [
        reason_text(code, tick, None, arousal, surprise, share, tape.market.protocol, rules)
        for code, tick, arousal, surprise, share in numbers
    ]
    parts = {
        "skipped": skips(rule), "contrarian": contrarian, "reason": pa.array(reasons, pa.string()),
        "coverage": coverage, "awake": awake, "asleep": asleep, "regime_before_weight": weight,
        "regime_before": arrow.text_of(REGIMES, before), "priors": _priors(thinkers),
        "prior_weight": thinkers["choice_prior_weight"],
    }  # fmt: skip
    return arrow.struct(record_type("retrieval"), parts)


def _priors(thinkers: Rows) -> pa.Array:
    """Build the retrieved priors with the factors of their scores."""
    recall, type_ = thinkers.chunk.recall, record_type("retrieval").field("priors").type
    places = thinkers["memory_priors"]
    pick = (places >= 0).reshape(-1)
    prior = places.reshape(-1)[pick]
    factors = np.moveaxis(thinkers["memory_prior_factors"], 1, 0).reshape(len(FACTORS) + 1, -1)[:, pick]
    parts = {
        "prior_id": thinkers.entry_ids(recall.code[prior]), "sign": recall.sign[prior],
        "kind": arrow.text_of(PRIOR_KINDS, recall.shelf[prior] - 1), "confidence": recall.confidence[prior] / 1e6,
        **dict(zip((*FACTORS, "score"), factors, strict=True)),
    }  # fmt: skip
    return arrow.list_array(type_, (places >= 0).sum(axis=1), arrow.struct(type_.value_type, parts))


def _context(thinkers: Rows) -> pa.Array:
    """Build items and tokens by category: observation, and positions and entries if there are any."""
    total, entries = thinkers["choice_input_tokens"], (thinkers["choice_recalled"] >= 0).sum(axis=1)
    held = thinkers["open"] + loan_counts(thinkers)
    cost = thinkers.chunk.policy.cost
    position_tokens, entry_tokens = cost.position_tokens * held, cost.entry_tokens * entries
    items = np.stack([np.full(thinkers.count, len(PROBES)), held, entries], axis=1)
    tokens = np.stack([total - entry_tokens - position_tokens, position_tokens, entry_tokens], axis=1)
    pick = (items > 0).reshape(-1)
    wanted = record_type("context_bundle_summary").field("categories").type
    names = arrow.text_of(("observation", "positions", "grimoire"), np.tile(np.arange(3), thinkers.count)[pick])
    parts = {"category": names, "items": items.reshape(-1)[pick], "tokens": tokens.reshape(-1)[pick]}
    categories = arrow.list_array(wanted, (items > 0).sum(axis=1), arrow.struct(wanted.value_type, parts))
    return arrow.struct(record_type("context_bundle_summary"), {"categories": categories, "tokens": total})


def _deliberation(thinkers: Rows) -> pa.Array:
    type_, action = record_type("deliberation"), thinkers["choice_action"]
    decision = arrow.text_of(ACTIONS, action)
    calls = type_.field("tool_calls").type
    acts = action[action > 0]
    call = {"tool": arrow.text_of(TOOLS, acts), "action_type": arrow.text_of(ACTIONS, acts)}
    summary = arrow.concat_text(_rule_texts(thinkers), *_learned_texts(thinkers), "; decision: ", decision)
    parts = {
        "model": arrow.text_of(MODELS, thinkers["tier"]),
        "tier": arrow.text_of(TIERS, thinkers["tier"]),
        "input_tokens": thinkers["choice_input_tokens"],
        "output_tokens": thinkers["choice_output_tokens"],
        "reasoning_summary": summary,
        "tool_calls": arrow.list_array(calls, (action > 0).astype(np.int64), arrow.struct(calls.value_type, call)),
        "decision": decision,
        "confidence": thinkers["choice_certainty"],
        "cost_micros": thinkers["choice_cost_micros"],
        "recommends_action": action > 0,
    }
    return arrow.struct(type_, parts)


def _rule_texts(thinkers: Rows) -> pa.Array:
    """Return the rule that decided, with its numbers: "anomaly 0.7600 reaches the playbook's 0.7500"."""
    rule = thinkers["choice_rule"]
    size, limit = thinkers["choice_rule_size"], thinkers["choice_rule_limit"]
    shares = pa.array(np.isin(rule, (STAY, MOVE, FALLEN, WARY, URGED, TAUGHT_TO_WAIT, TAUGHT_TO_MOVE)))
    numbers = (
        pc.if_else(shares, fixed(values, 4), pa.array(np.floor(values).astype(np.int64)).cast(pa.string()))
        for values in (size, limit)
    )
    first, second = numbers
    before, between = (
        arrow.text_of(tuple(words[i] if len(words) > i else "" for words in RULES), rule) for i in (0, 1)
    )
    alone = pa.array(np.isin(rule, [code for code, words in enumerate(RULES) if len(words) == 1]))
    return pc.if_else(alone, before, arrow.concat_text(before, first, between, second))


def _learned_texts(thinkers: Rows) -> tuple[pa.Array, pa.Array]:
    """Return the learned rule about presence and the half-width of a new range: "; half-width 400 by rule 1f3a..."."""
    presence, width = thinkers["choice_presence_rule"], thinkers["choice_width"]
    width_rule = thinkers["choice_width_rule"]
    presence_text = arrow.concat_text(", rule ", thinkers.entry_ids(presence))
    by = pc.coalesce(arrow.concat_text(" by rule ", thinkers.entry_ids(width_rule)), " by trait")
    width_text = pc.if_else(
        pa.array(width > 0), arrow.concat_text("; half-width ", thinkers.text("choice_width"), by), ""
    )
    return pc.coalesce(presence_text, ""), width_text


def _actions(actors: Rows) -> dict[str, pa.Array | Int64Array]:
    action, status, blocker = (actors[f"choice_{name}"] for name in ("action", "status", "blocker"))
    sent = (status == EXECUTED) | (status == REVERTED)
    permit = arrow.concat_text("permit-", actors.golem_ids, "-", actors.text("tick"))
    reason = refusal_texts(actors["choice_why"], actors["choice_why_size"], actors["choice_why_limit"])
    recall, warned = actors.chunk.recall, blocker >= 0
    if warned.any():
        named = arrow.concat_text(reason, ": ", actors.entry_ids(np.where(warned, recall.code[blocker], -1)))
        reason = pc.if_else(pa.array(warned), named, reason)
    return {
        "action_type": arrow.text_of(ACTIONS, action),
        "tool_name": arrow.text_of(TOOLS, action),
        "permit_id": pc.if_else(pa.array(sent), permit, pa.scalar(None, pa.string())),
        "status": arrow.text_of(STATUS, status),
        "block_reason": reason,
        "gas_cost_micros": actors["choice_gas_micros"],
        "slippage_ppm": pa.array(actors["choice_slip_ppm"], mask=status != EXECUTED),
        "value_micros": actors["choice_moved_micros"],
    }


def _outcome(thinkers: Rows) -> pa.Array:
    """Build the cost of acting, verified against the trace; null if no transaction was sent."""
    action, status = thinkers["choice_action"], thinkers["choice_status"]
    executed = status == EXECUTED
    slippage = np.where(executed, thinkers["choice_swap_micros"] * thinkers["choice_slip_ppm"] // 1_000_000, 0)
    expected = arrow.concat_text(
        arrow.text_of(ACTIONS, action), " slips about ", thinkers.text("choice_expected_slip_ppm"), " ppm"
    )
    refusal = refusal_texts(thinkers["choice_why"], thinkers["choice_why_size"], thinkers["choice_why_limit"])
    slipped = arrow.concat_text("slipped ", thinkers.text("choice_slip_ppm"), " ppm")
    parts = {
        "verified": True,
        "expected": expected,
        "actual": pc.coalesce(arrow.concat_text("reverted: ", refusal), slipped),
        "pnl_impact_micros": -(thinkers["choice_gas_micros"] + slippage),
        "ground_truth_source": "trace",
    }
    sent = (action > 0) & ~np.isin(status, (BLOCKED, DEFERRED))
    return arrow.struct(record_type("outcome"), parts, missing=~sent)
