"""Fast validation of a record's JSON, and the JSON Schemas for runtimes in other languages. Pure.

msgspec validates with types generated from the pydantic models, four times faster, and never accepts a line that
pydantic would refuse. If msgspec refuses a line, pydantic decides and words the error.
Source: architecture ("Pydantic stands at the doors"); EV-3, EV-4.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import annotated_types as at
import msgspec
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from bardo_pipeline.errors import RecordError
from bardo_pipeline.events.custody.sealing import has_private_parts
from bardo_pipeline.events.experience.reported_experience import TimedReport
from bardo_pipeline.events.life.events import ATTRIBUTE_OF, LifeEvent
from bardo_pipeline.events.life.life_field_texts import LIFE_FIELDS
from bardo_pipeline.events.record.arrow_schema import field_annotation, split_constraints
from bardo_pipeline.events.record.model import SCHEMA_VERSION, DecisionCycleRecord, Moment
from bardo_pipeline.events.record.record_field_texts import RECORD_FIELDS
from bardo_pipeline.events.record.repeated_keys import OPTIONAL, repeated_key, repeated_record_key

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_IN_UTC = get_args(Moment)[1]  # `parse_record` checks it
_validate = DecisionCycleRecord.__pydantic_validator__.validate_json


class Glance(NamedTuple):
    """Golem, tick and time of a record, and whether it has private parts in plain text."""

    golem_id: str
    tick: int
    observed_at: datetime
    is_private: bool


def glance(line: bytes) -> Glance:
    """Validate a line of JSON and return what a writer needs. Raises the errors of `parse_record`."""
    record = parse_record(line)
    return Glance(record.golem_id, record.tick, record.observed_at, has_private_parts(record))


def parse_record(line: bytes) -> Any:
    """Return an object with the fields of a record from a line of JSON; an absent optional field may be UNSET.

    Raises pydantic's ValidationError, and RecordError if an object has a key twice.
    """
    try:
        record = _DECODER.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        record = None
    if record is None or record.observed_at.tzinfo is not UTC:
        record = _validate(line, strict=True)
        key = repeated_key(line)
    else:
        key = repeated_record_key(line, record)
    if key is not None:
        subject = f"golem {record.golem_id}, tick {record.tick}"
        raise RecordError(f"{subject}: an object has the key {key!r} twice: send each key once")
    return record


@cache
def _struct(model: type[BaseModel]) -> Any:
    own = model.__pydantic_decorators__
    if own.validators or own.field_validators or own.root_validators or own.model_validators:
        raise TypeError(f"no msgspec type for the validators of {model.__name__}")
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for name, info in model.model_fields.items():
        kind = _type(field_annotation(info))
        if name in OPTIONAL:
            fields.append((name, Union[kind, msgspec.UnsetType], msgspec.UNSET))  # noqa: UP007
        else:
            fields.append((name, kind) if info.is_required() else (name, kind, info.default))
    return msgspec.defstruct(model.__name__, fields, forbid_unknown_fields=True, kw_only=True, gc=False)


def _type(annotation: Any) -> Any:
    """Return the equivalent type for msgspec. Raises TypeError for a type that msgspec may read differently."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, constraints = split_constraints(annotation)
        limits = _limits(constraints)
        return Annotated[_type(inner), msgspec.Meta(**limits)] if limits else _type(inner)
    if origin in (Union, types.UnionType):
        return Union[tuple(_type(member) for member in get_args(annotation))]  # noqa: UP007
    if origin is tuple:  # only the elements are validated, and msgspec decodes lists faster
        return list[_type(get_args(annotation)[0])]  # type: ignore[misc]
    if origin is Literal or annotation in (str, int, float, bool, type(None)):
        return annotation
    if annotation is datetime:
        return Annotated[datetime, msgspec.Meta(tz=True)]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _struct(annotation)
    raise TypeError(f"no msgspec type for {annotation}")


def _limits(constraints: list[Any]) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    for part in constraints:
        if isinstance(part, at.Ge | at.Le | at.MinLen | at.MaxLen):
            limits |= {limit: getattr(part, limit) for limit in part.__slots__}
        elif pattern := getattr(part, "pattern", None):
            limits["pattern"] = str(pattern).removesuffix("$") + r"\Z"  # Python's $ also matches before a newline
        elif getattr(part, "allow_inf_nan", None) is not False and part != _IN_UTC:  # JSON has no infinity or NaN
            raise TypeError(f"no msgspec type for {part}")
    return limits


_DECODER = msgspec.json.Decoder(_struct(DecisionCycleRecord), strict=True)


def record_json_schema() -> dict[str, Any]:
    """Return the schema of a record, a line of a `*.jsonl` file."""
    return _described(_schema(DecisionCycleRecord), RECORD_FIELDS)


def life_json_schema() -> dict[str, Any]:
    """Return the schema of a life event, a line of a `*.life.jsonl` file; its id is optional."""
    payloads = {name: f"Content of the event {kind}; null for other kinds." for kind, name in ATTRIBUTE_OF.items()}
    schema = _described(_schema(LifeEvent), RECORD_FIELDS | LIFE_FIELDS, own=payloads)
    schema["required"] = [name for name in schema["required"] if name != "event_id"]
    schema["oneOf"] = [_of_kind(kind, payload) for kind, payload in ATTRIBUTE_OF.items()]
    return schema


def report_json_schema() -> dict[str, Any]:
    """Return the schema of a report, a line of a `*.experience.jsonl` file."""
    return _schema(TimedReport)


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    made = model.model_json_schema(schema_generator=_Plain)
    return {"$schema": DIALECT, "$id": f"bardo:{made['title']}/{SCHEMA_VERSION}", **made}


def _described(
    schema: dict[str, Any], texts: Mapping[str, str], own: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Add the description of each field. own: of fields of the outermost object."""
    for name, part in [*schema["$defs"].items(), (schema["title"], schema)]:
        outer = own if own is not None and part is schema else {}
        for field, described in part.get("properties", {}).items():
            described.setdefault("description", outer.get(field) or texts.get(f"{name}.{field}") or texts[field])
    return schema


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
