"""Lines of a spool file, in blocks that fit into memory whatever the file holds.

A line ends with a newline, or a carriage return and a newline, and neither belongs to it; the last may lack both. Lines
of nothing but blanks are passed over. A line that is too long is never in memory: it goes straight to quarantine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from bardo_pipeline.storage.quarantine import Kept

_BLANKS = b" \t\r"
_READ_BYTES = 2**21  # memory of this size is used again and again; what is larger is fetched afresh, which costs more


@dataclass(frozen=True)
class Block:
    """Some lines of a file: the number (from 1) of each, its bytes; and those that are too long, by number."""

    numbers: list[int]
    lines: list[bytes]
    long: list[tuple[int, Kept]]


def blocks_of(
    file: BinaryIO, *, block_bytes: int, line_bytes_max: int, keep: Callable[[Iterable[bytes]], Kept]
) -> Iterator[Block]:
    """The lines of a file, about `block_bytes` at a time. keep: takes the bytes of a line that is too long."""
    rest, number = b"", 0
    due_bytes = block_bytes // 4  # a small block first, so that whoever takes them need not wait long for it
    while True:
        *whole, rest = rest.split(b"\n")
        while chunk := file.read(min(due_bytes, _READ_BYTES)):
            first, *others = chunk.split(b"\n")
            *more, rest = [rest + first, *others]
            whole += more
            due_bytes -= len(chunk)
        ended, due_bytes = due_bytes > 0, block_bytes
        if ended and rest:
            whole, rest = [*whole, rest], b""
        block = Block([], [], [])
        for line in whole:
            number += 1
            _put(block, number, line, line_bytes_max, keep)
        if len(rest) > line_bytes_max:
            number += 1
            left = _Rest(rest, file, block_bytes)
            block.long.append((number, keep(left)))
            rest = left.behind
        if block.lines or block.long:
            yield block
        if ended and not rest:
            return


def _put(block: Block, number: int, line: bytes, bytes_max: int, keep: Callable[[Iterable[bytes]], Kept]) -> None:
    line = line.removesuffix(b"\r")
    if len(line) > bytes_max:
        block.long.append((number, keep([line])))
    elif line.strip(_BLANKS):
        block.numbers.append(number)
        block.lines.append(line)


class _Rest:
    """The bytes of a line whose end is not in sight yet, chunk by chunk; then what stood behind that end."""

    def __init__(self, begun: bytes, file: BinaryIO, chunk_bytes: int) -> None:
        self._begun, self._file, self._chunk_bytes = begun, file, chunk_bytes
        self.behind = b""

    def __iter__(self) -> Iterator[bytes]:
        chunk, end = self._begun, b""
        while chunk and not end:
            part, end, self.behind = chunk.partition(b"\n")
            yield part
            chunk = b"" if end else self._file.read(self._chunk_bytes)
