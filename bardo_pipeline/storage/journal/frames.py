"""Frames: how an acknowledged record lies in a journal, byte by byte, and how it is read back.

A journal is the folder `journal/<writer>/` of one process: segments `<number:020>.seg`, numbered upwards, and `lock`,
which that process holds (flock) for as long as it lives. A segment is sealed when the next number exists, or when the
lock is free; until then there may be room behind its frames, which is zeros (segment_recycling.py). All numbers are
little-endian; every checksum is CRC-32 (zlib).

    segment  = header frame*
    header   = "BARDOSEG"  version u32 (1)  checksum u32 (of the number)  number u64                         24 bytes
    frame    = head body
    head     = "FRAM"  payload length u32  golem length u16  key length u16  signature length u16  0 u16
               synced u64  tick u64  link number u64  accepted at i64 (microseconds since 1970, UTC)
               previous link 32  link 32
               checksum u32 (of the body)  checksum u32 (of the head before it, begun with the segment's number)
    body     = golem id (UTF-8)  key id (UTF-8)  signature  payload (the sender's JSON bytes, no newline)

The link covers the payload (custody.py), so a byte that was altered while it waited is found even where somebody made
the checksums right. `synced` is how many bytes of the segment were known to be on the disk when the frame was written;
no more than the header: none were. What is broken before a later frame's `synced` was acknowledged, and is damage. At
the end, what breaks off or has sectors that never reached the disk is the torn tail of an append that nobody was told
of, and anything else damage.
"""

from __future__ import annotations

import os
import struct
import zlib
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bardo_pipeline.errors import JournalError
from bardo_pipeline.events.custody.hash_chain import Signature, content_of, link_of

_HEADER = struct.Struct("<8sIIQ")
_HEAD = struct.Struct("<4sIHHHHQQQq32s32sI")
_CHECKSUM = struct.Struct("<I")
_SEGMENT_MARK, _FRAME_MARK = b"BARDOSEG", b"FRAM"
_BREAKS_OFF = "are a frame that breaks off"
_VERSION, _U32 = 1, 0xFFFFFFFF
_BITE_BYTES = 5 * 1024  # zlib gives the interpreter's lock away for more
_U64 = struct.Struct("<Q")

HEADER_BYTES = _HEADER.size
HEAD_BYTES = _HEAD.size + _CHECKSUM.size


class Frame(NamedTuple):
    """One accepted record. accepted_at: microseconds since 1970, UTC. content: what the link covers (custody.py)."""

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
    """A run of bytes of a segment that is no frame of its own. golem_id, tick: where its head can still be read."""

    offset: int
    raw: bytes
    why: str
    golem_id: str | None = None
    tick: int | None = None


@dataclass(frozen=True)
class Segment:
    """What was read of one segment: the frames, and what lies between them and should not.

    torn: bytes at the end that no acknowledged append left there; they are not among the faults. size: how much of it
    is written, torn bytes and all; room behind it is none of it.
    """

    path: Path
    number: int
    frames: tuple[Frame, ...]
    faults: tuple[Fault, ...]
    torn: int
    size: int

    def error(self, fault: Fault) -> JournalError:
        """The fault as an error that names file and offset."""
        return JournalError(
            f"{self.path}, offset {fault.offset}: {len(fault.raw)} bytes {fault.why}: they are kept in quarantine; "
            "ask the sender for those ticks again"
        )


def segment_path(folder: Path, number: int) -> Path:
    """Where a journal's segment of that number lies."""
    return folder / f"{number:020}.seg"


def segment_numbers(folder: Path) -> list[int]:
    """The numbers of a journal's segments, ascending; none where there is no such folder."""
    try:
        return sorted(int(path.stem) for path in folder.glob("*.seg") if path.stem.isdigit())
    except FileNotFoundError:
        return []


def segment_header(number: int) -> bytes:
    """What a segment begins with."""
    return _HEADER.pack(_SEGMENT_MARK, _VERSION, zlib.crc32(_U64.pack(number)), number)


def _body_checksum(names: bytes, payload: bytes) -> int:
    checksum = zlib.crc32(payload[:_BITE_BYTES], zlib.crc32(names))
    for at in range(_BITE_BYTES, len(payload), _BITE_BYTES):
        checksum = zlib.crc32(payload[at : at + _BITE_BYTES], checksum)
    return checksum


class Draft:
    """A frame that waits for its place in a segment."""

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
        """The frame's bytes before the payload, in that segment."""
        previous, link, checksum, tick, number = self._link
        head = _HEAD.pack(*self._counts, synced, tick, number, accepted_at, previous, link, checksum)
        return head + _CHECKSUM.pack(zlib.crc32(head, segment & _U32)) + self._names


