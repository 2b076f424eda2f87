"""A record is equal after each round trip, and its digest differs for the smallest change."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types as at
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from bardo_pipeline.events.record.arrow_schema import (
    RECORD_SCHEMA,
    field_annotation,
    split_optional,
    to_models,
    to_table,
)
from bardo_pipeline.events.record.model import DecisionCycleRecord
from bardo_pipeline.events.record.row_digest import fingerprint, row_digests
from bardo_pipeline.events.record.validate import check_table
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import EventLog
from tests.support.example_count import times
from tests.support.records.drawn_records import records

pytestmark = pytest.mark.row("EV-1")

NOW = datetime(2026, 11, 1, tzinfo=UTC)
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


def strategy_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Every value that the annotation allows, small ones first."""
    nullable, bare = split_optional(annotation)
    core, limits = bare, {}
    while get_origin(core) is Annotated:
        core, *metadata = get_args(core)
        for part in (p for item in metadata for p in (item.metadata if isinstance(item, FieldInfo) else [item])):
            if isinstance(part, at.Ge):
                limits["min_value"] = part.ge
            elif isinstance(part, at.Le):
                limits["max_value"] = part.le
            elif isinstance(part, at.MinLen):
                limits["min_size"] = part.min_length
            elif pattern := getattr(part, "pattern", None):
                limits["regex"] = pattern
    inner_nullable, core = split_optional(core)
    result = _bare_strategy(core, limits)
    return st.none() | result if nullable or inner_nullable else result


def _bare_strategy(core: Any, limits: dict[str, Any]) -> st.SearchStrategy[Any]:
    if get_origin(core) is Literal:
        return st.sampled_from(get_args(core))
    if get_origin(core) is tuple:
        return st.lists(strategy_of(get_args(core)[0]), max_size=2).map(tuple)
    if core is bool:
        return st.booleans()
    if core is int:
        return st.integers(**limits)
    if core is float:
        return st.floats(**limits, allow_nan=False, allow_infinity=False)
    if core is datetime:
        return st.datetimes(timezones=st.just(UTC))
    if core is str:
        text = st.text(min_size=limits.get("min_size", 0), max_size=6)
        return st.from_regex(limits["regex"], fullmatch=True) if "regex" in limits else text
    return models_of(core)


@cache
def models_of(model: type[BaseModel]) -> st.SearchStrategy[Any]:
    return st.builds(model, **{name: strategy_of(field_annotation(info)) for name, info in model.model_fields.items()})


def streams() -> st.SearchStrategy[list[DecisionCycleRecord]]:
    """A few records, no two of them of one golem's tick."""
    return st.lists(models_of(DecisionCycleRecord), min_size=1, max_size=3, unique_by=lambda r: (r.golem_id, r.tick))


@settings(max_examples=times(20), deadline=None, suppress_health_check=QUIET)
@given(streams())
def test_a_record_survives_arrow_and_parquet(models: list[DecisionCycleRecord]) -> None:
    table = to_table(models, RECORD_SCHEMA)
    check_table(table, DecisionCycleRecord, RECORD_SCHEMA)
    assert to_models(table, DecisionCycleRecord) == models
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", compression_level=1)
    again = pq.read_table(pa.BufferReader(sink.getvalue()))
    assert again.schema.equals(RECORD_SCHEMA)
    assert to_models(again, DecisionCycleRecord) == models
    assert np.array_equal(row_digests(again), row_digests(table))


@settings(max_examples=times(8), deadline=None, suppress_health_check=QUIET)
@given(streams())
def test_a_record_survives_the_log(models: list[DecisionCycleRecord]) -> None:
    with tempfile.TemporaryDirectory() as folder, EventLog(Home.create(Path(folder), Policy(), NOW), Policy()) as log:
        table = to_table(models, RECORD_SCHEMA)
        assert log.append(table, writer="w", segment=0, recorded_at=NOW, simulated=True).written == len(models)
        assert log.append(table, writer="w", segment=1, recorded_at=NOW, simulated=True).repeated == len(models)
        rows = log.read_cycles()
    key = {(m.golem_id, m.tick): m for m in models}
    assert {(m.golem_id, m.tick): m for m in to_models(rows, DecisionCycleRecord)} == key
    assert fingerprint(rows.select(RECORD_SCHEMA.names), ["golem_id", "tick"]) == fingerprint(
        table, ["golem_id", "tick"]
    )


