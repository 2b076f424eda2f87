"""Recorded market traces: minute CSV files of demeter-fetch, read into a Market.

Every error names file, line (the header is line 1) and column. The report lists skipped files with reasons.
"""

import re
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from bardo_pipeline.errors import TraceError
from bardo_pipeline.market.market import FloatBars, IntBars, Market, Reserves, price_of_tick
from bardo_pipeline.storage.market_data.aave_rates import RATE_NAME, read_reserves
from bardo_pipeline.storage.market_data.trace_csv import TraceFile, in_time_order, last_known, load_trace_file, utc

POOL_COLUMNS = (
    "timestamp",
    "netAmount0",
    "netAmount1",
    "closeTick",
    "openTick",
    "lowestTick",
    "highestTick",
    "inAmount0",
    "inAmount1",
    "currentLiquidity",
)
GAS_COLUMNS = ("block_timestamp", "gas_price")

POOL_NAME = re.compile(r"^(?P<chain>[a-z]+)-(?P<pool>0x[0-9a-f]{40})-[^/]*\.minute\.csv$", re.IGNORECASE)
GAS_NAME = re.compile(r"^(?P<chain>[a-z]+)-gas-[^/]*\.csv$", re.IGNORECASE)

FEE_PPM_BY_POOL = {
    "0x45dda9cb7c25131df268515131f647d726f50608": 500,  # Polygon USDC/WETH
    "0x0e44ceb592acfc5d3f09d996302eb4c499ff8c10": 3_000,  # Polygon USDC/WETH
    "0x88e6a0c2ddd26feeb64f039a2c41296fcb3f5640": 500,  # Ethereum USDC/WETH
    "0x8ad599c3a0ff1de082011efddc58f1908eb6e6d8": 3_000,  # Ethereum USDC/WETH
    "0xe0554a476a092703abdb3ef35c80e0d76d32939f": 100,  # Ethereum USDC/WETH
}
FEE_PPM_DEFAULT = 500

NATIVE_USD_MICROS_BY_CHAIN = {"polygon": 650_000, "ethereum": 2_250_000_000}
"""Default price of the gas token in micro-dollars: MATIC in August 2023, ETH in January 2024."""
NATIVE_USD_MICROS_DEFAULT = 1_000_000_000

PRICE_PLAUSIBLE = (1e-3, 1e9)
"""USDC per WETH. Outside this range, token0 is not USDC (6 decimals) or token1 is not WETH (18)."""

_OTHER_FORMATS = (
    (re.compile(r"aave", re.IGNORECASE), "Aave, but not <chain>-aave_v3-<0xtoken>-<date>.minute.csv"),
    (re.compile(r"\.tick\.csv$", re.IGNORECASE), "single transactions (.tick.csv), not minute bars"),
)


@dataclass(frozen=True)
class TraceReport:
    """Result of reading a trace.

    Parameters
    ----------
    files_read : relative paths: pool files, gas files, rates, each in time order
    files_skipped : (relative path, reason), sorted by path
    bars : minute bars of the market
    gas_filled : bars without a gas price, which got the last known one (the first bars: the first known)
    first_at, last_at : UTC times of the first and last bar
    liquidity_carried : bars with zero liquidity, which got the last positive one
    minutes_missing : minutes without a bar between first_at and last_at
    extremes_widened : bars whose close was outside their low and high, which were widened
    """

    files_read: tuple[str, ...]
    files_skipped: tuple[tuple[str, str], ...]
    bars: int
    gas_filled: int
    first_at: datetime
    last_at: datetime
    liquidity_carried: int = 0
    minutes_missing: int = 0
    extremes_widened: int = 0


@dataclass(frozen=True)
class _PoolBars:
    name: str
    at_us: IntBars
    close: IntBars
    lowest: IntBars
    highest: IntBars
    volume_usd_micros: IntBars
    liquidity: FloatBars


@dataclass(frozen=True)
class _GasBars:
    name: str
    at_us: IntBars
    gwei: FloatBars


@dataclass
class _Sorting:
    """The files of a folder by kind."""

    pools: dict[tuple[str, str], list[Path]] = field(default_factory=dict)
    gas: dict[str, list[Path]] = field(default_factory=dict)
    rates: dict[tuple[str, str], list[Path]] = field(default_factory=dict)
    skipped: list[tuple[Path, str]] = field(default_factory=list)


