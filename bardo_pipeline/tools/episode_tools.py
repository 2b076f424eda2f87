"""Episodic memory: store an episode in the caller's words, search episodes and insights.

Source: TOOLS (memory_store_episode, memory_search), MEM-9, MEM-10, canon 13, 14.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Annotated, Any, Literal, cast

import orjson
from pydantic import BeforeValidator, Field, JsonValue, ValidationError, ValidationInfo, field_validator

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.free_texts import (
    CallTexts,
    HeldText,
    searched_count,
    store_calls,
    texts_of_golem,
)
from bardo_pipeline.derivation.memory.search import QuestionGroup, compared_in_advance, search
from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.experience.stored_text import TAGS_MAX, Importance, StoredText, TextSort
from bardo_pipeline.events.life.events import life_event
from bardo_pipeline.retrieval.embedder_interface import check_question
from bardo_pipeline.retrieval.hybrid_search import Filters, SearchRow
from bardo_pipeline.retrieval.insight_votes import KnownInsight
from bardo_pipeline.tools.consolidation import consolidated_ids
from bardo_pipeline.tools.definition import Guidance, Tool
from bardo_pipeline.tools.schemas import Arguments, Json, Label, Result, Statement, Words, WriteCounts
from bardo_pipeline.tools.tool_call import ToolCall, json_text, text_counts, text_fact

TEXT_NAMES = ("text", "content", "utterance", "message", "statement", "summary")
"""Fields of an outcome that may hold the text of an episode without a reflection; the first present one counts."""


LowerImportance = Annotated[Importance, BeforeValidator(lambda v: v.lower() if isinstance(v, str) else v)]


def _states_something(value: JsonValue) -> bool:
    """Return whether a JSON value has a part that is a number, a truth value or a text that is not blank."""
    if isinstance(value, dict | list):
        return any(map(_states_something, value.values() if isinstance(value, dict) else value))
    return value is not None and str(value).strip() != ""


class StoreEpisodeArguments(Arguments):
    """Arguments of memory_store_episode."""

    tool: Label = Field(description='Tool that was executed (e.g., "uniswap_execute_swap", "vault_deposit").')
    outcome: Json = Field(
        description="Execution outcome data as JSON. The fields `speaker`, `session` and `date` place a text in a "
        "conversation. Without a reflection it has to state a value."
    )
    reflection: Words = Field(
        description="Natural-language self-reflection on the outcome: what was expected, what happened, what to do "
        "differently."
    )
    chain: Words = Field(description="Chain where execution occurred; empty for none.")
    token_pair: Label | None = Field(None, description='Token pair context (e.g., "WETH/USDC").')
    importance: LowerImportance = Field(
        "routine", description="Retention tier: routine (7 d), notable (30 d), critical (90 d), emergency (180 d)."
    )
    dream_tag: Label | None = Field(
        None, description="Dream cycle tag. If set, the next consolidation reads this episode first."
    )
    sort: TextSort = Field("episode", description="What the text is: an episode, an insight or a reflection.")
    tags: tuple[Label, ...] = Field(
        (), max_length=TAGS_MAX, description="Words that a search finds beside those of the text."
    )

    @field_validator("reflection")
    @classmethod
    def _check_that_something_is_stated(cls, reflection: str, info: ValidationInfo) -> str:
        if not reflection.strip() and not _states_something(info.data.get("outcome", True)):
            raise ValueError("an empty one needs an outcome that states a value")
        return reflection


class StoreEpisodeResult(Result):
    """Result of memory_store_episode."""

    episode_id: str = Field(description="Id of the episode.")
    importance: Importance = Field(description="Retention tier.")
    estimated_retention_until: str = Field(
        description="Time at which the episode decays below the retention of 5 %, ISO 8601, UTC."
    )
    vector_dimension: int = Field(ge=0, description="Dimension of its vector; 0 while it waits for one.")
    counts: WriteCounts = Field(description="Texts of the golem before and after.")


class MemorySearchArguments(Arguments):
    """Arguments of memory_search."""

    query: Statement = Field(description="Natural language search query.")
    store: Literal["episodes", "insights", "both"] = Field("both", description='"episodes", "insights", "both".')
    chain: Label | None = Field(None, description="Chain filter.")
    token_pair: Label | None = Field(None, description="Token pair filter.")
    tool: Label | None = Field(None, description="Tool name filter.")
    min_confidence: float = Field(0.0, ge=0, le=1, description="Minimum insight confidence, 0.0-1.0 (default: 0.0).")
    limit: int = Field(10, ge=1, le=50, description="Max results (default: 10, max: 50).")
    apply_decay: bool = Field(
        True, description="Lower the score of old episodes by their retention; at most half of the score is lost."
    )


class MemoryHit(Result):
    """A text found."""

    source: Literal["episode", "insight"] = Field(description='"episode" or "insight".')
    id: str = Field(description="Id of the episode or insight.")
    content: str = Field(description="Text.")
    relevance_score: float = Field(ge=0, description="Similarity to the query by words and meaning, at most 1.")
    adjusted_score: float = Field(ge=0, description="For episodes the decay-adjusted score, for insights confidence.")
    metadata: dict[str, JsonValue] = Field(
        description="Tool, chain, pair, times, outcome and other fields of the text."
    )


class MemorySearchResult(Result):
    """Result of memory_search."""

    results: tuple[MemoryHit, ...] = Field(description="Hits, best first.")
    total_episodes_searched: int = Field(ge=0, description="Number of the golem's episodes that were compared.")
    total_insights_searched: int = Field(ge=0, description="Number of the golem's insights that were compared.")

    def document(self) -> dict[str, Any]:
        """Return the result as JSON values, which the fields of the hits are already."""
        return {**self.__dict__, "results": [hit.__dict__ for hit in self.results]}


def _store(call: ToolCall, arguments: StoreEpisodeArguments) -> StoreEpisodeResult:
    return store_together(call.context, [(call, arguments)])[0]


def store_together(
    context: DerivationContext, calls: Sequence[tuple[ToolCall, StoreEpisodeArguments]]
) -> list[StoreEpisodeResult]:
    """Store the episodes of several calls in one commit, with one call of the model; return the result of each."""
    texts, given = [episode_text(arguments) for _, arguments in calls], list[CallTexts]()
    for (call, _), text in zip(calls, texts, strict=True):
        text_id = life_event(call.golem_id, call.at, text).event_id
        called = call.called(f"Stored {text.importance} episode {text_id}", 1, call.clock())
        given.append(CallTexts(call.golem_id, [text], call.at, [called]))
    stored = store_calls(context, given, now=calls[0][0].clock(), waits=False)
    return [
        StoreEpisodeResult(
            episode_id=one.text_id,
            importance=text.importance,
            vector_dimension=one.dimension,
            counts=text_counts(call.golem_id, one),
            estimated_retention_until=one.retained_until.isoformat(),
        )
        for (call, _), text, (one,) in zip(calls, texts, stored, strict=True)
    ]


def episode_text(arguments: StoreEpisodeArguments) -> StoredText:
    """Return the text of an episode: the reflection, else the text in the outcome, else tool and outcome.

    Raises ToolError for a text that is too long.
    """
    outcome = arguments.outcome
    json_text(outcome, "outcome")
    texts = [arguments.reflection.strip()]
    if isinstance(outcome, dict):
        texts += [value.strip() for name in TEXT_NAMES if isinstance(value := outcome.get(name), str)]
    texts.append(f"{arguments.tool}: {orjson.dumps(outcome).decode()}")
    return text_fact(
        "tool memory_store_episode",
        next(text for text in texts if text),
        sort=arguments.sort,
        tool=arguments.tool,
        outcome=outcome,
        chain=arguments.chain or None,
        pair=arguments.token_pair,
        importance=arguments.importance,
        dream_tag=arguments.dream_tag,
        tags=arguments.tags,
    )


def _search(call: ToolCall, arguments: MemorySearchArguments) -> MemorySearchResult:
    insight_of = {text_id: insight for insight in call.insights().values() for text_id in insight.text_ids}
    hits = _matches(call, arguments)
    ids = [hit.id for hit in hits]
    texts = {t.text_id: t for t in texts_of_golem(call.context, call.golem_id, now=call.at, ids=ids)}
    episodes, insight_count = searched_count(call.context, call.golem_id, now=call.at)
    return MemorySearchResult.model_construct(
        results=tuple(_shown(hit, texts.get(hit.id), insight_of.get(hit.id)) for hit in hits),
        total_episodes_searched=0 if arguments.store == "insights" else episodes,
        total_insights_searched=0 if arguments.store == "episodes" else insight_count,
    )


@contextmanager
def compared_together(
    context: DerivationContext, searches: Sequence[tuple[str, Mapping[str, Any]]], *, now: datetime
) -> Iterator[None]:
    """Compare the queries of calls of memory_search in one matrix product, for the calls inside the block.

    Each call has the same result as without the block. Invalid arguments are skipped here; their call raises the error.

    Parameters
    ----------
    searches : golem and arguments of each call
    """
    most, groups = context.policy.retrieval.question_bytes_max, dict[tuple[str, str, Filters], list[str]]()
    for golem_id, arguments in searches:
        with suppress(ValidationError, QueryError):
            given = MemorySearchArguments.model_validate(dict(arguments))
            store, filters = _scope_of(given)
            groups.setdefault((golem_id, store, filters), []).append(check_question(given.query, most))
    compared = [
        QuestionGroup(queries, store, golem_id, filters) for (golem_id, store, filters), queries in groups.items()
        if len(queries) > 1
    ]  # fmt: skip
    with compared_in_advance(context, compared, now=now):
        yield


def _scope_of(arguments: MemorySearchArguments) -> tuple[str, Filters]:
    """Return the store and the filters of a call in the words of `search`."""
    store = {"episodes": "episodes", "insights": "entries"}.get(arguments.store, "both")
    filters = Filters(
        chain=arguments.chain, pair=arguments.token_pair, tool=arguments.tool, confidence_min=arguments.min_confidence
    )
    return store, filters


def _matches(call: ToolCall, arguments: MemorySearchArguments) -> list[SearchRow]:
    """Return the texts that match, best first."""
    store, filters = _scope_of(arguments)
    return search(
        call.context, arguments.query, now=call.at, store=store, golem_id=call.golem_id, filters=filters,
        limit=arguments.limit, decay=arguments.apply_decay,
        without=consolidated_ids(call, "decayed_ids"),
    )  # fmt: skip


def _shown(hit: SearchRow, text: HeldText | None, insight: KnownInsight | None) -> MemoryHit:
    """Return a text found as a hit. text: None for derived texts; insight: None for other texts."""
    if text is None:
        return _derived_hit(hit)
    if insight is not None:
        return _insight_hit(hit, insight, text)
    return MemoryHit.model_construct(
        source="episode", id=hit.id, content=hit.text, relevance_score=hit.relevance, adjusted_score=hit.score,
        metadata=_metadata(text) | {"retention": hit.retained},
    )  # fmt: skip


def _insight_hit(hit: SearchRow, insight: KnownInsight, text: HeldText) -> MemoryHit:
    """Return an insight as of its newest vote and edit."""
    votes: dict[str, JsonValue] = {"upvotes": insight.upvotes, "downvotes": insight.downvotes}
    return MemoryHit.model_construct(
        source="insight", id=insight.insight_id, content=insight.content, relevance_score=hit.relevance,
        adjusted_score=insight.confidence, metadata=_metadata(text) | {"category": insight.category} | votes,
    )  # fmt: skip


def _derived_hit(hit: SearchRow) -> MemoryHit:
    """Return an entry of the curator, or the episode of a record."""
    is_entry = hit.store == "entries"
    return MemoryHit.model_construct(
        source="insight" if is_entry else "episode", id=hit.id, content=hit.text, relevance_score=hit.relevance,
        adjusted_score=hit.retained if is_entry else hit.score, metadata={"kind": hit.kind, "retention": hit.retained},
    )  # fmt: skip


def _metadata(text: HeldText) -> dict[str, JsonValue]:
    """Return the fields of a stored text beside the text itself."""
    fields = {n: v if v is None or type(v) is str else _plain(v) for n, v in text.stored.items() if n != "text"}
    return fields | {"observed_at": text.at.isoformat(), "origin_golem_id": text.origin_golem_id}


def _plain(value: Any) -> JsonValue:
    """Return a field of a text as JSON; moments as ISO 8601."""
    if value is None or type(value) in (str, float, int, bool):
        return cast("JsonValue", value)
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    return list(value) if isinstance(value, tuple) else value


STORE_EPISODE = Tool(
    name="memory_store_episode",
    summary="Store an episodic memory entry from a tool execution. Captures action, outcome, and Reflexion "
    "self-reflection. Importance tier determines Ebbinghaus retention: routine (7d), notable (30d), critical (90d), "
    "emergency (180d). No on-chain cost.",
    capability="write",
    tick_budget="fast",
    steps=("Embedding episode", "Writing episode"),
    guidance=Guidance(
        thriving="Store after every significant operation. routine=normal, notable=large trades, critical=strategy "
        "changes, emergency=exploit detection.",
        cautious="Store everything at notable or higher. Cautious phases generate high-value learning data.",
        declining="Store at critical. Decline episodes teach the most.",
        terminal="Store at emergency for maximum retention in successor's Grimoire.",
    ),
    arguments=StoreEpisodeArguments,
    result=StoreEpisodeResult,
    run=_store,
    waits=False,
)

SEARCH = Tool(
    name="memory_search",
    summary="Hybrid BM25 + vector search across episodes and insights. Ebbinghaus decay adjusts episode relevance by "
    "age and importance. Use before any decision to retrieve relevant past experiences.",
    capability="read",
    tick_budget="fast",
    steps=("Embedding query", "Searching episodes", "Searching insights", "Ranking results"),
    guidance=Guidance(
        thriving="Search before every decision. Weight high-confidence insights (> 0.8) heavily.",
        cautious="Search with broader queries. Include failure episodes in context.",
        declining="Search for capital preservation insights and similar decline patterns.",
        terminal="Search for death-related insights from any imported predecessor Grimoire.",
    ),
    arguments=MemorySearchArguments,
    result=MemorySearchResult,
    run=_search,
)
