"""Owners are apart in every route and tool of the server: a token opens nothing of another owner and writes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import httpx
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.events.life.events import Kind, golem_name
from bardo_pipeline.server.reading import REPORTS
from bardo_pipeline.tools.catalogue import TOOLS
from tests.support.homes.served_homes import Served
from tests.support.homes.server_routes import GET_ROUTES, POST_ROUTES, path_for, routes_by
from tests.support.homes.two_owners import CORAL, PEARL, Belongings
from tests.support.records.writer_records import changed, line

SHOWS = {"/", "/v1/golems", "/v1/golems/{golem_id:golem}", "/v1/golems/{golem_id:path}/entries", "/v1/ask",
         "/v1/golems/{golem_id:golem}/records", "/v1/search", "/v1/lineage", "/v1/styx/query",
         *(f"/v1/reports/{n}" for n in REPORTS if not n.startswith(("scars", "golem-due", "clade")))}  # fmt: skip
"""Routes that show something of the owner of the token."""

BAD_REQUESTS = {"/v1/lineage", *(f"/v1/reports/{name}" for name in ("bloodstain", "bundle-checks", "golem-death",
                                                                     "library-show"))}  # fmt: skip
"""Routes that refuse another owner's belongings as unknown identifiers, with the status 400."""

EPISODE = {"tool": "swap", "outcome": {}, "reflection": "swaps are cheap at night", "chain": ""}
EXECUTION = {"execution_id": "run-1", "strategy_name": "late swaps", "action_type": "SWAP", "portfolio_snapshot": {},
             "market_conditions": {}, "decision_params": {}, "predicted_outcome": {}}  # fmt: skip
STRATEGY = {"strategy_name": "late", "description": "x", "parameters": {}, "chains": [], "token_pairs": []}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "memory_store_episode": EPISODE,
    "memory_search": {"query": "pool"},
    "memory_manage_insight": {"operation": "ADD", "content": "Swap late.", "category": "gas_timing"},
    "memory_get_insights": {"min_confidence": 0.0, "limit": 50},
    "memory_consolidate": {},
    "memory_store_strategy": STRATEGY,
    "memory_retrieve_strategies": {},
    "memory_record_execution": EXECUTION,
    "memory_record_outcome": {"execution_id": "run-1", "realized_pnl": 1.0, "gas_used_usd": 0.1},
    "memory_compare_prediction": {},
    "memory_get_failure_patterns": {"min_executions": 1},
    "memory_export_grimoire": {},
    "memory_import_grimoire": {"path": "x.json"},
}
"""Valid arguments of every tool, so that nothing but the owner of the golem can refuse a call."""


def send(server: Served, method: str, path: str, json: Any = None, *, golem: str | None = None) -> httpx.Response:
    """Send a request with the token of coral."""
    headers = server.headers(CORAL) | ({} if golem is None else {"bardo-golem": golem})
    return httpx.request(method, f"{server.url}{path}", json=json, headers=headers, trust_env=False, timeout=60)


def test_every_route_and_tool_has_a_case(home: Path) -> None:
    reads, writes = (routes_by(home, method) - {"/mcp"} for method in ("GET", "POST"))
    assert reads == set(GET_ROUTES), "a new route needs a case here: what does it show of owners?"
    assert writes == POST_ROUTES
    assert set(ARGUMENTS) == set(TOOLS), "a new tool needs a case here"


@pytest.mark.full
@pytest.mark.row("X-12")
def test_a_token_reads_nothing_of_another_owner_by_any_route(
    server: Served, coral: Belongings, pearl: Belongings
) -> None:
    for route, path in GET_ROUTES.items():
        answer = send(server, "GET", path_for(path, coral))
        assert pearl.traces(answer.text) == [], f"{route} shows another owner: {answer.text[:500]}"
        if route in SHOWS:
            assert answer.status_code == 200, f"{route}: {answer.text}"
            assert coral.traces(answer.text) != [], f"{route} shows nothing of its owner: {answer.text[:500]}"
        if "{" in path:
            given = path_for(path, pearl)
            refused = send(server, "GET", given)
            assert refused.status_code == (400 if route in BAD_REQUESTS else 404), f"{route}: {refused.text}"
            shown = refused.text.replace(pearl.golem, "").replace(pearl.heir, "").replace(pearl.entry, "")
            assert pearl.traces(shown) == [], f"{route} shows another owner: {refused.text}"
    for path in ("/v1/ask", "/v1/search"):
        sent = {"golem": pearl.heir, **({"question": "pool"} if path == "/v1/ask" else {"words": "pool"})}
        assert send(server, "POST", path, sent).status_code == 404