_SECTOR_BYTES = 512
_BLOCK_BYTES = 4096
_Head = tuple[bytes, int, int, int, int, int, int, int, int, int, bytes, bytes, int]
"""The fields of a frame's head, as they stand there."""


def read(path: Path, *, sealed: bool) -> Segment:
    """Read a segment. sealed: everything in it was acknowledged, so that nothing may be torn."""
    return parse(path, path.read_bytes(), sealed=sealed)


def parse(path: Path, raw: bytes, *, sealed: bool) -> Segment:
    """The frames in a segment's bytes, each checked against its checksums and its link."""
    raw = raw if sealed else raw[: _end(len(raw.rstrip(b"\0")), len(raw))]
    number, size = int(path.stem), len(raw)
    frames: list[Frame] = []
    places: list[int] = []
    faults: list[Fault] = []
    synced = at = 0
    if size <= HEADER_BYTES and not any(raw):  # of an append that was durable there would be more
        return Segment(path, number, (), (), size, size)
    if raw[:HEADER_BYTES] != segment_header(number):
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
            if head[6] > HEADER_BYTES:  # or nothing was durable yet, the segment's own header among it
                synced = max(synced, head[6])
            found = _frame(raw, at, after, head)
            if isinstance(found, Frame):
                frames.append(found)
                places.append(at)
            else:
                faults.append(found)
        at = after
    torn = size
    if not sealed:
        # A frame behind what was torn belongs to the same unacknowledged append, or it would say that all was synced.
        torn = next((fault.offset for fault in faults if fault.offset >= synced and _breaks_off(fault, raw)), size)
        frames = frames[: bisect_left(places, torn)]
        faults = [fault for fault in faults if fault.offset < torn]
    return Segment(path, number, tuple(frames), tuple(faults), size - torn, size)


def written_bytes(path: Path) -> int:
    """How much of a segment is written: behind that is room, and room is zeros. Reads a few blocks of it."""
    with path.open("rb", buffering=0) as segment:
        size = os.fstat(segment.fileno()).st_size

        def block(number: int) -> bytes:
            return os.pread(segment.fileno(), _BLOCK_BYTES, number * _BLOCK_BYTES).rstrip(b"\0")

        blocks = bisect_left(range(-(-size // _BLOCK_BYTES)), True, key=lambda number: not block(number))
        return _end((blocks - 1) * _BLOCK_BYTES + len(block(blocks - 1)), size) if blocks else 0


def _end(last: int, size: int) -> int:
    """Where a segment ends of which the last byte that is no zero ends there: a header may end with zeros."""
    return max(last, min(HEADER_BYTES, size)) if last else 0


def _breaks_off(fault: Fault, raw: bytes) -> bool:
    """Whether it is what a process or a machine leaves that stops in mid-append: an end, or what a sector lacks."""
    end = fault.offset + len(fault.raw)
    if fault.why == _BREAKS_OFF or (end == len(raw) and len(fault.raw) < HEAD_BYTES):
        return True
    sectors = range(fault.offset // _SECTOR_BYTES * _SECTOR_BYTES, end, _SECTOR_BYTES)
    # The sector that an append begins in has bytes of the one before, and the last one may be no whole sector.
    return any(not any(raw[max(at, fault.offset) : at + _SECTOR_BYTES]) for at in sectors)


def _head(raw: bytes, at: int, segment: int) -> _Head | None:
    """The head that stands there, if its checksum fits."""
    end = at + HEAD_BYTES
    if raw[at : at + 4] != _FRAME_MARK or end > len(raw):
        return None
    (checksum,) = _CHECKSUM.unpack_from(raw, end - _CHECKSUM.size)
    if zlib.crc32(raw[at : end - _CHECKSUM.size], segment & _U32) != checksum:
        return None
    return _HEAD.unpack_from(raw, at)


def _frame(raw: bytes, at: int, end: int, head: _Head) -> Frame | Fault:
    """The frame behind a head, from `at` to `end`, if all of it is as it was written."""
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
    """Where the next head stands that fits its checksum; the end where there is none."""
    while (at := raw.find(_FRAME_MARK, at)) >= 0:
        if _head(raw, at, segment) is not None:
            return at
        at += 1
    return len(raw)


def first_accepted_at(path: Path) -> list[int]:
    """When the first record of a segment was accepted (microseconds since 1970), if it can be read."""
    with path.open("rb") as segment:
        raw = segment.read(HEADER_BYTES + HEAD_BYTES)
    head = _head(raw, HEADER_BYTES, int(path.stem))
    return [] if head is None else [head[9]]
