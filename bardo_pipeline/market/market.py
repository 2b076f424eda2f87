"""A market trace of minute bars: what golems of a run see, whether recorded or synthetic. Pure."""

import hashlib
import json
from dataclasses import dataclass, fields, replace
from decimal import Context, Decimal
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bardo_pipeline.errors import TraceError
from bardo_pipeline.market.aave_reserves import Reserves
from bardo_pipeline.quality.market_truths import PlantedTruth

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
"""The arrays of a market, in the order in which they are hashed."""

_TICK_FACTORS = tuple(float(Context(prec=60).power(Decimal("1.0001"), 1 << bit)) for bit in range(20))


def price_of_tick(tick: TickBars | IntBars) -> FloatBars:
    """Price of WETH in USDC at each tick: 1.0001 ** -tick * 1e12.

    tick: integers in [-887272, 887272]. Returns USDC per WETH, > 0, relative error below 1e-14.
    Only multiplications and one division: every machine gets the same bytes, which a vectorised pow does not promise.
    """
    steps = np.abs(tick.astype(np.int64))
    ratio = np.ones(steps.shape, dtype=np.float64)
    for bit, factor in enumerate(_TICK_FACTORS):  # 20 passes over the column, one a bit, not one a row
        ratio *= np.where((steps >> bit) & 1, factor, 1.0)
    return np.where(tick > 0, TOKEN_DECIMALS_SCALE / ratio, TOKEN_DECIMALS_SCALE * ratio)


def tick_of_price(price: FloatBars) -> TickBars:
    """Nearest tick to each price in USDC per WETH, > 0. Inverse of price_of_tick on whole ticks."""
    return np.rint(np.log(TOKEN_DECIMALS_SCALE / price) / np.log(1.0001)).astype(np.int32)


@dataclass(frozen=True, eq=False)
class Market:
    """A market trace of minute bars, one element a bar, strictly ascending in time.

    name: "synthetic-7", "polygon-0x45dda9cb…"; chain: "polygon", "ethereum", "synthetic"; protocol: "uniswap_v3".
    pair: "WETH/USDC"; pool: public pool address; fee_ppm: 500 = 0.05 %, in (0, 1_000_000).
    native_usd_micros: price of the gas token in micro-dollars, > 0 (a parameter: demeter files hold none).
    at_us: int64[T], UTC epoch microseconds of the bar, on the minute.
    price, price_low, price_high: float64[T], USDC per WETH, > 0; the close, and the bar's extremes around it.
    tick: int32[T], pool tick at close (token0 = USDC, 6 decimals; token1 = WETH, 18): price = 1.0001**-tick * 1e12.
    volume_usd_micros: int64[T], swapped in during the bar, both sides, in micro-dollars, >= 0.
    liquidity: float64[T], active liquidity L of the pool in raw v3 units, > 0. gas_gwei: float64[T], > 0.
    truths: what a synthetic market planted; empty for recorded ones.
    reserves: what may be borrowed beside the pool, and at what rates; None: nothing.

    The arrays are made read-only. Raises TraceError, which names the market and the field. Two markets are equal when
    their content_hash is.
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
            raise TraceError(self.name, f"{self.reserves.bars} where at_us holds {self.bars} bars", column="reserves")
        self._check_ranges()

    def _checked_shape(self, column: str, dtype: str) -> NDArray[Any]:
        values = getattr(self, column)
        if not isinstance(values, np.ndarray) or values.dtype != np.dtype(dtype) or values.ndim != 1:
            raise TraceError(self.name, f"must be a one-dimensional {dtype} array", column=column)
        if len(values) == 0:
            raise TraceError(self.name, "a market needs at least one bar", column=column)
        if len(values) != len(self.at_us):
            raise TraceError(self.name, f"holds {len(values)} bars where at_us holds {len(self.at_us)}", column=column)
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
        """The bars in [start, stop), under the same name and parameters.

        0 <= start < stop <= bars; raises TraceError outside of that. The arrays are views, not copies.
        """
        if not 0 <= start < stop <= self.bars:
            raise TraceError(self.name, f"bars [{start}, {stop}) are not within [0, {self.bars})")
        reserves = None if self.reserves is None else self.reserves.at(slice(start, stop))
        bars = {column: getattr(self, column)[start:stop] for column in ARRAY_DTYPES}
        return replace(self, **bars, reserves=reserves)

    @cached_property
    def content_hash(self) -> str:
        """SHA-256, 64 hex digits, over the name, the parameters and the arrays' little-endian bytes in fixed order.

        The truths are left out: they speak about the bars and change none of them. Reserves come after the arrays,
        where there are any.
        """
        others = {*ARRAY_DTYPES, "truths", "reserves"}
        parameters = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in others}
        digest = hashlib.sha256(json.dumps(parameters, sort_keys=True).encode())
        for column, dtype in ARRAY_DTYPES.items():
            digest.update(f"{column}:{dtype}:{self.bars};".encode())
            digest.update(getattr(self, column).astype(np.dtype(dtype).newbyteorder("<")).tobytes())
        if self.reserves is not None:
            digest.update(b"reserves;" + self.reserves.content)
        return digest.hexdigest()
