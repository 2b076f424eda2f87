"""The OpenAPI document of the HTTP door, from the models of its routes and tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from bardo_pipeline.server.parameters import NoParameters
from bardo_pipeline.tools.catalogue import TOOLS
from bardo_pipeline.tools.definition import Tool
from bardo_pipeline.tools.store_episodes import EPISODES_MAX

ARROW = "application/vnd.apache.arrow.stream"
LINES = "application/x-ndjson"
_IN_PATH = {"golem_id": "Id of the golem.", "path": "Path of a page below the folder of Data Docs."}
_SIGNED = "Signed: {`line`: the JSON as text, `signature`: `KEY_ID BASE64`}."
RECORDS = {"type": "object", "description": f"A record: `bardo schema` prints its schema. {_SIGNED}"}
EVENTS = {"type": "object", "description": f"A life event: `bardo schema life` prints its schema. {_SIGNED}"}
_FRESHNESS: dict[str, Any] = {
    "type": "object",
    "description": "State on which the answer is based.",
    "properties": {
        "as_of": {"type": ["string", "null"], "format": "date-time",
                  "description": "Closing time of the newest derived cycle; null before the first."},
        "cycle": {"type": ["integer", "null"], "description": "Number of that cycle; null in an answer to no token."},
        "tick": {"type": ["integer", "null"], "description": "Last derived tick; null for several golems."},
        "log_version": {"type": "integer", "description": "Version of the log's table of records."},
        "life_version": {"type": "integer", "description": "Version of its table of life events, such as texts."},
        "lag_ticks": {"type": ["integer", "null"],
                      "description": "Ticks, in the log or acknowledged by this server, that are not derived; null in "
                                     "an answer to no token."},
    },
}  # fmt: skip
REFUSAL: dict[str, dict[str, Any]] = {
    "error": {"type": "string", "description": "Class of the error."},
    "message": {"type": "string", "description": "The fact."},
    "cure": {"type": ["string", "null"], "description": "The remedy."},
}
"""Fields of a refusal."""

_REFUSALS = {
    "400": "Invalid input.", "401": "No token, or an unknown one.", "403": "Not allowed.",
    "404": "Unknown golem, tool or path.", "408": "The body was too slow.", "409": "Contradicts the record.",
    "413": "The body is too long.", "415": "Wrong type of body.", "421": "Another host.", "429": "Too many wait.",
    "500": "A fault of the server.", "503": "Busy, or the home cannot be read.", "507": "The disk is full.",
}  # fmt: skip
EPISODES = {
    "type": "array",
    "minItems": 1,
    "maxItems": EPISODES_MAX,
    "items": {"$ref": "#/components/schemas/memory_store_episode_arguments"},
}


@dataclass(frozen=True)
class Operation:
    """A route of the HTTP door.

    Parameters
    ----------
    path : with names in braces
    summary : effect of the route
    parameters : model of its query parameters, or of its JSON body with POST
    has_table : whether an Arrow reader gets its rows as an IPC stream
    body : JSON schema of a body that may be JSON lines instead; None for parameters
    takes_golem : whether the header `Bardo-Golem` names the golem
    media : type of an answer whose body has no `freshness`
    is_open : whether it needs no token
    creates : whether the answer about a new thing has the status 201
    """

    method: str
    path: str
    summary: str
    parameters: type[BaseModel] = NoParameters
    has_table: bool = False
    body: Mapping[str, Any] | None = None
    takes_golem: bool = False
    media: str | None = None
    is_open: bool = False
    creates: bool = False


def openapi_document(operations: Iterable[Operation], version: str) -> dict[str, Any]:
    """Return the document (OpenAPI 3.1)."""
    schemas: dict[str, Any] = {
        "Freshness": _FRESHNESS,
        "Refusal": {"type": "object", "required": list(REFUSAL), "properties": REFUSAL},
    }  # fmt: skip
    paths: dict[str, Any] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    for tool in TOOLS.values():
        schemas[f"{tool.name}_arguments"] = _moved(tool.input_schema, schemas)
        schemas[f"{tool.name}_result"] = _moved(answer_schema(tool), schemas)
        paths[f"/v1/tools/{tool.name}"] = {
            "post": {
                "operationId": tool.name,
                "summary": tool.summary,
                "description": tool.description,
                "parameters": [_golem_header()],
                "requestBody": {"required": True, "content": {
                    "application/json": {"schema": _ref(f"{tool.name}_arguments")}}},
                "responses": {"200": {"description": "Result of the tool.",
                                      "content": {"application/json": {"schema": _ref(f"{tool.name}_result")}}},
                              **_refusals()},
            }
        }  # fmt: skip
    for described in (operation for path in paths.values() for operation in path.values()):
        for response in described["responses"].values():
            response["headers"] = {"Bardo-Freshness": {"$ref": "#/components/headers/Freshness"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Bardo", "version": version, "description": "Memory of mortal agents."},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "headers": {"Freshness": {
                "description": "Freshness of the answer, also in its body if that is JSON; null if it is unknown.",
                "required": True,
                "content": {"application/json": {"schema": {"anyOf": [_ref("Freshness"), {"type": "null"}]}}},
            }},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer",
                                          "description": "Token of `bardo keys token OWNER`."}},
        },
    }  # fmt: skip


def answer_schema(tool: Tool, **added: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of a tool's result with `freshness` and other fields that the server adds."""
    schema = tool.output_schema
    return {**schema, "properties": {**schema["properties"], "freshness": _FRESHNESS, **added}}


