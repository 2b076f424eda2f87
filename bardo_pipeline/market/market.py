"""A market trace of minute bars, recorded or synthetic, with or without lending rates. Pure."""

import hashlib
import json
from dataclasses import dataclass, fields, replace
from decimal import Context, Decimal
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bardo_pipeline.errors import TraceError
from bardo_pipeline.quality.true_effects import PlantedTruth

FloatBars = NDArray[np.float64]
IntBars = NDArray[np.int64]
TickBars = NDArray[np.int32]

TICK_MAX = 887_272
"""Largest tick of Uniswap v3; the smallest is its negative."""

TOKEN_DECIMALS_SCALE = 1e12
"""10 ** (18 - 6): from raw WETH per raw USDC to USDC per WETH."""

ARRAY_DTYPES: dict[str, str] = {
    "at_us": "int64",
    "price": "float64",
    "price_low": "float64",
    "price_high": "float64",
    "tick": "int32",
    "volume_usd_micros": "int64",
    "liquidity": "float64",
    "gas_gwei": "float64",
}
"""The arrays of a market, in the order of the content hash."""

LENDER = "aave_v3"
"""Name of the lending protocol."""

ASSETS = ("USDC", "WETH")
"""The two tokens, in the order of the rows; a loan in one has the other as collateral."""

_TICK_FACTORS = tuple(float(Context(prec=60).power(Decimal("1.0001"), 1 << bit)) for bit in range(20))


def price_of_tick(tick: TickBars | IntBars) -> FloatBars:
    """Return the price (USDC per WETH, > 0) at each tick: 1.0001 ** -tick * 1e12, relative error below 1e-14.

    It uses only multiplications and one division, so every machine gets the same bytes, unlike with a vectorised pow.

    Parameters
    ----------
    tick : in [-887272, 887272]
    """
    steps = np.abs(tick.astype(np.int64))
    ratio = np.ones(steps.shape, dtype=np.float64)
    for bit, factor in enumerate(_TICK_FACTORS):  # 20 passes over the column, one per bit
        ratio *= np.where((steps >> bit) & 1, factor, 1.0)
    return np.where(tick > 0, TOKEN_DECIMALS_SCALE / ratio, TOKEN_DECIMALS_SCALE * ratio)


def tick_of_price(price: FloatBars) -> TickBars:
    """Return the nearest tick to each price (USDC per WETH, > 0), the inverse of price_of_tick."""
    return np.rint(np.log(TOKEN_DECIMALS_SCALE / price) / np.log(1.0001)).astype(np.int32)


@dataclass(frozen=True, eq=False)
class Reserves:
    """Rates of a lending protocol (Aave v3) at each bar or tick, float64 [ASSETS, T], read-only.

    Supplies and debts are numbers of shares; the index, which never decreases, gives the tokens per share. Raises
    TraceError for invalid values. Source: Aave v3 technical paper (liquidity index, variable borrow index).

    Parameters
    ----------
    supply_index, borrow_index : tokens per supplied or owed share, >= 1
    borrow_rate : yearly rate of variable debt, >= 0
    """

    supply_index: FloatBars
    borrow_index: FloatBars
    borrow_rate: FloatBars

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

    def at(self, bars: IntBars | slice) -> "Reserves":
        """Return the reserves at these bars."""
        return Reserves(*(getattr(self, field.name)[:, bars] for field in fields(self)))

    @property
    def content(self) -> bytes:
        """All columns as little-endian bytes, for the content hash."""
        return b"".join(getattr(self, field.name).astype("<f8").tobytes() for field in fields(self))


