"""One record's JSON, checked at the speed of an append. Pure.

msgspec reads by types made from the same models, in a quarter of the time, and never takes what pydantic would refuse.
What it refuses, pydantic judges: it has the last word, and the words for it.
Source: architecture ("Pydantic stands at the doors"); EV-3.
"""

from __future__ import annotations

import types
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import annotated_types as at
import msgspec
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from bardo_pipeline.events.custody.sealing import has_private_parts
from bardo_pipeline.events.record.arrow_schema import _annotation
from bardo_pipeline.events.record.model import DecisionCycleRecord, Moment

_IN_UTC = get_args(Moment)[1]  # looked at where the moment is
_judge = DecisionCycleRecord.__pydantic_validator__.validate_json


class Glance(NamedTuple):
    """Whose record it is, of which tick, and whether it has parts in plain text that a seal would cover."""

    golem_id: str
    tick: int
    is_private: bool


def glance(line: bytes) -> Glance:
    """What a writer must know of a line of JSON that is a record. Raises pydantic's ValidationError if it is none."""
    read = judged(line)
    return Glance(read.golem_id, read.tick, has_private_parts(read))


def judged(line: bytes) -> Any:
    """A record's fields, read from a line of JSON, by the names of the model. Raises ValidationError if it is none."""
    try:
        read = _DECODER.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        read = None
    if read is None or read.observed_at.tzinfo is not UTC:
        read = _judge(line, strict=True)
    return read


@cache
def _struct(model: type[BaseModel]) -> Any:
    judges = model.__pydantic_decorators__
    if judges.validators or judges.field_validators or judges.root_validators or judges.model_validators:
        raise TypeError(f"no swift check for the validators of {model.__name__}")
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for name, info in model.model_fields.items():
        kind = _type(_annotation(info))
        fields.append((name, kind) if info.is_required() else (name, kind, info.default))
    return msgspec.defstruct(model.__name__, fields, forbid_unknown_fields=True, kw_only=True, gc=False)


def _type(annotation: Any) -> Any:
    """The same type for msgspec; TypeError for one that it is not known to read as pydantic does."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *metadata = get_args(annotation)
        limits = {k: v for item in metadata for k, v in _limits(item).items()}
        return Annotated[_type(inner), msgspec.Meta(**limits)] if limits else _type(inner)
    if origin in (Union, types.UnionType):
        return Union[tuple(_type(member) for member in get_args(annotation))]  # noqa: UP007
    if origin is tuple:  # read for its elements alone, and a list is what msgspec reads it into
        return list[_type(get_args(annotation)[0])]  # type: ignore[misc]
    if origin is Literal or annotation in (str, int, float, bool, type(None)):
        return annotation
    if annotation is datetime:
        return Annotated[datetime, msgspec.Meta(tz=True)]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _struct(annotation)
    raise TypeError(f"no swift check for {annotation}")


def _limits(item: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in item.metadata if isinstance(item, FieldInfo) else [item]:
        if isinstance(part, at.Ge | at.Le | at.MinLen | at.MaxLen):
            found |= {limit: getattr(part, limit) for limit in part.__slots__}
        elif pattern := getattr(part, "pattern", None):
            found["pattern"] = str(pattern).removesuffix("$") + r"\Z"  # Python's $ lets a newline follow
        elif getattr(part, "allow_inf_nan", None) is not False and part != _IN_UTC:  # JSON has no such number
            raise TypeError(f"no swift check for {part}")
    return found


_DECODER = msgspec.json.Decoder(_struct(DecisionCycleRecord), strict=True)
