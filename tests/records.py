"""Plausible records, many and fast: columns drawn from the model's own constraints. For tests and benchmarks."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types as at
import numpy as np
import pyarrow as pa
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from bardo_pipeline.events.record import PROBES, SCHEMA_VERSION, DecisionCycleRecord
from bardo_pipeline.events.schema import MOMENT, RECORD_SCHEMA, _annotation, _arrow_type, _split_optional

START_US = 1_700_000_000_000_000
_MEAN_LENGTHS = {
    "positions": 1.0,
    "probe_results": 12.0,
    "predictions": 3.0,
    "retrieved_entries": 1.0,
    "categories": 5.0,
}
_PRESENT = {"deliberation": 0.2, "context_bundle_summary": 0.2, "outcome": 0.05, "tx_hash": 0.0}
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


def records(count: int, *, golems: int = 10, tick: int = 1, seed: int = 0, prefix: str = "golem") -> pa.Table:
    """`count` records (RECORD_SCHEMA), tick by tick over the golems from `tick` on; same arguments, same rows."""
    rng = np.random.default_rng(seed)
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
        name: fixed[name] if name in fixed else _column(rng, name, _annotation(field), count)
        for name, field in DecisionCycleRecord.model_fields.items()
    }
    return pa.table(drawn, schema=RECORD_SCHEMA)


def _column(rng: np.random.Generator, name: str, annotation: Any, count: int) -> pa.Array:
    nullable, bare = _split_optional(annotation)
    if get_origin(bare) is Annotated and get_origin(get_args(bare)[0]) is not None:
        inner_nullable, inner = _split_optional(get_args(bare)[0])
        nullable, bare = nullable or inner_nullable, Annotated[(inner, *get_args(bare)[1:])] if inner_nullable else bare
    absent = rng.random(count) >= _PRESENT.get(name, 0.8) if nullable else None
    values = _values(rng, name, bare, count, absent)
    assert len(values) == count
    return values


def _values(rng: np.random.Generator, name: str, annotation: Any, count: int, absent: np.ndarray | None) -> pa.Array:
    core, limits = annotation, {}
    while get_origin(core) is Annotated:
        core, *metadata = get_args(core)
        for item in metadata:
            for part in item.metadata if isinstance(item, FieldInfo) else [item]:
                limits |= (
                    {"low": part.ge}
                    if isinstance(part, at.Ge)
                    else {"high": part.le}
                    if isinstance(part, at.Le)
                    else {}
                )
    mask = None if absent is None else pa.array(absent)
    if get_origin(core) is Literal:
        choices = pa.array(get_args(core))
        if name == "probe":
            return choices.take(pa.array(np.arange(count) % len(PROBES)))
        return _masked(choices.take(pa.array(rng.integers(0, len(choices), count))), absent)
    if get_origin(core) is tuple:
        mean = _MEAN_LENGTHS.get(name, 0.1)
        lengths = np.full(count, 12) if mean == 12.0 else rng.poisson(mean, count)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        child = _column(rng, name, get_args(core)[0], int(offsets[-1]))
        return pa.ListArray.from_arrays(pa.array(offsets), child, type=_arrow_type(core))
    if isinstance(core, type) and issubclass(core, BaseModel):
        children = [_column(rng, n, _annotation(f), count) for n, f in core.model_fields.items()]
        return pa.StructArray.from_arrays(children, fields=list(_arrow_type(core)), mask=mask)
    if core is bool:
        return pa.array(rng.random(count) < 0.5, mask=absent)
    if core is int:
        low, high = max(limits.get("low", -(10**6)), -(10**6)), min(limits.get("high", 10**7), 10**7)
        return pa.array(rng.integers(low, high, count, endpoint=True), mask=absent)
    if core is float:
        return pa.array(rng.uniform(limits.get("low", -10.0), limits.get("high", 2000.0), count), mask=absent)
    return _masked(_texts(rng, name, count), absent)


def _texts(rng: np.random.Generator, name: str, count: int) -> pa.Array:
    if name.endswith(("_id", "_ids")):
        return pa.array([f"{name}-{i:05}" for i in range(500)]).take(pa.array(rng.integers(0, 500, count)))
    if name in ("gating_reason", "reasoning_summary", "detail"):
        some = pa.array([f"{w}: {x:.4f} over {y:.4f}" for w in _WORDS.to_pylist() for x, y in rng.random((400, 2))])
        return some.take(pa.array(rng.integers(0, len(some), count)))
    return _WORDS.take(pa.array(rng.integers(0, len(_WORDS), count)))


def _masked(values: pa.Array, absent: np.ndarray | None) -> pa.Array:
    if absent is None:
        return values
    return pa.compute.if_else(pa.array(absent), pa.scalar(None, values.type), values)
