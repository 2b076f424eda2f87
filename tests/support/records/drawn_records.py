"""Plausible records, many and fast: columns drawn from the model's own constraints. For tests and benchmarks."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types as at
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from bardo_pipeline.events.record.arrow_schema import (
    MOMENT,
    RECORD_SCHEMA,
    _arrow_type,
    field_annotation,
    split_optional,
)
from bardo_pipeline.events.record.model import PROBES, SCHEMA_VERSION, DecisionCycleRecord

START_US = 1_700_000_000_000_000
_MEAN_LENGTHS = {
    "positions": 1.0,
    "probe_results": 12.0,
    "predictions": 3.0,
    "retrieved_entries": 1.0,
    "categories": 5.0,
}
_PRESENT = {
    "deliberation": 0.2,
    "context_bundle_summary": 0.2,
    "outcome": 0.05,
    "tx_hash": 0.0,
    "pipeline": 0.3,
    "sealed": 0.02,
    "dream_tag": 0.02,
}
_WORDS = pa.array(
    [
        "price moved",
        "range held",
        "gas is dear",
        "widen the range",
        "wait for calm",
        "fees above cost",
        "no source",
        "in line",
    ]
)


def records(
    count: int, *, golems: int = 10, tick: int = 1, seed: int = 0, prefix: str = "golem", dense: bool = False
) -> pa.Table:
    """`count` records (RECORD_SCHEMA), tick by tick over the golems from `tick` on; same arguments, same rows.

    dense: nothing that may be null is, and every list has two elements.
    """
    draw = _Draw(np.random.default_rng(seed), dense)
    at_golem, at_tick = np.arange(count) % golems, np.arange(count) // golems + tick
    names = pa.array([f"{prefix}-{i:04}" for i in range(golems)])
    fixed = {
        "schema_version": pa.array(np.full(count, SCHEMA_VERSION)),
        "golem_id": names.take(pa.array(at_golem)),
        "tick": pa.array(at_tick),
        "observed_at": pa.array(START_US + at_tick * 60_000_000).cast(MOMENT),
        "cycle_seen": pa.array(at_tick // 50),
    }
    drawn = {
        name: fixed[name] if name in fixed else draw.column(name, field_annotation(field), count)
        for name, field in DecisionCycleRecord.model_fields.items()
    }
    return pa.table(drawn, schema=RECORD_SCHEMA)


class _Draw:
    """Draws columns for the annotations of a model."""

    def __init__(self, rng: np.random.Generator, dense: bool) -> None:
        self.rng, self.dense = rng, dense

    def column(self, name: str, annotation: Any, count: int) -> pa.Array:
        nullable, bare = split_optional(annotation)
        if get_origin(bare) is Annotated:
            inner_nullable, inner = split_optional(get_args(bare)[0])
            nullable, bare = nullable or inner_nullable, Annotated[(inner, *get_args(bare)[1:])]
        absent = None
        if nullable and not self.dense:
            absent = self.rng.random(count) >= _PRESENT.get(name, 0.8)
        values = self.values(name, bare, count, absent)
        assert len(values) == count
        return values

    def values(self, name: str, annotation: Any, count: int, absent: np.ndarray | None) -> pa.Array:
        core, limits, pattern = _limits(annotation)
        if get_origin(core) is Literal:
            choices = pa.array(get_args(core))
            if name == "probe":
                return choices.take(pa.array(np.arange(count) % len(PROBES)))
            return _masked(choices.take(pa.array(self.rng.integers(0, len(choices), count))), absent)
        if get_origin(core) is tuple:
            return self.lists(name, core, count)
        if isinstance(core, type) and issubclass(core, BaseModel):
            children = [self.column(n, field_annotation(f), count) for n, f in core.model_fields.items()]
            mask = None if absent is None else pa.array(absent)
            return pa.StructArray.from_arrays(children, fields=list(_arrow_type(core)), mask=mask)
        if core is bool:
            return pa.array(self.rng.random(count) < 0.5, mask=absent)
        if core is int:
            low, high = max(limits.get("low", -(10**6)), -(10**6)), min(limits.get("high", 10**7), 10**7)
            return pa.array(self.rng.integers(low, high, count, endpoint=True), mask=absent)
        if core is float:
            low, high = limits.get("low", -10.0), limits.get("high", 2000.0)
            return pa.array(self.rng.uniform(low, high, count), mask=absent)
        if pattern is not None:  # hex digits of a fixed number: a hash, a nonce
            start, digits = ("0x" if "0x" in pattern else ""), int(pattern[pattern.index("{") + 1 : pattern.index("}")])
            drawn = [start + self.rng.bytes(digits // 2).hex() for _ in range(count)]
            return _masked(pa.array(drawn, pa.string()), absent)
        return _masked(self.texts(name, count), absent)

    def lists(self, name: str, annotation: Any, count: int) -> pa.Array:
        mean = _MEAN_LENGTHS.get(name, 0.1)
        lengths = np.full(count, 12) if mean == 12.0 else self.rng.poisson(mean, count)
        lengths = np.full(count, 2) if self.dense else lengths
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        child = self.column(name, get_args(annotation)[0], int(offsets[-1]))
        return pa.ListArray.from_arrays(pa.array(offsets), child, type=_arrow_type(annotation))

    def texts(self, name: str, count: int) -> pa.Array:
        if name.endswith(("_id", "_ids")):
            return _names(name).take(pa.array(self.rng.integers(0, 500, count)))
        if name in ("gating_reason", "reasoning_summary", "detail"):
            numbers = self.rng.random((400, 2))
            chosen = np.divmod(self.rng.integers(0, len(_WORDS) * len(numbers), count), len(numbers))
            words, pairs = _WORDS.take(pa.array(chosen[0])).to_pylist(), numbers[chosen[1]].tolist()
            return pa.array([f"{w}: {x:.4f} over {y:.4f}" for w, (x, y) in zip(words, pairs, strict=True)], pa.string())
        return _WORDS.take(pa.array(self.rng.integers(0, len(_WORDS), count)))


@cache
def _names(name: str) -> pa.Array:
    return pa.array([f"{name}-{i:05}" for i in range(500)])


def _limits(annotation: Any) -> tuple[Any, dict[str, Any], str | None]:
    """The bare type, its smallest and largest value, and the pattern it keeps to."""
    core, limits, pattern = annotation, {}, None
    while get_origin(core) is Annotated:
        core, *metadata = get_args(core)
        for part in (p for item in metadata for p in (item.metadata if isinstance(item, FieldInfo) else [item])):
            if isinstance(part, at.Ge):
                limits["low"] = part.ge
            elif isinstance(part, at.Le):
                limits["high"] = part.le
            else:
                pattern = getattr(part, "pattern", None) or pattern
    return core, limits, pattern


def _masked(values: pa.Array, absent: np.ndarray | None) -> pa.Array:
    return values if absent is None else pc.if_else(pa.array(absent), pa.scalar(None, values.type), values)
