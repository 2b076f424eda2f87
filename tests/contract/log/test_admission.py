"""Admission of rows to a log, row by row, and the hash chain it builds; on disk and on the twin in memory.

The tests recompute each golem's links from the rows and bytes that are read back.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from bardo_pipeline.errors import BardoError, ForkError, LeaseError, RecordError, SignatureError, StoreError
from bardo_pipeline.events.custody.hash_chain import (
    GENESIS,
    Payloads,
    Signature,
    content_of,
    link_of,
    rotation_message,
    slice_contents,
    verified,
)
from bardo_pipeline.events.life.events import KeyRegistered, KeyRevoked, KeyRotated, LifeEvent, life_event
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.events.record.validate import examine
from bardo_pipeline.policy import Policy
from bardo_pipeline.signing import signed_message
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.leases import Lease, leased
from bardo_pipeline.storage.log.batch import Stamp
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.protocol import Admitted
from tests.doubles.memory_event_log import Log
from tests.support.example_count import times
from tests.support.records.drawn_records import records
from tests.support.records.log_queries import GOLEM, NOW, ORDER, OTHER, SEGMENTS, accepted, died

KEYS = {name: Ed25519PrivateKey.from_private_bytes(bytes([k]) * 32) for k, name in enumerate(("k1", "k2", "k3"))}


def ticks(first: int, last: int | None = None, *, golems: int = 1, seed: int = 0) -> pa.Table:
    """Return records of ticks first to last, of one golem or two; a tick's content is the same in every call."""
    count = (last or first) - first + 1
    return pa.concat_tables(_tick(tick, seed).slice(0, golems) for tick in range(first, first + count))


@cache
def _tick(tick: int, seed: int) -> pa.Table:
    return records(2, golems=2, tick=tick, seed=seed * 1000 + tick)


def of(golem_id: str, batch: pa.Table) -> pa.Table:
    return batch.filter(pc.equal(batch["golem_id"], golem_id))


def lines_of(batch: pa.Table) -> list[bytes]:
    """Return one JSON line a record; equal records have equal bytes."""
    return [orjson.dumps(row) for row in batch.to_pylist()]


def signed(line: bytes, key_id: str, golem_id: str = GOLEM) -> Signature:
    return Signature(key_id, KEYS[key_id].sign(signed_message(golem_id, content_of(line))))


def signed_slice(batch: pa.Table, key_id: str, golem_id: str = GOLEM) -> Signature:
    golem_rows = of(golem_id, batch).sort_by("tick").combine_chunks()
    content = slice_contents(golem_rows, [0, len(golem_rows)])[0]
    return Signature(key_id, KEYS[key_id].sign(signed_message(golem_id, content)))


def admit(
    log: Log,
    batch: pa.Table,
    lines: Sequence[bytes] | None = None,
    signatures: Mapping[str, Signature] | Sequence[Signature | None] | None = None,
    **more: Any,
) -> Admitted:
    return log.admit(
        examine(batch),
        Stamp("drain", next(SEGMENTS), NOW),
        payloads=None if lines is None else Payloads.of(pa.array(lines, pa.binary())),
        signatures=signatures,
        **more,
    )


def append(log: Log, batch: pa.Table, signatures: Mapping[str, Signature] | None = None) -> int:
    return log.append(batch, writer="runtime", segment=next(SEGMENTS), recorded_at=NOW, signatures=signatures).written


def refused(admitted: Admitted) -> dict[int, type[BardoError]]:
    return {row: type(error) for row, error in admitted.refused.items()}


def on_record(log: Log, golem_id: str = GOLEM) -> list[int]:
    return sorted(log.read_cycles(["tick"], golems=[golem_id])["tick"].to_pylist())


