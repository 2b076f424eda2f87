"""Hostile requests to a server: each is answered with its 4xx, hinders no other request, and changes nothing."""

from __future__ import annotations

import hashlib
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import httpx
import pytest

from bardo_pipeline.server.connections import HEAD_BYTES_MAX
from tests.conftest import copy_home
from tests.support.homes.served_homes import Served, served
from tests.support.homes.two_owners import CORAL, PEARL, belongings
from tests.support.records.writer_records import line

Attack = tuple[str, bytes, tuple[int, ...]]
"""Name of the attack, its bytes, and the statuses that answer it."""

VOLATILE = ("index", "locks", "leases", "server.json")
"""Parts of a home that reading may change: caches and locks."""


@pytest.fixture(scope="module")
def server(two_owners_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = copy_home(two_owners_home, tmp_path_factory.mktemp("hostile") / "home")
    with served(home, CORAL, PEARL, seconds=0.5) as running:
        yield running


def request_bytes(method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    head = {"host": "127.0.0.1", "content-length": str(len(body)), "connection": "close", **headers}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def attacks(server: Served, draw: random.Random) -> Iterator[Attack]:
    """Yield attacks without end, each kind in turn."""
    token, other = server.headers(CORAL)["authorization"], server.headers(PEARL)["authorization"]
    heir = belongings(server.root, CORAL).heir
    auth, json_type = {"authorization": token}, {"content-type": "application/json"}
    record, tool = line(1), "/v1/tools/memory_store_strategy"
    while True:
        noise = draw.randbytes(draw.randrange(1, 300))
        word = noise.hex()
        strategy = {"strategy_name": word[:20], "description": word, "parameters": {}, "chains": [], "token_pairs": []}
        valid = json.dumps(strategy).encode()
        yield "no token", request_bytes("POST", "/v1/records", json_type, record), (401,)
        yield "wrong token", request_bytes("POST", tool, {"authorization": f"Bearer bardo_{word}"}, valid), (401,)
        yield "no bearer", request_bytes("GET", "/v1/golems", {"authorization": f"Basic {word}"}), (401,)
        yield "foreign golem", request_bytes(
            "POST", tool, {"authorization": other, "bardo-golem": heir, **json_type}, valid), (404,)  # fmt: skip
        yield "unborn golem", request_bytes("POST", "/v1/records", auth | json_type, record), (404,)
        yield "foreign owner", request_bytes("GET", f"/v1/golems?owner={PEARL}", auth), (403,)
        birth = json.dumps({"golem": word[:20], "owner": PEARL}).encode()
        yield "foreign birth", request_bytes("POST", "/v1/golems", auth | json_type, birth), (403,)
        turned = json.dumps({"golem": word[:20], "lifespan_ticks": [9, 3]}).encode()
        yield "turned bounds", request_bytes("POST", "/v1/golems", auth | json_type, turned), (400,)
        yield "no UTF-8", request_bytes("GET", "/v1/golems", auth | {"bardo-golem": "g\xff"}), (400,)
        yield "no JSON", request_bytes("POST", tool, auth | json_type, noise), (400,)
        yield "no record", request_bytes("POST", "/v1/records", auth | json_type, noise), (400,)
        yield "cut record", request_bytes("POST", "/v1/records", auth | json_type,
                                          record[: draw.randrange(1, len(record) - 1)]), (400,)  # fmt: skip
        yield "deep JSON", request_bytes("POST", "/v1/search", auth | json_type, b"[" * 100_000), (400,)
        yield "unknown argument", request_bytes(
            "POST", tool, auth | json_type | {"bardo-golem": heir},
            json.dumps({**strategy, word[:12]: 1}).encode()), (400,)  # fmt: skip
        yield "unknown parameter", request_bytes("GET", f"/v1/golems?{word}=1", auth), (400,)
        yield "unknown path", request_bytes("GET", f"/v1/{word}", auth), (404,)
        yield "path above", request_bytes("GET", "/v1/../../keys/tokens.json", auth), (404,)
        yield "wrong method", request_bytes("DELETE", "/v1/golems", auth), (405,)
        yield "wrong type", request_bytes("POST", "/v1/records", auth | {"content-type": "text/html"}, record), (415,)
        yield "foreign host", request_bytes("GET", "/v1/golems", auth | {"host": f"{word[:9]}.example"}), (421,)
        yield "stated too long", request_bytes("POST", tool, auth | {"content-length": "99999999999"}), (413,)
        yield "too long", request_bytes("POST", tool, auth | json_type, bytes(1_048_577)), (413,)
        yield "long head", request_bytes("GET", "/v1/golems", auth | {"x": "y" * HEAD_BYTES_MAX}), (431,)
        yield "no HTTP", noise.replace(b"\n", b" ") + b"\r\n\r\n", (400, 431)
        yield "negative length", request_bytes("GET", "/v1/golems", auth | {"content-length": "-1"}), (400,)
        yield "two lengths", request_bytes("POST", tool, auth | {"content-length": "1\r\ncontent-length: 2"}), (400,)
        yield (
            "null question",
            request_bytes("POST", "/v1/ask", auth | json_type, b'{"golem":null,"question":0}'),
            (400,),
        )
        yield "endless search", request_bytes("POST", "/v1/search", auth | json_type,
                                              json.dumps({"words": word, "limit": 10**9}).encode()), (400,)  # fmt: skip


def status_after(server: Served, sent: bytes) -> int:
    """Send bytes over a connection of their own; return the status of the answer."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):  # the server answers before it has read all
            connection.sendall(sent)
        return _status(connection)


def _status(connection: socket.socket) -> int:
    answer = b""
    while b"\r\n" not in answer:
        part = connection.recv(4096)
        if not part:
            raise AssertionError(f"the connection ended with {answer!r}")
        answer += part
    return int(answer.split(b" ", 2)[1])


def content_of(home: Path) -> dict[str, str]:
    """Return the hash of each file of a home that a refused request may not change."""
    files = (path for path in home.rglob("*") if path.is_file())
    return {
        str(path.relative_to(home)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.relative_to(home).parts[0] not in VOLATILE
    }


def attack(server: Served, count: int, seed: int) -> Counter[str]:
    """Send attacks one after the other, and compare each status and the home's content."""
    before = content_of(server.root)
    done: Counter[str] = Counter()
    for number, (name, sent, expected) in zip(range(count), attacks(server, random.Random(seed)), strict=False):
        try:
            status = status_after(server, sent)
        except ConnectionResetError:
            assert name in ("too long", "stated too long", "long head"), f"attack {number}, {name}: no answer"
            status = expected[0]  # the reset reached the sender before the answer, as it may while it still sends
        assert status in expected, f"attack {number}, {name}: {status} (seed {seed})"
        done[name] += 1
    assert content_of(server.root) == before, "a refused request changed the home"
    return done


@pytest.mark.row("MEM-21", "X-13")
def test_each_kind_of_hostile_request_is_refused_and_changes_nothing(server: Served) -> None:
    done = attack(server, 29, seed=1)
    assert len(done) == 28, "each kind once, the first twice"


@pytest.mark.full
@pytest.mark.row("MEM-21", "X-13")
def test_a_thousand_hostile_requests_are_refused_and_change_nothing(server: Served) -> None:
    assert sum(attack(server, 1_000, seed=2).values()) == 1_000


def drip(server: Served, head: bytes, statuses: list[int]) -> threading.Thread:
    """Send the beginning of a request and then nothing, in a thread that appends the status of the answer."""

    def play() -> None:
        statuses.append(status_after(server, head))

    thread = threading.Thread(target=play)
    thread.start()
    return thread


@pytest.mark.row("X-13")
def test_slow_requests_end_with_408_while_others_are_answered(server: Served) -> None:
    token = server.headers(CORAL)["authorization"]
    slow_head = b"GET /v1/golems HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: "
    slow_body = request_bytes("POST", "/v1/records", {"authorization": token, "content-length": "5000"}, b"{")
    statuses: list[int] = []
    waiting = [drip(server, sent, statuses) for sent in [slow_head, slow_body, b""] * 20]
    assert httpx.get(f"{server.url}/healthz", trust_env=False, timeout=60).status_code == 200
    answer = httpx.get(f"{server.url}/v1/golems", headers=server.headers(CORAL), trust_env=False, timeout=60)
    assert answer.status_code == 200
    for thread in waiting:
        thread.join(120)
    assert statuses == [408] * 60


@pytest.mark.row("X-13")
def test_a_slow_head_on_a_connection_that_stays_open_ends_with_408(server: Served) -> None:
    connection = HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    connection.request("GET", "/healthz")
    with closing(connection.sock):
        assert connection.getresponse().read()
        connection.sock.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: ")
        assert _status(connection.sock) == 408


def document_after(url: str, sent: bytes) -> dict[str, Any]:
    """Send bytes over a connection of their own; return the JSON of the answer, its status and its freshness."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(sent)
        answer = HTTPResponse(connection)
        answer.begin()
        stated = {"status": answer.status, "freshness": answer.getheader("bardo-freshness")}
        return json.loads(answer.read()) | stated


@pytest.mark.row("X-13")
def test_a_refusal_before_the_head_is_read_is_a_document_that_states_no_freshness(server: Served) -> None:
    slow = b"GET /v1/golems HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: "
    for sent, status in ((b"no request\r\n\r\n", 400), (slow, 408), (slow + b"y" * HEAD_BYTES_MAX, 431)):
        refused = document_after(server.url, sent)
        assert (refused["status"], refused["freshness"]) == (status, "null")
        assert all(refused[name] for name in ("error", "message", "cure"))


@pytest.mark.row("X-13")
def test_connections_without_a_request_give_way_to_a_request(two_owners_home: Path, tmp_path: Path) -> None:
    """Beyond the bound, the server closes the connection that waits longest, so idle ones shut no owner out."""
    home = copy_home(two_owners_home, tmp_path / "home")
    with served(home, PEARL, seconds=60, connections=4) as server, ExitStack() as idle:
        host, port = server.url.removeprefix("http://").split(":")
        for place in range(12):
            waiting = idle.enter_context(socket.create_connection((host, int(port)), timeout=60))
            waiting.sendall(b"GET / HTTP/1.1" if place % 2 else b"")
        asking = request_bytes("GET", "/v1/golems", server.headers(PEARL))
        assert document_after(server.url, asking)["status"] == 200


@pytest.mark.row("X-13")
def test_a_connection_too_many_is_refused_with_a_document(two_owners_home: Path, tmp_path: Path) -> None:
    asking = request_bytes("GET", "/v1/golems", {})
    with served(copy_home(two_owners_home, tmp_path / "home"), PEARL, seconds=60, connections=1) as server:
        host, port = server.url.removeprefix("http://").split(":")
        assert document_after(server.url, asking)["status"] == 401
        slow_body = server.headers(PEARL) | {"content-type": "application/json", "content-length": "5000"}
        with socket.create_connection((host, int(port)), timeout=60) as answering:
            answering.sendall(request_bytes("POST", "/v1/records", slow_body, b"{"))
            time.sleep(0.5)
            refused = document_after(server.url, asking)
        assert (refused["status"], refused["error"], refused["freshness"]) == (503, "BusyError", "null")
