"""Calls of memory_search that wait together have the results that each has alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from bardo_pipeline.arrays import Float32Array
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.free_texts import store_texts
from bardo_pipeline.errors import BardoError, ToolError
from bardo_pipeline.events.experience.stored_text import stored_text
from bardo_pipeline.retrieval import text_scoring
from bardo_pipeline.server import warm_home
from bardo_pipeline.server.callers import Caller
from bardo_pipeline.server.tool_calls import ToolRunner
from bardo_pipeline.server.warm_home import Batches, WarmHome
from tests.support.homes.tool_homes import OPEN, tool_home

WORDS = ("gas", "slippage", "oracle", "bridge", "range", "vault", "rose", "failed", "night", "crash", "stable", "noon")
QUESTIONS = [f"what happened when the {first} {second}?" for first in WORDS[:5] for second in WORDS[6:10]]


@pytest.mark.row("MEM-18")
def test_searches_that_wait_together_equal_searches_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, numbers, draw = tool_home(tmp_path / "home"), count(), np.random.default_rng(3)
    for golem in (home.golem, home.other):
        texts = [f"The {' '.join(draw.choice(WORDS, 6))}, case {number}." for number in range(30)]
        stored = [stored_text(text, sort="episode", chain=(None, "base")[n % 2]) for n, text in enumerate(texts)]
        store_texts(home.context, golem, stored, at=home.at, now=home.at)
    together, products = list[int](), text_scoring.products

    def counted(texts: Float32Array, asked: Float32Array) -> Float32Array:
        together.append(len(asked))
        return products(texts, asked)

    monkeypatch.setattr(text_scoring, "products", counted)
    calls: list[tuple[str, dict[str, Any]]] = []
    for number, question in enumerate(QUESTIONS):
        golem = home.other if number % 5 == 4 else home.golem
        filters: dict[str, Any] = [{}, {"chain": "base"}, {"store": "insights"}, {"limit": 3}][number % 4]
        calls.append((golem, {"query": question, **filters}))
    calls[7][1]["query"] = " "
    calls[9][1]["limit"] = 1_000
    calls[11] = ("no-golem", calls[11][1])
    warm = WarmHome(home.root, threads=2)
    runner = ToolRunner(warm, clock=lambda: home.at, ids=lambda: f"call-{next(numbers)}", gate=OPEN)

    async def answer(golem: str, arguments: Mapping[str, Any]) -> bytes:
        try:
            return orjson.dumps(await runner.call(Caller(None, golem), "memory_search", arguments))
        except BardoError as error:
            return f"{type(error).__name__}: {error}".encode()

    async def answers() -> tuple[list[bytes], list[bytes]]:
        alone = [await answer(*call) for call in calls]
        assert set(together) == {1}
        return alone, await asyncio.gather(*(answer(*call) for call in calls))

    try:
        alone, in_batches = asyncio.run(asyncio.wait_for(answers(), 120))
    finally:
        warm.close()
    assert max(together) >= 3
    assert in_batches == alone
    assert sum(b"Error: " in answered for answered in alone) == 3


@pytest.mark.row("MEM-10", "X-13")
def test_a_lone_search_finds_what_was_derived_since_the_search_before(copied_home: Path) -> None:
    context, turns = DerivationContext.open(copied_home), count()
    entries = context.projections.replaceable("grimoire").read()
    golem, text = entries["golem_id"][0].as_py(), entries["text"][0].as_py()
    moment = context.life("GolemBorn")["observed_at"][0].as_py()
    warm = WarmHome(copied_home, threads=2)
    runner = ToolRunner(warm, clock=lambda: moment, ids=lambda: f"call-{next(turns)}", gate=OPEN)

    def found() -> dict[str, Any]:
        call = runner.call(Caller(None, golem), "memory_search", {"query": text, "store": "insights"})
        return asyncio.run(asyncio.wait_for(call, 60))

    try:
        before = found()
        context.projections.replaceable("grimoire").replace(entries.slice(0, 0), set(range(context.home.bucket_count)))
        assert (before["total_insights_searched"] > 0, found()["results"]) == (True, [])
    finally:
        warm.close()


@pytest.mark.row("MEM-18")
def test_a_broken_request_leaves_the_others_of_its_batch(tmp_path: Path) -> None:
    home = tool_home(tmp_path / "home")
    home.call("memory_store_episode", tool="swap", outcome={}, reflection="The swap slipped at noon.", chain="")
    warm = WarmHome(home.root, threads=2)

    runner = ToolRunner(warm, clock=lambda: home.at, ids=lambda: "call", gate=OPEN)
    caller = Caller(None, home.golem)

    async def answers() -> list[Any]:
        calls = [{"query": "slipped"}, {"query": 7}, {"query": "noon"}]
        return await asyncio.gather(
            *(runner.call(caller, "memory_search", call) for call in calls), return_exceptions=True
        )

    try:
        first, wrong, last = asyncio.run(asyncio.wait_for(answers(), 60))
    finally:
        warm.close()
    assert isinstance(wrong, ToolError)
    assert len(first["results"]) == len(last["results"]) == 1


@pytest.mark.row("MEM-18")
def test_callers_that_had_their_answers_together_are_answered_together_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_home, "_WAITED_SECONDS_MAX", 20.0)
    home, sizes = tool_home(tmp_path / "home"), list[int]()
    warm = WarmHome(home.root, threads=2)

    def answers(context: DerivationContext, requests: Sequence[int]) -> Iterator[int]:
        sizes.append(len(requests))
        yield from requests

    async def asked_apart() -> list[int]:
        batches = Batches[int, int](warm, answers)

        async def ask_after(turns: int) -> int:
            for _ in range(turns):
                await asyncio.sleep(0)
            return await batches.answer(None, turns)

        apart = await asyncio.gather(*map(ask_after, (0, 20, 40)))
        batches._last[None] = 3, 600.0
        return apart + await asyncio.gather(*map(ask_after, (0, 20, 40)))

    try:
        assert asyncio.run(asyncio.wait_for(asked_apart(), 30)) == [0, 20, 40] * 2
    finally:
        warm.close()
    assert sizes[0] == 1, "the first request waits for no other"
    assert sizes[-1] == 3