def chain(log: Log, golem_id: str = GOLEM) -> list[tuple[int, list[int]]]:
    """Return a golem's links in order, each with its ticks; every hash and signature is recomputed."""
    golem_rows = log.read_cycles(golems=[golem_id]).sort_by("tick")
    numbers = pc.struct_field(golem_rows["link"], "number").to_numpy()
    previous, links = GENESIS, []
    for number in range(1, int(numbers.max(initial=0)) + 1):
        rows = golem_rows.filter(pa.array(numbers == number))
        assert len(rows), f"link {number} is missing"
        link, *other_links = rows["link"].to_pylist()
        assert all(other == link for other in other_links)
        payloads = rows["payload"].to_pylist()
        if payloads[0] is None:
            content = slice_contents(rows.select(RECORD_SCHEMA.names).combine_chunks(), [0, len(rows)])[0]
        else:
            assert len(payloads) == 1
            content = content_of(payloads[0])
        assert (link["number"], link["previous"]) == (number, previous)
        assert link["hash"] == link_of(golem_id, number, previous, content)
        if link["key_id"] is not None:
            key = KEYS[link["key_id"]].public_key().public_bytes_raw().hex()
            assert verified(key, link["signature"], signed_message(golem_id, content))
        previous = link["hash"]
        links.append((number, rows["tick"].to_pylist()))
    return links


def public(key_id: str) -> str:
    return KEYS[key_id].public_key().public_bytes_raw().hex()


def registered(key_id: str = "k1", tick_from: int = 1, golem_id: str = GOLEM) -> LifeEvent:
    return life_event(golem_id, NOW, KeyRegistered(key_id=key_id, public_key=public(key_id), tick_from=tick_from))


def rotated(key_id: str, by: str, tick_from: int, golem_id: str = GOLEM) -> LifeEvent:
    message = rotation_message(golem_id, key_id, public(key_id), tick_from)
    payload = KeyRotated(
        key_id=key_id,
        public_key=public(key_id),
        previous_key_id=by,
        tick_from=tick_from,
        signature=KEYS[by].sign(message).hex(),
        why="yearly",
    )
    return life_event(golem_id, NOW, payload)


def revoked(key_id: str, tick_from: int) -> LifeEvent:
    return life_event(GOLEM, NOW, KeyRevoked(key_id=key_id, tick_from=tick_from, why="lost"))


def altered(batch: pa.Table, row: int, **values: Any) -> pa.Table:
    rows = batch.to_pylist()
    rows[row] |= values
    return pa.Table.from_pylist(rows, schema=RECORD_SCHEMA)


# which rows are accepted


@pytest.mark.row("EV-2", "EV-3")
@pytest.mark.parametrize("as_lines", [True, False])
def test_admit_appends_good_rows_and_refuses_each_bad_row_with_its_error(log: Log, as_lines: bool) -> None:
    append(log, ticks(1, 3, golems=2))
    log.record([accepted(5, 5), died(9)], NOW)
    batch = pa.concat_tables(
        [
            ticks(4),  # 0: new
            ticks(2),  # 1: on record
            ticks(3, seed=1),  # 2: a different record of a recorded tick
            ticks(5),  # 3: in an accepted gap
            altered(ticks(6), 0, regime="sideways"),  # 4: violates a rule
            ticks(6),  # 5: new, although the rejected row before has the same tick
            ticks(6),  # 6: the same record again
            ticks(6, seed=1),  # 7: a different record of that tick
            ticks(10),  # 8: after the death
            of(OTHER, ticks(10, golems=2)),  # 9: new, of another golem
            altered(ticks(7), 0, schema_version=99),  # 10: of a newer schema version
        ]
    )
    admitted = admit(log, batch, lines_of(batch) if as_lines else None)
    kinds = {row: error.__name__ for row, error in refused(admitted).items()}
    assert kinds == {
        2: "ForkError",
        3: "RegressionError",
        4: "RecordError",
        7: "ForkError",
        8: "RegressionError",
        10: "SchemaVersionError",
    }
    assert (admitted.appended.written, admitted.appended.repeated) == (3, 2)
    assert (on_record(log), on_record(log, OTHER)) == ([1, 2, 3, 4, 6], [1, 2, 3, 10])
    assert chain(log) == ([(1, [1, 2, 3]), (2, [4]), (3, [6])] if as_lines else [(1, [1, 2, 3]), (2, [4, 6])])
    assert chain(log, OTHER) == [(1, [1, 2, 3]), (2, [10])]


