"""The server: 16 callers over HTTP, each figure against the same work without the door.

The server is a process of its own; the callers share this one. Questions are warm: each was asked before, so its vector
is kept. The callers of questions write bare HTTP, because sixteen callers of httpx in one process spend 1.6 ms of its
processor time on a request, one after the other, which no caller with a process of its own waits for. The line of a
search also states the time of one call by the library's client.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier
from typing import Any, NamedTuple

import numpy as np

from bardo_pipeline.api import run_fleet
from bardo_pipeline.client import AsyncClient, Client
from bardo_pipeline.clock import utc_now
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.succession.birth_events import UNKNOWN, record_founder
from bardo_pipeline.events.record_json import glance
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.policy import Policy
from bardo_pipeline.server.callers import Caller as ServerCaller
from bardo_pipeline.server.parameters import AskParameters
from bardo_pipeline.server.reading import Asked, Reply, ask_reply
from bardo_pipeline.server.tool_calls import ToolRunner
from bardo_pipeline.server.warm_home import Batches, WarmHome, each_alone
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal.async_event_writer import AsyncEventWriter
from bardo_pipeline.tools.call_tool import call_tool
from bardo_pipeline.tools.memory_gate import MemoryGate
from bardo_pipeline.tools.store_episodes import store_episodes
from bardo_pipeline.tools.tool_call import Caller
from benchmarks.ack import Lines, golem_id
from benchmarks.figures import Figure
from benchmarks.free_texts import SIZES, drawn_questions, record_drawn_texts

CALLERS, QUESTIONS, BATCH, TEXTS_TOGETHER = 16, 100, 50, 250
OWNER, BORN = "bench", datetime(2020, 1, 1, tzinfo=UTC)
LIVED_BARS = 2_000
START_AIM_S, WRITES_AIM, EPISODES_AIM = 5.0, 3_000.0, 20.0
_NOUNS = ("gas", "slippage", "the pool", "the oracle", "a swap", "liquidity", "the vault", "a bridge", "the range")
_VERBS = ("rose", "fell", "stayed flat", "doubled", "was delayed", "recovered", "failed", "paid", "cost more")


def serve_figures(folder: Path, rounds: int = 60) -> list[Figure]:
    """Measure start-up and questions at each number of texts, and acknowledged records, episodes and texts a second.

    Parameters
    ----------
    rounds : requests of each caller
    """
    figures = [
        figure
        for texts, (suffix, aim_ms) in SIZES.items()
        for figure in question_figures(folder / suffix, texts, rounds, suffix, aim_ms)
    ]
    return figures + _write_figures(folder, rounds)


def question_figures(folder: Path, texts: int, rounds: int, suffix: str, aim_ms: float) -> list[Figure]:
    """Measure start-up, and p99 of ask and memory_search, in a home with a golem of so many texts.

    Parameters
    ----------
    suffix : of the figures' names
    aim_ms : longest p99
    """
    root = _home(folder, texts)
    asked_golem, questions = _lived(root), drawn_questions(QUESTIONS)
    with _served(root) as (spent, token):
        with Client(home=root, token=token, golem=golem_id(0), timeout_seconds=120) as client:
            url = client.address.url
            for question in questions:
                client.search(question)
                client.ask(question, golem=asked_golem, k=5)
            by_client = [_milliseconds(lambda q=q: client.search(q)) for q in questions]
        searches = [_post("/v1/tools/memory_search", {"query": q}) for q in questions]
        asks = [_post("/v1/ask", {"golem": asked_golem, "question": q}) for q in questions]
        searched, asked = _closed(token, rounds, searches, "results", url), _closed(token, rounds, asks, "hits", url)
    core_search, core_ask = _core_questions(root, asked_golem, questions, rounds)
    method = f"{CALLERS} callers in closed loops, {rounds} warm requests each, {texts:,} texts of one golem; p99; peer:"
    return [
        Figure(f"serve_start_s_{suffix}", spent, "s", START_AIM_S, spent / START_AIM_S, f"value <= {START_AIM_S:g}",
               f"from the start of `bardo serve` to its first answer to a search of {texts:,} texts; peer: the aim"),
        _timed(
            f"http_search_p99_ms_{suffix}", searched, core_search, aim_ms,
            f"{method} memory_search in the same batches without HTTP; one caller by the client "
            f"{np.median(by_client):.1f} ms",
        ),
        _timed(
            f"http_ask_p99_ms_{suffix}", asked, core_ask, aim_ms,
            f"{method} ask a golem of a fleet, which has derived entries, in the same batches without HTTP",
        ),
    ]  # fmt: skip


def _write_figures(folder: Path, rounds: int) -> list[Figure]:
    """Measure acknowledged records and stored texts a second."""
    root = _home(folder / "writes", 0)
    with _served(root) as (_, token):
        rate = asyncio.run(_written(root, token, rounds * 10))
        stored = asyncio.run(_stored(root, token, rounds))
    core_stored = _core_stored(root, rounds)
    bare = asyncio.run(_written_bare(folder / "bare", rounds * 10))
    together, core_together = _texts_stored(folder / "texts", max(rounds // 4, 1))
    return [
        Figure("http_writes_per_s", rate, "records/s", bare, rate / bare, f"value >= {WRITES_AIM:,.0f}",
               f"{CALLERS} callers, a golem each, {BATCH} records a request, each acknowledged durable; peer: "
               "AsyncEventWriter.append_all in one process"),
        Figure("http_tool_writes_per_s", stored, "episodes/s", core_stored, stored / core_stored,
               f"value >= {EPISODES_AIM:g}",
               f"{CALLERS} callers, a golem each, one memory_store_episode a request, each acknowledged durable and "
               "found by words at once; peer: memory_store_episode in threads without HTTP"),
        Figure("http_texts_per_s", together, "texts/s", core_together, together / core_together,
               f"value >= {WRITES_AIM:,.0f}",
               f"{CALLERS} callers, a golem each, {TEXTS_TOGETHER} texts in one request of POST /v1/texts, each "
               "acknowledged durable and found by words at once; peer: the same in threads without HTTP"),
    ]  # fmt: skip


def _timed(name: str, over_http: list[float], core: list[float], aim: float, how: str) -> Figure:
    value, peer = (float(np.percentile(times, 99)) for times in (over_http, core))
    shown = f"{how}; medians {np.median(over_http):.1f} and {np.median(core):.1f} ms"
    return Figure(name, value, "ms", peer, value / peer, f"value <= {aim:g}", shown)


def _milliseconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


def _home(folder: Path, texts: int) -> Path:
    """Make a home with a golem for each caller; the first has the texts."""
    root = folder / "home"
    Home.create(root, Policy(), utc_now())
    context = DerivationContext.open(root)
    for number in range(CALLERS):
        _born(context, golem_id(number))
    record_drawn_texts(context, [golem_id(0)], texts)
    context.log.close()
    return root


def _lived(root: Path) -> str:
    """Let a golem of a fleet live for 2,000 minutes, and return its id. Its entries are derived."""
    run_fleet(root, golems=1, generations=1, bars=LIVED_BARS, lifespan_ticks=(10**6, 10**6), owners=(OWNER,))
    context = DerivationContext.open(root)
    born = set(context.life("GolemBorn")["golem_id"].to_pylist())
    context.log.close()
    (name,) = born - {golem_id(number) for number in range(CALLERS)}
    return name


def _born(context: DerivationContext, name: str) -> None:
    founding = Founding((OWNER,), lifespan_ticks=(10**6, 10**6))
    record_founder(
        context, name, owner_id=OWNER, lineage_id=name, founding=founding, market=UNKNOWN, at=BORN, now=utc_now()
    )


@contextmanager
def _served(root: Path) -> Iterator[tuple[float, str]]:
    """Serve a home; yield the seconds until its first answer, and a token."""
    environment = {**os.environ, "BARDO_MEMORY_ENABLED": "true"}
    token = _run("keys", "token", "--whole-home", "--home", str(root), environment=environment).split()[0]
    began = time.perf_counter()
    command = [sys.executable, "-m", "bardo_pipeline.cli.entry", "serve", "--port", "0", "--home", str(root)]
    server = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        assert "serves" in server.stderr.readline(), "the server did not start"
        with Client(home=root, token=token, golem=golem_id(0), timeout_seconds=120) as client:
            client.search("w0001x w0002x")
        yield time.perf_counter() - began, token
    finally:
        server.terminate()
        server.wait(60)


def _run(*words: str, environment: Mapping[str, str]) -> str:
    command = [sys.executable, "-m", "bardo_pipeline.cli.entry", *words]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


class Post(NamedTuple):
    """A request with a JSON body."""

    path: str
    body: bytes


def _post(path: str, document: Mapping[str, Any]) -> Post:
    return Post(path, json.dumps(document).encode())


def _closed(token: str, rounds: int, posts: Sequence[Post], results: str, url: str) -> list[float]:
    """Return the milliseconds of each call of 16 closed loops over HTTP, each with a connection of its own.

    results: field of an answer that may not be empty.
    """
    host, port = url.removeprefix("http://").split(":")
    answers: list[bytes] = []

    async def called(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, post: Post) -> None:
        head = f"POST {post.path} HTTP/1.1\r\nhost: {host}:{port}\r\nauthorization: Bearer {token}\r\n"
        head += f"bardo-golem: {golem_id(0)}\r\ncontent-type: application/json\r\ncontent-length: {len(post.body)}"
        writer.write(head.encode() + b"\r\n\r\n" + post.body)
        answered = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert answered.startswith(b"http/1.1 200 "), answered
        length = int(answered.split(b"content-length:")[1].split(b"\r\n")[0])
        answers.append(await reader.readexactly(length))

    async def caller(number: int) -> list[float]:
        reader, writer = await asyncio.open_connection(host, int(port))
        await called(reader, writer, posts[number % len(posts)])
        times = []
        for place in range(number * rounds, (number + 1) * rounds):
            began = time.perf_counter()
            await called(reader, writer, posts[place % len(posts)])
            times.append((time.perf_counter() - began) * 1e3)
        writer.close()
        return times

    async def callers() -> list[list[float]]:
        return await asyncio.gather(*map(caller, range(CALLERS)))

    times = asyncio.run(callers())
    assert all(json.loads(answer)[results] for answer in answers)
    return [spent for several in times for spent in several]


async def _written(root: Path, token: str, rounds: int) -> float:
    """Return the acknowledged records a second of 16 callers over HTTP."""
    lines = Lines()

    async def caller(number: int, client: AsyncClient) -> None:
        line = lines.of(golem_id(number))
        for first in range(1, rounds * BATCH, BATCH):
            answer = await client.record(*[line(tick) for tick in range(first, first + BATCH)])
            assert len(answer["acknowledged"]) == BATCH

    async with AsyncClient(home=root, token=token, timeout_seconds=120) as client:
        began = time.perf_counter()
        await asyncio.gather(*(caller(number, client) for number in range(CALLERS)))
        return CALLERS * rounds * BATCH / (time.perf_counter() - began)


async def _stored(root: Path, token: str, rounds: int) -> float:
    """Return the episodes a second that 16 callers store over HTTP."""

    async def caller(number: int, client: AsyncClient) -> None:
        for i in range(rounds):
            answer = await client.tool("memory_store_episode", golem=golem_id(number), **_episode(number, i))
            assert answer["counts"]["after"] == answer["counts"]["before"] + 1

    async with AsyncClient(home=root, token=token, timeout_seconds=120) as client:
        began = time.perf_counter()
        await asyncio.gather(*(caller(number, client) for number in range(CALLERS)))
        return CALLERS * rounds / (time.perf_counter() - began)


def _texts_stored(folder: Path, rounds: int) -> tuple[float, float]:
    """Return the texts a second that 16 callers store many in a request, over HTTP and in threads of one process."""
    root = _home(folder, 0)
    with _served(root) as (_, token):
        over_http = asyncio.run(_stored_together(root, token, rounds))
    warm = WarmHome(root, threads=CALLERS)
    opened = Barrier(CALLERS)

    def caller(number: int) -> None:
        for i in range(rounds):
            with warm.context(None) as context:
                store_episodes(context, Caller(golem_id(number)), _episodes(number, i), clock=utc_now,
                               ids=lambda: secrets.token_hex(8), gate=MemoryGate(enabled=True))  # fmt: skip

    def opener(_: int) -> None:
        with warm.context(None):
            opened.wait()

    try:
        with ThreadPoolExecutor(CALLERS) as threads:
            list(threads.map(opener, range(CALLERS)))
            began = time.perf_counter()
            list(threads.map(caller, range(CALLERS)))
        return over_http, CALLERS * rounds * TEXTS_TOGETHER / (time.perf_counter() - began)
    finally:
        warm.close()


async def _stored_together(root: Path, token: str, rounds: int) -> float:
    """Return the texts a second that 16 callers store over HTTP, many in a request."""

    async def caller(number: int, client: AsyncClient) -> None:
        for i in range(rounds):
            answer = await client.remember_all(_episodes(number, i), golem=golem_id(number))
            assert len(answer["stored"]) == TEXTS_TOGETHER

    async with AsyncClient(home=root, token=token, timeout_seconds=120) as client:
        await asyncio.gather(*(client.remember_all(["warm"], golem=golem_id(number)) for number in range(CALLERS)))
        began = time.perf_counter()
        await asyncio.gather(*(caller(number, client) for number in range(CALLERS)))
        return CALLERS * rounds * TEXTS_TOGETHER / (time.perf_counter() - began)


def _episodes(number: int, i: int) -> list[dict[str, Any]]:
    return [_episode(number, i * TEXTS_TOGETHER + place) for place in range(TEXTS_TOGETHER)]


def _episode(number: int, i: int) -> dict[str, Any]:
    text = f"{_NOUNS[i % len(_NOUNS)]} {_VERBS[number % len(_VERBS)]}, case {number}-{i}-{secrets.token_hex(4)}"
    return {"tool": "swap", "outcome": {"filled": True}, "reflection": text, "chain": ""}


async def _written_bare(root: Path, rounds: int) -> float:
    """Return the acknowledged records a second of the same batches without a server."""
    lines = Lines()
    home = Home.create(root, Policy(), utc_now())
    writers = [await AsyncEventWriter.open(home, golem_id(number)) for number in range(CALLERS)]

    async def caller(number: int) -> None:
        line = lines.of(golem_id(number))
        for first in range(1, rounds * BATCH, BATCH):
            acks, refusal = await writers[number].append_all(
                [(record, glance(record), None) for record in map(line, range(first, first + BATCH))]
            )
            assert refusal is None
            assert len(acks) == BATCH

    began = time.perf_counter()
    await asyncio.gather(*map(caller, range(CALLERS)))
    rate = CALLERS * rounds * BATCH / (time.perf_counter() - began)
    for writer in writers:
        await writer.close()
    return rate


def _core_questions(root: Path, asked_golem: str, questions: list[str], rounds: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds of each search and ask in batches without HTTP."""
    warm = WarmHome(root, threads=CALLERS)
    runner = ToolRunner(warm, clock=utc_now, ids=lambda: secrets.token_hex(8), gate=MemoryGate(enabled=True))
    asks: Batches[Callable[[DerivationContext], Reply], Reply] = Batches(warm, each_alone)

    async def search(question: str) -> object:
        return await runner.call(ServerCaller(None, golem_id(0)), "memory_search", {"query": question})

    async def ask(question: str) -> object:
        given = AskParameters(golem=asked_golem, question=question)
        return await asks.answer(None, lambda context: ask_reply(Asked(warm, context, given.golem, utc_now()), given))

    async def times(work: Callable[[str], Awaitable[object]]) -> list[float]:
        async def caller(number: int) -> list[float]:
            spent = []
            for i in range(rounds):
                began = time.perf_counter()
                await work(questions[(number * rounds + i) % len(questions)])
                spent.append((time.perf_counter() - began) * 1e3)
            return spent

        for question in questions:
            await work(question)
        return [spent for several in await asyncio.gather(*map(caller, range(CALLERS))) for spent in several]

    try:
        return asyncio.run(times(search)), asyncio.run(times(ask))
    finally:
        warm.close()


def _core_stored(root: Path, rounds: int) -> float:
    """Return the episodes a second that memory_store_episode stores in threads without HTTP."""
    warm = WarmHome(root, threads=CALLERS)

    def stored(number: int) -> None:
        for i in range(rounds):
            with warm.context(None) as context:
                call_tool(
                    context, Caller(golem_id(number)), "memory_store_episode", _episode(number, i), clock=utc_now,
                    ids=lambda: secrets.token_hex(8), gate=MemoryGate(enabled=True),
                )  # fmt: skip

    try:
        began = time.perf_counter()
        with ThreadPoolExecutor(CALLERS) as threads:
            list(threads.map(stored, range(CALLERS)))
        return CALLERS * rounds / (time.perf_counter() - began)
    finally:
        warm.close()