def _operation(operation: Operation) -> dict[str, Any]:
    from bardo_pipeline.server.openapi.answer_fields import answer_schemas

    forms = [
        {**form, "required": [*form["required"], "freshness"],
         "properties": {**form["properties"], "freshness": _ref("Freshness")}}
        for form in answer_schemas(operation.method, operation.path)
    ]  # fmt: skip
    json = forms[0] if len(forms) == 1 else {"anyOf": forms}
    content: dict[str, Any] = {operation.media: {}} if operation.media else {"application/json": {"schema": json}}
    if operation.has_table:
        content[ARROW] = {"schema": {"type": "string", "format": "binary"}}
    answer = {"description": "Answer.", "content": content}
    described: dict[str, Any] = {
        "operationId": f"{operation.method.lower()}_{operation.path.strip('/').replace('/', '_') or 'page'}".translate(
            {ord("{"): None, ord("}"): None}
        ),
        "summary": operation.summary,
        "responses": {**dict.fromkeys(("200", "201")[: 1 + operation.creates], answer), **_refusals()},
        **({"security": []} if operation.is_open else {}),
    }
    names = [part.strip("{}") for part in operation.path.split("/") if part.startswith("{")]
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "description": _IN_PATH[name]}
        for name in names
    ]
    schema = operation.parameters.model_json_schema()
    if operation.takes_golem:
        parameters.append(_golem_header())
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": {
            "application/json": {"schema": operation.body}, LINES: {"schema": {"type": "string"}}}}  # fmt: skip
    elif operation.method == "POST":
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    else:
        required = schema.get("required", [])
        parameters += [
            {"name": name, "in": "query", "required": name in required, "description": field.get("description", ""),
             "schema": {key: value for key, value in field.items() if key != "description"}}
            for name, field in schema.get("properties", {}).items()
        ]  # fmt: skip
    return {**described, "parameters": parameters} if parameters else described


def _moved(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """Move the definitions of a schema to the components and return the schema with references to them."""
    schema = _rewritten(schema)
    for name, definition in schema.pop("$defs", {}).items():
        schemas.setdefault(name, definition)
    return schema


def _rewritten(part: Any) -> Any:
    if isinstance(part, dict):
        return {
            key: value.replace("#/$defs/", "#/components/schemas/") if key == "$ref" else _rewritten(value)
            for key, value in part.items()
        }
    return [_rewritten(value) for value in part] if isinstance(part, list) else part


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _golem_header() -> dict[str, Any]:
    return {"name": "Bardo-Golem", "in": "header", "required": False, "schema": {"type": "string"},
            "description": "Golem whose memory is used; the only living one by default."}  # fmt: skip


def _refusals() -> dict[str, Any]:
    content = {"application/json": {"schema": _ref("Refusal")}}
    return {status: {"description": reason, "content": content} for status, reason in _REFUSALS.items()}
