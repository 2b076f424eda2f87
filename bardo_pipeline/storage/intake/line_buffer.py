"""Lines as they lie in the bytes that they came in: none is copied before somebody asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import pyarrow as pa


class Lines(Sequence[bytes]):
    """Lines without their ends, in the order in which they lie in a text; between two of them lies at least one byte.

    text: what they lie in; a single byte between two of them is a newline. bounds: int64 [lines, 2], where each begins
    and where it ends.
    """

    def __init__(self, text: bytes | memoryview, bounds: np.ndarray) -> None:
        self._text, self.bounds = memoryview(text), np.ascontiguousarray(bounds, dtype=np.int64)

    @classmethod
    def of(cls, lines: Sequence[bytes]) -> Lines:
        """These lines, each of them whatever bytes it is, one behind the other."""
        lengths = np.fromiter(map(len, lines), np.int64, len(lines))
        ends = np.cumsum(lengths + 1) - 1
        return cls(b"\n".join(lines), np.stack([ends - lengths, ends], axis=1))

    def __len__(self) -> int:
        return len(self.bounds)

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...

    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        if isinstance(at, slice):
            return [bytes(self._text[first:last]) for first, last in self.bounds[at].tolist()]
        first, last = self.bounds[at].tolist()
        return bytes(self._text[first:last])

    def views(self, run: range) -> Iterator[memoryview]:
        """Lines where they lie."""
        return (self._text[first:last] for first, last in self.bounds[run.start : run.stop].tolist())

    def runs(self, bytes_max: int) -> Iterator[range]:
        """The lines in runs of at most so many bytes, each of at least one line."""
        first = 0
        while first < len(self):
            until = int(np.searchsorted(self.bounds[:, 1], self.bounds[first, 0] + bytes_max, side="right"))
            yield range(first, max(first + 1, until))
            first = max(first + 1, until)

    def joined(self, run: range) -> memoryview:
        """Lines that follow each other, with a newline between two of them."""
        bounds = self.bounds[run.start : run.stop]
        if (bounds[1:, 0] - bounds[:-1, 1] == 1).all():
            return self._text[bounds[0, 0] : bounds[-1, 1]]
        return memoryview(b"\n".join(self[run.start : run.stop]))

    def enclosed(self, run: range, first: bytes, last: bytes) -> bool:
        """Whether each of these lines begins with the one byte and ends with the other."""
        begins, ends = self.bounds[run.start : run.stop].T
        octets = np.frombuffer(self._text, np.uint8)
        if (begins == ends).any():
            return False
        return bool((octets[begins] == first[0]).all() and (octets[ends - 1] == last[0]).all())

    def column(self, which: np.ndarray) -> pa.Array:
        """Those of the lines that these indices say, as binary."""
        if not len(which):
            return pa.array([], pa.binary())
        # As an array, the text holds what lies between two lines as well; only the others are taken out of it.
        count, buffers = 2 * len(self) - 1, [None, pa.py_buffer(self.bounds), pa.py_buffer(self._text)]
        every = pa.Array.from_buffers(pa.large_binary(), count, buffers)
        return every.take(pa.array(2 * which)).cast(pa.binary())
