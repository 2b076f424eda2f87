"""JSON schemas of the rows and objects inside answers: types from Arrow schemas and classes, meanings from texts.

A field has the description of its place in a route's answer in fields.yml, else of a column of its mart, of its name in
fields.yml, of a table's column, of another mart, of an event or of a record.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import pyarrow as pa
import yaml  # type: ignore[import-untyped]
from pydantic import TypeAdapter

from bardo_pipeline.events.life.life_field_texts import LIFE_FIELDS
from bardo_pipeline.events.record.record_field_texts import RECORD_FIELDS
from bardo_pipeline.events.record_json import record_json_schema
from bardo_pipeline.project_files import COLUMN_TEXTS, DBT_PROJECT

Schema = dict[str, Any]

FIELD_TEXTS = Path(__file__).with_name("fields.yml")
"""Descriptions of the fields that no table, event or record describes."""

_ARROW_TYPES = (
    (pa.types.is_boolean, "boolean"), (pa.types.is_integer, "integer"), (pa.types.is_floating, "number"),
    (pa.types.is_string, "string"),
)  # fmt: skip


def of_columns(columns: pa.Schema, mart: str = "", **added: str) -> Schema:
    """Return the schema of a row of a table.

    Parameters
    ----------
    mart : mart whose columns describe the fields
    added : further fields and their JSON types, as in `of_fields`
    """
    return _row({column.name: _of_column(column) for column in columns} | _typed(added), mart)


def of_class(kind: type, mart: str = "", **replaced: Schema | str) -> Schema:
    """Return the schema of a dataclass, named tuple or model as an object.

    Parameters
    ----------
    mart : mart whose columns describe the fields
    replaced : schemas or JSON types of further fields, and of those with a vague type
    """
    hints = get_type_hints(kind, include_extras=True)
    vague = {name: schema for name, schema in replaced.items() if not isinstance(schema, str)}
    typed = _typed({name: schema for name, schema in replaced.items() if isinstance(schema, str)})
    fields = {name: _of_hint(hint) for name, hint in hints.items() if name not in replaced and name[0] != "_"}
    return _row({name: vague.get(name) or typed.get(name) or fields[name] for name in {**hints, **replaced}}, mart)


def of_record() -> Schema:
    """Return the schema of a record as its table stores it, with every optional field."""
    schema = record_json_schema()
    return dict(_inlined(schema, schema["$defs"]))


def of_fields(
    mart: str = "", *, string: str = "", integer: str = "", number: str = "", boolean: str = "", **schemas: Schema
) -> Schema:
    """Return the schema of an object.

    Parameters
    ----------
    mart : mart whose columns describe the fields
    string, integer, number, boolean : names of fields of this type, with `?` after one that may be null
    schemas : schemas of further fields
    """
    named = {"string": string, "integer": integer, "number": number, "boolean": boolean}
    plain = {
        name.rstrip("?"): json_type(f"{kind}?" if name.endswith("?") else kind)
        for kind, names in named.items()
        for name in names.split()
    }
    return _row(plain | schemas, mart)


def arrays_of(items: Schema) -> Schema:
    """Return the schema of an array."""
    return {"type": "array", "items": items}


def or_null(schema: Schema) -> Schema:
    """Return the schema of a value that may be null."""
    return {"anyOf": [schema, {"type": "null"}]}


def with_texts(schema: Schema, route: str) -> Schema:
    """Return the schema of a route's answer with the descriptions that fields.yml gives the places in it.

    A place is a path of names with dots. Raises KeyError for a place that the answer does not have.
    """
    texts = _texts(FIELD_TEXTS).get(route, {})
    described: Schema = deepcopy(schema) if texts else schema
    for place, text in texts.items():
        *outer, name = place.split(".")
        inside = described
        for step in outer:
            inside = _object_in(_object_in(inside)["properties"][step])
        inside["properties"][name]["description"] = text
    return described


def _object_in(schema: Schema) -> Schema:
    """Return the object in an array, in an object by names, or beside null."""
    while "properties" not in schema:
        schema = schema["anyOf"][0] if "anyOf" in schema else schema.get("items") or schema["additionalProperties"]
    return schema


def only(schema: Schema, names: Collection[str]) -> Schema:
    """Return the schema of an object with some fields only."""
    kept = {name: field for name, field in schema["properties"].items() if name in names}
    return {**schema, "required": [*kept], "properties": kept}


def by_name(schema: Schema) -> Schema:
    """Return the schema of an object whose keys are names of things."""
    return {"type": "object", "additionalProperties": schema}


def json_type(kind: str) -> Schema:
    """Return the schema of a JSON type; `?` at its end means that the value may be null."""
    return {"type": [kind[:-1], "null"] if kind.endswith("?") else kind}


def _typed(kinds: Mapping[str, str]) -> dict[str, Schema]:
    return {name: json_type(kind) for name, kind in kinds.items()}


def _row(fields: Mapping[str, Schema], mart: str) -> Schema:
    described = {name: _described(name, schema, mart) for name, schema in fields.items()}
    return {"type": "object", "required": [*fields], "properties": described}


def _described(name: str, schema: Schema, mart: str) -> Schema:
    return {**schema, "description": schema.get("description") or meaning(name, mart)}


def meaning(name: str, mart: str = "") -> str:
    """Return the description of a field. Raises KeyError for a field without one."""
    own, marts = _texts(FIELD_TEXTS), _mart_columns()
    for texts in (marts.get(mart, {}), own, _texts(COLUMN_TEXTS), *marts.values(), LIFE_FIELDS, RECORD_FIELDS):
        if name in texts:
            return texts[name]
    raise KeyError(f"the field {name!r} of an answer has no description")


@cache
def _texts(path: Path) -> Any:
    return yaml.load(path.read_text(), yaml.CSafeLoader)


@cache
def _mart_columns() -> Mapping[str, Mapping[str, str]]:
    """Return the descriptions of the columns of each mart."""
    models = _texts(DBT_PROJECT / "models/marts/schema.yml")["models"]
    return {model["name"]: {each["name"]: each["description"] for each in model["columns"]} for model in models}


def _of_column(column: pa.Field) -> Schema:
    schema = _of_arrow(column.type)
    return or_null(schema) if column.nullable else schema


def _of_arrow(kind: pa.DataType) -> Schema:
    if pa.types.is_list(kind):
        return arrays_of(_of_arrow(kind.value_type))
    if pa.types.is_struct(kind):
        return _row({field.name: _of_column(field) for field in kind}, "")
    if pa.types.is_timestamp(kind):
        return {"type": "string", "format": "date-time"}
    return next({"type": word} for is_kind, word in _ARROW_TYPES if is_kind(kind))


def _of_hint(hint: Any) -> Schema:
    schema = TypeAdapter(hint).json_schema(mode="serialization")
    return _inlined(schema, schema.get("$defs", {}))


def _inlined(part: Any, definitions: Mapping[str, Any]) -> Any:
    """Replace references by their definitions, and describe fields without a description."""
    if isinstance(part, list):
        return [_inlined(item, definitions) for item in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        beside = {key: value for key, value in part.items() if key != "$ref"}
        return {**_inlined(definitions[part["$ref"].rsplit("/", 1)[-1]], definitions), **beside}
    if "properties" in part:
        return _row({name: _inlined(field, definitions) for name, field in part["properties"].items()}, "")
    return {key: _inlined(value, definitions) for key, value in part.items() if key not in ("$defs", "title")}
