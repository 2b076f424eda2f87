"""Insights of a golem: query them, add them, vote on them, edit them.

An insight is a text of the golem with the votes on it; its confidence is a fold of them. Entries that the curator holds
are insights too: a vote on one is an owner's correction, which takes effect when the golem's open cycle closes.
Source: TOOLS (memory_get_insights, memory_manage_insight), canon 1, 16-18.
"""

from __future__ import annotations

from typing import Annotated, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BeforeValidator, Field

from bardo_pipeline.derivation.curation.record_overrides import correct, find_entry, grimoire_of, pending_orders
from bardo_pipeline.derivation.dreams.derive_lessons import known_entries
from bardo_pipeline.derivation.memory.free_texts import store_texts
from bardo_pipeline.errors import QueryError, ToolError
from bardo_pipeline.events.experience.stored_text import StoredText
from bardo_pipeline.events.life.tool_events import InsightManaged, InsightOperation, Source
from bardo_pipeline.events.record.model import NO_MARKET, Part
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.grimoire.entries import CATEGORIES
from bardo_pipeline.grimoire.entry_columns import confidence_of
from bardo_pipeline.retrieval.insight_votes import KnownInsight
from bardo_pipeline.tools.definition import Guidance, Tool
from bardo_pipeline.tools.schemas import Arguments, Label, Result, Statement, WriteCounts
from bardo_pipeline.tools.tool_call import ToolCall, text_counts, text_fact


class GetInsightsArguments(Arguments):
    """Arguments of memory_get_insights."""

    category: Label | None = Field(None, description="Filter by category. See memory_manage_insight for categories.")
    min_confidence: float = Field(0.0, ge=0, le=1, description="Minimum confidence (default: 0.0).")
    chain: Label | None = Field(None, description="Chain filter.")
    token_pair: Label | None = Field(None, description="Token pair filter.")
    sort_by: Literal["confidence", "created", "updated"] = Field(
        "confidence", description="Order: highest confidence, newest creation, or newest update first."
    )
    limit: int = Field(20, ge=1, le=1_000, description="Max results (default: 20).")


class Insight(Result):
    """An insight."""

    id: str = Field(description="Id of the insight.")
    content: str = Field(description="Content.")
    category: str = Field(description="Category.")
    confidence: float = Field(ge=0, le=1, description="Confidence now.")
    chain: str | None = Field(description="Chain; null for all.")
    token_pair: str | None = Field(description="Token pair; null for all.")
    created_at: str = Field(description="Time of creation, ISO 8601, UTC.")
    updated_at: str = Field(description="Time of the last vote, edit or validation, ISO 8601, UTC.")
    upvotes: int = Field(ge=0, description="Upvotes, or confirming cycles of an entry of the curator.")
    downvotes: int = Field(ge=0, description="Downvotes, or contradicting cycles of an entry of the curator.")
    kind: str = Field(description="insight; for entries of the curator also heuristic, warning, causal_link, ...")
    source: str = Field(
        description="Origin: self, consolidation, import, or the provenance of an entry of the curator."
    )


class InsightsResult(Result):
    """Result of memory_get_insights."""

    insights: tuple[Insight, ...] = Field(description="Insights in the requested order.")
    total: int = Field(ge=0, description="Number of insights that match, also beyond the limit.")


class ManageInsightArguments(Arguments):
    """Arguments of memory_manage_insight."""

    operation: Annotated[InsightOperation, BeforeValidator(lambda v: v.upper() if isinstance(v, str) else v)] = Field(
        description='"ADD", "UPVOTE", "DOWNVOTE", "EDIT".'
    )
    insight_id: Label | None = Field(None, description="Required for UPVOTE, DOWNVOTE, EDIT.")
    content: Statement | None = Field(None, description="Required for ADD, EDIT.")
    category: Label | None = Field(None, description=f"Required for ADD. One of: {', '.join(CATEGORIES)}.")
    chain: Label | None = Field(None, description="Chain that the insight is about; null for all.")
    token_pair: Label | None = Field(None, description="Token pair that the insight is about; null for all.")
    reason: Statement | None = Field(None, description="Audit trail.")


class ManageInsightResult(Result):
    """Result of memory_manage_insight."""

    insight_id: str = Field(description="Id of the insight.")
    operation: str = Field(
        description="The operation. An ADD whose content an insight states already is an UPVOTE of it."
    )
    confidence_before: float = Field(ge=0, le=1, description="Confidence before; 0 for a new insight.")
    confidence_after: float = Field(ge=0, le=1, description="Confidence after.")
    takes_effect: str = Field(description="at once, or when the open cycle closes, for an entry of the curator.")
    counts: WriteCounts = Field(
        description="Operations on insights in the log before and after; texts, for an ADD that is an UPVOTE."
    )


