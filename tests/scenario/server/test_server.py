"""The server of a home over real sockets: answers equal those of commands, owners are apart, records are durable."""

from __future__ import annotations

import asyncio
import json
import re
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import orjson
import pyarrow as pa
import pytest

from bardo_pipeline.client import AsyncClient, Client, running_server
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import NoServerError, ServerError
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home, make_folder
from bardo_pipeline.storage.intake.quarantine import Quarantine, QuarantineItem
from bardo_pipeline.storage.leases import Lease
from bardo_pipeline.storage.log.event_log import EventLog
from tests.conftest import NOW, copy_home
from tests.support.homes.served_homes import Served, served
from tests.support.homes.server_routes import routes_by
from tests.support.homes.two_owners import CORAL, PEARL, Belongings
from tests.support.processes.bardo_command import bardo
from tests.support.records.handmade_births import birth_of
from tests.support.records.log_queries import GOLEM
from tests.support.records.writer_records import changed, line

QUESTION = "what does gas usually cost?"


def get(server: Served, path: str, owner: str | None = CORAL, **parameters: Any) -> httpx.Response:
    url = httpx.URL(f"{server.url}{path}").copy_merge_params(parameters)
    return httpx.get(url, headers=server.headers(owner), trust_env=False, timeout=60)


@pytest.mark.row("MEM-9", "X-13")
def test_an_ask_over_http_equals_the_command_and_states_how_fresh_it_is(
    server: Served, home: Path, coral: Belongings
) -> None:
    over_http = get(server, "/v1/ask", golem=coral.heir, question=QUESTION).json()
    fresh, warning = over_http.pop("freshness"), over_http.pop("warning")
    from_command = json.loads(bardo("ask", coral.heir, QUESTION, "--json", home=home))
    assert over_http["hits"]
    assert {**over_http, "hits": len(over_http["hits"])} == {**from_command, "hits": len(from_command["hits"])}
    assert over_http["hits"] == from_command["hits"]
    assert warning is None
    as_of = from_command["as_of"]
    assert (fresh["as_of"], fresh["cycle"], fresh["tick"]) == (as_of["at"], as_of["cycle"], as_of["tick"])
    assert fresh["log_version"] == as_of["log_version"]
    assert fresh["lag_ticks"] == as_of["head_tick"] - as_of["tick"]


@pytest.mark.row("X-13")
def test_each_answer_of_json_states_how_fresh_it_is(server: Served, pearl: Belongings) -> None:
    """It writes as pearl, so that coral's answers stay equal to those of the command."""
    golem, entry = f"/v1/golems/{pearl.golem}", f"/v1/lineage?entry={pearl.entry}"
    as_json = {"content-type": "application/json"}
    with httpx.Client(base_url=server.url, headers=server.headers(PEARL), trust_env=False, timeout=60) as asked:
        answers = [
            *(asked.get(path) for path in ("/v1/status", "/v1/golems", "/v1/tools", "/v1/search?words=gas", entry)),
            *(asked.get(f"{golem}{below}") for below in ("", "/entries", "/records", "/warnings?action=x", "/advice")),
            asked.get("/v1/ask", params={"golem": pearl.heir, "question": QUESTION}),
            asked.post("/v1/tools/memory_search", json={"query": "gas"}, headers={"bardo-golem": pearl.heir}),
            asked.post("/v1/golems", json={"golem": "g-fresh", "at": "2020-01-01T00:00:00Z"}),
            asked.post("/v1/golems/g-fresh/experiences", json={"situation": {}, "action": "wait", "reward": 0.5}),
            asked.post("/v1/records", content=changed(line(2), golem_id="g-fresh"), headers=as_json),
            asked.post(
                "/v1/texts", headers={"bardo-golem": "g-fresh"},
                json=[{"tool": "note", "outcome": {}, "reflection": "The wind turned.", "chain": ""}],
            ),
        ]  # fmt: skip
    fields = {"as_of", "cycle", "tick", "log_version", "life_version", "lag_ticks"}
    for answer in answers:
        assert answer.is_success, f"{answer.url}: {answer.text}"
        assert answer.json()["freshness"].keys() == fields, f"{answer.url}: {answer.text[-300:]}"


