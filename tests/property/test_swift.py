"""The swift check of a line says what pydantic says: of fuzzed lines, and of every kind of value at a limit."""

from __future__ import annotations

from copy import deepcopy
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from bardo_pipeline.events import swift
from bardo_pipeline.events.record import DecisionCycleRecord
from bardo_pipeline.events.sealing import has_private_parts
from tests import fuzz

GOOD = fuzz.good_records(100, tick=1, seed=1)


def agreed(line: bytes) -> bool:
    """Whether the line is a record; both say so, or neither does."""
    model = fuzz.verdict(line, 10**9)
    try:
        seen = swift.glance(line)
    except ValidationError:
        assert model is None, line[:300]
        return False
    assert model is not None, line[:300]
    assert seen == (model.golem_id, model.tick, has_private_parts(model)), line[:300]
    return True


@pytest.mark.row("EV-3")
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_of_whatever_somebody_sends_both_say_the_same(seed: int) -> None:
    mutator = fuzz.Mutator(Random(seed), big=0.0)
    for record in GOOD:
        agreed(mutator.line(deepcopy(record)))


@pytest.mark.row("EV-3")
def test_good_lines_are_read_by_the_swift_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swift, "_judge", None)
    assert {swift.glance(fuzz.dumps(record)).golem_id for record in GOOD} == {record["golem_id"] for record in GOOD}


@pytest.mark.row("EV-3")
@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("tick", b"0"), ("tick", b"9007199254740992"), ("tick", b"9007199254740993"), ("tick", b"1.0"),
        ("tick", b"1e0"), ("tick", b"true"), ("prediction_error", b"1"), ("prediction_error", b"1.0000000000000002"),
        ("prediction_error", b"-0.0"), ("prediction_error", b"NaN"), ("prediction_error", b"1e-400"),
        ("golem_id", b'""'), ("golem_id", b'"' + b"x" * 256 + b'"'), ("golem_id", b'"' + b"x" * 257 + b'"'),
        ("golem_id", b'"\\ud800"'), ("golem_id", b'"\\u0000"'), ("golem_id", b'"\xff"'), ("golem_id", b'"a\nb"'),
        ("gating_reason", '"é"'.encode() * 1), ("gating_reason", b'"' + "é".encode() * 65_536 + b'"'),
        ("gating_reason", b'"' + "é".encode() * 65_537 + b'"'), ("tier", b'"T3"'), ("forced_by", b"null"),
        ("schema_version", b"3"), ("schema_version", b"0"), ("observed_at", b'"2026-01-01T00:00:00+01:00"'),
        ("observed_at", b'"2026-01-01T00:00:00"'), ("observed_at", b"0"), ("observed_at", b'"2026-01-01T00:00:00Z"'),
    ],
)  # fmt: skip
def test_at_every_limit_both_say_the_same(name: str, token: bytes) -> None:
    agreed(fuzz.dumps(deepcopy(GOOD[0]) | {name: fuzz.Raw(token)}))


@pytest.mark.row("EV-3")
@pytest.mark.parametrize("end", ["", "\n", "x"])
def test_a_hash_ends_where_its_pattern_says(end: str) -> None:
    record = deepcopy(next(r for r in fuzz.good_records(2_000, tick=1, seed=2) if r["actions"]))
    record["actions"][0]["tx_hash"] = "0x" + "a" * 64 + end
    assert agreed(fuzz.dumps(record)) is (end == "")


def test_a_type_that_it_cannot_read_as_pydantic_does_is_refused_when_it_is_built() -> None:
    with pytest.raises(TypeError, match="no swift check"):
        swift._type(set[str])
    assert msgspec.json.decode(b"1", type=swift._type(int)) == 1
    assert set(swift._struct(DecisionCycleRecord).__struct_fields__) == set(DecisionCycleRecord.model_fields)