def _get(call: ToolCall, arguments: GetInsightsArguments) -> InsightsResult:
    if arguments.category not in (None, *CATEGORIES):
        raise ToolError(f"there is no category {arguments.category!r}: take one of {', '.join(CATEGORIES)}")
    insights = [_shown(insight) for insight in call.insights().values()] + entry_insights(call)
    kept = [insight for insight in insights if _matches(insight, arguments)]
    order = {"confidence": "confidence", "created": "created_at", "updated": "updated_at"}[arguments.sort_by]
    kept.sort(key=lambda insight: insight.id)
    kept.sort(key=lambda insight: getattr(insight, order), reverse=True)
    return InsightsResult(insights=tuple(kept[: arguments.limit]), total=len(kept))


def _matches(insight: Insight, arguments: GetInsightsArguments) -> bool:
    return (
        arguments.category in (None, insight.category)
        and insight.confidence >= arguments.min_confidence
        and arguments.chain in (None, insight.chain)
        and arguments.token_pair in (None, insight.token_pair)
    )


def _shown(insight: KnownInsight) -> Insight:
    return Insight(
        id=insight.insight_id,
        content=insight.content,
        category=insight.category,
        confidence=insight.confidence,
        chain=insight.chain,
        token_pair=insight.token_pair,
        created_at=insight.created_at.isoformat(),
        updated_at=insight.updated_at.isoformat(),
        upvotes=insight.upvotes,
        downvotes=insight.downvotes,
        kind="insight",
        source=insight.source,
    )


def market_name(recorded: str | None) -> str | None:
    """Return a chain or a pair of a record as the tools state it: null for a record without a market."""
    return None if recorded == NO_MARKET else recorded


def entry_insights(call: ToolCall) -> list[Insight]:
    """Return the golem's active entries as insights; confidence as of its newest validation in the grimoire."""
    rows = known_entries(call.context, [call.golem_id])
    rows = rows.filter(pc.equal(rows["status"], "active"))
    if not rows.num_rows:
        return []
    at_us = pc.max(rows["anchor_at"].cast(pa.int64())).as_py()
    confidence = confidence_of(rows, at_us, call.context.policy.decay)
    return [
        Insight(
            id=row["entry_id"],
            content=row["text"],
            category=row["category"],
            confidence=int(now) / PPM,
            chain=market_name(row["chain"]),
            token_pair=market_name(row["pair"]),
            created_at=row["created_at"].isoformat(),
            updated_at=row["validated_at"].isoformat(),
            upvotes=row["validations"],
            downvotes=row["contradictions"],
            kind=row["kind"],
            source=row["provenance"],
        )
        for row, now in zip(rows.to_pylist(), confidence.tolist(), strict=True)
    ]


# operations


def _manage(call: ToolCall, arguments: ManageInsightArguments) -> ManageInsightResult:
    _check(arguments)
    if arguments.operation == "ADD":
        return _add(call, arguments)
    assert arguments.insight_id is not None, "_check requires it"
    insight = next((known for known in call.insights().values() if arguments.insight_id in known.text_ids), None)
    if insight is None:
        return _override(call, arguments)
    text: list[Part] = [_text(arguments, insight)] if arguments.operation == "EDIT" else []
    text_id = call.event(text[0]).event_id if text else None
    fact = _fact(call, arguments, insight.insight_id, text_id=text_id, source=insight.source)
    after = insight.after(arguments.operation, call.at, call.context.policy, fact.model_dump())
    counts = call.record([fact, *text], f"{arguments.operation} insight {insight.insight_id}", counted="InsightManaged")
    return _managed(insight.insight_id, arguments.operation, insight.confidence, after.confidence, counts)


def _managed(
    insight_id: str, operation: str, before: float, after: float, counts: WriteCounts, takes_effect: str = "at once"
) -> ManageInsightResult:
    return ManageInsightResult(
        insight_id=insight_id,
        operation=operation,
        confidence_before=before,
        confidence_after=after,
        takes_effect=takes_effect,
        counts=counts,
    )


def _check(arguments: ManageInsightArguments) -> None:
    """Raise ToolError for an operation without the arguments that it requires."""
    required = {"ADD": ("content", "category"), "EDIT": ("insight_id", "content")}
    missing = [n for n in required.get(arguments.operation, ("insight_id",)) if getattr(arguments, n) is None]
    if missing:
        needed = " and ".join(missing)
        raise ToolError(f"{arguments.operation} of an insight needs {needed}: give {needed}")
    if arguments.category not in (None, *CATEGORIES):
        raise ToolError(f"there is no category {arguments.category!r}: take one of {', '.join(CATEGORIES)}")


def _fact(
    call: ToolCall, arguments: ManageInsightArguments, insight_id: str, *, text_id: str | None, source: Source,
    confidence: float | None = None,
) -> InsightManaged:  # fmt: skip
    return InsightManaged(
        **arguments.model_dump(include={"operation", "content", "category", "chain", "token_pair", "reason"}),
        number=operation_count(call) + 1,
        insight_id=insight_id,
        text_id=text_id,
        confidence=confidence,
        source=source,
        structure=None,
        evidence=(),
        crossings=0,
    )


