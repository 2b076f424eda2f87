"""A refusal of a relay or a server names the header, the field or the route with which the request succeeds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bardo_pipeline.events.custody.blind_signature import PURPOSES
from bardo_pipeline.events.custody.clade_secret import CladeSecret
from bardo_pipeline.katabasis.public_posts import post_id
from tests.support.homes.served_homes import Served, served
from tests.support.homes.two_owners import CORAL
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
