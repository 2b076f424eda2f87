"""The binary format of journal segments and their frames, and its parser.

A journal is the folder `journal/<writer>/` of one process: segments `<number:020>.seg`, numbered upwards, and `lock`,
which that process holds (flock) until it ends. A segment is sealed when the next number exists or the lock is free;
before that, zeros may follow its frames. All numbers are little-endian; checksums are CRC-32 (zlib).

    segment  = header frame*
    header   = "BARDOSEG"  version u16 (2)  distance u16  checksum u32  size u64                             24 bytes
    header   = "BARDOSEG"  version u32 (1)  checksum u32 (of the number)  number u64                  earlier versions
    frame    = head body
    head     = "FRAM"  payload length u32  golem length u16  key length u16  signature length u16  0 u16
               synced u64  tick u64  link number u64  accepted at i64 (microseconds since 1970, UTC)
               previous link 32  link 32
               checksum u32 (of the body)  checksum u32 (of the head before it, begun with the segment's number)
    body     = golem id (UTF-8)  key id (UTF-8)  signature  payload (the sender's JSON bytes, no newline)

`distance` and `size` are of the segment sealed before: its number is smaller by `distance` (0: none is stated), and
`size` is its final size. The header's checksum covers both and begins with the segment's number.

The link covers the payload (events/custody/hash_chain.py), so an altered byte is found even if the checksums were
recomputed. `synced` is the number of bytes of the segment known to be durable when the frame was written. Broken bytes
before a later frame's `synced` were acknowledged, so they are damage. At the end of a segment, an incomplete frame or
one with unwritten sectors is the torn tail of an unacknowledged append; other broken bytes are damage.

A segment is written as `<number:020>.new` and renamed when its header is durable, so a segment that is shorter than its
header is damage. A sealed segment that is shorter than the next header states is damage too. The last segment, cut
exactly between two appends, equals an earlier state of itself: no reader detects that cut.
"""

from __future__ import annotations

import os
import struct
import zlib
from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bardo_pipeline.errors import JournalError
from bardo_pipeline.events.custody.hash_chain import Signature, content_of, link_of

_HEADER = struct.Struct("<8sHH")
_HEADER_1 = struct.Struct("<8sIIQ")
_HEAD = struct.Struct("<4sIHHHHQQQq32s32sI")
_CHECKSUM = struct.Struct("<I")
_SEGMENT_MARK, _FRAME_MARK = b"BARDOSEG", b"FRAM"
_BREAKS_OFF = "are a frame that breaks off"
_SHORT = "are the whole segment, which is shorter than its header: any record in it is lost"
_VERSION, _U16, _U32 = 2, 0xFFFF, 0xFFFFFFFF
_CRC_BYTES = 5 * 1024  # zlib releases the GIL for longer buffers, which costs more than the checksum
_U64 = struct.Struct("<Q")

HEADER_BYTES = _HEADER_1.size
HEAD_BYTES = _HEAD.size + _CHECKSUM.size


class Frame(NamedTuple):
    """One accepted record. accepted_at: microseconds since 1970, UTC. content: the bytes that the link covers."""

    golem_id: str
    tick: int
    number: int
    previous: bytes
    link: bytes
    accepted_at: int
    signature: Signature | None
    payload: bytes
    content: bytes


@dataclass(frozen=True)
class Fault:
    """A run of bytes of a segment that is not a valid frame; empty where bytes are missing.

    golem_id, tick: if its head is readable.
    """

    offset: int
    raw: bytes
    why: str
    golem_id: str | None = None
    tick: int | None = None


@dataclass(frozen=True)
class Segment:
    """The parsed frames and faults of a segment.

    Parameters
    ----------
    torn : bytes at the end of an unacknowledged append; they are not faults
    size : written bytes including torn ones, without the zeros after them
    """

    path: Path
    number: int
    frames: tuple[Frame, ...]
    faults: tuple[Fault, ...]
    torn: int
    size: int

    def error(self, fault: Fault) -> JournalError:
        """Return an error that names file and offset of the fault."""
        cure = "they are kept in quarantine; ask the sender for those ticks again"
        if not fault.raw:
            cure = "ask the sender for the ticks that the log lacks"
        return JournalError(f"{self.path}, offset {fault.offset}: {len(fault.raw)} bytes {fault.why}: {cure}")


def segment_path(folder: Path, number: int) -> Path:
    """Return the path of a journal's segment."""
    return folder / f"{number:020}.seg"


def segment_numbers(folder: Path) -> list[int]:
    """Return the numbers of a journal's segments, ascending; empty without the folder."""
    try:
        return sorted(int(path.stem) for path in folder.glob("*.seg") if path.stem.isdigit())
    except FileNotFoundError:
        return []