BATCH = records(60, golems=6, seed=3)
DIGESTS = row_digests(BATCH)


@settings(max_examples=times(30), deadline=None)
@given(st.data())
def test_digests_are_independent_of_chunks_slices_and_order(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(BATCH)))
    stop = data.draw(st.integers(start, len(BATCH)))
    cut = BATCH.slice(start, stop - start)
    assert np.array_equal(row_digests(cut), DIGESTS[start:stop])
    chunked = pa.Table.from_batches(cut.to_batches(max_chunksize=data.draw(st.integers(1, 20))), schema=RECORD_SCHEMA)
    assert np.array_equal(row_digests(chunked), DIGESTS[start:stop])
    order = data.draw(st.permutations(range(start, stop)))
    taken = BATCH.take(pa.array(order, pa.int64()))
    assert np.array_equal(row_digests(taken), DIGESTS[order])
    names = data.draw(st.permutations(BATCH.column_names))
    assert np.array_equal(row_digests(taken.select(names)), DIGESTS[order])
    assert fingerprint(taken, ["golem_id", "tick"]) == fingerprint(cut, ["golem_id", "tick"])


def test_digests_are_independent_of_dictionary_encoding() -> None:
    at_regime = BATCH.column_names.index("regime")
    encoded = BATCH.set_column(at_regime, "regime", BATCH["regime"].dictionary_encode())
    assert np.array_equal(row_digests(encoded), DIGESTS)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every leaf of a nested row, with the way to it."""
    if isinstance(value, dict | list):
        for step, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, step))
    else:
        yield path, value


def changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return float(np.nextafter(value, np.inf))
    if isinstance(value, datetime):
        return value + timedelta(microseconds=1)
    return value + 1 if isinstance(value, int) else value + " "


def with_leaf(row: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    other = copy.deepcopy(row)
    place: Any = other
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return other


def nullable(path: tuple[Any, ...]) -> bool:
    field: Any = RECORD_SCHEMA.field(path[0])
    for step in path[1:]:
        field = field.type.value_field if isinstance(step, int) else field.type.field(step)
    return bool(field.nullable)


def test_a_digest_differs_if_any_leaf_differs() -> None:
    row, other = records(2, golems=1, dense=True).to_pylist()
    items = list(leaves(row))
    assert len({tuple(s for s in path if isinstance(s, str)) for path, _ in items}) > 140
    variants = [with_leaf(row, path, changed(value)) for path, value in items]
    variants += [with_leaf(row, path, None) for path, _ in items if nullable(path)]
    digests = row_digests(pa.Table.from_pylist([row, *variants, other], schema=RECORD_SCHEMA))
    assert len(np.unique(digests, axis=0)) == len(variants) + 2
    assert all(len(np.unique(digests[:, lane])) == len(variants) + 2 for lane in (0, 1))


def test_a_digest_depends_on_the_position_of_a_value() -> None:
    row = records(1, dense=True).to_pylist()[0]
    moved = [row]
    for name in [n for n in row if isinstance(row[n], list)]:
        first, two = row[name]
        assert first != two, name
        moved += [
            {**row, name: value} for value in ([two, first], [first], [two], [], [first, two, two], [first, first])
        ]
    pad = row["pad_before"]
    moved.append({**row, "pad_before": {**pad, "pleasure": pad["arousal"], "arousal": pad["pleasure"]}})
    moved.append({**row, "pad_before": row["pad_after"], "pad_after": pad})
    moved += [{**row, name: None} for name in ("deliberation", "outcome", "context_bundle_summary")]
    digests = row_digests(pa.Table.from_pylist(moved, schema=RECORD_SCHEMA))
    assert len(np.unique(digests, axis=0)) == len(moved)


def test_digests_distinguish_null_from_zero_but_not_signed_zeros() -> None:
    row = records(1, dense=True).to_pylist()[0]
    observation = row["observation"]
    rows = [{**row, "observation": {**observation, "macd": macd}} for macd in (None, 0.0, -0.0, 1.0)]
    none, zero, minus, first = row_digests(pa.Table.from_pylist(rows, schema=RECORD_SCHEMA))
    assert np.array_equal(zero, minus)
    assert len(np.unique([none, zero, first], axis=0)) == 3
