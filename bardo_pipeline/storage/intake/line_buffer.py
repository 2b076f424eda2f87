"""Lines as views of the received bytes, copied only on access."""

from collections.abc import Iterator, Sequence
from typing import Self, overload

import numpy as np
import pyarrow as pa

from bardo_pipeline.arrays import Int64Array


class Lines(Sequence[bytes]):
    """Lines of a text, without line ends.

    Parameters
    ----------
    text : lines in order with at least one byte between two of them; a single byte is a newline
    bounds : int64 [lines, 2], begin and end of each line
    """

    def __init__(self, text: bytes | memoryview, bounds: Int64Array) -> None:
        self._text, self.bounds = memoryview(text), np.ascontiguousarray(bounds, dtype=np.int64)

    @classmethod
    def of(cls, lines: Sequence[bytes]) -> Self:
        """Build from separate lines of any bytes."""
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

    def runs(self, bytes_max: int) -> Iterator[range]:
        """Split into runs of at most `bytes_max` bytes and at least one line."""
        first = 0
        while first < len(self):
            until = int(np.searchsorted(self.bounds[:, 1], self.bounds[first, 0] + bytes_max, side="right"))
            yield range(first, max(first + 1, until))
            first = max(first + 1, until)

    def joined(self, run: range) -> memoryview:
        """Return consecutive lines joined by newlines."""
        bounds = self.bounds[run.start : run.stop]
        if (bounds[1:, 0] - bounds[:-1, 1] == 1).all():
            return self._text[bounds[0, 0] : bounds[-1, 1]]
        return memoryview(b"\n".join(self[run.start : run.stop]))

    def enclosed(self, run: range, first: bytes, last: bytes) -> bool:
        """Whether each of these lines begins with `first` and ends with `last`."""
        begins, ends = self.bounds[run.start : run.stop].T
        octets = np.frombuffer(self._text, np.uint8)
        if (begins == ends).any():
            return False
        return bool((octets[begins] == first[0]).all() and (octets[ends - 1] == last[0]).all())

    def column(self, which: Int64Array) -> pa.Array:
        """Return the lines with these indices as a binary array."""
        if not len(which):
            return pa.array([], pa.binary())
        # The offsets of the array also delimit the bytes between two lines; even elements are the lines.
        count, buffers = 2 * len(self) - 1, [None, pa.py_buffer(self.bounds), pa.py_buffer(self._text)]
        every = pa.Array.from_buffers(pa.large_binary(), count, buffers)
        return every.take(pa.array(2 * which)).cast(pa.binary())