@pytest.mark.row("X-13")
def test_an_acknowledged_record_counts_in_the_lag_at_once(server: Served) -> None:
    with httpx.Client(base_url=server.url, headers=server.headers(PEARL), trust_env=False, timeout=60) as asked:

        def lags() -> tuple[int, int]:
            paths = "/v1/golems/g-lag", "/v1/golems"
            one, all_of_owner = (asked.get(path).json()["freshness"]["lag_ticks"] for path in paths)
            return one, all_of_owner

        asked.post("/v1/golems", json={"golem": "g-lag", "at": "2020-01-01T00:00:00Z"})
        before = lags()
        for count in range(1, 6):
            report = {"situation": {}, "action": "wait", "reward": 0.5}
            assert asked.post("/v1/golems/g-lag/experiences", json=report).is_success
            assert lags() == (before[0] + count, before[1] + count)


@pytest.mark.row("MEM-10")
def test_a_search_over_http_equals_the_command(server: Served, home: Path, coral: Belongings) -> None:
    over_http = get(server, "/v1/search", words="gas").json()
    assert over_http["hits"] == json.loads(bardo("search", "gas", "--owner", CORAL, "--json", home=home))
    assert over_http["hits"]


@pytest.mark.row("X-12")
def test_a_token_opens_the_golems_of_its_owner_only(server: Served, coral: Belongings, pearl: Belongings) -> None:
    assert_shown(server, coral, pearl, "/v1/golems", "/v1/golems/GOLEM")
    assert_unborn(server, pearl, "/v1/golems/GOLEM", "/v1/golems/GOLEM/entries", "/v1/ask?golem=GOLEM&question=gas")
    assert {golem["owner_id"] for golem in get(server, "/v1/golems", None).json()["golems"]} == {CORAL, PEARL}
    assert get(server, f"/v1/golems?owner={PEARL}", CORAL).status_code == 403
    assert {golem["owner_id"] for golem in get(server, f"/v1/golems?owner={PEARL}", None).json()["golems"]} == {PEARL}


@pytest.mark.full
@pytest.mark.row("X-12")
def test_no_route_shows_golems_of_another_owner(server: Served, coral: Belongings, pearl: Belongings) -> None:
    below = ("entries", "records", "warnings?action=swap")
    paths = ("/v1/status", "/v1/search?words=gas", "/metrics", "/", *(f"/v1/golems/GOLEM/{part}" for part in below))
    assert_shown(server, coral, pearl, *paths)
    assert_unborn(server, pearl, "/v1/golems/GOLEM/records", "/v1/golems/GOLEM/warnings?action=swap",
                  "/v1/search?words=gas&golem=GOLEM")  # fmt: skip


def assert_shown(server: Served, own: Belongings, other: Belongings, *paths: str) -> None:
    """Check that an owner's token opens these paths for its golem, and that no answer names the other owner's."""
    for path in paths:
        answer = get(server, path.replace("GOLEM", own.golem), own.owner)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        assert other.traces(answer.text) == [], f"{path} shows golems of another owner"


def assert_unborn(server: Served, other: Belongings, *paths: str) -> None:
    """Check that golems of another owner look as if they were never born."""
    for path in paths:
        refused = get(server, path.replace("GOLEM", other.golem))
        assert refused.status_code == 404, f"{path}: {refused.text}"
        assert refused.json()["error"] == "UnknownGolemError"


