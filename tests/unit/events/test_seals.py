"""Seals: which seal opens with which key, and what cannot be sealed or kept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bardo_pipeline.errors import SealError
from bardo_pipeline.events.custody.sealing import (
    PrivateParts,
    SealKey,
    must_be_sealed,
    open_parts,
    seal_record,
    seal_table,
    withheld,
)
from bardo_pipeline.events.record.arrow_columns import absent
from bardo_pipeline.events.record.model import DecisionCycleRecord, Sealed
from tests.support.records.drawn_records import records
from tests.support.records.log_queries import GOLEM, OTHER
from tests.support.records.private_records import MARK, SECRET, models, private, some

pytestmark = pytest.mark.row("X-7")
DOCS = Path(__file__).parents[3] / "docs" / "events.md"


def open_record(record: DecisionCycleRecord, key: SealKey) -> DecisionCycleRecord:
    """Return the record with its private parts in plain text."""
    if record.sealed is None:
        return record
    parts = open_parts(record.sealed, record.golem_id, record.tick, key)
    thought = record.deliberation and record.deliberation.model_copy(
        update={"reasoning_summary": parts.reasoning_summary}
    )
    observation = record.observation.model_copy(update={"positions": parts.positions})
    return record.model_copy(update={"observation": observation, "deliberation": thought, "sealed": None})


def test_a_sealed_record_opens_unchanged_and_seals_to_equal_bytes() -> None:
    key = SealKey(SECRET)
    for record in models(private(records(60, golems=2, seed=3))):
        sealed = seal_record(record, key)
        assert open_record(sealed, key) == record
        assert MARK not in sealed.model_dump_json()
        assert sealed == seal_record(record, SealKey(SECRET))
        has = bool(record.observation.positions or (record.deliberation and record.deliberation.reasoning_summary))
        assert (sealed.sealed is not None) == has
        assert DecisionCycleRecord.model_validate_json(sealed.model_dump_json()) == sealed


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(0, 30), dense=st.booleans(), golems=st.integers(1, 3),
       sealing=st.sets(st.sampled_from(["golem-0000", "golem-0001", "golem-0002"])))  # fmt: skip
def test_a_sealed_batch_equals_its_records_sealed_separately(
    seed: int, count: int, dense: bool, golems: int, sealing: set[str]
) -> None:
    table = records(count, golems=golems, seed=seed, dense=dense)
    place = table.schema.get_field_index("sealed")
    table = table.set_column(place, table.schema.field(place), absent(table.schema.field(place).type, count))
    keys = {golem_id: SealKey(golem_id.encode().ljust(32, b"*")) for golem_id in sealing}
    made = seal_table(table, keys)
    made.validate(full=True)
    wanted = [seal_record(r, keys[r.golem_id]) if r.golem_id in keys else r for r in models(table)]
    assert models(made) == wanted
    assert must_be_sealed(table, sealing).tolist() == [a != b for a, b in zip(models(table), wanted, strict=True)]
    assert not must_be_sealed(made, sealing).any()
    assert seal_table(made, keys).equals(made)


def test_different_seals_have_different_nonces() -> None:
    key, other = SealKey(SECRET), SealKey(SECRET[::-1])
    rows = [(key, "g", b"a", b"x"), (key, "g", b"a", b"y"), (key, "g", b"b", b"x"), (key, "h", b"a", b"x"),
            (other, "g", b"a", b"x"), (key, "ga", b"", b"x"), (key, "g", b"aa", b"x")]  # fmt: skip
    assert len({k.seal(g, place, text).nonce for k, g, place, text in rows}) == len(rows)


def test_a_seal_opens_only_unaltered_with_its_key_golem_and_tick() -> None:
    key, (record, *_) = SealKey(SECRET), models(some(1))
    sealed = seal_record(record, key).sealed
    assert sealed is not None
    assert open_parts(sealed, GOLEM, 1, key).reasoning_summary == MARK
    flipped = ("B" if sealed.ciphertext[0] == "A" else "A") + sealed.ciphertext[1:]
    for wrong in (
        lambda: open_parts(sealed, GOLEM, 2, key),
        lambda: open_parts(sealed, OTHER, 1, key),
        lambda: open_parts(sealed.model_copy(update={"ciphertext": flipped}), GOLEM, 1, key),
        lambda: open_parts(sealed.model_copy(update={"ciphertext": "no base64"}), GOLEM, 1, key),
        lambda: open_parts(sealed, GOLEM, 1, SealKey(SECRET[::-1])),
    ):
        with pytest.raises(SealError):
            wrong()


def test_the_documented_seal_can_be_opened() -> None:
    (result,) = re.findall(r'\{"key_id":"seal-.*?\}', DOCS.read_text(), re.DOTALL)
    sealed = Sealed.model_validate_json(result)
    parts = open_parts(sealed, "g-1", 7, SealKey(SECRET))
    assert parts == PrivateParts(reasoning_summary="wait for calm", positions=())
    assert SealKey(SECRET).seal("g-1", b"tick\x007", b'{"positions":[],"reasoning_summary":"wait for calm"}') == sealed


def test_an_invalid_key_or_record_is_refused() -> None:
    key, (record, *_) = SealKey(SECRET), models(some(1))
    with pytest.raises(SealError, match="32 bytes"):
        SealKey(b"short")
    sealed = seal_record(record, key)
    again = sealed.model_copy(update={"observation": record.observation})
    with pytest.raises(SealError, match="tick 1 has a seal and private parts in plain text"):
        seal_record(again, key)
    many = record.model_copy(
        update={
            "observation": record.observation.model_copy(update={"positions": record.observation.positions * 9_999})
        }
    )
    with pytest.raises(SealError, match="more than a seal of"):
        seal_record(many, key)
    assert SECRET.hex() not in repr(key)
    assert str(SECRET) not in repr(key)


def test_raw_bytes_are_withheld_unless_they_name_a_golem_that_does_not_seal() -> None:
    sealing = {GOLEM}
    assert withheld(b'{"golem_id":"golem-0000","tick":1', sealing)
    assert withheld(b'{"golem_id":"golem-0000"}', sealing)
    assert withheld(b'{"tick":1}', sealing)
    assert withheld(b"[1]", sealing)
    assert not withheld(b'{"golem_id":"golem-0001"}', sealing)
    assert not withheld(b"anything", set())
