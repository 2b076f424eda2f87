"""Read the lines of a spool file in blocks of bounded memory.

A line ends with a newline or a carriage return and a newline; the last line may lack them. Blank lines are skipped. A
line that is too long is streamed to quarantine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import BufferedIOBase

import numpy as np
from numpy.typing import NDArray

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.storage.intake.line_buffer import Lines
from bardo_pipeline.storage.intake.quarantine import Kept

_BLANKS = b" \t\r"
_NEWLINE, _RETURN = b"\n\r"
_SHARE = 0.625  # time to admit lines divided by the time to read them, measured
_LOOK_BYTES = 2**17  # a mask of this size fits into the CPU cache


@dataclass(frozen=True)
class Block:
    """Lines of a file with their numbers (from 1), and the stored lines that are too long."""

    numbers: list[int]
    lines: Lines
    long: list[tuple[int, Kept]]


def blocks_of(
    file: BufferedIOBase, *, block_bytes: int, line_bytes_max: int, keep: Callable[[Iterable[bytes]], Kept]
) -> Iterator[Block]:
    """Yield the lines of a file in blocks of about `block_bytes`.

    The first block and the last ones are smaller, which shortens the time that reading and admission wait for each
    other.

    Parameters
    ----------
    keep : stores the bytes of a line that is too long
    """
    rest, number, ended = b"", 0, False
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    small_bytes = next_bytes = block_bytes // 4
    while not ended or rest:
        text = _read(file, rest, next_bytes)
        ended = len(text) < len(rest) + next_bytes
        next_bytes = _next_size(size - file.tell(), small_bytes, block_bytes)
        ends = _ends_of_lines(text, ended)
        rest = text[ends[-1] + 1 if len(ends) else 0 :].tobytes()
        block = _block(text, ends, number, line_bytes_max, keep)
        number += len(ends)
        if not ended and len(rest) > line_bytes_max:
            number += 1
            long_line = _LongLine(rest, file, block_bytes)
            block.long.append((number, keep(long_line)))
            rest = long_line.rest
        if block.lines or block.long:
            yield block


def _next_size(remaining: int, small_bytes: int, block_bytes: int) -> int:
    """Return the size of the next block; `remaining` is negative if the file grew."""
    size = max(small_bytes, min(int(_SHARE * remaining), block_bytes))
    return size if remaining > size + small_bytes // 2 else max(remaining, 0) + small_bytes


def _read(file: BufferedIOBase, before: bytes, more: int) -> NDArray[np.uint8]:
    """Return `before` and up to `more` bytes of the file."""
    text = np.empty(len(before) + more, np.uint8)
    text[: len(before)] = np.frombuffer(before, np.uint8)
    filled = len(before)
    while got := file.readinto(text[filled:].data):
        filled += got
    return text[:filled]


def _ends_of_lines(text: NDArray[np.uint8], ended: bool) -> Int64Array:
    """Return the offsets of the newlines, and of the end of a last line without one."""
    starts = range(0, len(text), _LOOK_BYTES)
    newlines = [at + np.flatnonzero(text[at : at + _LOOK_BYTES] == _NEWLINE) for at in starts]
    last = [len(text)] if ended and len(text) and text[-1] != _NEWLINE else []
    return np.concatenate([*newlines, np.array(last, np.int64)])


def _block(
    text: NDArray[np.uint8], ends: Int64Array, before: int, bytes_max: int, keep: Callable[[Iterable[bytes]], Kept]
) -> Block:
    """Return the block of the lines with these ends. before: number of earlier lines."""
    begins = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    filled = np.flatnonzero(ends > begins)
    begins, ends, numbers = begins[filled], ends[filled], filled + before + 1
    ends = ends - (text[ends - 1] == _RETURN)
    long = ends - begins > bytes_max
    kept = [(int(numbers[at]), keep([text[begins[at] : ends[at]].tobytes()])) for at in np.flatnonzero(long)]
    taken = ~long
    for at in np.flatnonzero(taken & np.isin(text[begins], list(_BLANKS))):
        taken[at] = bool(text[begins[at] : ends[at]].tobytes().strip(_BLANKS))
    lines = Lines(text.data, np.stack([begins, ends], axis=1)[taken])
    return Block(numbers[taken].tolist(), lines, kept)


class _LongLine:
    """Iterates over the chunks of a line that ends beyond the block; `rest` is then the bytes after its end."""

    def __init__(self, beginning: bytes, file: BufferedIOBase, chunk_bytes: int) -> None:
        self._beginning, self._file, self._chunk_bytes = beginning, file, chunk_bytes
        self.rest = b""

    def __iter__(self) -> Iterator[bytes]:
        chunk, end = self._beginning, b""
        while chunk and not end:
            part, end, self.rest = chunk.partition(b"\n")
            yield part
            chunk = b"" if end else self._file.read(self._chunk_bytes)