def read_trace(
    folder: Path, *, native_usd_micros: int | None = None, pool: str | None = None, rates: bool = False
) -> tuple[Market, TraceReport]:
    """Read the minute bars of one pool and the gas prices of its chain from a folder, recursively.

    Parameters
    ----------
    folder : pool files `<chain>-<0xpool>-<date>.minute.csv`; gas files `<chain>-gas-….csv` with gas_price in gwei
    native_usd_micros : price of the gas token in micro-dollars; None: 650_000 on polygon, 2_250_000_000 on ethereum,
        else 1_000_000_000
    pool : address of the pool, if the folder has several
    rates : also read Aave rates (`<chain>-aave_v3-<0xtoken>-<date>.minute.csv`) into reserves

    Raises
    ------
    TraceError : no folder, pool file, gas file or rates; several pools and none named; a malformed file
    """
    if not folder.is_dir():
        raise TraceError(str(folder), "is not a folder; name one with demeter-fetch minute files")
    sorting = _sort_files(folder)
    chain, address = _choose_pool(folder, sorting, pool)
    pool_files, bars, liquidity_carried = _joined_pool(folder, sorting.pools.pop((chain, address)))
    gas_files, gas = _joined_gas(folder, sorting, chain)
    gas_gwei, gas_filled = _gas_at(bars.at_us, gas)
    rate_files, reserves = read_reserves(folder, sorting.rates, chain, bars.at_us) if rates else ((), None)
    market = _market(chain, address, bars, gas_gwei, native_usd_micros, reserves)
    minutes_spanned = int(market.at_us[-1] - market.at_us[0]) // 60_000_000 + 1
    report = TraceReport(
        files_read=(*pool_files, *gas_files, *rate_files),
        files_skipped=_skipped(folder, sorting, chain),
        bars=market.bars,
        gas_filled=gas_filled,
        first_at=utc(int(market.at_us[0])),
        last_at=utc(int(market.at_us[-1])),
        liquidity_carried=liquidity_carried,
        minutes_missing=minutes_spanned - market.bars,
        extremes_widened=int(((bars.close < bars.lowest) | (bars.close > bars.highest)).sum()),
    )
    return market, report


def _sort_files(folder: Path) -> _Sorting:
    sorting = _Sorting()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        if match := POOL_NAME.match(path.name):
            sorting.pools.setdefault((match["chain"].lower(), match["pool"].lower()), []).append(path)
        elif match := GAS_NAME.match(path.name):
            sorting.gas.setdefault(match["chain"].lower(), []).append(path)
        elif match := RATE_NAME.match(path.name):
            sorting.rates.setdefault((match["chain"].lower(), match["token"].lower()), []).append(path)
        else:
            sorting.skipped.append((path, _skip_reason(path.name)))
    return sorting


def _skip_reason(name: str) -> str:
    for pattern, reason in _OTHER_FORMATS:
        if pattern.search(name):
            return reason
    if name.lower().endswith(".csv"):
        return "a CSV file whose name is neither <chain>-<0xpool>-<date>.minute.csv nor <chain>-gas-<dates>.csv"
    return "not a CSV file"


def _choose_pool(folder: Path, sorting: _Sorting, pool: str | None) -> tuple[str, str]:
    pools = sorted(sorting.pools)
    names = ", ".join(f"{chain}-{address}" for chain, address in pools)
    if not pools:
        cure = (
            "put <chain>-<0xpool>-<date>.minute.csv files of demeter-fetch there, or name another folder with --trace"
        )
        raise TraceError(str(folder), f"holds no pool file; {cure}")
    wanted = pools if pool is None else [key for key in pools if pool.lower() in (key[1], "-".join(key))]
    if not wanted:
        raise TraceError(str(folder), f"holds no pool {pool}; it holds {names}")
    if len(wanted) > 1:
        cure = "name a folder with one pool with --trace, or name the pool with read_trace(pool=...)"
        raise TraceError(str(folder), f"holds {len(wanted)} pools ({names}); {cure}")
    return wanted[0]


def _read_pool(table: TraceFile) -> _PoolBars:
    at_us = table.minutes("timestamp")
    for column in ("netAmount0", "netAmount1"):
        table.numbers(column)
    close, lowest, highest = table.ticks("closeTick"), table.ticks("lowestTick"), table.ticks("highestTick")
    table.ticks("openTick")
    price = price_of_tick(close)
    fact = (
        "tick {cell} is no price of a pool with USDC (6 decimals) as token0 and WETH (18) as token1; name such a pool"
    )
    table.refuse((price < PRICE_PLAUSIBLE[0]) | (price > PRICE_PLAUSIBLE[1]), "closeTick", fact)
    table.refuse(lowest > highest, "lowestTick", "{cell} is above highestTick")
    amounts = [table.numbers("inAmount0"), table.numbers("inAmount1")]
    for column, amount in zip(("inAmount0", "inAmount1"), amounts, strict=True):
        table.refuse(amount < 0, column, "{cell} is negative")
    liquidity = table.numbers("currentLiquidity")
    table.refuse(liquidity < 0, "currentLiquidity", "{cell} is negative")
    # token0 is a dollar with 6 decimals, so raw amounts are micro-dollars. token1 may exceed int64 and stays float64.
    volumes = [amounts[0], amounts[1] / 1e12 * price]
    for column, volume in zip(("inAmount0", "inAmount1"), volumes, strict=True):
        table.refuse(volume > 1e18, column, "{cell} is worth more than 10 ** 12 dollars in one minute")
    micros = np.rint(volumes[0]).astype(np.int64) + np.rint(volumes[1]).astype(np.int64)
    return _PoolBars(table.name, at_us, close, lowest, highest, micros, liquidity)


