"""Buffers: what a chunk of ticks leaves behind, column by column, until it becomes records. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


class Buffers:
    """Columns [golems, ticks] or [golems, ticks, items]. They are held tick by tick: a tick writes one piece."""

    def __init__(self, golems: int, ticks: int) -> None:
        self.golems, self.ticks = golems, ticks
        self._told: dict[str, np.ndarray] = {}

    def put(self, at: int, **values: ArrayLike) -> None:
        """Write values for the chunk's tick `at`: [golems], or [items, golems] for lists; a number is everyone's."""
        told = self._told
        for name, value in values.items():
            if name not in told:
                first = np.asarray(value)
                told[name] = np.zeros((self.ticks, *first.shape[:-1], self.golems), first.dtype)
            told[name][at] = value

    def cut(self, ticks: int) -> None:
        """Keep only the first ticks: nobody lived to see the others."""
        self.ticks = ticks
        self._told = {name: told[:ticks] for name, told in self._told.items()}

    def __contains__(self, name: str) -> bool:
        """Whether any tick left this column."""
        return name in self._told

    def __getitem__(self, name: str) -> np.ndarray:
        """A column: [golems, ticks], or [golems, ticks, items]."""
        column: np.ndarray = np.moveaxis(self._told[name], -1, 0)
        return column
