"""Column buffers of a chunk of ticks, filled tick by tick and read as records. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Buffers:
    """Columns [golems, ticks] or [golems, ticks, items], stored tick by tick so that a tick writes contiguously."""

    def __init__(self, golems: int, ticks: int) -> None:
        self.golems, self.ticks = golems, ticks
        self._columns: dict[str, NDArray[Any]] = {}

    def put(self, at: int, **values: ArrayLike) -> None:
        """Write the columns of the chunk's tick `at`: [golems], [items, golems], or one number for all golems."""
        for name, value in values.items():
            if name not in self._columns:
                first = np.asarray(value)
                self._columns[name] = np.zeros((self.ticks, *first.shape[:-1], self.golems), first.dtype)
            self._columns[name][at] = value

    def cut(self, ticks: int) -> None:
        """Keep only the first ticks, because no golem lived longer."""
        self.ticks = ticks
        self._columns = {name: column[:ticks] for name, column in self._columns.items()}

    def __contains__(self, name: str) -> bool:
        """Whether a tick wrote this column."""
        return name in self._columns

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column [golems, ticks] or [golems, ticks, items]."""
        return np.moveaxis(self._columns[name], -1, 0)
