"""Answers of the server have the JSON schemas that it states, over HTTP and the Model Context Protocol."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from bardo_pipeline.client import Signer
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.events.experience.stored_text import StoredText
from bardo_pipeline.events.life.events import life_event
from bardo_pipeline.server.openapi.answer_fields import ANSWERS
from bardo_pipeline.storage.keys.owner_signing_keys import OwnerKeys
from bardo_pipeline.tools.catalogue import TOOLS
from tests.conftest import NOW
from tests.scenario.server.test_scripted_agent import SCRIPT, Results
from tests.support.homes.served_homes import Served
from tests.support.homes.server_routes import GET_ROUTES, compare, path_for
from tests.support.homes.two_owners import CORAL, Belongings


def check(answer: httpx.Response, stated: dict[str, Any], document: dict[str, Any]) -> None:
    """Check an answer against the responses that an operation of an OpenAPI document states."""
    where = f"{answer.request.method} {answer.url.path}: {answer.status_code}"
    assert str(answer.status_code) in stated["responses"], f"{where} is not stated"
    schema = stated["responses"][str(answer.status_code)]["content"]["application/json"]["schema"]
    Draft202012Validator({**schema, "components": document["components"]}).validate(answer.json())


@pytest.fixture
def asks(server: Served, coral: Belongings) -> Iterator[httpx.Client]:
    headers = {**server.headers(CORAL), "bardo-golem": coral.heir}
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=60) as client:
        yield client


def asked_over_mcp(asks: httpx.Client, method: str, **parameters: Any) -> dict[str, Any]:
    """Return the result of a request of the Model Context Protocol."""
    sent = {"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}
    accept = {"accept": "application/json, text/event-stream"}
    result: dict[str, Any] = asks.post("/mcp", json=sent, headers=accept).json()["result"]
    return result


@pytest.mark.row("MEM-21", "X-13")
def test_each_answer_of_a_tool_has_the_stated_schema(asks: httpx.Client) -> None:
    document, done = asks.get("/openapi.json").json(), Results()
    listed = {tool["name"]: tool for tool in asks.get("/v1/tools").json()["tools"]}
    over_mcp = {tool["name"]: tool for tool in asked_over_mcp(asks, "tools/list")["tools"]}
    for name, arguments in SCRIPT:
        stated = document["paths"][f"/v1/tools/{name}"]["post"]
        answer = asks.post(f"/v1/tools/{name}", json=arguments(done))
        assert answer.status_code == 200, answer.text
        done[name] = answer.json()
        check(answer, stated, document)
        for schema in (listed[name]["output_schema"], over_mcp[name]["outputSchema"]):
            assert "freshness" in schema["properties"]
            Draft202012Validator(schema).validate(done[name])
        check(asks.post(f"/v1/tools/{name}", json={"colour": "red"}), stated, document)
        refused = asked_over_mcp(asks, "tools/call", name=name, arguments={"colour": "red"})
        assert refused["isError"]
        Draft202012Validator(over_mcp[name]["outputSchema"]).validate(refused["structuredContent"])
    assert done.keys() == TOOLS.keys()


@pytest.mark.row("X-13")
def test_each_answer_has_the_stated_fields_and_no_other(asks: httpx.Client, coral: Belongings) -> None:
    document = asks.get("/openapi.json").json()
    stated = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert ANSWERS.keys() <= stated
    for route, path in GET_ROUTES.items():
        if route.startswith("/v1/") and "library" not in route:
            compare(asks.get(path_for(path, coral)), document["paths"][re.sub(r":\w+", "", route)]["get"], document)


@pytest.mark.row("X-13")
def test_each_answer_to_a_write_has_the_stated_fields_and_no_other(
    asks: httpx.Client, server: Served, coral: Belongings
) -> None:
    document = asks.get("/openapi.json").json()
    paths = document["paths"]
    asks.post("/v1/golems", json={"golem": "g-reports"})
    report = {"situation": {"sky": "grey"}, "action": "wait", "reward": 1.0}
    sent: dict[str, Any] = {
        "/v1/texts": [{"tool": "note", "outcome": {}, "reflection": "The wind turned.", "chain": ""}],
        "/v1/golems/{golem_id}/experiences": report,
        "/v1/golems/{golem_id}/drafts": report,
        "/v1/ask": {"golem": coral.heir, "question": "what about the pool"},
        "/v1/search": {"words": "pool"},
    }
    for path, body in sent.items():
        answer = asks.post(path.format(golem_id="g-reports"), json=body)
        compare(answer, paths[path]["post"], document)
        for stored in answer.json().get("stored", ()):
            traced = asks.get("/v1/lineage", params={"entry": stored["episode_id"]})
            compare(traced, paths["/v1/lineage"]["get"], document)
    (line,) = asks.post("/v1/golems/g-reports/drafts", json=report).json()["records"]
    compare(asks.post("/v1/records", content=line), paths["/v1/records"]["post"], document)
    event = life_event("g-reports", NOW, StoredText(sort="insight", text="Grey skies clear.")).model_dump_json()
    stores = DerivationContext.open(server.root)
    keys = OwnerKeys(stores.home, stores.log)
    current = keys.in_force()[CORAL]
    private = keys.private(current)
    stores.log.close()
    assert private is not None
    signature = Signer(current.key_id, private).signature_line("g-reports", event.encode())
    signed = {"line": event, "signature": signature}
    compare(asks.post("/v1/events", json=signed), paths["/v1/events"]["post"], document)


@pytest.mark.row("X-13")
def test_each_status_of_a_write_is_stated(asks: httpx.Client) -> None:
    document = asks.get("/openapi.json").json()
    statuses = []
    for path, sent, headers in (
        ("/v1/golems", b'{"golem": "g-new"}', {}),
        ("/v1/golems", b'{"golem": "g-new"}', {}),
        ("/v1/golems", b'{"golem": "g", "owner": "pearl"}', {}),
        ("/v1/records", b"{}", {"content-type": "text/html"}),
        ("/v1/records", b"{}", {"host": "a.example"}),
        ("/v1/records", bytes(16_777_217), {}),
    ):
        answer = asks.post(path, content=sent, headers=headers)
        check(answer, document["paths"][path]["post"], document)
        statuses.append(answer.status_code)
    assert statuses == [201, 200, 403, 415, 421, 413]