@pytest.mark.row("X-12")
def test_the_home_stores_hashes_of_tokens_in_files_of_their_user(server: Served, home: Path) -> None:
    for path in (home / "keys" / "tokens.json", home / "server.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    stored = (home / "keys" / "tokens.json").read_text()
    assert all(token not in stored for token in server.tokens.values())
    token = bardo("keys", "token", CORAL, home=home).splitlines()[0]
    golems = f"{server.url}/v1/golems"
    assert httpx.get(golems, headers={"authorization": f"Bearer {token}"}, trust_env=False).status_code == 200
    listed = json.loads(bardo("keys", "tokens", "--format", "json", home=home))
    newest = listed[-1]["token"]
    bardo("keys", "revoke-token", newest, home=home)
    refused = httpx.get(golems, headers={"authorization": f"Bearer {token}"}, trust_env=False)
    assert (refused.status_code, refused.json()["error"]) == (401, "TokenError")


@pytest.mark.row("X-13")
def test_tables_arrive_as_arrow_with_the_freshness_in_the_schema(server: Served, coral: Belongings) -> None:
    headers = server.headers(CORAL) | {"accept": "application/vnd.apache.arrow.stream"}
    path = f"{server.url}/v1/golems/{coral.golem}/records"
    answer = httpx.get(path, params={"limit": 7}, headers=headers, trust_env=False)
    table = pa.ipc.open_stream(answer.content).read_all()
    assert table["tick"].to_pylist() == list(range(1, 8))
    fresh = orjson.loads(table.schema.metadata[b"freshness"])
    assert fresh == get(server, f"/v1/golems/{coral.golem}/records", limit=1).json()["freshness"]


@pytest.mark.row("EV-3", "P-4")
def test_acknowledged_records_are_in_the_log_and_a_refused_batch_states_what_is_durable(
    server: Served, home: Path
) -> None:
    with Client(server.url, server.tokens[CORAL], golem=GOLEM) as memory:
        born = memory.birth(at="2020-01-01T00:00:00Z")
        assert (born["owner_id"], born["is_new"]) == (CORAL, True)
        assert not memory.birth(at="2020-01-01T00:00:00Z")["is_new"]
        first = memory.record(*[line(tick) for tick in range(1, 41)])
        assert [ack["tick"] for ack in first["acknowledged"]] == list(range(1, 41))
        assert [ack["link"] for ack in first["acknowledged"]] == list(range(1, 41))
        again = memory.record(line(40))["acknowledged"]
        assert (again[0]["tick"], again[0]["repeated"]) == (40, True)
        with pytest.raises(ServerError, match="different content") as fork:
            memory.record(line(41), line(40, seed=1))
        assert (fork.value.status, fork.value.error) == (409, "ForkError")
        with pytest.raises(ServerError, match="record 2: ") as invalid:
            memory.record(line(42), b'{"golem_id": "x"}')
        assert invalid.value.status == 400
        with Client(server.url, server.tokens[PEARL], golem=GOLEM) as other, pytest.raises(ServerError) as foreign:
            other.record(line(42))
        assert foreign.value.status == 404
    bardo("drain", home=home)
    with EventLog(Home.open(home)) as log:
        ticks = log.read_cycles(["tick"], golems=[GOLEM])["tick"].to_pylist()
    assert sorted(ticks) == list(range(1, 42)), "tick 41 was acknowledged before the refusal, tick 42 never"


@pytest.mark.row("X-13")
def test_a_golem_may_have_a_name_of_any_script_with_slashes(server: Served) -> None:
    name = "góлем/1"
    with Client(server.url, server.tokens[CORAL], golem=name) as memory:
        assert memory.birth(at="2020-01-01T00:00:00Z")["golem_id"] == name
        assert memory.warnings_for("swap")["golem_id"] == name
        assert memory.remember("the pool was shallow")["counts"]["after"] == 1
    paths = (f"/v1/golems/{quote(name, safe='')}", f"/v1/golems/{name}/entries")
    assert [get(server, path).status_code for path in paths] == [200, 200]


@pytest.mark.full
@pytest.mark.row("EV-6", "X-13")
def test_a_server_merges_small_files_of_life_events(tmp_path: Path) -> None:
    home = Home.create(tmp_path / "home", Policy(), NOW)
    names = [f"golem-{number:02}" for number in range(70)]
    with EventLog(home, durable=False) as log:
        for name in names:
            log.record([birth_of(name)], NOW)
        before = len(list(home.life.glob("*.parquet")))
        assert before == 70
        with served(home.root, upkeep_seconds=0.5) as server:
            deadline = time.monotonic() + 60
            while not list(home.life.glob("warm/*.parquet")):
                assert time.monotonic() < deadline, "the server merged nothing"
                time.sleep(0.1)
            listed = get(server, "/v1/golems", None).json()["golems"]
        assert [golem["golem_id"] for golem in listed] == names
        log.record([birth_of("golem-70")], NOW)
        assert log.life("GolemBorn").num_rows == 71


@pytest.mark.row("MEM-20", "MEM-21")
def test_a_server_consolidates_stored_episodes_that_are_due(tmp_path: Path) -> None:
    home = Home.create(tmp_path / "home", Policy(), NOW)
    with EventLog(home) as log:
        log.record([birth_of("golem-0")], NOW)
    with (
        served(home.root, upkeep_seconds=0.5) as server,
        Client(server.url, server.tokens[None], golem="golem-0") as memory,
    ):
        for pool in ("thin", "shallow", "nearly empty"):
            memory.remember(f"The swap slipped because the pool was {pool}.", tool="swap", outcome={"pnl_usd": -3})
        deadline = time.monotonic() + 30
        while not (insights := memory.tool("memory_get_insights")["insights"]):
            assert time.monotonic() < deadline, "the server consolidated nothing"
            time.sleep(0.2)
    assert [insight["source"] for insight in insights] == ["consolidation"]


@pytest.mark.row("MEM-21", "X-13")
def test_a_tool_writes_through_the_client_and_the_event_is_in_the_log(
    server: Served, home: Path, coral: Belongings
) -> None:
    strategy = {
        "strategy_name": "wide range",
        "description": "stay wide",
        "parameters": {"width": 3},
        "chains": ["ethereum"],
        "token_pairs": ["WETH/USDC"],
    }

    async def stored_and_read() -> list[dict[str, Any]]:
        async with AsyncClient(server.url, server.tokens[CORAL], golem=coral.heir) as memory:
            before = await memory.tool("memory_retrieve_strategies", strategy_name="wide")
            stored = await memory.tool("memory_store_strategy", **strategy)
            assert stored["counts"]["after"] == stored["counts"]["before"] + 1
            assert stored["freshness"]["life_version"] > before["freshness"]["life_version"]
            answer = await memory.tool("memory_retrieve_strategies", strategy_name="wide")
            return answer["strategies"]

    (answer,) = asyncio.run(stored_and_read())
    assert answer["parameters"] == {"width": 3}
    stores = DerivationContext.open(home)
    assert stores.life("StrategyStored")["golem_id"].to_pylist() == [coral.heir]
    stores.log.close()
    with Client(server.url, server.tokens[PEARL]) as other, pytest.raises(ServerError) as foreign:
        other.tool("memory_store_strategy", golem=coral.heir, **strategy)
    assert foreign.value.status == 404


@pytest.mark.row("MEM-17", "MEM-18", "X-13")
def test_an_agent_remembers_in_its_own_words_and_finds_them_at_once(server: Served, pearl: Belongings) -> None:
    with Client(server.url, server.tokens[PEARL], golem=pearl.heir) as memory:
        words = "The night crew moved the anchor because the harbour was closing."
        stored = memory.remember(words, tool="watch", outcome={"moved": True}, importance="critical")
        assert stored["counts"]["after"] == stored["counts"]["before"] + 1
        texts = {
            hit["id"]: hit["content"]
            for hit in memory.search("why was the anchor moved?", store="episodes", tool="watch")["results"]
        }
        assert texts[stored["episode_id"]] == words
        assert memory.insights(limit=3)["freshness"]["log_version"] > 0
        execution = {
            "strategy_name": "berth",
            "action_type": "moor",
            "portfolio_snapshot": {},
            "market_conditions": {"regime": "calm"},
            "decision_params": {},
            "predicted_outcome": {"expected_pnl_usd": 10},
        }
        assert memory.record_execution(execution_id="e-1", **execution)["predicted_pnl_usd"] == 10
        outcome = memory.record_outcome(execution_id="e-1", realized_pnl=5.0, gas_used_usd=1.0)
        assert outcome["reflection_requested"]
    with Client(server.url, server.tokens[CORAL], golem=pearl.heir) as other, pytest.raises(ServerError) as foreign:
        other.search("why was the anchor moved?")
    assert foreign.value.status == 404


@pytest.mark.row("X-13")
def test_the_openapi_document_describes_every_route_and_tool(server: Served, home: Path) -> None:
    document = httpx.get(f"{server.url}/openapi.json", trust_env=False).json()
    tools = get(server, "/v1/tools").json()["tools"]
    assert {f"/v1/tools/{tool['name']}" for tool in tools} <= document["paths"].keys()
    text = json.dumps(document)
    names = document["components"]["schemas"]
    for reference in text.split('"$ref": "#/components/schemas/')[1:]:
        assert reference.split('"')[0] in names
    assert "#/$defs/" not in text
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            answer = httpx.request(method, f"{server.url}{path}", trust_env=False)
            is_open = described.get("security") == []
            assert answer.status_code == (200 if is_open else 401), f"{method} {path} asks for a token: {not is_open}"
            for response in described["responses"].values():
                assert response["headers"]["Bardo-Freshness"]["$ref"] == "#/components/headers/Freshness"
    listed = {(re.sub(r":\w+", "", path), method) for method in ("GET", "POST") for path in routes_by(home, method)}
    not_listed = {("/mcp", "POST"), ("/", "POST"), ("/v1/tools/{name}", "POST")}
    described_routes = {(path, method.upper()) for path, methods in document["paths"].items() for method in methods}
    assert listed - not_listed == {route for route in described_routes if not route[0].startswith("/v1/tools/")}


@pytest.mark.row("X-13")
def test_a_path_with_a_slash_at_its_end_leads_to_the_same_answer(server: Served) -> None:
    with httpx.Client(base_url=server.url, headers=server.headers(CORAL), trust_env=False, timeout=60) as asks:
        for path in ("/v1/golems", "/v1/tools"):
            led = asks.get(f"{path}/", follow_redirects=True)
            assert (led.status_code, led.url.path, led.json()) == (200, path, asks.get(path).json())


@pytest.mark.row("X-11")
def test_metrics_are_the_figures_of_status(server: Served, home: Path) -> None:
    assert get(server, "/v1/golems", None).status_code == 200
    text = get(server, "/metrics", None).text
    figures = dict(row.rsplit(" ", 1) for row in text.splitlines() if not row.startswith("#"))
    status = json.loads(bardo("status", "--format", "json", home=home))
    for part, measure in (("golems", "born"), ("golems", "dead"), ("curation", "ticks"), ("spool", "files")):
        assert float(figures[f"bardo_{part}_{measure}"]) == status["health"][part][measure]
    assert float(figures["bardo_log_version"]) == status["log"]["version"]
    assert any(name.startswith("bardo_requests_total{") for name in figures)


@pytest.mark.row("X-11", "X-12")
def test_the_status_of_an_owner_counts_what_belongs_to_its_golems(
    server: Served, home: Path, pearl: Belongings
) -> None:
    opened = Home.open(home)
    kept = [Lease(opened, pearl.golem, "writer"), Lease(opened, "g-unborn", "writer")]
    files = [opened.spool / n for n in (f"{pearl.golem}/a.jsonl", f"{pearl.golem}/note.txt", "b.jsonl", "note.txt")]
    for file in files:
        make_folder(file.parent)
        file.write_text("no line")
    try:
        of_pearl = f"{pearl.golem}/note.txt"
        for owner, count, names in ((None, 2, {of_pearl, "note.txt"}), (PEARL, 1, {of_pearl}), (CORAL, 0, {None})):
            health = get(server, "/v1/status", owner).json()["health"]
            counts = health["leases"]["held"], health["spool"]["files"], health["untaken"]["files"]
            assert counts == (count, count, count), owner
            assert health["untaken"]["oldest"] in names
    finally:
        for lease in kept:
            lease.release()
        for file in files:
            file.unlink()


@pytest.mark.row("X-11", "X-12")
def test_an_owner_counts_its_own_quarantined_items(server: Served, home: Path, pearl: Belongings) -> None:
    items = [
        QuarantineItem("spool", "bad.jsonl", line, golem, None, "RecordError", "no number", b"{}")
        for line, golem in enumerate((pearl.heir, pearl.heir, None), 1)
    ]
    Quarantine(Home.open(home)).put(items, NOW)
    for owner, count in ((CORAL, 0), (PEARL, 2), (None, 3)):
        figures = dict(row.rsplit(" ", 1) for row in get(server, "/metrics", owner).text.splitlines() if row[:1] != "#")
        assert float(figures["bardo_quarantine_open"]) == count, owner
        assert get(server, "/v1/status", owner).json()["health"]["quarantine"]["open"] == count


@pytest.mark.row("X-11")
def test_the_page_asks_for_a_token_and_loads_nothing(server: Served) -> None:
    closed = httpx.get(f"{server.url}/", trust_env=False)
    assert closed.status_code == 401
    with httpx.Client(base_url=server.url, trust_env=False) as browser:
        assert browser.post("/", data={"token": "wrong"}).status_code == 401
        signed = browser.post("/", data={"token": server.tokens[CORAL]})
        assert (signed.status_code, signed.headers["location"]) == (303, "/")
        cookie = signed.headers["set-cookie"]
        assert server.tokens[CORAL] not in cookie, "a browser keeps no token"
        assert cookie.startswith("bardo_session=")
        assert {"HttpOnly", "SameSite=strict", "Max-Age=43200"} <= set(cookie.split("; "))
        page = browser.get("/")
        assert browser.get("/v1/golems").status_code == 401, "the cookie opens the page only"
    assert page.status_code == 200
    assert page.text.count("<svg") >= 3
    for word in ("<script", "http://", "https://", "src=", "@import", "url("):
        assert word not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]