@pytest.mark.row("EV-2", "EV-3")
def test_a_batch_admitted_again_changes_nothing(log: Log) -> None:
    batch = ticks(1, 4, golems=2)
    bad = pa.concat_tables([batch, ticks(2, seed=1)])
    first = admit(log, bad, lines_of(bad))
    again = admit(log, bad, lines_of(bad))
    assert (first.appended.written, again.appended.written, again.appended.repeated) == (8, 0, 8)
    assert refused(first) == refused(again) == {8: ForkError}
    assert log.version == first.appended.version
    assert chain(log) == [(1, [1]), (2, [2]), (3, [3]), (4, [4])]


@pytest.mark.row("EV-2")
def test_a_batch_without_good_rows_commits_nothing(log: Log) -> None:
    batch = altered(ticks(1), 0, regime="sideways")
    admitted = admit(log, batch, lines_of(batch))
    assert (log.version, admitted.appended.written, admitted.appended.repeated) == (0, 0, 0)
    assert log.heads().num_rows == 0


@pytest.mark.row("EV-2")
def test_late_ticks_are_linked_in_order_of_arrival(log: Log) -> None:
    batch = pa.concat_tables([ticks(1), ticks(5)])
    assert admit(log, batch, lines_of(batch)).appended.gaps == ((GOLEM, 2, 4),)
    batch = pa.concat_tables([ticks(3), ticks(6), ticks(2)])
    admitted = admit(log, batch, lines_of(batch))
    assert admitted.appended.late == ((GOLEM, 2, 3),)
    assert chain(log) == [(1, [1]), (2, [5]), (3, [3]), (4, [6]), (5, [2])]
    assert append(log, pa.concat_tables([ticks(8), ticks(4), ticks(7)])) == 3
    assert chain(log)[-1] == (6, [4, 7, 8])


@pytest.mark.row("EV-2")
def test_a_segment_number_is_refused_for_other_lines(log: Log) -> None:
    batch = ticks(1, 2)
    payloads = Payloads.of(pa.array(lines_of(batch), pa.binary()))
    fourth = partial(log.admit, stamp=Stamp("w", 4, NOW), payloads=payloads)
    fourth(examine(batch))
    assert fourth(examine(batch)).appended.repeated == 2
    with pytest.raises(StoreError, match="writer w: segment 4"):
        fourth(examine(ticks(3, 4)))
    assert on_record(log) == [1, 2]
    assert chain(log) == [(1, [1]), (2, [2])]


# keys


@pytest.mark.row("X-9", "EV-3")
def test_every_line_must_be_signed_once_a_key_is_registered(log: Log) -> None:
    assert log.record([registered(tick_from=2)], NOW) == 1
    batch = ticks(1, 5, golems=2).sort_by(ORDER)
    lines = lines_of(batch)
    signatures: list[Signature | None] = [None] * 10
    signatures[1] = signed(lines[1], "k1")
    signatures[3] = signed(lines[2], "k1")  # signature of another line
    signatures[4] = Signature("k2", signed(lines[4], "k2").value)
    signatures[6] = signed(lines[6], "k1", OTHER)  # a golem without a key
    admitted = admit(log, batch, lines, signatures)
    assert refused(admitted) == dict.fromkeys((2, 3, 4, 6), SignatureError)
    messages = [str(error) for error in admitted.refused.values()]
    assert "tick 3 is not signed" in messages[0]
    assert "key k1 did not make" in messages[1]
    assert "signed with k2, but k1 is valid there" in messages[2]
    assert "k1, which is not registered" in messages[3]
    assert (chain(log), on_record(log, OTHER)) == ([(1, [1]), (2, [2])], [1, 3, 4, 5])


