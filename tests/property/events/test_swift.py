"""The fast check of a line agrees with pydantic: for fuzzed lines, and for every kind of value at a limit."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator

from bardo_pipeline.errors import RecordError
from bardo_pipeline.events import record_json
from bardo_pipeline.events.custody.sealing import has_private_parts
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.events.record.model import SCHEMA_VERSION, DecisionCycleRecord
from tests import fuzz
from tests.support.example_count import times

GOOD = fuzz.good_records(100, tick=1, seed=1)


def agreed(line: bytes) -> bool:
    """Return whether the line is a record, and check that both parsers agree."""
    model = fuzz.verdict(line, 10**9)
    try:
        seen = record_json.glance(line)
    except (ValidationError, RecordError):
        assert model is None, line[:300]
        return False
    assert model is not None, line[:300]
    known = (seen.golem_id, seen.tick, seen.is_private)  # the parsers round a time below microseconds differently
    assert known == (model.golem_id, model.tick, has_private_parts(model)), line[:300]
    return True


@pytest.mark.row("EV-3")
@settings(max_examples=times(10), deadline=None)
@given(st.integers(0, 2**32))
def test_both_parsers_agree_on_fuzzed_lines(seed: int) -> None:
    mutator = fuzz.Mutator(Random(seed), big=0.0)
    verdicts = {agreed(mutator.line(deepcopy(record))) for record in GOOD}
    assert verdicts == {True, False}, "100 lines must have valid and invalid records"


@pytest.mark.row("EV-3")
def test_valid_lines_are_read_by_the_fast_parser_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_json, "_validate", None)
    assert {record_json.glance(fuzz.dumps(record)).golem_id for record in GOOD} == {
        record["golem_id"] for record in GOOD
    }


@pytest.mark.row("EV-3")
@pytest.mark.parametrize(
    ("name", "token", "fits"),
    [
        ("tick", b"0", False), ("tick", b"4294967295", True), ("tick", b"4294967296", False),
        ("tick", b"1.0", False), ("tick", b"1e0", False), ("tick", b"true", False), ("prediction_error", b"1", True),
        ("prediction_error", b"1.0000000000000002", False), ("prediction_error", b"-0.0", True),
        ("prediction_error", b"NaN", False), ("prediction_error", b"1e-400", True), ("golem_id", b'""', False),
        ("golem_id", b'"' + b"x" * 256 + b'"', True), ("golem_id", b'"' + b"x" * 257 + b'"', False),
        ("golem_id", b'"\\ud800"', False), ("golem_id", b'"\\u0000"', True), ("golem_id", b'"\xff"', False),
        ("golem_id", b'"a\nb"', False), ("gating_reason", '"é"'.encode(), True),
        ("gating_reason", b'"' + "é".encode() * 65_536 + b'"', True),
        ("gating_reason", b'"' + "é".encode() * 65_537 + b'"', False), ("tier", b'"T3"', False),
        ("forced_by", b"null", True), ("schema_version", b"0", False),
        ("schema_version", b"%d" % (SCHEMA_VERSION + 1), False),
        ("observed_at", b'"2026-01-01T00:00:00+01:00"', False), ("observed_at", b'"2026-01-01T00:00:00"', False),
        ("observed_at", b"0", False), ("observed_at", b'"2026-01-01T00:00:00Z"', True),
    ],
)  # fmt: skip
def test_both_parsers_agree_at_every_limit(name: str, token: bytes, fits: bool) -> None:
    assert agreed(fuzz.dumps(deepcopy(GOOD[0]) | {name: fuzz.Raw(token)})) is fits


@pytest.mark.full
@pytest.mark.row("EV-3")
@pytest.mark.parametrize("end", ["", "\n", "x"])
def test_a_transaction_hash_must_match_its_whole_pattern(end: str) -> None:
    record = deepcopy(next(r for r in fuzz.good_records(2_000, tick=1, seed=2) if r["actions"]))
    record["actions"][0]["tx_hash"] = "0x" + "a" * 64 + end
    assert agreed(fuzz.dumps(record)) is (end == "")


def test_a_type_without_a_msgspec_equivalent_is_refused() -> None:
    with pytest.raises(TypeError, match="no msgspec type"):
        record_json._type(set[str])
    assert msgspec.json.decode(b"1", type=record_json._type(int)) == 1
    assert set(record_json._struct(DecisionCycleRecord).__struct_fields__) == set(DecisionCycleRecord.model_fields)


@pytest.mark.parametrize(
    "annotation",
    [Annotated[int, Field(gt=1)], Annotated[int, Field(multiple_of=2)], Annotated[str, AfterValidator(str)]],
)
def test_a_constraint_without_a_msgspec_equivalent_is_refused(annotation: Any) -> None:
    with pytest.raises(TypeError, match="no msgspec type"):
        record_json._type(annotation)


def test_a_model_validator_is_refused() -> None:
    class Judged(BaseModel):
        a: int

        @model_validator(mode="after")
        def judge(self) -> Judged:
            return self

    with pytest.raises(TypeError, match="validators of Judged"):
        record_json._struct(Judged)


def test_observed_at_is_the_only_timestamp_of_a_record() -> None:
    def moments(kind: pa.DataType) -> int:
        if pa.types.is_timestamp(kind):
            return 1
        return sum(moments(kind.field(i).type) for i in range(kind.num_fields))

    assert [field.name for field in RECORD_SCHEMA if moments(field.type)] == ["observed_at"]
