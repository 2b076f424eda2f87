"""The relay of clades: deliveries to 200 connected golems, and the catch-up of a golem that was away for seven days.

The relay is a process of its own; the golems share this one. Bodies have the sizes of real parcels and random content,
encrypted by the secret of their clade.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import numpy as np
from websockets.asyncio.client import ClientConnection, connect

from bardo_pipeline.client.relay_client import RelayClient
from bardo_pipeline.clock import micros_of, utc_now
from bardo_pipeline.events.custody.clade_secret import CladeSecret
from bardo_pipeline.relay.message_store import MessageStore
from benchmarks.figures import Figure, seconds
from benchmarks.layers import layers_figure

GOLEMS, CLADE, SENT_PER_HOUR, SENDING_SECONDS = 200, 8, 100, 30
DAYS_AWAY = 7
ENTRY_BYTES, PARCEL_BYTES = 3_000, 60_000
"""Archives of one entry, and of the 100 entries that a golem may send within an hour."""

DELIVERY_AIM_MS, CATCH_UP_AIM_S = 250.0, 5.0


def relay_figures(folder: Path) -> list[Figure]:
    """Measure p99 of a delivery between connected golems, the seconds of a catch-up, and the cost of all layers."""
    folder.mkdir(parents=True)
    return [
        _delivery_figure(folder / "deliveries.db"),
        _catch_up_figure(folder / "away.db"),
        layers_figure(folder / "layers"),
    ]


def _delivery_figure(database: Path) -> Figure:
    with _served(database) as url:
        times = asyncio.run(_delivered(url))
    value = float(np.percentile(times, 99))
    how = (
        f"{GOLEMS} golems in clades of {CLADE}, {SENT_PER_HOUR} entries an hour each for {SENDING_SECONDS} s, one "
        f"entry a message; from the send until a member of the clade has the message, p99 of {len(times):,} "
        f"deliveries; median {np.median(times):.1f} ms; peer: the aim"
    )
    return Figure(
        "relay_delivery_p99_ms", value, "ms", DELIVERY_AIM_MS, value / DELIVERY_AIM_MS, f"value <= {DELIVERY_AIM_MS:g}",
        how,
    )  # fmt: skip


async def _delivered(url: str) -> list[float]:
    """Let each golem send at random moments; return the milliseconds until each sibling had each message."""
    luck, clades = random.Random(26), [CladeSecret(secrets.token_bytes(32)) for _ in range(-(-GOLEMS // CLADE))]
    sent_at: dict[str, float] = {}
    times: list[float] = []

    async def listen(feed: ClientConnection) -> None:
        while True:
            message = json.loads(await feed.recv())
            times.append((time.perf_counter() - sent_at[message["id"]]) * 1e3)

    async def send(http: httpx.AsyncClient, clade: CladeSecret, at: float) -> None:
        await asyncio.sleep(at)
        name, body = secrets.token_hex(32), clade.encrypt(secrets.token_bytes(ENTRY_BYTES))
        sent_at[name] = time.perf_counter()
        answer = await http.put(f"/v1/topics/{clade.topic}/messages/{name}", content=body, headers=_headers(clade))
        answer.raise_for_status()

    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=30, trust_env=False))
        listeners = []
        for golem in range(GOLEMS):
            clade = clades[golem // CLADE]
            address = f"ws{url.removeprefix('http')}/v1/topics/{clade.topic}/feed?after=0"
            feed = await stack.enter_async_context(connect(address, additional_headers=_headers(clade), proxy=None))
            listeners.append(asyncio.create_task(listen(feed)))
        count = round(GOLEMS * SENT_PER_HOUR * SENDING_SECONDS / 3_600)
        await asyncio.gather(*(send(http, luck.choice(clades), luck.uniform(0, SENDING_SECONDS)) for _ in range(count)))
        until = time.perf_counter() + 5.0
        while len(times) < count * CLADE and time.perf_counter() < until:
            await asyncio.sleep(0.05)
        for listener in listeners:
            listener.cancel()
    assert len(times) == count * CLADE, f"{count * CLADE - len(times)} deliveries are missing"
    return times


def _catch_up_figure(database: Path) -> Figure:
    clade, now = CladeSecret(secrets.token_bytes(32)), utc_now()
    hours, siblings = DAYS_AWAY * 24, CLADE - 1
    store = MessageStore(database, hour_max=10**9)
    until = micros_of(now + timedelta(days=DAYS_AWAY))
    for number in range(hours * siblings):
        body = clade.encrypt(secrets.token_bytes(PARCEL_BYTES))
        store.put(clade.topic, clade.token, f"{number:064x}", body, micros_of(now), until)
    store.close()
    read: list[int] = []

    def catch_up() -> None:
        newest = 0
        with RelayClient(url, clade.topic, clade.token) as topic:
            while messages := topic.after(newest):
                newest = messages[-1].number
                read.extend(len(clade.decrypt(message.body)) for message in messages)

    with _served(database) as url:
        value = seconds(catch_up)
    assert len(read) == hours * siblings
    how = (
        f"a golem with {siblings} siblings that sent {SENT_PER_HOUR} entries in each hour of {DAYS_AWAY} days, a "
        f"parcel an hour ({sum(read) / 1e6:.0f} MB): fetched and decrypted, not imported; peer: the aim"
    )
    return Figure(
        "relay_catch_up_s", value, "s", CATCH_UP_AIM_S, value / CATCH_UP_AIM_S, f"value <= {CATCH_UP_AIM_S:g}", how
    )


def _headers(clade: CladeSecret) -> dict[str, str]:
    return {"authorization": f"Bearer {clade.token}"}


@contextmanager
def _served(database: Path) -> Iterator[str]:
    """Run `bardo relay` over a database; yield its address."""
    command = [sys.executable, "-m", "bardo_pipeline.cli.entry", "relay", str(database), "--port", "0"]
    relay = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        assert relay.stderr is not None
        words = relay.stderr.readline().split()
        yield next(word.rstrip(".,") for word in words if word.startswith("http://"))
    finally:
        relay.terminate()
        relay.wait(30)
