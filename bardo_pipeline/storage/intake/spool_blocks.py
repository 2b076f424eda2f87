"""Lines of a spool file, in blocks that fit into memory whatever the file holds.

A line ends with a newline, or a carriage return and a newline, and neither belongs to it; the last may lack both. Lines
of nothing but blanks are passed over. A line that is too long is never in memory: it goes straight to quarantine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import BufferedIOBase

import numpy as np

from bardo_pipeline.storage.intake.line_buffer import Lines
from bardo_pipeline.storage.intake.quarantine import Kept

_BLANKS = b" \t\r"
_NEWLINE, _RETURN = b"\n\r"
_SHARE = 0.625  # to admit lines takes so long beside what it takes to read them, about
_LOOK_BYTES = 2**17  # what is said of so many fits into the cache


@dataclass(frozen=True)
class Block:
    """Some lines of a file: the number (from 1) of each, its bytes; and those that are too long, by number."""

    numbers: list[int]
    lines: Lines
    long: list[tuple[int, Kept]]


def blocks_of(
    file: BufferedIOBase, *, block_bytes: int, line_bytes_max: int, keep: Callable[[Iterable[bytes]], Kept]
) -> Iterator[Block]:
    """The lines of a file, about `block_bytes` at a time. keep: takes the bytes of a line that is too long.

    A small block first, and smaller ones towards the end: who reads and who admits wait for each other no longer than
    for these.
    """
    rest, number, ended = b"", 0, False
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    small_bytes = due_bytes = block_bytes // 4
    while not ended or rest:
        text = _read(file, rest, due_bytes)
        ended, due_bytes = len(text) < len(rest) + due_bytes, _due(size - file.tell(), small_bytes, block_bytes)
        ends = _ends_of_lines(text, ended)
        rest = text[ends[-1] + 1 if len(ends) else 0 :].tobytes()
        block = _block(text, ends, number, line_bytes_max, keep)
        number += len(ends)
        if not ended and len(rest) > line_bytes_max:
            number += 1
            left = _Rest(rest, file, block_bytes)
            block.long.append((number, keep(left)))
            rest = left.behind
        if block.lines or block.long:
            yield block


def _due(left: int, small_bytes: int, block_bytes: int) -> int:
    """The bytes of the next block where so many are left in the file, or fewer than none where it grew meanwhile."""
    due = max(small_bytes, min(int(_SHARE * left), block_bytes))
    return due if left > due + small_bytes // 2 else max(left, 0) + small_bytes


def _read(file: BufferedIOBase, before: bytes, more: int) -> np.ndarray:
    """These bytes and so many more of the file, fewer if it ends before that: uint8."""
    text = np.empty(len(before) + more, np.uint8)
    text[: len(before)] = np.frombuffer(before, np.uint8)
    filled = len(before)
    while got := file.readinto(text[filled:].data):
        filled += got
    return text[:filled]


def _ends_of_lines(text: np.ndarray, ended: bool) -> np.ndarray:
    """Where the newlines are; behind the last line, if nothing follows any more, there need be none."""
    starts = range(0, len(text), _LOOK_BYTES)
    looked = [at + np.flatnonzero(text[at : at + _LOOK_BYTES] == _NEWLINE) for at in starts]
    left = [len(text)] if ended and len(text) and text[-1] != _NEWLINE else []
    return np.concatenate([*looked, np.array(left, np.int64)])


def _block(
    text: np.ndarray, ends: np.ndarray, before: int, bytes_max: int, keep: Callable[[Iterable[bytes]], Kept]
) -> Block:
    """The lines that end here. before: how many came before them."""
    begins = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    some = np.flatnonzero(ends > begins)
    begins, ends, numbers = begins[some], ends[some], some + before + 1
    ends = ends - (text[ends - 1] == _RETURN)
    long = ends - begins > bytes_max
    kept = [(int(numbers[at]), keep([text[begins[at] : ends[at]].tobytes()])) for at in np.flatnonzero(long)]
    taken = ~long
    for at in np.flatnonzero(taken & np.isin(text[begins], list(_BLANKS))):
        taken[at] = bool(text[begins[at] : ends[at]].tobytes().strip(_BLANKS))
    lines = Lines(text.data, np.stack([begins, ends], axis=1)[taken])
    return Block(numbers[taken].tolist(), lines, kept)


class _Rest:
    """The bytes of a line whose end is not in sight yet, chunk by chunk; then what stood behind that end."""

    def __init__(self, begun: bytes, file: BufferedIOBase, chunk_bytes: int) -> None:
        self._begun, self._file, self._chunk_bytes = begun, file, chunk_bytes
        self.behind = b""

    def __iter__(self) -> Iterator[bytes]:
        chunk, end = self._begun, b""
        while chunk and not end:
            part, end, self.behind = chunk.partition(b"\n")
            yield part
            chunk = b"" if end else self._file.read(self._chunk_bytes)