@pytest.mark.row("P-5")
@pytest.mark.parametrize(("asked", "returned"), [("/docs/data/", "/docs/data/"), ("/docs/dbt/", "/docs/dbt/"),
                                                 ("//elsewhere.example/", "/"), ("/v1/golems", "/")])  # fmt: skip
def test_a_browser_returns_to_the_documents_that_it_asked_for(server: Served, asked: str, returned: str) -> None:
    with httpx.Client(base_url=server.url, trust_env=False) as browser:
        if asked.startswith("/docs/"):
            assert f'name="page" type="hidden" value="{asked}"' in browser.get(asked).text
        signed = browser.post("/", data={"token": server.tokens[None], "page": asked})
    assert (signed.status_code, signed.headers["location"]) == (303, returned)


@pytest.mark.row("X-13")
def test_a_client_stores_many_texts_in_a_call_and_learns_which_are_refused(server: Served, pearl: Belongings) -> None:
    with Client(server.url, server.tokens[PEARL], golem=pearl.heir) as memory:
        given = ["The tide turned before the lamp was lit.", {"reflection": "x", "importance": "vital"}]
        stored = memory.remember_all([*given, {"reflection": "Fog came with the east wind.", "tool": "lookout"}])
        assert [episode["index"] for episode in stored["stored"]] == [0, 2]
        assert [(episode["index"], episode["error"]) for episode in stored["refused"]] == [(1, "ToolError")]
        assert stored["counts"]["after"] == stored["counts"]["before"] + 2
        ids = {hit["id"] for hit in memory.search("when was the lamp lit?", store="episodes")["results"]}
        assert stored["stored"][0]["episode_id"] in ids
        with pytest.raises(ServerError, match="importance") as invalid:
            memory.remember_all(given[1:])
        assert invalid.value.status == 400
    lines = b'{"tool": "a", "outcome": 1, "reflection": "b", "chain": ""}\n['
    headers = {**server.headers(PEARL), "bardo-golem": pearl.heir, "content-type": "application/x-ndjson"}
    for body, status in (
        (b"[", 400),
        (b"\n", 400),
        (b'[{"tool": "a", "tool": "b", "outcome": 1, "reflection": "c"}]', 400),
        (lines, 200),
    ):
        answer = httpx.post(f"{server.url}/v1/texts", content=body, headers=headers, trust_env=False, timeout=60)
        assert answer.status_code == status, answer.text
    assert [episode["error"] for episode in answer.json()["refused"]] == ["JSONError"]
    foreign = {**headers, **server.headers(CORAL)}
    answer = httpx.post(f"{server.url}/v1/texts", content=body, headers=foreign, trust_env=False, timeout=60)
    assert (answer.status_code, "Fog" in answer.text) == (404, False)


