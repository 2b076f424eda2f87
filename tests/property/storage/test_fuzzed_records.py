"""Lines parsed in bulk equal pydantic's result line by line; no input ends the process or exhausts its memory."""

from __future__ import annotations

import json
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA, to_models
from bardo_pipeline.events.record.model import DecisionCycleRecord
from bardo_pipeline.events.record.validate import row_errors
from bardo_pipeline.storage.intake import json_key_count, json_reader
from bardo_pipeline.storage.intake.json_reader import read_lines
from bardo_pipeline.storage.intake.line_buffer import Lines
from tests import fuzz
from tests.support.example_count import times

pytestmark = pytest.mark.row("EV-4")
ROOT = Path(__file__).parents[3]
GOOD = fuzz.good_records(40, tick=1, seed=0)


def in_bulk(lines: list[bytes]) -> tuple[dict[int, DecisionCycleRecord], set[int]]:
    """Return the result of the bulk path: records by line, and the invalid lines."""
    parsed = read_lines(Lines.of(lines))
    assert parsed.records.schema.equals(RECORD_SCHEMA)
    parsed.records.validate(full=True)
    wrong = row_errors(parsed.records, DecisionCycleRecord)
    assert all(str(error) for error in wrong.values())
    assert all(str(line.error) for line in parsed.bad)
    fit = [row for row in range(len(parsed.records)) if row not in wrong]
    models = to_models(parsed.records.take(pa.array(fit, pa.int64())), DecisionCycleRecord)
    good = dict(zip((int(parsed.lines[row]) for row in fit), models, strict=True))
    bad = [line.line for line in parsed.bad] + [int(parsed.lines[row]) for row in wrong]
    assert len(good) + len(bad) == len(lines), "each line must be either valid or invalid"
    return good, set(bad)


def one_by_one(lines: list[bytes]) -> tuple[dict[int, DecisionCycleRecord], set[int]]:
    """Return the result of the oracle, line by line."""
    verdicts = {at: fuzz.verdict(line, 2**30) for at, line in enumerate(lines)}
    good = {at: record for at, record in verdicts.items() if record is not None}
    return good, set(verdicts) - set(good)


