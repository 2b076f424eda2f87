"""Stored episodes that are acknowledged without a vector get one behind the answer."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

from bardo_pipeline.derivation.memory.shared_texts import shared_texts
from bardo_pipeline.server.callers import Caller
from bardo_pipeline.server.tool_calls import ToolRunner
from bardo_pipeline.server.warm_home import WarmHome
from tests.support.homes.tool_homes import OPEN, tool_home
from tests.support.homes.waiting_texts import embed_waiting


def test_an_episode_acknowledged_without_a_vector_gets_one_behind_the_answer(tmp_path: Path) -> None:
    home, numbers = tool_home(tmp_path / "home"), count()
    warm = WarmHome(home.root, threads=2)
    runner = ToolRunner(warm, clock=lambda: home.at, ids=lambda: f"call-{next(numbers)}", gate=OPEN)
    episode = {"tool": "swap", "outcome": {}, "reflection": "The swap slipped at noon.", "chain": ""}

    async def stored_while_busy() -> int:
        with shared_texts(home.context, home.at) as texts:
            embedding = texts.embedding
        with embedding:
            answer = await runner.call(Caller(None, home.golem), "memory_store_episode", episode)
        while embed_waiting(home.context, now=home.at, limit=0):
            await asyncio.sleep(0.01)
        return int(answer["vector_dimension"])

    try:
        assert asyncio.run(asyncio.wait_for(stored_while_busy(), 60)) == 0
    finally:
        warm.close()