@pytest.mark.row("X-9", "EV-2")
def test_a_refused_line_does_not_displace_another_line(log: Log) -> None:
    log.record([registered()], NOW)
    forged = altered(ticks(1), 0, gating_reason="not what the golem said")
    batch = pa.concat_tables([forged, ticks(1), ticks(1), ticks(2), ticks(2)])
    lines = lines_of(batch)
    signatures = [None, None, signed(lines[2], "k1"), None, signed(lines[4], "k1")]
    admitted = admit(log, batch, lines, signatures)
    assert refused(admitted) == dict.fromkeys((0, 1, 3), SignatureError)
    assert (admitted.appended.written, admitted.appended.repeated) == (2, 0)
    assert log.read_cycles(["gating_reason"], golems=[GOLEM])["gating_reason"].to_pylist() != [
        "not what the golem said"
    ]
    assert chain(log) == [(1, [1]), (2, [2])]


@pytest.mark.row("X-9")
def test_a_slice_is_signed_whole_or_refused_whole(log: Log) -> None:
    log.record([registered()], NOW)
    batch = ticks(1, 3, golems=2)
    twice = pa.concat_tables([batch, batch.slice(0, 1)])
    unsigned = admit(log, twice)
    assert refused(unsigned) == dict.fromkeys((0, 2, 4, 6), SignatureError)
    assert (unsigned.appended.written, unsigned.appended.repeated) == (3, 0)
    assert refused(admit(log, batch, signatures={GOLEM: signed_slice(ticks(1, 2), "k1")})) == dict.fromkeys(
        (0, 2, 4), SignatureError
    )
    assert refused(admit(log, twice, signatures={GOLEM: signed_slice(batch, "k1")})) == dict.fromkeys(
        (0, 2, 4, 6), SignatureError
    )
    good = admit(log, batch, signatures={GOLEM: signed_slice(batch, "k1")})
    assert (good.refused, good.appended.written, good.appended.repeated) == ({}, 3, 3)
    more = ticks(2, 4)
    part = admit(log, more, signatures={GOLEM: signed_slice(more, "k1")})
    assert refused(part) == {2: SignatureError}
    assert "already in the log or is refused" in str(part.refused[2])
    assert append(log, ticks(4), {GOLEM: signed_slice(ticks(4), "k1")}) == 1
    assert chain(log) == [(1, [1, 2, 3]), (2, [4])]
    assert chain(log, OTHER) == [(1, [1, 2, 3])]


@pytest.mark.row("X-9")
def test_append_refuses_an_unsigned_batch_whole(log: Log) -> None:
    log.record([registered()], NOW)
    with pytest.raises(SignatureError, match=f"golem {GOLEM}: tick 1 is not signed"):
        append(log, ticks(1, 2, golems=2))
    assert log.version == 0


@pytest.mark.row("X-9")
def test_a_rotated_key_is_valid_from_its_tick(log: Log) -> None:
    log.record([registered()], NOW)
    assert log.record([rotated("k2", "k1", 3)], NOW) == 1
    batch = ticks(1, 4)
    lines = lines_of(batch)
    late = [signed(line, "k1") for line in lines]
    assert refused(admit(log, batch, lines, late)) == dict.fromkeys((2, 3), SignatureError)
    assert refused(admit(log, batch, lines, [None, None, *(signed(line, "k2") for line in lines[2:])])) == {}
    both = ticks(2, 6)
    spanning = admit(log, both, signatures={GOLEM: signed_slice(both, "k2")})
    assert refused(spanning) == dict.fromkeys((3, 4), SignatureError), (
        "the signed slice is already in the log or is refused"
    )
    assert append(log, ticks(5, 6), {GOLEM: signed_slice(ticks(5, 6), "k2")}) == 2
    assert [number for number, _ in chain(log)] == [1, 2, 3, 4, 5]