@pytest.mark.full
@pytest.mark.row("X-12", "MEM-21")
def test_a_token_calls_no_tool_and_writes_nothing_for_a_golem_of_another_owner(
    server: Served, home: Path, coral: Belongings, pearl: Belongings
) -> None:
    before = written(home)
    record = changed(line(1), golem_id=pearl.heir)
    report = {"situation": {}, "action": "swap", "reward": 1.0}
    gap = {"tick_from": 900, "tick_to": 901, "why": "lost"}
    event = {"kind": "GapAccepted", "golem_id": pearl.heir, "observed_at": "2026-01-01T00:00:00Z", "gap": gap}
    refused = [
        send(server, "POST", "/v1/texts", [EPISODE], golem=pearl.heir),
        send(server, "POST", f"/v1/golems/{pearl.heir}/experiences", report),
        send(server, "POST", f"/v1/golems/{pearl.heir}/drafts", report),
        send(server, "POST", f"/v1/golems/{pearl.heir}/steers", {"intent": "hold"}),
        send(server, "POST", "/v1/events", event),
        httpx.post(f"{server.url}/v1/records", content=record, trust_env=False, timeout=60,
                   headers=server.headers(CORAL) | {"content-type": "application/json"}),
        *(send(server, "POST", f"/v1/tools/{name}", given, golem=pearl.heir) for name, given in ARGUMENTS.items()),
    ]  # fmt: skip
    for answer in refused:
        assert (answer.status_code, answer.json()["error"]) == (404, "UnknownGolemError"), answer.text
        assert pearl.traces(answer.text.replace(pearl.heir, "")) == []
    assert written(home) == before
    for name in ("memory_search", "memory_get_insights", "memory_export_grimoire"):
        answer = send(server, "POST", f"/v1/tools/{name}", ARGUMENTS[name], golem=coral.heir)
        assert answer.status_code == 200, answer.text
        assert pearl.traces(answer.text) == []


@pytest.mark.full
@pytest.mark.row("X-9", "X-12", "INH-7")
def test_a_token_births_no_golem_that_another_owner_has_or_would_have(
    server: Served, home: Path, coral: Belongings, pearl: Belongings
) -> None:
    context = DerivationContext.open(home)
    rows = zip(*(context.life("GolemBorn")[name].to_pylist() for name in ("golem_id", "born")), strict=True)
    line_of = {golem: (born["lineage_id"], born["generation"]) for golem, born in rows}
    lineage, generation = line_of[pearl.heir]
    next_heir = golem_name(lineage, generation + 1)
    context.log.close()
    before = written(home)
    asked = (
        {"golem": next_heir},
        {"golem": pearl.heir},
        {"golem": "new-0000", "lineage": lineage},
        {"golem": "new-0001", "owner": PEARL},
        {"golem": "new-0002", "at": "9999-12-30T00:00:00Z"},
    )
    for body in asked:
        answer = send(server, "POST", "/v1/golems", body)
        assert 400 <= answer.status_code < 500, f"{body}: {answer.text}"
        assert pearl.traces(answer.text.replace(body["golem"], "").replace(lineage, "").replace(PEARL, "")) == []
    assert written(home) == before
    assert send(server, "POST", "/v1/golems", {"golem": "new-0003"}).json()["owner_id"] == CORAL


def written(home: Path) -> tuple[int, int]:
    """Return the numbers of life events and records in the log and its journals."""
    context = DerivationContext.open(home)
    facts = sum(context.log.life(kind).num_rows for kind in get_args(Kind))
    counts = facts, context.log.read_cycles(["tick"]).num_rows
    context.log.close()
    return counts