def segment_header(number: int, distance: int = 0, size: int = 0) -> bytes:
    """Return the header of a segment.

    Parameters
    ----------
    distance, size : of the segment sealed before, as in the format; a distance that is too large states nothing
    """
    begin, end = _HEADER.pack(_SEGMENT_MARK, _VERSION, distance if distance <= _U16 else 0), _U64.pack(size)
    return begin + _CHECKSUM.pack(zlib.crc32(begin + end, number & _U32)) + end


def _segment_before(header: bytes, number: int) -> tuple[int, int] | None:
    """Return number and size of the segment sealed before, size 0 if none is stated; None for an invalid header."""
    if len(header) < HEADER_BYTES:
        return None
    distance, size = _HEADER.unpack_from(header)[2], _U64.unpack_from(header, HEADER_BYTES - _U64.size)[0]
    if header == segment_header(number, distance, size):
        return number - distance, size if distance else 0
    first_version = _HEADER_1.pack(_SEGMENT_MARK, 1, zlib.crc32(_U64.pack(number)), number)
    return (number, 0) if header == first_version else None


def stated_sizes(folder: Path) -> dict[int, int]:
    """Return the final sizes of a journal's sealed segments, by number, as the header of each next segment states."""
    sizes: dict[int, int] = {}
    for number in segment_numbers(folder):
        with suppress(FileNotFoundError), segment_path(folder, number).open("rb", buffering=0) as segment:
            before = _segment_before(segment.read(HEADER_BYTES), number)
            sizes |= [before] if before is not None else []
    return sizes


def _body_checksum(names: bytes, payload: bytes) -> int:
    checksum = zlib.crc32(payload[:_CRC_BYTES], zlib.crc32(names))
    for at in range(_CRC_BYTES, len(payload), _CRC_BYTES):
        checksum = zlib.crc32(payload[at : at + _CRC_BYTES], checksum)
    return checksum


class Draft:
    """A frame before its position in a segment is known."""

    __slots__ = ("_counts", "_link", "_names", "payload", "size")

    def __init__(
        self,
        golem: bytes,
        tick: int,
        number: int,
        previous: bytes,
        link: bytes,
        signature: Signature | None,
        payload: bytes,
    ) -> None:
        self.payload = payload
        if signature is None:
            self._names = names = golem
            self._counts = (_FRAME_MARK, len(payload), len(golem), 0, 0, 0)
        else:
            key = signature.key_id.encode()
            self._names = names = golem + key + signature.value
            self._counts = (_FRAME_MARK, len(payload), len(golem), len(key), len(signature.value), 0)
        self._link = (previous, link, _body_checksum(names, payload), tick, number)
        self.size = HEAD_BYTES + len(names) + len(payload)

    def head(self, segment: int, synced: int, accepted_at: int) -> bytes:
        """Return the frame's bytes before the payload for this segment."""
        previous, link, checksum, tick, number = self._link
        head = _HEAD.pack(*self._counts, synced, tick, number, accepted_at, previous, link, checksum)
        return head + _CHECKSUM.pack(zlib.crc32(head, segment & _U32)) + self._names


_SECTOR_BYTES = 512
_BLOCK_BYTES = 4096
_Head = tuple[bytes, int, int, int, int, int, int, int, int, int, bytes, bytes, int]
"""The fields of a frame's head, in the order of the format."""


def read(path: Path, *, sealed: bool, size_stated: int = 0) -> Segment:
    """Read a segment. See `parse`."""
    return parse(path, path.read_bytes(), sealed=sealed, size_stated=size_stated)


def parse(path: Path, raw: bytes, *, sealed: bool, size_stated: int = 0) -> Segment:
    """Parse a segment's bytes; check each frame against its checksums and its link.

    Parameters
    ----------
    sealed : every append was acknowledged, so the segment has no torn tail
    size_stated : final size by the next segment's header, if it states one
    """
    raw = raw if sealed else raw[: _end(len(raw.rstrip(b"\0")), len(raw))]
    number, size = int(path.stem), len(raw)
    frames: list[Frame] = []
    places: list[int] = []
    faults: list[Fault] = []
    synced, at = HEADER_BYTES, 0  # the header was durable before the segment had its name
    if size < HEADER_BYTES:
        return Segment(path, number, (), (Fault(0, raw, _SHORT),), 0, size)
    if _segment_before(raw[:HEADER_BYTES], number) is None:
        at = _next_frame(raw, 0, number)
        faults.append(Fault(0, raw[:at], "are not this segment's header"))
    at = max(at, HEADER_BYTES)
    while at < size:
        head = _head(raw, at, number)
        if head is None:
            after = _next_frame(raw, at + 1, number)
            faults.append(Fault(at, raw[at:after], "are no whole frame"))
        else:
            after = at + HEAD_BYTES + head[1] + head[2] + head[3] + head[4]
            synced = max(synced, head[6])
            parsed = _frame(raw, at, after, head)
            if isinstance(parsed, Frame):
                frames.append(parsed)
                places.append(at)
            else:
                faults.append(parsed)
        at = after
    if size < size_stated:
        faults.append(Fault(size, b"", f"follow, and the next segment states {size_stated - size:,} more"))
    torn = size
    if not sealed:
        # A frame after torn bytes belongs to the same unacknowledged append; else its `synced` would cover them.
        torn = next((fault.offset for fault in faults if fault.offset >= synced and _breaks_off(fault, raw)), size)
        frames = frames[: bisect_left(places, torn)]
        faults = [fault for fault in faults if fault.offset < torn]
    return Segment(path, number, tuple(frames), tuple(faults), size - torn, size)


