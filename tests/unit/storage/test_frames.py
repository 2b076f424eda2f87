"""The bytes of a journal: torn, flipped, missing and zero bytes are distinguished."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from bardo_pipeline.events.custody.hash_chain import GENESIS, Signature, content_of
from bardo_pipeline.storage.journal.frames import (
    HEAD_BYTES,
    HEADER_BYTES,
    Frame,
    parse,
    segment_header,
    segment_path,
    stated_sizes,
)
from tests.support.records.journal_segments import NOW_US, PATH, Chain, segment_of, ticks


@pytest.mark.row("EV-3")
def test_frames_are_read_back_as_written() -> None:
    chain, signature = Chain("gölem/../1"), Signature("key-1", bytes(range(64)))
    drafts = [chain.draft(b'{"a":1}', signature), chain.draft(b"x" * 70_000)]
    checksum = zlib.crc32("gölem/../1".encode() + b"x" * 70_000).to_bytes(4, "little")
    assert drafts[1].head(7, 0, NOW_US)[HEAD_BYTES - 8 : HEAD_BYTES - 4] == checksum
    segment = parse(PATH, segment_of([drafts]), sealed=True)
    assert (segment.faults, segment.torn) == ((), 0)
    first, second = segment.frames
    assert first == Frame(
        "gölem/../1", 1, 1, GENESIS, second.previous, NOW_US, signature, b'{"a":1}', content_of(b'{"a":1}')
    )
    assert (second.payload, second.signature, second.link) == (b"x" * 70_000, None, chain.tip)


@pytest.mark.row("EV-3")
def test_a_tail_torn_at_any_byte_loses_only_unacknowledged_frames() -> None:
    chain = Chain()
    kept = [[chain.draft(), chain.draft()], [chain.draft()]]
    whole = segment_of(kept)
    longer = segment_of([*kept, [chain.draft(), chain.draft(b"y" * 100)]])
    fourth = len(segment_of([*kept, [Chain().draft()]]))  # frames of the same size
    for cut in range(len(whole), len(longer)):
        segment = parse(PATH, longer[:cut], sealed=False)
        assert ticks(segment) == ([1, 2, 3] if cut < fourth else [1, 2, 3, 4])
        written = len(longer[:cut].rstrip(b"\0"))  # zeros at the end are room
        assert segment.torn == max(written - (len(whole) if cut < fourth else fourth), 0)
        assert segment.faults == ()


@pytest.mark.row("EV-3")
@pytest.mark.parametrize("sealed", [True, False])
def test_a_segment_shorter_than_its_header_is_damage(sealed: bool) -> None:
    """A segment has its name when its header is durable, so no power cut leaves this."""
    whole = segment_header(7, 1, 300)
    for cut in range(HEADER_BYTES):
        segment = parse(PATH, whole[:cut], sealed=sealed)
        (fault,) = segment.faults
        assert (segment.frames, segment.torn, fault.offset) == ((), 0, 0)
        assert fault.raw == whole[:cut]
        assert "is shorter than its header" in str(segment.error(fault))


@pytest.mark.row("EV-3")
def test_a_sealed_segment_shorter_than_the_next_header_states_is_damage() -> None:
    chain = Chain()
    whole = segment_of([[chain.draft()], [chain.draft()], [chain.draft()]])
    end = len(segment_of([[Chain().draft()]]))
    for cut in (HEADER_BYTES, end, len(whole) - 1):
        segment = parse(PATH, whole[:cut], sealed=True, size_stated=len(whole))
        assert segment.faults[-1].raw == b""
        assert f"offset {cut}: 0 bytes follow, and the next segment states {len(whole) - cut:,} more" in str(
            segment.error(segment.faults[-1])
        )
        assert len(ticks(segment)) == (cut - HEADER_BYTES) // (end - HEADER_BYTES)
    assert parse(PATH, whole, sealed=True, size_stated=len(whole)).faults == ()


@pytest.mark.row("EV-3")
def test_a_segment_of_the_first_version_is_read() -> None:
    number = (7).to_bytes(8, "little")
    header = b"BARDOSEG" + (1).to_bytes(4, "little") + zlib.crc32(number).to_bytes(4, "little") + number
    segment = parse(PATH, header + segment_of([[Chain().draft()]])[HEADER_BYTES:], sealed=True)
    assert (ticks(segment), segment.faults) == ([1], ())


@pytest.mark.row("EV-3")
def test_a_header_states_the_final_size_of_the_segment_sealed_before(tmp_path: Path) -> None:
    headers = {3: segment_header(3), 4: segment_header(4, 1, 900), 70_000: segment_header(70_000, 69_996, 800)}
    headers |= {70_002: segment_header(70_002, 2, 700), 70_003: segment_header(70_003, 1, 600)[:-1] + b"\1"}
    for number, header in headers.items():
        segment_path(tmp_path, number).write_bytes(header)
    assert {number: size for number, size in stated_sizes(tmp_path).items() if size} == {3: 900, 70_000: 700}


@pytest.mark.row("EV-3")
def test_missing_sectors_of_an_unacknowledged_append_count_as_torn() -> None:
    chain = Chain()
    raw = bytearray(segment_of([[chain.draft()], [chain.draft(b"y" * 2_000), chain.draft()]]))
    second = len(segment_of([[Chain().draft()]]))
    for first, last in (
        (second, 512),  # the sector in which the last acknowledged bytes end kept its old content
        (512, 1_024),
        (1_024, 2_560),  # on both sides of a frame's end
        (len(raw) // 512 * 512, len(raw)),  # the last, incomplete sector
    ):
        lacking = bytearray(raw)
        lacking[first:last] = bytes(last - first)
        segment = parse(PATH, bytes(lacking), sealed=False)
        assert segment.faults == (), (first, last)
        assert 1 in ticks(segment), (first, last)
        assert segment.torn > 0, (first, last)


@pytest.mark.row("EV-3")
@pytest.mark.parametrize("sealed", [True, False])
def test_a_segment_of_zeros_is_damage(sealed: bool) -> None:
    for size in (HEADER_BYTES, 4_096):
        segment = parse(PATH, bytes(size), sealed=sealed)
        assert ([fault.offset for fault in segment.faults], segment.torn) == ([0], 0)


@pytest.mark.row("EV-3")
def test_a_header_of_zeros_is_damage_and_costs_no_frame_behind_it() -> None:
    chain = Chain()
    raw = bytearray(segment_of([[chain.draft(b"y" * 2_000), chain.draft()]]))
    raw[:512] = bytes(512)
    segment = parse(PATH, bytes(raw), sealed=False)
    assert (ticks(segment), [fault.offset for fault in segment.faults], segment.torn) == ([2], [0], 0)


@pytest.mark.row("EV-3")
def test_a_flipped_bit_of_a_sealed_segment_is_detected_and_loses_one_frame() -> None:
    chain = Chain()
    raw = segment_of([[chain.draft()], [chain.draft()], [chain.draft()]])
    bounds = [HEADER_BYTES + k * (len(raw) - HEADER_BYTES) // 3 for k in range(4)]
    for at in range(len(raw)):
        flipped = bytearray(raw)
        flipped[at] ^= 1 << at % 8
        segment = parse(PATH, bytes(flipped), sealed=True)
        hit = next((k for k in range(3) if bounds[k] <= at < bounds[k + 1]), None)
        wanted = [k + 1 for k in range(3) if k != hit]
        assert ticks(segment) == wanted, f"byte {at}"
        (fault,) = segment.faults
        assert fault.offset == (0 if hit is None else bounds[hit])
        assert fault.raw == bytes(flipped[fault.offset : fault.offset + len(fault.raw)])
        assert f"{PATH}, offset {fault.offset}:" in str(segment.error(fault))


@pytest.mark.row("EV-3")
def test_a_flipped_bit_before_the_last_append_is_damage_and_no_torn_tail() -> None:
    chain = Chain()
    raw = bytearray(segment_of([[chain.draft()], [chain.draft()], [chain.draft()]]))
    raw[HEADER_BYTES + 20] ^= 4
    segment = parse(PATH, bytes(raw), sealed=False)
    assert (ticks(segment), len(segment.faults), segment.torn) == ([2, 3], 1, 0)


@pytest.mark.row("EV-3")
def test_a_flipped_bit_in_the_last_append_is_damage_and_no_torn_tail() -> None:
    """The append may have been acknowledged, so it is kept and reported: it is neither truncated nor missing a
    sector.
    """
    last = segment_of([[Chain().draft()]])
    for at in range(len(last)):
        flipped = bytearray(last)
        flipped[at] ^= 1
        segment = parse(PATH, bytes(flipped), sealed=False)
        (fault,) = segment.faults
        if at < HEADER_BYTES:
            assert (ticks(segment), segment.torn, fault.offset) == ([1], 0, 0), f"byte {at}: it costs no frame"
        else:
            assert (segment.frames, segment.torn, fault.raw) == ((), 0, bytes(flipped[HEADER_BYTES:])), f"byte {at}"


@pytest.mark.row("EV-3")
def test_an_altered_payload_with_valid_checksums_does_not_match_its_link() -> None:
    honest, forged = Chain(), Chain()
    honest.draft(b'{"worth": 1}')
    draft = forged.draft(b'{"worth": 9}')
    draft._link = (draft._link[0], honest.tip, *draft._link[2:])
    segment = parse(PATH, segment_of([[draft]]), sealed=True)
    assert segment.frames == ()
    (fault,) = segment.faults
    assert (fault.golem_id, fault.tick) == ("golem-1", 1)
    assert "link does not cover its payload" in str(segment.error(fault))


@pytest.mark.row("EV-3")
def test_a_frame_of_another_segment_is_ignored() -> None:
    raw = segment_header(7) + segment_of([[Chain().draft()]], number=8)[HEADER_BYTES:]
    assert parse(PATH, raw, sealed=True).frames == ()