class TestBulkEqualsPydantic:
    @settings(max_examples=times(75), deadline=None)
    @given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 4))
    def test_mutated_lines_are_parsed_equally(self, seed: int, count: int, group: int) -> None:
        random = Random(seed)
        mutator = fuzz.Mutator(random, big=0.0)
        lines = [mutator.line(deepcopy(random.choice(GOOD))) for _ in range(count)]
        lines = [line.replace(b"\n", b"") or b"-" for line in lines]
        assert in_bulk(lines) == one_by_one(lines)

    @settings(max_examples=times(100), deadline=None)
    @given(
        st.fixed_dictionaries(
            {
                "price": st.one_of(st.floats(), st.integers()),
                "price_return": st.one_of(st.floats(), st.integers(), st.none()),
                "sma": st.one_of(st.floats(0), st.integers(-(2**70), 2**70), st.none(), st.booleans()),
                "volume_micros": st.one_of(st.integers(), st.floats(0, 100), st.none()),
                "market": st.one_of(st.text(), st.integers()),
                "block_number": st.one_of(st.none(), st.integers(-1, 2**54)),
            }
        ),
        st.booleans(),
    )
    def test_arbitrary_values_are_parsed_equally(self, values: dict[str, Any], ascii_only: bool) -> None:
        record = deepcopy(GOOD[0])
        record["observation"] |= values
        lines = [
            json.dumps(record, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass"),
            json.dumps(GOOD[1]).encode(),
        ]
        assert in_bulk(lines) == one_by_one(lines)

    @pytest.mark.parametrize("token", fuzz.NUMBERS, ids=lambda token: token[:20].decode())
    @pytest.mark.parametrize("place", [("observation", "macd"), ("tick",), ("observation", "price"), ("cycle_seen",)])
    def test_every_number_format_is_parsed_equally(self, token: bytes, place: tuple[str, ...]) -> None:
        record = deepcopy(GOOD[0])
        fuzz._at(record, place[:-1])[place[-1]] = fuzz.Raw(token)
        lines = [fuzz.dumps(GOOD[1]), fuzz.dumps(record)]
        assert in_bulk(lines) == one_by_one(lines)

    @pytest.mark.parametrize("moment", fuzz.MOMENTS)
    def test_every_timestamp_format_is_parsed_equally(self, moment: str) -> None:
        lines = [fuzz.dumps(GOOD[1]), fuzz.dumps(GOOD[0] | {"observed_at": moment})]
        assert in_bulk(lines) == one_by_one(lines)

    @pytest.mark.parametrize(
        "line",
        [
            *(
                b"{} null {}",
                b"{}null{}",
                b"null",
                b"{}\tnull",
                b"{null}",
                b"[null]",
                b"{}{}",
                b"{},{}",
                b"{} {}",
                b"}{",
            ),
            *(
                b"[" * 200_000,
                b'{"a":' * 200_000,
                b'{"observation":' * 200_000,
                b'{"positions":[' * 1_000,
                b"\xef\xbb\xbf{}",
            ),
        ],
        ids=lambda line: line[:20].decode("utf-8", "backslashreplace"),
    )
    def test_malformed_and_deeply_nested_lines_are_refused_equally(self, line: bytes) -> None:
        good = fuzz.dumps(GOOD[0])
        lines = [good, line, good + b" null " + good, good + good, good[:-1], b"{" + good]
        assert in_bulk(lines) == one_by_one(lines)

    def test_a_record_split_over_two_lines_is_two_bad_lines(self) -> None:
        good = fuzz.dumps(GOOD[0])
        cut = good.index(b',"regime"')
        lines = [good[:cut], good[cut:], good + good[:cut], good[cut:]]
        assert in_bulk(lines) == ({}, {0, 1, 2, 3})

    @pytest.mark.parametrize("name", sorted(json_key_count.OPTIONAL | {"derivation_id", "outcome", "schema_version"}))
    def test_an_absent_key_is_null_only_for_optional_fields(self, name: str) -> None:
        record = deepcopy(next(r for r in GOOD if r["pipeline"] is not None))
        del (record["pipeline"] if name == "tool_runs" else record)[name]
        lines = [fuzz.dumps(GOOD[1]), fuzz.dumps(record)]
        good, bad = in_bulk(lines)
        assert (good, bad) == one_by_one(lines)
        assert (1 in good) == (name not in ("derivation_id", "outcome"))

    def test_valid_lines_are_never_read_singly(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(json_reader, "_read_single", None)
        quoting = [{**record, "gating_reason": 'it said "tick": 1, \\ and "é"'} for record in GOOD]
        assert len(in_bulk([fuzz.dumps(record) for record in [*GOOD, *quoting]])[0]) == 2 * len(GOOD)

    @pytest.mark.parametrize(
        ("part", "instead", "most"),
        [
            (b'"dream_tag":', b'"dream_tag"', 1),
            (b'{"schema_version"', b' {"schema_version"', 1),
            (b'"tick":', b'"tick":"x","no":', 1),
            (b'"tick":', b'"tick":1,"tick":', 1),
            (b'"rsi":', b'"rsj":', 1),
            (b'"outcome":', b'"results":', 1),
            (b'"observed_at":"20', b'"observed_at":"+20', 1),
            (b'"market":"', b'"market":"\xff', 1),
            (b'"market":"', b'"market":"}{', 1),
            (b'"tick":', b'"tick":0.', json_reader._FEW),
            (b'"sma":', b'"macd":0,"no":', json_reader._FEW),
            (b'"observed_at":"2023-11-14', b'"observed_at":"2023-11-31', json_reader._FEW),
        ],
        ids=range(12),
    )
    def test_one_invalid_line_causes_few_single_reads(
        self, monkeypatch: pytest.MonkeyPatch, part: bytes, instead: bytes, most: int
    ) -> None:
        sent = [fuzz.dumps(record) for record in 4 * GOOD]
        assert part in sent[93]
        sent[93] = sent[93].replace(part, instead, 1)
        looked_at: list[int] = []
        judged = json_reader._read_single
        monkeypatch.setattr(
            json_reader, "_read_single", lambda lines, which: looked_at.extend(which) or judged(lines, which)
        )
        parsed = read_lines(Lines.of(sent))
        assert 93 in looked_at
        assert len(looked_at) <= most
        assert sorted([*parsed.lines.tolist(), *(line.line for line in parsed.bad)]) == list(range(len(sent)))
        assert (np.diff(parsed.lines) > 0).all()


class TestFuzzedSpool:
    @pytest.mark.full
    def test_a_thousand_fuzzed_records_are_accepted_or_refused(self) -> None:
        """`make fuzz` does the same with 100,000."""
        command = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz", "--records", "1000", "--seed", "7"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3_000:]
        document = json.loads(done.stdout)
        kinds = ("RecordError", "SchemaVersionError", "ForkError", "ClockError", "IdentityError")
        refused = sum(document.get(kind, 0) for kind in kinds)
        assert document["accepted"] + document["repeated"] + refused == document["lines"] > 970
        assert min(document["accepted"], document["RecordError"]) > 250
        assert document["rss_grown_mb"] < 800
