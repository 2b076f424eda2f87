"""Reserves: what a lending protocol beside the pool charged and paid for the pool's two tokens, as recorded. Pure.

A balance is kept in shares of its reserve: what was put in or owed is a number of shares, worth so many tokens by the
index, which only grows. Source: Aave v3 technical paper (liquidity index, variable borrow index).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from bardo_pipeline.errors import TraceError

LENDER = "aave_v3"
"""The protocol whose reserves these are."""

ASSETS = ("USDC", "WETH")
"""The two tokens, in the order of a reserve's rows; of a loan in one, the collateral is the other."""


@dataclass(frozen=True, eq=False)
class Reserves:
    """Both reserves at each bar or tick, float64 [ASSETS, T].

    supply_index, borrow_index: tokens that a share supplied, or owed, is worth; at least 1. borrow_rate: of variable
    debt, a year, >= 0. The arrays are made read-only. Raises TraceError, which names the asset and the column.
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
        """The reserves at some of the bars."""
        return Reserves(*(getattr(self, field.name)[:, bars] for field in fields(self)))

    @property
    def content(self) -> bytes:
        """All columns as little-endian bytes, in fixed order."""
        return b"".join(getattr(self, field.name).astype("<f8").tobytes() for field in fields(self))
