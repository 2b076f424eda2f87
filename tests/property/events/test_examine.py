"""All ways to check a batch of records find the same faults."""

from __future__ import annotations

from random import Random
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import BaseModel, Field

from bardo_pipeline.events.record import validate
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.events.record.model import DecisionCycleRecord
from bardo_pipeline.events.record.row_digest import row_digests
from tests.support.records.drawn_records import records

pytestmark = pytest.mark.row("EV-4")

_NUMBERS = (float("nan"), float("inf"), -1e300, -1.0, 1e300)
_COUNTS = (-1, 2**62, -(2**62))
_TEXTS = ("", "x" * 5_000, "é" * 300)


def spoil(random: Random, value: Any) -> None:
    """Put an invalid value at one place of an object, at any depth."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value))
    key, inner = random.choice(items)
    if isinstance(inner, dict | list) and inner:
        spoil(random, inner)
    elif isinstance(inner, float):
        value[key] = random.choice(_NUMBERS)
    elif isinstance(inner, int) and not isinstance(inner, bool):
        value[key] = random.choice(_COUNTS)
    elif isinstance(inner, str):
        value[key] = random.choice(_TEXTS)


@pytest.fixture(scope="module")
def batch() -> pa.Table:
    """Draw records, half of them with an invalid value."""
    random, rows = Random(4), records(400, golems=2).to_pylist()
    for row in rows[::2]:
        spoil(random, row)
    spoilt = pa.Table.from_pylist(rows, schema=RECORD_SCHEMA)
    moments = spoilt["observed_at"].combine_chunks().cast(pa.int64()).to_pylist()
    moments[7], moments[9] = -(2**62), 2**62  # no year that Python knows
    at = RECORD_SCHEMA.get_field_index("observed_at")
    return spoilt.set_column(at, RECORD_SCHEMA.field(at), pa.array(moments).cast(RECORD_SCHEMA.field(at).type))


def test_examining_columns_in_threads_equals_examining_in_sequence(
    batch: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = validate.examine(batch)
    monkeypatch.setattr(validate, "_THREADED_ROWS", 1)
    beside = validate.examine(batch)
    assert beside.faults == whole.faults
    assert len(whole.errors()) > 50
    assert np.array_equal(beside.digests, whole.digests)
    assert np.array_equal(whole.digests, row_digests(batch))


def test_a_check_of_extremes_equals_a_check_of_every_value(batch: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    result = validate.violations(batch, DecisionCycleRecord)
    answer = " ".join(sentence for _, sentence in result)
    assert all(
        f"is {fault}" in answer for fault in ("not finite", "below", "above", "longer than", "shorter than", "outside")
    )
    good = [row for row in range(len(batch)) if row not in {row for row, _ in result}]
    assert validate.violations(batch.take(pa.array(good)), DecisionCycleRecord) == []
    monkeypatch.setattr(validate, "_extremes", lambda values: None)
    assert validate.violations(batch, DecisionCycleRecord) == result


def test_length_limits_count_characters_not_bytes() -> None:
    class Named(BaseModel):
        name: Annotated[str, Field(min_length=2, max_length=3)]

    names = pa.table({"name": ["ab", "é", "éé", "aéb", "éééé"]})
    assert [row for row, _ in validate.violations(names, Named)] == [1, 4]