def written_bytes(path: Path) -> int:
    """Return the number of written bytes of a segment, by a binary search for the zeros after them."""
    with path.open("rb", buffering=0) as segment:
        size = os.fstat(segment.fileno()).st_size

        def block(number: int) -> bytes:
            return os.pread(segment.fileno(), _BLOCK_BYTES, number * _BLOCK_BYTES).rstrip(b"\0")

        blocks = bisect_left(range(-(-size // _BLOCK_BYTES)), True, key=lambda number: not block(number))
        return _end((blocks - 1) * _BLOCK_BYTES + len(block(blocks - 1)), size) if blocks else 0


def _end(last: int, size: int) -> int:
    """Return the end of a segment from the end of its last non-zero byte; a header may end with zeros."""
    return max(last, min(HEADER_BYTES, size)) if last else 0


def _breaks_off(fault: Fault, raw: bytes) -> bool:
    """Whether the fault is a torn append: an incomplete frame, or sectors of zeros."""
    end = fault.offset + len(fault.raw)
    if fault.why == _BREAKS_OFF or (end == len(raw) and len(fault.raw) < HEAD_BYTES):
        return True
    sectors = range(fault.offset // _SECTOR_BYTES * _SECTOR_BYTES, end, _SECTOR_BYTES)
    # The first sector has bytes of the previous append, and the last one may be incomplete.
    return any(not any(raw[max(at, fault.offset) : at + _SECTOR_BYTES]) for at in sectors)


def _head(raw: bytes, at: int, segment: int) -> _Head | None:
    """Return the head at this offset if its checksum is right."""
    end = at + HEAD_BYTES
    if raw[at : at + 4] != _FRAME_MARK or end > len(raw):
        return None
    (checksum,) = _CHECKSUM.unpack_from(raw, end - _CHECKSUM.size)
    if zlib.crc32(raw[at : end - _CHECKSUM.size], segment & _U32) != checksum:
        return None
    return _HEAD.unpack_from(raw, at)


def _frame(raw: bytes, at: int, end: int, head: _Head) -> Frame | Fault:
    """Return the frame in [at, end), or a fault if its checksum or link is wrong."""
    _, _, golem, key, signature, _, _, tick, number, accepted_at, previous, link, checksum = head
    if end > len(raw):
        return Fault(at, raw[at:], _BREAKS_OFF, None, tick)
    key += (golem := at + HEAD_BYTES + golem)
    signature += key
    golem_id, line = raw[at + HEAD_BYTES : golem].decode(errors="replace"), raw[signature:end]
    if _body_checksum(raw[at + HEAD_BYTES : signature], line) != checksum:
        return Fault(at, raw[at:end], "are a frame whose checksum does not fit", golem_id, tick)
    content = content_of(line)
    if link_of(golem_id, number, previous, content) != link:
        return Fault(at, raw[at:end], "are a frame whose link does not cover its payload", golem_id, tick)
    signed = Signature(raw[golem:key].decode(), raw[key:signature]) if key > golem else None
    return Frame(golem_id, tick, number, previous, link, accepted_at, signed, line, content)


def _next_frame(raw: bytes, at: int, segment: int) -> int:
    """Return the offset of the next valid head, or the end."""
    while (at := raw.find(_FRAME_MARK, at)) >= 0:
        if _head(raw, at, segment) is not None:
            return at
        at += 1
    return len(raw)


def first_accepted_at(path: Path) -> list[int]:
    """Return the acceptance time of the first record (microseconds since 1970), empty if unreadable."""
    with path.open("rb") as segment:
        raw = segment.read(HEADER_BYTES + HEAD_BYTES)
    head = _head(raw, HEADER_BYTES, int(path.stem))
    return [] if head is None else [head[9]]
