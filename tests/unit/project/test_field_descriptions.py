"""Each field of each published schema has a description, and no description is of a field that is gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from bardo_pipeline.events.life.life_field_texts import LIFE_FIELDS
from bardo_pipeline.events.record.record_field_texts import RECORD_FIELDS
from bardo_pipeline.events.record_json import life_json_schema, record_json_schema, report_json_schema
from bardo_pipeline.server.application import OPERATIONS
from bardo_pipeline.server.openapi.answer_fields import answer_schemas
from bardo_pipeline.server.openapi.openapi_document import openapi_document
from bardo_pipeline.server.openapi.row_schemas import FIELD_TEXTS, with_texts
from bardo_pipeline.tools.catalogue import TOOLS

SCHEMAS = {
    "record": record_json_schema(), "life": life_json_schema(), "report": report_json_schema(),
    **{f"{name} input": tool.input_schema for name, tool in TOOLS.items()},
    **{f"{name} output": tool.output_schema for name, tool in TOOLS.items()},
    **{operation.parameters.__name__: operation.parameters.model_json_schema() for operation in OPERATIONS},
}  # fmt: skip


def fields(schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Object, name and schema of each field at any depth."""
    for name, part in [*schema.get("$defs", {}).items(), (schema.get("title", ""), schema)]:
        for field, described in part.get("properties", {}).items():
            yield name, field, described


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS.keys())
def test_each_field_has_a_description(schema: dict[str, Any]) -> None:
    assert [(name, field) for name, field, described in fields(schema) if not described.get("description")] == []


@pytest.mark.parametrize(
    ("texts", "schema"), [(RECORD_FIELDS, "record"), (LIFE_FIELDS, "life")], ids=["record", "life"]
)
def test_each_description_is_of_a_field(texts: dict[str, str], schema: str) -> None:
    known = {key for name, field, _ in fields(SCHEMAS[schema]) for key in (field, f"{name}.{field}")}
    assert set(texts) <= known
    assert all(text.endswith(".") and len(text) <= 120 for text in texts.values())


def test_each_parameter_of_a_route_has_a_description() -> None:
    document = openapi_document(OPERATIONS, "1")
    for path, methods in document["paths"].items():
        for described in methods.values():
            for parameter in described.get("parameters", ()):
                assert parameter["description"], (path, parameter["name"])


def test_each_field_in_an_answer_is_described_and_each_text_is_used() -> None:
    described = dict(at_any_depth(openapi_document(OPERATIONS, "1")))
    assert [name for name, text in described.items() if not text] == []
    texts = yaml.safe_load(FIELD_TEXTS.read_text())
    stated = {text for own in texts.values() for text in (own.values() if isinstance(own, dict) else [own])}
    assert stated <= {*described.values()}


def test_a_field_means_what_its_place_in_an_answer_says() -> None:
    """A column or an event of another table has the same name, and its description is of another thing."""
    (status,) = answer_schemas("GET", "/v1/status")
    log, health = (status["properties"][name]["properties"] for name in ("log", "health"))
    lag = health["curation"]["properties"]["ticks"]["description"]
    assert log["ticks"]["description"] == "Contiguous ticks in the log from tick 1, summed over golems."
    assert lag == "Contiguous ticks that curation has not derived, of all golems."
    with pytest.raises(KeyError):
        with_texts({"type": "object", "properties": {}}, "GET /v1/status")


def at_any_depth(part: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Path and description of each field of each object in a schema."""
    if isinstance(part, dict):
        fields_here = part.get("properties") if "type" in part else None
        for name, field in (fields_here or {}).items():
            yield f"{path}.{name}", field.get("description", "") or field.get("$ref", "")
        for key, value in part.items():
            yield from at_any_depth(value, f"{path}.{key}")
    elif isinstance(part, list):
        for number, value in enumerate(part):
            yield from at_any_depth(value, f"{path}.{number}")
