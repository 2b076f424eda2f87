"""The count of colons and of the ends of keys finds a repeated key exactly when a parse by key does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bardo_pipeline.events import record_json
from bardo_pipeline.events.record import repeated_keys
from bardo_pipeline.events.record.arrow_schema import to_models
from bardo_pipeline.events.record.model import DecisionCycleRecord
from bardo_pipeline.events.record.repeated_keys import OPTIONAL, repeated_key, repeated_record_key
from tests.support.example_count import some
from tests.support.records.drawn_records import records

MODELS = [m.model_dump(mode="json") for m in to_models(records(12, golems=3, tick=1, seed=5), DecisionCycleRecord)]
NOTED = next(n for n, fields in enumerate(MODELS) if fields["deliberation"] is not None)
OPTIONAL_KEYS = sorted(OPTIONAL & MODELS[0].keys())
texts = st.text(st.sampled_from(':" \\{}[],kt\té'), max_size=12)
blanks = st.sampled_from(["", "", "", "", " ", "\t", "\r", "\n", " \t"])


def paths(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the places of all keys of a value, at any depth."""
    if isinstance(value, dict):
        return [place for key, inner in value.items() for place in ((*path, key), *paths(inner, (*path, key)))]
    if isinstance(value, list):
        return [place for at, inner in enumerate(value) for place in paths(inner, (*path, at))]
    return []


def written(value: Any, blank: str, usual: str, twice: tuple[str | int, ...] | None) -> str:
    """Write JSON with `usual` before each colon, and the key at `twice` a second time with `blank` there."""
    rest = None if twice is None or len(twice) == 1 else twice[1:]

    def inner(at: str | int, part: Any) -> str:
        return written(part, blank, usual, rest if twice is not None and twice[0] == at else None)

    if isinstance(value, dict):
        pairs = [f"{json.dumps(key)}{usual}:{inner(key, part)}" for key, part in value.items()]
        if twice is not None and len(twice) == 1:
            pairs.append(f"{json.dumps(twice[0])}{blank}:{inner('', value[twice[0]])}")
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(inner(at, part) for at, part in enumerate(value)) + "]"
    return json.dumps(value, ensure_ascii=usual == "")


@pytest.mark.row("EV-4")
@given(data=st.data(), at=st.integers(0, len(MODELS) - 1), reason=texts, source=texts, blank=blanks, usual=blanks)
@some(400)
def test_a_line_has_a_repeated_key_by_its_counts_iff_by_a_parse(
    data: st.DataObject, at: int, reason: str, source: str, blank: str, usual: str
) -> None:
    left_out = data.draw(st.sets(st.sampled_from([name for name in OPTIONAL_KEYS if MODELS[at][name] is None])), "out")
    fields = {name: value for name, value in MODELS[at].items() if name not in left_out}
    fields["gating_reason"] = reason or "-"
    if fields["deliberation"] is not None:
        fields["deliberation"] = {**fields["deliberation"], "reasoning_summary": source}
    twice = data.draw(st.none() | st.sampled_from(paths(fields)), "twice")
    line = written(fields, blank, usual, twice).encode()
    record = record_json._DECODER.decode(line)
    assert (repeated_key(line) is None) == (twice is None)
    assert repeated_record_key(line, record) == repeated_key(line)


def test_a_line_with_colons_in_ids_and_escapes_in_texts_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {**MODELS[NOTED]["deliberation"], "reasoning_summary": 'it said: "wait"'}
    monkeypatch.setattr(repeated_keys, "repeated_key", lambda line: pytest.fail("the line is parsed a second time"))
    for more in ({}, {"episodes_written": ["g-1:1", "g-1:20"]}, {"deliberation": said}):
        line = written({**MODELS[NOTED], **more}, "", "", None).encode()
        assert repeated_record_key(line, record_json._DECODER.decode(line)) is None


@pytest.mark.row("EV-4")
@pytest.mark.parametrize("name", ["dream_tag", "pipeline"])
def test_a_key_that_is_null_first_and_has_a_value_then_is_repeated(name: str) -> None:
    value = "novel" if name == "dream_tag" else next(m[name] for m in MODELS if m[name] is not None)
    line = written({**MODELS[NOTED], name: value}, "", "", None)
    for twice in (f'{{"{name}":null,{line[1:]}', f'{line[:-1]},"{name}":null}}'):
        assert repeated_record_key(twice.encode(), record_json._DECODER.decode(twice)) == name


@pytest.mark.row("EV-4")
@pytest.mark.parametrize("escaped", [1, 2])
def test_escaped_colons_of_the_time_hide_no_repeated_key(escaped: int) -> None:
    quiet = [{**probe, "detail": None} for probe in MODELS[NOTED]["probe_results"]]
    said = {**MODELS[NOTED]["deliberation"], "reasoning_summary": "-"}
    fields = {**MODELS[NOTED], "gating_reason": "-", "probe_results": quiet, "deliberation": said}
    time = fields["observed_at"]
    line = written(fields, "", "", None).replace(time, time.replace(":", r"\u003a", escaped))
    for twice in (line, '{"tick":1,' + line[1:], '{"tick":1,"cycle_seen":1,' + line[1:]):
        record = record_json._DECODER.decode(twice)
        assert repeated_record_key(twice.encode(), record) == repeated_key(twice.encode())
