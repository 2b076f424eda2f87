"""Routes of the server: all that the application has, a path or a method that calls each, and their stated answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import orjson
from jsonschema import Draft202012Validator

from bardo_pipeline.clock import utc_now
from bardo_pipeline.server.application import Application
from bardo_pipeline.server.callers import Doorkeeper
from bardo_pipeline.server.openapi.answer_fields import answer_schemas
from bardo_pipeline.server.recorder import Recorder
from bardo_pipeline.server.tool_calls import ToolRunner
from bardo_pipeline.server.warm_home import WarmHome
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.keys.owner_tokens import OwnerTokens
from bardo_pipeline.tools.memory_gate import MemoryGate
from tests.support.homes.two_owners import Belongings

GET_ROUTES = {
    "/": "/",
    "/metrics": "/metrics",
    "/live": "/live",
    "/v1/live": "/v1/live",
    "/docs/dbt/": "/docs/dbt/",
    "/docs/data/{path:path}": "/docs/data/",
    "/healthz": "/healthz",
    "/openapi.json": "/openapi.json",
    "/v1/status": "/v1/status",
    "/v1/golems": "/v1/golems",
    "/v1/tools": "/v1/tools",
    "/v1/golems/{golem_id:golem}": "/v1/golems/{golem}",
    "/v1/golems/{golem_id:golem}/entries": "/v1/golems/{golem}/entries?status=any",
    "/v1/golems/{golem_id:golem}/records": "/v1/golems/{golem}/records",
    "/v1/golems/{golem_id:golem}/warnings": "/v1/golems/{golem}/warnings?action=swap",
    "/v1/golems/{golem_id:golem}/advice": "/v1/golems/{golem}/advice",
    "/v1/ask": "/v1/ask?golem={heir}&question=what+about+the+pool",
    "/v1/search": "/v1/search?words=pool&limit=50",
    "/v1/styx/query": "/v1/styx/query?golem={heir}&question=what+about+the+pool",
    "/v1/lineage": "/v1/lineage?entry={entry}",
    "/v1/reports/bloodstain": "/v1/reports/bloodstain?golem={golem}",
    "/v1/reports/bundle-checks": "/v1/reports/bundle-checks?target={golem}",
    "/v1/reports/bundle-show": "/v1/reports/bundle-show",
    "/v1/reports/clade-beliefs": "/v1/reports/clade-beliefs",
    "/v1/reports/clade-notes": "/v1/reports/clade-notes",
    "/v1/reports/clade-pheromones": "/v1/reports/clade-pheromones",
    "/v1/reports/dreams": "/v1/reports/dreams",
    "/v1/reports/golem-death": "/v1/reports/golem-death?golem={golem}",
    "/v1/reports/golem-due": "/v1/reports/golem-due",
    "/v1/reports/golem-notices": "/v1/reports/golem-notices",
    "/v1/reports/golem-successions": "/v1/reports/golem-successions",
    "/v1/reports/graveyard": "/v1/reports/graveyard",
    "/v1/reports/grimoire-list": "/v1/reports/grimoire-list?golem={golem}&status=all",
    "/v1/reports/grimoire-show": "/v1/reports/grimoire-show?golem={golem}&entry={entry}",
    "/v1/reports/library-list": "/v1/reports/library-list",
    "/v1/reports/library-show": "/v1/reports/library-show?entry={golem}",
    "/v1/reports/scars": "/v1/reports/scars?failures=true",
    "/v1/reports/similar": "/v1/reports/similar?text=pool",
}
"""Route -> a path that reads it; {names} stand for belongings of an owner."""

POST_ROUTES = {"/", "/v1/golems", "/v1/golems/{golem_id:golem}/experiences", "/v1/ask", "/v1/search", "/v1/records",
               "/v1/golems/{golem_id:golem}/drafts", "/v1/golems/{golem_id:golem}/steers",
               "/v1/events", "/v1/texts", "/v1/styx/entries", "/v1/tools/{name}"}  # fmt: skip


def path_for(path: str, own: Belongings) -> str:
    return path.format(golem=own.golem, heir=own.heir, entry=own.entry)


def routes_by(root: Path, method: str) -> set[str]:
    """Return the paths of the application over this home that take a method."""
    home, warm = Home.open(root), WarmHome(root, threads=1)
    runner = ToolRunner(warm, clock=utc_now, ids=lambda: "1", gate=MemoryGate.of({}))
    recorder = Recorder(home, clock=utc_now, writer="routes", idle_seconds=1.0, drain="thread")
    application = Application(
        warm, recorder, runner, Doorkeeper(OwnerTokens(home), "secret"), clock=utc_now, version="1", instance="1",
        upkeep_seconds=60.0,
    )  # fmt: skip

    async def protocol(*_: object) -> None:
        """Stand at /mcp, where it is never called."""

    return {route.path for route in application.routes(protocol) if method in (route.methods or ())}


def compare(answer: httpx.Response, stated: dict[str, Any], document: dict[str, Any]) -> None:
    """Check that an answer has the fields of the document and no other, in each row too."""
    assert answer.status_code == 200, answer.text
    schema = stated["responses"]["200"]["content"]["application/json"]["schema"]
    checked = Draft202012Validator({**closed(schema), "components": document["components"]})
    faults = [(error.json_path, error.message) for error in checked.iter_errors(answer.json())]
    assert faults == [], answer.url


def faults_of(document: dict[str, Any], path: str) -> list[str]:
    """Return the faults of a document beside the schema of the GET route that answers with it."""
    (schema,) = answer_schemas("GET", path)
    plain = orjson.loads(orjson.dumps(document))
    return [f"{error.json_path}: {error.message}" for error in Draft202012Validator(closed(schema)).iter_errors(plain)]


def closed(part: Any) -> Any:
    """Return a schema in which no object has further fields than those that it states."""
    if isinstance(part, list):
        return [closed(item) for item in part]
    if not isinstance(part, dict):
        return part
    return {key: closed(value) for key, value in part.items()} | (
        {"additionalProperties": False} if isinstance(part.get("properties"), dict) and "type" in part else {}
    )