@pytest.mark.row("X-13", "MEM-10")
@pytest.mark.parametrize("tag", ["quicksilver", "saltmarsh"])
def test_a_search_for_a_tag_finds_the_tagged_text_first(server: Served, pearl: Belongings, tag: str) -> None:
    sentences = ("The bridge closed at noon.", "A heron stood in the reeds.", "The baker sold out of rye.",
                 "Two sails turned south.", "Snow lay on the eastern roofs.")  # fmt: skip
    given = [{"reflection": text, "tags": ["harbour"]} for text in sentences]
    given[3]["tags"] = ["harbour", tag]

    async def stored_and_found() -> tuple[dict[str, Any], list[dict[str, Any]]]:
        async with AsyncClient(server.url, server.tokens[PEARL], golem=pearl.heir) as memory:
            stored = await memory.remember_all(given)
            return stored, (await memory.search(tag, store="episodes"))["results"]

    if tag == "quicksilver":
        with Client(server.url, server.tokens[PEARL], golem=pearl.heir) as memory:
            stored, found = memory.remember_all(given), memory.search(tag, store="episodes")["results"]
    else:
        stored, found = asyncio.run(stored_and_found())
    assert found[0]["id"] == stored["stored"][3]["episode_id"]


def test_a_client_finds_the_server_of_a_home_and_says_when_none_runs(
    server: Served, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BARDO_URL", "BARDO_TOKEN", "BARDO_GOLEM"):
        monkeypatch.delenv(name, raising=False)
    address = running_server(home)
    assert address is not None
    assert (address.url, address.pid) == (server.url, server.pid)
    with Client(home=home, owner=PEARL) as memory:
        assert {golem["owner_id"] for golem in memory.golems()["golems"]} == {PEARL}
    stale = tmp_path / "home"
    copy_home(home, stale)
    assert (stale / "server.json").exists()
    assert running_server(stale) is None, "a file that a killed server left is no server"
    with pytest.raises(NoServerError, match="bardo serve"):
        Client(home=stale)


@pytest.mark.row("X-13")
def test_the_client_is_imported_without_stores_and_models() -> None:
    code = "import sys; from bardo_pipeline.client import Client; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    heavy = {"pyarrow", "duckdb", "deltalake", "numpy", "pydantic", "dagster", "onnxruntime", "lancedb", "starlette"}
    assert "bardo_pipeline.client.http_client" in done.stdout.split()
    assert not heavy & set(done.stdout.split())