def operation_count(call: ToolCall) -> int:
    """Return the number of recorded operations on the golem's insights."""
    return call.facts("InsightManaged").num_rows


def _text(arguments: ManageInsightArguments, edited: KnownInsight | None = None) -> StoredText:
    """Return the content as a text of the golem; what an edit leaves out is as in the insight that it edits."""
    names = ("category", "chain", "token_pair")
    category, chain, pair = (
        getattr(edited, name) if edited and getattr(arguments, name) is None else getattr(arguments, name)
        for name in names
    )
    return text_fact(
        f"{arguments.operation} of an insight", arguments.content or "", sort="insight", category=category,
        chain=chain, pair=pair,
    )  # fmt: skip


def _add(call: ToolCall, arguments: ManageInsightArguments) -> ManageInsightResult:
    """Add an insight; one that states the same already gets an upvote instead (canon 17)."""
    before = call.insights()
    (stored,) = store_texts(call.context, call.golem_id, [_text(arguments)], at=call.at, now=call.clock())
    text_id = stored.text_id
    if stored.upvote_of is not None:
        alike = next((i for i in before.values() if stored.upvote_of in i.text_ids), None)
        if alike is not None:
            after = alike.after("UPVOTE", call.at, call.context.policy)
            call.record([], f"UPVOTE insight {alike.insight_id}", counted="InsightManaged", beside=1)
            counts = text_counts(call.golem_id, stored)  # the vote is the text
            return _managed(alike.insight_id, "UPVOTE", alike.confidence, after.confidence, counts)
    start = call.context.policy.curator.confidence_insight
    fact = _fact(call, arguments, text_id, text_id=text_id, source="self", confidence=start)
    counts = call.record([fact], f"ADD insight {text_id}", counted="InsightManaged", beside=1)
    return _managed(text_id, "ADD", 0.0, start, counts)


def _override(call: ToolCall, arguments: ManageInsightArguments) -> ManageInsightResult:
    """Record a vote on an entry of the curator, or a note to it, as an owner's correction."""
    context, golem_id = call.context, call.golem_id
    grimoire = grimoire_of(context, golem_id)
    try:
        entry = find_entry(grimoire, arguments.insight_id or "", active=True, listed_by="memory_get_insights")
    except QueryError as error:
        raise ToolError(str(error)) from None
    entry_id, confidence = entry["entry_id"], entry["confidence_now_ppm"] / PPM
    for order in pending_orders(context, grimoire, entry_id):
        confidence = confidence if order.confidence is None else order.confidence
    rules, changes = context.policy.curator, dict[str, object]()
    after = confidence
    match arguments.operation:
        case "UPVOTE":
            after = round(min(confidence + rules.upvote, 1.0), 6)
            changes["confidence"] = after
        case "DOWNVOTE":
            after = round(max(confidence - rules.downvote, 0.0), 6)
            changes["confidence"] = after
        case _:
            changes["note"] = (arguments.content or "")[:4_096]
    why = (arguments.reason or f"{arguments.operation} by memory_manage_insight")[:4_096]
    correct(context, golem_id, entry_id, why, now=call.clock(), **changes)
    fact = _fact(call, arguments, entry_id, text_id=None, source="self")
    counts = call.record([fact], f"{arguments.operation} entry {entry_id}", counted="InsightManaged", beside=1)
    return _managed(entry_id, arguments.operation, confidence, after, counts, "when the open cycle closes")


GET_INSIGHTS = Tool(
    name="memory_get_insights",
    summary="Query semantic insights by category, confidence, recency. Apply learned knowledge to current decisions.",
    capability="read",
    tick_budget="fast",
    steps=("Querying insights",),
    guidance=Guidance(
        thriving="Query before decisions in specific domains (e.g., slippage insights before large swaps).",
        cautious="Query broadly. Weight high-confidence insights heavily.",
        declining="Query for capital preservation insights.",
        terminal="Query for successor-relevant insights to include in death testament.",
    ),
    arguments=GetInsightsArguments,
    result=InsightsResult,
    run=_get,
)

MANAGE_INSIGHT = Tool(
    name="memory_manage_insight",
    summary="Add, upvote, downvote, or edit semantic insights. Upvote: +0.1 confidence (cap 1.0). "
    "Downvote: -0.15 (faster decay for bad insights). New insights start at 0.6. "
    "An entry of the curator is corrected when the golem's open cycle closes.",
    capability="write",
    tick_budget="fast",
    steps=("Updating insight store",),
    guidance=Guidance(
        thriving="Add insights from successful patterns. Upvote confirmed. Downvote invalidated.",
        cautious="Downvote insights that led to losses. Add caution-specific insights.",
        declining="Downvote strategies that contributed to decline. Add lessons learned.",
        terminal="Add final insights for successor. Capture the Golem's most valuable learnings.",
    ),
    arguments=ManageInsightArguments,
    result=ManageInsightResult,
    run=_manage,
)
