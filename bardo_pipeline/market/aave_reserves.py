"""Recorded rates of a lending protocol (Aave v3) for the two tokens of a pool. Pure.

Supplies and debts are numbers of shares; the index, which never decreases, gives the tokens per share. Source: Aave v3
technical paper (liquidity index, variable borrow index).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from bardo_pipeline.errors import TraceError

LENDER = "aave_v3"
"""Name of the lending protocol."""

ASSETS = ("USDC", "WETH")
"""The two tokens, in the order of the rows; a loan in one has the other as collateral."""


@dataclass(frozen=True, eq=False)
class Reserves:
    """Both reserves at each bar or tick, float64 [ASSETS, T], read-only. Raises TraceError for invalid values.

    Parameters
    ----------
    supply_index, borrow_index : tokens per supplied or owed share, >= 1
    borrow_rate : yearly rate of variable debt, >= 0
    """

    supply_index: NDArray[np.float64]
    borrow_index: NDArray[np.float64]
    borrow_rate: NDArray[np.float64]

    def __post_init__(self) -> None:
        """Check shapes and ranges, then freeze the arrays."""
        for column, least in (("supply_index", 1.0), ("borrow_index", 1.0), ("borrow_rate", 0.0)):
            values = np.ascontiguousarray(getattr(self, column), dtype=np.float64).view()
            if values.shape != (len(ASSETS), self.supply_index.shape[-1]):
                raise TraceError("reserves", f"must hold a row for each of {', '.join(ASSETS)}", column=column)
            bad = ~(np.isfinite(values) & (values >= least))
            if bad.any():
                asset, bar = np.argwhere(bad)[0]
                fact = f"bar {bar} ({values[asset, bar]}) is not a finite number of at least {least:.0f}"
                raise TraceError(f"the reserve of {ASSETS[asset]}", fact, column=column)
            values.flags.writeable = False
            object.__setattr__(self, column, values)

    @property
    def bars(self) -> int:
        """Number of bars or ticks."""
        return int(self.supply_index.shape[1])

    def at(self, bars: NDArray[np.int64] | slice) -> Reserves:
        """Return the reserves at these bars."""
        return Reserves(*(getattr(self, field.name)[:, bars] for field in fields(self)))

    @property
    def content(self) -> bytes:
        """All columns as little-endian bytes, for the content hash."""
        return b"".join(getattr(self, field.name).astype("<f8").tobytes() for field in fields(self))
