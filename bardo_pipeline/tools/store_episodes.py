"""Stores many episodes in one commit: those of one call, or those of calls that wait together.

Source: TOOLS (memory_store_episode); ADR 0084.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.free_texts import Stored, store_texts
from bardo_pipeline.errors import BardoError, ToolError
from bardo_pipeline.events.experience.stored_text import StoredText
from bardo_pipeline.tools.call_tool import checked_call
from bardo_pipeline.tools.episode_tools import (
    STORE_EPISODE,
    StoreEpisodeArguments,
    StoreEpisodeResult,
    episode_text,
    store_together,
)
from bardo_pipeline.tools.memory_gate import MemoryGate
from bardo_pipeline.tools.schemas import WriteCounts
from bardo_pipeline.tools.tool_call import Caller, ToolCall, check_caller, hash_of

EPISODES_MAX = 1_000
"""Largest number of episodes in one call."""


@dataclass(frozen=True)
class StoredEpisodes:
    """Result of storing many episodes.

    Parameters
    ----------
    stored : result of each stored episode, by its index in the call
    refused : error of each refused episode, by its index in the call
    counts : texts of the golem before and after; None if no episode was stored
    """

    stored: Mapping[int, Stored]
    refused: Mapping[int, BardoError]
    counts: WriteCounts | None


def store_episodes(
    context: DerivationContext,
    caller: Caller,
    episodes: Sequence[object],
    *,
    clock: Callable[[], datetime],
    ids: Callable[[], str],
    gate: MemoryGate,
) -> StoredEpisodes:
    """Store the valid ones of these episodes in one commit, found by words at once; return the result of each.

    Each episode is checked alone: an invalid one does not refuse another. Each stored one is a microsecond later than
    the one before. Vectors are left to `embed_stored`.

    Parameters
    ----------
    episodes : arguments of memory_store_episode for each, or the error for which one was no JSON
    clock, ids, gate : as for `call_tool`

    Raises
    ------
    MemoryGateError : the tools are switched off, or the learning profile is not active
    ToolError : no episode, too many episodes, or a dead golem
    QueryError : the golem is unknown, or belongs to another owner than the caller's
    """
    gate.check(STORE_EPISODE.name)
    if not 1 <= len(episodes) <= EPISODES_MAX:
        raise ToolError(f"the call has {len(episodes):,} episodes: give 1 to {EPISODES_MAX:,}")
    check_caller(context, caller)
    texts: dict[int, StoredText] = {}
    given: list[str] = []
    refused: dict[int, BardoError] = {}
    for index, episode in enumerate(episodes):
        try:
            arguments = _arguments(episode)
            given.append(hash_of(arguments.model_dump(mode="json")))
            texts[index] = episode_text(arguments)
        except BardoError as error:
            refused[index] = error
    at = clock()
    call = ToolCall(context, caller, STORE_EPISODE.name, STORE_EPISODE.steps, at, ids(), hash_of({"all": given}), clock)
    call.require_alive()
    if not texts:
        return StoredEpisodes({}, refused, None)
    now = clock()
    called = call.called(f"Stored {len(texts)} episodes", len(texts), now)
    given_texts = list(texts.values())
    results = store_texts(context, caller.golem_id, given_texts, at=at, now=now, embed=False, beside=[called])
    before = results[0].count_before
    counts = WriteCounts(
        counted=f"TextStored of golem {caller.golem_id}",
        before=before,
        expected=before + sum(result.is_new for result in results),
        after=results[0].count_after,
    )
    return StoredEpisodes(dict(zip(texts, results, strict=True)), refused, counts)


def store_calls_together(
    context: DerivationContext,
    calls: Sequence[tuple[Caller, Mapping[str, Any]]],
    *,
    clock: Callable[[], datetime],
    ids: Callable[[], str],
    gate: MemoryGate,
) -> list[StoreEpisodeResult | Exception]:
    """Answer calls of memory_store_episode of any golems in one commit; a refused call does not refuse another.

    Parameters
    ----------
    calls : caller and arguments of each call
    clock, ids, gate : as for `call_tool`, whose results these are
    """
    gate.check(STORE_EPISODE.name)
    answers: dict[int, StoreEpisodeResult | Exception] = {}
    accepted: dict[int, tuple[ToolCall, StoreEpisodeArguments]] = {}
    for index, (caller, arguments) in enumerate(calls):
        try:
            call, given = checked_call(context, caller, STORE_EPISODE, arguments, clock=clock, ids=ids)
            call.require_alive()
            assert isinstance(given, StoreEpisodeArguments)
            episode_text(given)
            accepted[index] = call, given
        except BardoError as error:
            answers[index] = error
    if accepted:
        answers |= zip(accepted, store_together(context, list(accepted.values())), strict=True)
    return [answers[index] for index in range(len(calls))]


def _arguments(episode: object) -> StoreEpisodeArguments:
    if isinstance(episode, BardoError):
        raise episode
    given = STORE_EPISODE.checked(episode)
    assert isinstance(given, StoreEpisodeArguments)
    return given