@dataclass(frozen=True, eq=False)
class Market:
    """A market trace with one array element per minute bar, strictly ascending in time. The arrays are read-only.

    Raises TraceError for invalid values. Markets are equal if their content_hash is equal.

    Parameters
    ----------
    name : "synthetic-7", "polygon-0x45dda9cb…"
    chain, protocol, pair, pool : "polygon", "uniswap_v3", "WETH/USDC", address of the pool
    fee_ppm : 500 is 0.05 %, in (0, 1_000_000)
    native_usd_micros : price of the gas token, micro-dollars, > 0 (demeter files do not have it)
    at_us : UTC epoch microseconds of the bar, on the minute
    price, price_low, price_high : close, low and high, USDC per WETH, > 0
    tick : pool tick at close (token0 = USDC, 6 decimals; token1 = WETH, 18)
    volume_usd_micros : swapped amount of both sides, micro-dollars, >= 0
    liquidity : active liquidity L in raw v3 units, > 0
    gas_gwei : > 0
    truths : planted truths of a synthetic market; empty for a recorded one
    reserves : lending rates; None without loans
    """

    name: str
    chain: str
    protocol: str
    pair: str
    pool: str
    fee_ppm: int
    native_usd_micros: int
    at_us: IntBars
    price: FloatBars
    price_low: FloatBars
    price_high: FloatBars
    tick: TickBars
    volume_usd_micros: IntBars
    liquidity: FloatBars
    gas_gwei: FloatBars
    truths: tuple[PlantedTruth, ...] = ()
    reserves: Reserves | None = None

    def __post_init__(self) -> None:
        """Check parameters, shapes and ranges, then freeze the arrays."""
        if not self.name:
            raise TraceError("a market", "has no name", column="name")
        if not 0 < self.fee_ppm < 1_000_000:
            raise TraceError(self.name, f"{self.fee_ppm} is not in (0, 1000000)", column="fee_ppm")
        if self.native_usd_micros <= 0:
            raise TraceError(self.name, f"{self.native_usd_micros} is not positive", column="native_usd_micros")
        for column, dtype in ARRAY_DTYPES.items():
            frozen = self._checked_shape(column, dtype).view()
            frozen.flags.writeable = False
            object.__setattr__(self, column, frozen)
        if self.reserves is not None and self.reserves.bars != self.bars:
            raise TraceError(self.name, f"{self.reserves.bars} bars, but at_us has {self.bars}", column="reserves")
        self._check_ranges()

    def _checked_shape(self, column: str, dtype: str) -> NDArray[Any]:
        values = getattr(self, column)
        if not isinstance(values, np.ndarray) or values.dtype != np.dtype(dtype) or values.ndim != 1:
            raise TraceError(self.name, f"must be a one-dimensional {dtype} array", column=column)
        if len(values) == 0:
            raise TraceError(self.name, "a market needs at least one bar", column=column)
        if len(values) != len(self.at_us):
            raise TraceError(self.name, f"{len(values)} bars, but at_us has {len(self.at_us)}", column=column)
        return np.ascontiguousarray(values)

    def _check_ranges(self) -> None:
        for column in ("price", "price_low", "price_high", "liquidity", "gas_gwei"):
            values = getattr(self, column)
            self._refuse(~(np.isfinite(values) & (values > 0)), column, "is not a finite positive number")
        self._refuse(self.at_us % 60_000_000 != 0, "at_us", "is not on the minute")
        self._refuse(np.diff(self.at_us, prepend=self.at_us[0] - 1) <= 0, "at_us", "does not come after the bar before")
        self._refuse(np.abs(self.tick.astype(np.int64)) > TICK_MAX, "tick", f"is outside [-{TICK_MAX}, {TICK_MAX}]")
        self._refuse(self.volume_usd_micros < 0, "volume_usd_micros", "is negative")
        self._refuse(self.price_low > self.price, "price_low", "is above the close")
        self._refuse(self.price_high < self.price, "price_high", "is below the close")

    def _refuse(self, bad: NDArray[np.bool_], column: str, fact: str) -> None:
        if bad.any():
            bar = int(np.argmax(bad))
            raise TraceError(self.name, f"bar {bar} ({getattr(self, column)[bar]}) {fact}", column=column)

    @property
    def bars(self) -> int:
        """Number of minute bars, >= 1."""
        return len(self.at_us)

    def slice(self, start: int, stop: int) -> "Market":
        """Return the bars in [start, stop) as views. Raises TraceError unless 0 <= start < stop <= bars."""
        if not 0 <= start < stop <= self.bars:
            raise TraceError(self.name, f"bars [{start}, {stop}) are not within [0, {self.bars})")
        reserves = None if self.reserves is None else self.reserves.at(slice(start, stop))
        bars = {column: getattr(self, column)[start:stop] for column in ARRAY_DTYPES}
        return replace(self, **bars, reserves=reserves)

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 (hex) of name, parameters, little-endian bytes of the arrays, and reserves, without truths."""
        others = {*ARRAY_DTYPES, "truths", "reserves"}
        parameters = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in others}
        digest = hashlib.sha256(json.dumps(parameters, sort_keys=True).encode())
        for column, dtype in ARRAY_DTYPES.items():
            digest.update(f"{column}:{dtype}:{self.bars};".encode())
            digest.update(getattr(self, column).astype(np.dtype(dtype).newbyteorder("<")).tobytes())
        if self.reserves is not None:
            digest.update(b"reserves;" + self.reserves.content)
        return digest.hexdigest()