def _read_gas(table: TraceFile) -> _GasBars:
    at_us = table.minutes("block_timestamp")
    gwei = table.numbers("gas_price")
    table.refuse(gwei <= 0, "gas_price", "{cell} is not positive")
    return _GasBars(table.name, at_us, gwei)


def _joined_pool(folder: Path, paths: list[Path]) -> tuple[tuple[str, ...], _PoolBars, int]:
    parts = [_read_pool(load_trace_file(folder, path, POOL_COLUMNS)) for path in paths]
    names = tuple(part.name for part in parts)
    parts = in_time_order([part for part in parts if len(part.at_us)], "timestamp")
    if not parts:
        raise TraceError(", ".join(names), "holds no bar below its header; fetch it again", line=1)
    if parts[0].liquidity[0] == 0:
        fact = "is zero and no earlier bar has a positive one to carry forward"
        raise TraceError(parts[0].name, fact, line=2, column="currentLiquidity")
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("at_us", "close", "lowest", "highest", "volume_usd_micros", "liquidity")
    }
    positive = columns["liquidity"] > 0
    last_positive = np.maximum.accumulate(np.where(positive, np.arange(len(positive)), 0))
    columns["liquidity"] = columns["liquidity"][last_positive]
    read = tuple(part.name for part in parts)
    read += tuple(name for name in names if name not in read)
    return read, _PoolBars(name=read[0], **columns), int((~positive).sum())


def _joined_gas(folder: Path, sorting: _Sorting, chain: str) -> tuple[tuple[str, ...], _GasBars]:
    cure = f"put a {chain}-gas-<dates>.csv with {','.join(GAS_COLUMNS)} beside the pool files"
    paths = sorting.gas.pop(chain, [])
    if not paths:
        raise TraceError(str(folder), f"holds no gas file of {chain}; {cure}")
    parts = [_read_gas(load_trace_file(folder, path, GAS_COLUMNS)) for path in paths]
    parts = in_time_order([part for part in parts if len(part.at_us)], "block_timestamp")
    if not parts:
        raise TraceError(str(paths[0].relative_to(folder)), f"holds no gas minute below its header; {cure}", line=1)
    read = tuple(part.name for part in parts)
    at_us = np.concatenate([part.at_us for part in parts])
    return read, _GasBars(read[0], at_us, np.concatenate([part.gwei for part in parts]))


def _gas_at(at_us: IntBars, gas: _GasBars) -> tuple[FloatBars, int]:
    """Return the gas price of each bar, and the number of bars without a gas price of their own."""
    place = last_known(at_us, gas.at_us)
    return gas.gwei[place], int((gas.at_us[place] != at_us).sum())


def _market(
    chain: str, address: str, bars: _PoolBars, gas_gwei: FloatBars, native_usd_micros: int | None,
    reserves: Reserves | None,
) -> Market:  # fmt: skip
    if native_usd_micros is None:
        native_usd_micros = NATIVE_USD_MICROS_BY_CHAIN.get(chain, NATIVE_USD_MICROS_DEFAULT)
    return Market(
        name=f"{chain}-{address}",
        chain=chain,
        protocol="uniswap_v3",
        pair="WETH/USDC",
        pool=address,
        fee_ppm=FEE_PPM_BY_POOL.get(address, FEE_PPM_DEFAULT),
        native_usd_micros=native_usd_micros,
        at_us=bars.at_us,
        price=price_of_tick(bars.close),
        price_low=price_of_tick(
            np.maximum(bars.highest, bars.close)
        ),  # token0 is the dollar: a higher tick is a lower price
        price_high=price_of_tick(np.minimum(bars.lowest, bars.close)),
        tick=bars.close.astype(np.int32),
        volume_usd_micros=bars.volume_usd_micros,
        liquidity=bars.liquidity,
        gas_gwei=gas_gwei,
        reserves=reserves,
    )


def _skipped(folder: Path, sorting: _Sorting, chain: str) -> tuple[tuple[str, str], ...]:
    others = [(path, f"another pool ({'-'.join(key)})") for key, paths in sorting.pools.items() for path in paths]
    gas = [(path, f"gas of {name}; the pool is on {chain}") for name, paths in sorting.gas.items() for path in paths]
    unused = "Aave rates, which are read only for golems that may borrow"
    rates = [(path, unused) for paths in sorting.rates.values() for path in paths]
    skipped = [*sorting.skipped, *others, *gas, *rates]
    return tuple(sorted((str(path.relative_to(folder)), why) for path, why in skipped))
