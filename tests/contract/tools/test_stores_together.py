"""Calls of memory_store_episode that wait together are stored in one commit, each with its own result."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from bardo_pipeline.errors import ToolError, UnknownGolemError
from bardo_pipeline.server.callers import Caller
from bardo_pipeline.server.tool_calls import ToolRunner
from bardo_pipeline.server.warm_home import WarmHome
from tests.support.homes.tool_homes import OPEN, tool_home


def _episode(reflection: object) -> dict[str, Any]:
    return {"tool": "swap", "outcome": {"filled": True}, "reflection": reflection, "chain": "base"}


@pytest.mark.row("MEM-17")
def test_episodes_that_wait_together_share_commits_and_refuse_each_alone(tmp_path: Path) -> None:
    home, seconds, numbers = tool_home(tmp_path / "home"), count(), count()
    warm = WarmHome(home.root, threads=1)
    runner = ToolRunner(
        warm, clock=lambda: home.at + timedelta(seconds=next(seconds)), ids=lambda: f"c-{next(numbers)}", gate=OPEN
    )
    asked: list[tuple[str, object]] = [
        (home.golem, "The swap slipped at noon."),
        (home.golem, 7),
        (home.other, "The oracle was late."),
        (home.golem, "The bridge halted for an hour."),
        ("no-golem", "Nothing is stored."),
        (home.other, "The vault paid."),
    ]

    async def answers() -> list[Any]:
        async with asyncio.timeout(60):
            first = await runner.call(Caller(None, home.golem), "memory_store_episode", _episode("Warm."))
            calls = [runner.call(Caller(None, golem), "memory_store_episode", _episode(text)) for golem, text in asked]
            return [first, *await asyncio.gather(*calls, return_exceptions=True)]

    try:
        first, noon, wrong, oracle, bridge, unknown, vault = asyncio.run(answers())
    finally:
        warm.close()
    assert isinstance(wrong, ToolError)
    assert isinstance(unknown, UnknownGolemError)
    stored = (noon, oracle, bridge, vault)
    assert [(s["counts"]["before"], s["counts"]["after"]) for s in stored] == [(1, 2), (0, 1), (2, 3), (1, 2)]
    assert [s["counts"]["expected"] for s in stored] == [s["counts"]["after"] for s in stored]
    assert all(s["vector_dimension"] == 384 for s in stored)
    assert {s["freshness"]["life_version"] for s in stored} == {first["freshness"]["life_version"] + 1}
    (hit,) = home.call("memory_search", query="the bridge halted", limit=1).results
    assert hit.id == bridge["episode_id"]
    called = home.context.log.life("ToolCalled")["golem_id"].to_pylist()
    assert (called.count(home.golem), called.count(home.other)) == (3, 2)
