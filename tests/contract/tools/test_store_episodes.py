"""Many episodes in one call: each is checked alone, and the valid ones share a commit."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from bardo_pipeline.errors import MemoryGateError, QueryError, ToolError
from bardo_pipeline.server.callers import Caller as RequestCaller
from bardo_pipeline.server.tool_calls import ToolRunner
from bardo_pipeline.server.warm_home import WarmHome
from bardo_pipeline.tools.memory_gate import MemoryGate
from bardo_pipeline.tools.store_episodes import EPISODES_MAX, StoredEpisodes, store_episodes
from bardo_pipeline.tools.tool_call import Caller
from tests.support.homes.tool_homes import OPEN, ToolHome, tool_home
from tests.support.homes.waiting_texts import embed_waiting


@pytest.fixture
def home(tmp_path: Path) -> ToolHome:
    """A home with two owners' golems."""
    return tool_home(tmp_path / "home")


def episode(reflection: str, **changed: Any) -> dict[str, Any]:
    """Return the arguments of an episode."""
    return {"tool": "swap", "outcome": {"filled": True}, "reflection": reflection, "chain": ""} | changed


def stored_all(
    home: ToolHome, episodes: list[object], *, owner: str | None = None, gate: MemoryGate = OPEN
) -> StoredEpisodes:
    """Store episodes of the home's golem at its present moment."""
    caller = Caller(home.golem, owner)
    return store_episodes(home.context, caller, episodes, clock=lambda: home.at, ids=lambda: "call-1", gate=gate)


def test_an_invalid_episode_is_refused_by_its_index_and_the_others_share_a_commit(home: ToolHome) -> None:
    version = home.context.log.life_version
    given: list[object] = [
        episode("The swap slipped at noon."),
        episode("Gas doubled.", importance="vital"),
        "no object",
        episode("The bridge was delayed.", outcome={"big": 2**70}),
        episode("Gas was cheap at night.", importance="Notable"),
        episode("x" * 65_537),
        {"tool": "swap"},
    ]
    result = stored_all(home, given)
    assert (list(result.stored), list(result.refused)) == ([0, 4], [1, 2, 3, 5, 6])
    assert "importance" in str(result.refused[1])
    assert all(isinstance(error, ToolError) for error in result.refused.values())
    assert result.counts is not None
    assert (result.counts.before, result.counts.expected, result.counts.after) == (0, 2, 2)
    assert home.context.log.life_version == version + 1
    assert home.kinds() == ["ToolCalled"]
    (called,) = home.context.log.life("ToolCalled")["called"].to_pylist()
    assert called["fact_count"] == 2
    hits = home.call("memory_search", query="cheap gas at night").results
    assert (hits[0].id, hits[0].metadata["importance"]) == (result.stored[4].text_id, "notable")


def test_episodes_stored_together_equal_those_stored_alone(tmp_path: Path) -> None:
    words = ["The swap slipped.", "Gas was cheap.", "The swap slipped.", ""]
    together, alone = tool_home(tmp_path / "together"), tool_home(tmp_path / "alone")
    result = stored_all(together, [episode(text) for text in words])
    for text in words:
        alone.call_with("memory_store_episode", episode(text))
        alone.wait(microseconds=1)
    assert embed_waiting(together.context, now=together.at) == 0
    kept = [{row["event_id"]: row for row in home.context.log.texts()[1].to_pylist()} for home in (together, alone)]
    assert kept[0] == kept[1]
    assert list(kept[0]) == [episode.text_id for episode in result.stored.values()]
    answers = [home.call("memory_search", query="did the swap slip?").model_dump() for home in (together, alone)]
    scores = [[hit["relevance_score"] for hit in answer["results"]] for answer in answers]
    assert scores[0] == scores[1]


def test_a_call_of_invalid_episodes_only_records_nothing(home: ToolHome) -> None:
    version = home.context.log.life_version
    result = stored_all(home, [{}])
    assert (result.stored, result.counts, list(result.refused)) == ({}, None, [0])
    assert home.context.log.life_version == version


def test_a_call_with_a_closed_gate_a_foreign_golem_or_a_wrong_number_is_refused(home: ToolHome) -> None:
    given: list[object] = [episode("The swap slipped.")]
    with pytest.raises(MemoryGateError):
        stored_all(home, given, gate=MemoryGate(enabled=False))
    with pytest.raises(QueryError, match="no golem of this name"):
        stored_all(home, given, owner="pearl")
    for number in (0, EPISODES_MAX + 1):
        with pytest.raises(ToolError, match="give 1 to 1,000"):
            stored_all(home, given * number)
    assert home.kinds() == []


@pytest.mark.full
def test_all_episodes_of_a_call_get_vectors_behind_the_answer(tmp_path: Path) -> None:
    home, numbers = tool_home(tmp_path / "home"), count()
    several = home.context.policy.search.embedded_at_once + 3
    warm = WarmHome(home.root, threads=2)
    runner = ToolRunner(warm, clock=lambda: home.at, ids=lambda: f"call-{next(numbers)}", gate=OPEN)
    episodes = [episode(f"case {number}") for number in range(several)]

    async def waiting_after() -> int:
        answer, status = await runner.store_all(RequestCaller(None, home.golem), episodes)
        assert (status, len(answer["stored"])) == (200, several)
        assert runner._embedding is not None
        await runner._embedding
        return embed_waiting(home.context, now=home.at, limit=0)

    try:
        assert asyncio.run(asyncio.wait_for(waiting_after(), 120)) == 0
    finally:
        warm.close()
