"""Codes of the entry ids of a run. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bardo_pipeline.arrays import Int64Array


class EntryNames:
    """Codes of the entry ids of a run's golems, stable from cycle to cycle."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self._codes: dict[str, int] = {}

    def codes(self, ids: Sequence[str | None]) -> Int64Array:
        """Return codes of these ids, -1 for None; new ids get the next codes."""
        for entry in ids:
            if entry is not None and entry not in self._codes:
                self._codes[entry] = len(self.ids)
                self.ids.append(entry)
        return np.array([-1 if entry is None else self._codes[entry] for entry in ids], dtype=np.int64)