@pytest.mark.row("X-9")
def test_a_line_signed_with_a_revoked_key_is_refused(log: Log) -> None:
    log.record([registered(), revoked("k1", 3)], NOW)
    batch = ticks(2, 3)
    lines = lines_of(batch)
    assert refused(admit(log, batch, lines, [signed(line, "k1") for line in lines])) == {1: SignatureError}
    assert on_record(log) == [2]


@pytest.mark.row("X-9")
@pytest.mark.parametrize(
    ("events", "error", "message"),
    [
        ([registered(), registered("k2")], RecordError, "has key k1 already: rotate it"),
        ([rotated("k2", "k1", 3)], RecordError, "k1 is not its newest key"),
        ([registered(), rotated("k2", "k3", 3)], RecordError, "k3 is not its newest key"),
        ([registered(tick_from=5), rotated("k2", "k1", 5)], RecordError, "the next key needs a later tick"),
        ([registered(), revoked("k2", 3)], RecordError, "has no key k2 to revoke"),
        ([registered(), revoked("k1", 2), rotated("k2", "k1", 3)], SignatureError, "key k1 was revoked before"),
    ],
)
def test_an_invalid_key_event_is_refused(
    log: Log, events: list[LifeEvent], error: type[BardoError], message: str
) -> None:
    *before, last = events
    log.record(before, NOW)
    with pytest.raises(error, match=message):
        log.record([last], NOW)
    assert len(log.life()) == len(before)


@pytest.mark.row("X-9")
def test_a_recorded_key_is_enforced_by_every_handle_of_the_log(disk: EventLog, home: Home) -> None:
    other = EventLog(home, Policy())
    disk.record([registered(), rotated("k2", "k1", 3)], NOW)
    for log in (other, EventLog(home, Policy())):
        key = log.ring_of(GOLEM).key_at(3)
        assert key is not None
        assert key.key_id == "k2"
        assert refused(admit(log, ticks(1))) == {0: SignatureError}


# leases


@pytest.mark.row("EV-3")
def test_a_leased_golem_accepts_writes_only_from_its_lease_holder(disk: EventLog, home: Home) -> None:
    append(disk, ticks(1, golems=2))
    lease = Lease(home, GOLEM, "w-1")
    batch = ticks(1, 2, golems=2)
    twice = pa.concat_tables([batch, batch])
    admitted = admit(disk, twice, lines_of(twice))
    assert refused(admitted) == dict.fromkeys((2, 6), LeaseError), (
        "a recorded row is a repeat, also while the golem is leased"
    )
    assert "is held by writer w-1" in str(admitted.refused[2])
    assert (admitted.appended.written, admitted.appended.repeated) == (1, 5)
    with pytest.raises(LeaseError, match=f"golem {GOLEM}: tick 2 is held by writer w-1"):
        append(disk, ticks(2))
    with pytest.raises(LeaseError, match=f"golem {GOLEM} is held by writer w-1"):
        disk.record([died(3)], NOW)
    assert disk.record([died(3)], NOW, leased_golems=frozenset({GOLEM})) == 1
    assert admit(disk, batch, lines_of(batch), leased_golems=frozenset({GOLEM})).appended.written == 1
    lease.release()
    assert append(disk, ticks(3)) == 1


@pytest.mark.row("EV-3")
def test_a_lease_has_one_holder_and_is_removed_on_release(home: Home) -> None:
    lease = Lease(home, GOLEM, "w-1")
    with pytest.raises(LeaseError, match=f"golem {GOLEM} is held by writer w-1: close that one first"):
        Lease(home, GOLEM, "w-2")
    assert set(leased(home, [GOLEM, OTHER])) == {GOLEM}
    lease.release()
    assert leased(home, [GOLEM, OTHER]) == {}
    Lease(home, GOLEM, "w-2").release()


