"""A refusal of a relay or a server names the header, the field or the route with which the request succeeds."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bardo_pipeline.events.custody.blind_signature import PURPOSES
from bardo_pipeline.events.custody.clade_secret import CladeSecret
from bardo_pipeline.katabasis.public_posts import post_id
from tests.support.homes.served_homes import Served, served
from tests.support.homes.two_owners import CORAL, belongings
from tests.support.processes.bardo_command import bardo
from tests.support.processes.printed_cures import cure_in, value_in
from tests.support.processes.relays import relay

pytestmark = pytest.mark.row("P-4")

CLADE = CladeSecret(b"o" * 32)
TOPIC = f"/v1/topics/{CLADE.topic}"
OWN = {"authorization": f"Bearer {CLADE.token}"}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("relay")
    registry = folder / "registry.json"
    registry.write_text("{}")
    with relay(folder / "relay.db", registry=registry) as (url, _):
        yield url


def cure_of(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    cure: str = answer.json()["cure"]
    return cure


def test_a_topic_is_read_with_the_named_header(address: str) -> None:
    cure = cure_of(httpx.get(f"{address}{TOPIC}/messages", trust_env=False), 401)
    name, _, form = value_in(cure, "send `(.+)`").partition(": ")
    headers = {name: form.replace("TOKEN", CLADE.token)}
    assert httpx.get(f"{address}{TOPIC}/messages", headers=headers, trust_env=False).json()["messages"] == []


def test_a_name_is_written_in_hex_digits(address: str) -> None:
    cure = cure_of(httpx.put(f"{address}{TOPIC}/messages/none", content=b"x", headers=OWN, trust_env=False), 400)
    low, high = value_in(cure, r"give (\d+ to \d+) hex digits").split(" to ")
    for digits in (int(low), int(high)):
        url = f"{address}{TOPIC}/messages/{'a' * digits}"
        assert httpx.put(url, content=b"x", headers=OWN, trust_env=False).status_code == 201
    listed = httpx.post(f"{address}{TOPIC}/kept?days=9", content=b"{}", headers=OWN, trust_env=False)
    assert cure_of(listed, 400) == "send a JSON list of 32 to 64 hex digits"
    ids = json.dumps(["a" * 32])
    kept = httpx.post(f"{address}{TOPIC}/kept?days=9", content=ids, headers=OWN, trust_env=False)
    assert kept.json() == {"missing": []}


def test_a_message_is_kept_for_a_time_that_the_relay_allows(address: str) -> None:
    def put(days: str) -> httpx.Response:
        url = f"{address}{TOPIC}/messages/{'c' * 32}?days={days}"
        return httpx.put(url, content=b"x", headers=OWN, trust_env=False)

    low, high = value_in(cure_of(put("0"), 400), r"give (\d+ to \d+)").split(" to ")
    assert [put(days).status_code for days in (low, high)] == [201, 200]
    refused = httpx.get(f"{address}{TOPIC}/messages?after=x", headers=OWN, trust_env=False)
    number = value_in(cure_of(refused, 400), r"give the newest number read, or (\d+)")
    assert httpx.get(f"{address}{TOPIC}/messages?after={number}", headers=OWN, trust_env=False).json()["messages"]


def test_a_post_states_what_the_relay_names(address: str) -> None:
    purpose, content = PURPOSES[0], json.dumps({"any": "claim"})
    name = post_id(purpose, content.encode())

    def put(name: str, post: Any) -> httpx.Response:
        return httpx.put(f"{address}/v1/lethe/posts/{name}", content=json.dumps(post), trust_env=False)

    assert cure_of(put(name, []), 400) == "send a JSON object"
    refused = put(name, {})
    assert cure_of(refused, 400) == "state the three"
    parts = dict(zip(("purpose", "content", "signature"), (purpose, content, "1"), strict=True))
    assert all(part in refused.json()["message"] for part in parts)
    assert cure_of(put("b" * 64, parts), 400) == "hash its content"
    assert cure_of(put(name, parts), 403) == "ask it for tickets first"


def test_an_unknown_route_of_a_relay_leads_to_the_guide(address: str) -> None:
    assert cure_of(httpx.post(f"{address}/v1/nowhere", trust_env=False), 404) == "use the routes of the guide"
    assert httpx.get(f"{address}/v1/lethe/posts", trust_env=False).status_code == 200


@pytest.fixture
def server(owned: Path) -> Iterator[Served]:
    with served(owned, CORAL) as running:
        yield running


def test_a_record_is_written_by_the_printed_schema(server: Served) -> None:
    def post(line: bytes) -> httpx.Response:
        headers = {**server.headers(CORAL), "content-type": "application/json"}
        return httpx.post(f"{server.url}/v1/records", content=line, headers=headers, trust_env=False, timeout=60)

    refused = post(b'{"golem_id": 7}')
    assert refused.status_code == 400, refused.text
    schema = json.loads(bardo(*cure_in(refused.text.replace("\\u0060", "`")), home=server.root))
    assert schema["properties"]["golem_id"]
    twice = post(b'{"line": "{}", "line": "{}", "signature": "k 1"}')
    assert "send both as JSON strings" in twice.text


def test_a_page_of_the_data_docs_is_found_in_the_list(marts: Path) -> None:
    bardo("derive", "--no-marts", home=marts)
    with served(marts) as server:
        headers = server.headers(None)

        def get(path: str) -> httpx.Response:
            return httpx.get(server.url + path, headers=headers, trust_env=False, timeout=60, follow_redirects=True)

        method, path = value_in(cure_of(get("/docs/data/none.html"), 404), r"(GET \S+) lists them").split()
        assert method == "GET"
        page = value_in(get(path).text, r'href="([^"]+\.html)"')
        assert get(path + page).status_code == 200


def test_a_second_server_of_a_home_leads_to_the_first(owned: Path) -> None:
    with served(owned, CORAL) as server:
        refused = bardo("serve", "--port", "0", home=owned, expect=2)
        file = value_in(refused, r"its address is in (\S+)")
        assert json.loads((owned / file).read_text())["url"] == server.url


def test_a_body_is_json_of_the_named_form(server: Served) -> None:
    def post(path: str, body: bytes, kind: str = "application/json", **more: str) -> httpx.Response:
        headers = {**server.headers(CORAL), "content-type": kind, **more}
        return httpx.post(server.url + path, content=body, headers=headers, trust_env=False, timeout=60)

    assert cure_of(post("/v1/golems", b"[]"), 400) == "send one JSON object"
    assert post("/v1/golems", b'{"golem": "object-1"}').status_code == 201

    def store(body: bytes, kind: str = "application/json") -> httpx.Response:
        return post("/v1/texts", body, kind, **{"bardo-golem": "object-1"})

    lines = value_in(
        cure_of(store(b'{"tool": "a", "outcome": 1, "reflection": "gas rose", "chain": "base"}'), 400),
        r"send an array, or (\S+)",
    )
    stored = store(b'[{"tool": "a", "outcome": 1, "reflection": "gas rose", "chain": "base"}]')
    assert len(stored.json()["stored"]) == 1, stored.text
    assert (
        len(store(b'{"tool": "a", "outcome": 1, "reflection": "gas fell", "chain": "base"}', lines).json()["stored"])
        == 1
    )


def test_a_tool_is_found_in_the_named_list(server: Served) -> None:
    def call(method: str, path: str) -> httpx.Response:
        headers = {**server.headers(CORAL), "bardo-golem": belongings(server.root, CORAL).heir}
        body = {"json": {"query": "gas"}} if method == "POST" else {}
        return httpx.request(method, server.url + path, headers=headers, trust_env=False, timeout=60, **body)

    method, path = value_in(cure_of(call("POST", "/v1/tools/memory_find"), 404), r"(GET \S+) lists all").split()
    named = [tool["name"] for tool in call(method, path).json()["tools"]]
    assert "memory_search" in named
    assert call("POST", "/v1/tools/memory_search").status_code == 200


def test_a_name_in_a_header_is_encoded_as_the_message_says(server: Served) -> None:
    bardo("golem", "birth", "gölem", "--owner", CORAL, home=server.root)

    def search(name: bytes) -> httpx.Response:
        headers = {**server.headers(CORAL), "bardo-golem": name}
        url = f"{server.url}/v1/tools/memory_search"
        return httpx.post(url, json={"query": "gas"}, headers=headers, trust_env=False, timeout=60)

    encoding = value_in(cure_of(search("gölem".encode("latin-1")), 400), r"encode it as (\S+)")
    assert search("gölem".encode(encoding)).status_code == 200


def test_a_body_is_sent_whole_and_at_once(server: Served) -> None:
    body = b'{"golem": "whole-1"}'
    head = (
        f"POST /v1/golems HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {server.tokens[CORAL]}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode()

    def answer(*parts: bytes) -> bytes:
        address = httpx.URL(server.url)
        with socket.create_connection((address.host, address.port), timeout=60) as connection:
            for part in parts:
                connection.sendall(part)
            return b"".join(iter(lambda: connection.recv(65_536), b""))

    slow = answer(head, body[:-1])
    assert b" 408 " in slow.splitlines()[0]
    assert b"send it at once" in slow
    assert b" 201 " in answer(head + body).splitlines()[0]
