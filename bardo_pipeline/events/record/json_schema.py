"""JSON Schemas of records and life events, for runtimes in other languages. Pure. Source: EV-4."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from bardo_pipeline.events.life.events import ATTRIBUTE_OF, LifeEvent
from bardo_pipeline.events.record.model import SCHEMA_VERSION, DecisionCycleRecord

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def record_json_schema() -> dict[str, Any]:
    """Return the schema of a record, a line of a `*.jsonl` file."""
    return _schema(DecisionCycleRecord)


def life_json_schema() -> dict[str, Any]:
    """Return the schema of a life event, a line of a `*.life.jsonl` file; its id is optional."""
    schema = _schema(LifeEvent)
    schema["required"] = [name for name in schema["required"] if name != "event_id"]
    schema["oneOf"] = [_of_kind(kind, payload) for kind, payload in ATTRIBUTE_OF.items()]
    return schema


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    made = model.model_json_schema(schema_generator=_Plain)
    return {"$schema": DIALECT, "$id": f"bardo:{made['title']}/{SCHEMA_VERSION}", **made}


def _of_kind(kind: str, payload: str) -> dict[str, Any]:
    """Return the schema of an event kind, which requires its own payload and forbids all others."""
    return {
        "properties": {"kind": {"const": kind}, payload: {"type": "object"}}
        | {other: {"type": "null"} for other in ATTRIBUTE_OF.values() if other != payload}
        | ({} if payload == "received" else {"quarantined": {"type": "null"}}),
        "required": [payload],
    }


class _Plain(GenerateJsonSchema):
    """Generator without field titles, which would repeat the field names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False