@pytest.mark.row("EV-3")
def test_an_abandoned_lease_blocks_appends_until_a_new_lease_is_released(disk: EventLog, home: Home) -> None:
    lease = Lease(home, GOLEM, "w-1")
    lease.abandon()
    with pytest.raises(LeaseError, match=r"was left by writer w-1, which died: `bardo drain`"):
        append(disk, ticks(1))
    Lease(home, GOLEM, "w-2").release()
    assert append(disk, ticks(1)) == 1


# continuing the chain


def spoilt(index: Path) -> Iterator[Callable[[], object]]:
    yield lambda: None
    content = index.read_bytes()
    yield lambda: index.write_bytes(content[: len(content) // 2])
    yield lambda: index.write_bytes(content[:200] + bytes(len(content) - 400) + content[-200:])
    yield index.unlink


@pytest.mark.row("EV-2", "EV-3")
def test_a_chain_continues_with_an_intact_damaged_or_missing_index(disk: EventLog, home: Home) -> None:
    append(disk, ticks(1, 3, golems=2))
    disk.close()
    for tick, spoil in zip(itertools.count(4), spoilt(home.index / "heads.arrow"), strict=False):
        spoil()
        log = EventLog(home, Policy())
        batch = ticks(tick, golems=2)
        admit(log, batch, lines_of(batch))
        assert chain(log)[1:] == [(n, [n + 2]) for n in range(2, tick - 1)]
        assert log.tip(GOLEM).number == tick - 2
        log.close()


@pytest.mark.row("EV-2")
def test_two_handles_append_to_one_chain_in_turn(disk: EventLog, home: Home) -> None:
    handles = [disk, EventLog(home, Policy())]
    for tick in range(1, 7):
        batch = ticks(tick)
        admit(handles[tick % 2], batch, lines_of(batch))
    assert chain(disk) == [(tick, [tick]) for tick in range(1, 7)]
    assert handles[0].tip(GOLEM) == handles[1].tip(GOLEM)


# properties

STREAM = records(24, golems=3, dense=True).sort_by(ORDER)
cuts = st.lists(st.integers(0, 24), max_size=5)


@pytest.mark.row("EV-2", "EV-3")
@settings(max_examples=times(6), deadline=None)
@given(st.permutations(range(24)), cuts, st.booleans())
def test_each_line_becomes_one_link_in_order_of_arrival_for_any_batching(
    order: list[int], where: list[int], doubled: bool
) -> None:
    pieces = [piece for piece in np.split(np.array(order), sorted(where)) if len(piece)]
    lines = lines_of(STREAM)
    with (
        tempfile.TemporaryDirectory() as folder,
        EventLog(Home.create(Path(folder), Policy(), NOW), durable=False) as log,
    ):
        for piece in pieces:
            sent = np.concatenate([piece, piece]) if doubled else piece
            admit(log, STREAM.take(pa.array(sent)), [lines[row] for row in sent])
        for golem in range(3):
            golem_id = f"golem-{golem:04}"
            came = [row % 8 + 1 for row in order if row // 8 == golem]
            assert chain(log, golem_id) == [(n, [tick]) for n, tick in enumerate(came, 1)]
        assert sorted(log.read_cycles(["payload"])["payload"].to_pylist()) == sorted(lines)


@pytest.mark.row("EV-2", "EV-3")
@settings(max_examples=times(6), deadline=None)
@given(st.permutations(range(24)), cuts)
def test_each_slice_of_a_batch_becomes_one_link_for_any_batching(order: list[int], where: list[int]) -> None:
    pieces = [piece for piece in np.split(np.array(order), sorted(where)) if len(piece)]
    with (
        tempfile.TemporaryDirectory() as folder,
        EventLog(Home.create(Path(folder), Policy(), NOW), durable=False) as log,
    ):
        for piece in pieces:
            append(log, STREAM.take(pa.array(piece)))
        for golem in range(3):
            own = [[row % 8 + 1 for row in piece if row // 8 == golem] for piece in pieces]
            assert chain(log, f"golem-{golem:04}") == list(enumerate((sorted(t) for t in own if t), 1))
