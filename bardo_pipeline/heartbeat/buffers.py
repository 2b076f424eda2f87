"""Buffers: what a chunk of ticks leaves behind, column by column, until it becomes records. Pure."""

from __future__ import annotations

import numpy as np


class Buffers:
    """Columns [golems, ticks] or [golems, ticks, items]; a tick writes one slice of each."""

    def __init__(self, golems: int, ticks: int) -> None:
        self.golems, self.ticks = golems, ticks
        self.columns: dict[str, np.ndarray] = {}

    def put(self, at: int, **values: np.ndarray | float) -> None:
        """Write values for the chunk's tick `at`: [golems], or [items, golems] for lists."""
        for name, value in values.items():
            array = np.asarray(value)
            column = self.columns.get(name)
            if column is None:
                items = array.shape[:-1] if array.ndim > 1 else ()
                column = self.columns[name] = np.zeros((self.golems, self.ticks, *items), array.dtype)
            column[:, at] = array.T if array.ndim < 3 else np.moveaxis(array, -1, 0)

    def cut(self, ticks: int) -> None:
        """Keep only the first ticks: nobody lived to see the others."""
        self.ticks = ticks
        self.columns = {name: np.ascontiguousarray(column[:, :ticks]) for name, column in self.columns.items()}

    def flat(self, name: str, rows: np.ndarray) -> np.ndarray:
        """A column as [rows, ...] in golem-major order, those rows (flat indices) alone."""
        column = self.columns[name]
        return column.reshape(self.golems * self.ticks, *column.shape[2:])[rows]
