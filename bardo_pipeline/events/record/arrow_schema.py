"""Arrow schemas derived from the pydantic models. Pure.

Source: HB S6; architecture ("Arrow schema", "nested structs and lists, not JSON strings").
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import pyarrow as pa
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from bardo_pipeline.events.record.model import DecisionCycleRecord

M = TypeVar("M", bound=BaseModel)
MOMENT = pa.timestamp("us", tz="UTC")


def arrow_field(name: str, annotation: Any) -> pa.Field:
    """Return the Arrow field of an annotated attribute; only `X | None` is nullable."""
    nullable, bare = split_optional(annotation)
    return pa.field(name, _arrow_type(bare), nullable=nullable)


def split_constraints(annotation: Any) -> tuple[Any, list[Any]]:
    """Return the bare type of an annotation and its constraints."""
    if get_origin(annotation) is not Annotated:
        return annotation, []
    bare, *metadata = get_args(annotation)
    return bare, [c for item in metadata for c in (item.metadata if isinstance(item, FieldInfo) else [item])]


def split_optional(annotation: Any) -> tuple[bool, Any]:
    """Return whether an annotation is `X | None`, and X."""
    if get_origin(annotation) in (Union, types.UnionType):
        members = [a for a in get_args(annotation) if a is not type(None)]
        assert len(members) == 1, f"only X | None is allowed in a record, not {annotation}"
        return True, members[0]
    return False, annotation


def _arrow_type(annotation: Any) -> pa.DataType:
    annotation, _ = split_constraints(annotation)
    origin = get_origin(annotation)
    if origin is Literal or annotation is str:
        return pa.string()
    if origin is tuple:
        return pa.list_(arrow_field("element", get_args(annotation)[0]))
    plain: dict[Any, pa.DataType] = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), datetime: MOMENT}
    if annotation in plain:
        return plain[annotation]
    assert isinstance(annotation, type), f"no Arrow type for {annotation}"
    assert issubclass(annotation, BaseModel), f"no Arrow type for {annotation}"
    return pa.struct(_fields(annotation))


def _fields(model: type[BaseModel]) -> list[pa.Field]:
    return [arrow_field(name, field_annotation(info)) for name, info in model.model_fields.items()]


def field_annotation(info: FieldInfo) -> Any:
    """Return the annotation of a model's field with its constraints."""
    return Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation


@cache
def arrow_schema(model: type[BaseModel]) -> pa.Schema:
    """Return the Arrow schema of a model: one field per attribute, in order."""
    return pa.schema(_fields(model))


RECORD_SCHEMA: pa.Schema = arrow_schema(DecisionCycleRecord)
"""One row per (golem, tick): the DecisionCycleRecord without the columns of the log."""


def to_table(models: Iterable[BaseModel], schema: pa.Schema) -> pa.Table:
    """Convert models to an Arrow table. Slow (116 us per record), so not for fleets."""
    return pa.Table.from_pylist([m.model_dump() for m in models], schema=schema)


def to_models(table: pa.Table, model: type[M]) -> list[M]:
    """Convert rows of an Arrow table to models; columns of the log are ignored."""
    names = list(model.model_fields)
    return [model.model_validate(frozen_lists(row)) for row in table.select(names).to_pylist()]


def frozen_lists(value: Any) -> Any:
    """Return a JSON value with tuples in place of lists, as the models need."""
    if isinstance(value, Mapping):
        return {k: frozen_lists(v) for k, v in value.items()}
    return tuple(frozen_lists(v) for v in value) if isinstance(value, list) else value
