"""Recorded market traces: minute CSV files of demeter-fetch, read into a Market.

Every error names file, line (the header is line 1) and column. The report lists skipped files with reasons.
"""

import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bardo_pipeline.clock import moment_at
from bardo_pipeline.errors import TraceError
from bardo_pipeline.market.market import ASSETS, FloatBars, IntBars, Market, Reserves, price_of_tick
from bardo_pipeline.storage.market_data.trace_csv import Bars, TraceFile, last_known, read_bars

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
TOKEN_PRICE_COLUMNS = ("block_timestamp", "price_usd")
RATE_COLUMNS = (
    "block_timestamp", "liquidity_rate", "stable_borrow_rate", "variable_borrow_rate", "liquidity_index",
    "variable_borrow_index",
)  # fmt: skip

POOL_NAME = re.compile(r"^(?P<chain>[a-z]+)-(?P<pool>0x[0-9a-f]{40})-[^/]*\.minute\.csv$", re.IGNORECASE)
GAS_NAME = re.compile(r"^(?P<chain>[a-z]+)-gas-[^/]*\.csv$", re.IGNORECASE)
TOKEN_PRICE_NAME = re.compile(r"^(?P<chain>[a-z]+)-native-[^/]*\.csv$", re.IGNORECASE)
RATE_NAME = re.compile(r"^(?P<chain>[a-z]+)-aave_v3-(?P<token>0x[0-9a-f]{40})-[^/]*\.minute\.csv$", re.IGNORECASE)

TOKENS = {
    "polygon": ("0x2791bca1f2de4661ed88a30c99a7a9449aa84174", "0x7ceb23fd6bc0add59e62ac25578270cff1b9f619"),
    "ethereum": ("0xa0b86991c6218b36c1d19d4a2e9eb0ce3606eb48", "0xc02aaa39b223fe8d0a0e5c4f27ead9083c756cc2"),
}
"""Token addresses by chain, in the order of ASSETS."""

FEE_PPM_BY_POOL = {
    "0x45dda9cb7c25131df268515131f647d726f50608": 500,  # Polygon USDC/WETH
    "0x0e44ceb592acfc5d3f09d996302eb4c499ff8c10": 3_000,  # Polygon USDC/WETH
    "0x88e6a0c2ddd26feeb64f039a2c41296fcb3f5640": 500,  # Ethereum USDC/WETH
    "0x8ad599c3a0ff1de082011efddc58f1908eb6e6d8": 3_000,  # Ethereum USDC/WETH
    "0xe0554a476a092703abdb3ef35c80e0d76d32939f": 100,  # Ethereum USDC/WETH
}
FEE_PPM_DEFAULT = 500

ETHER_CHAINS = ("arbitrum", "base", "ethereum", "optimism")
"""Chains whose gas token is the WETH of the pool, so that the pool quotes it."""

NATIVE_USD_MICROS_BY_MONTH = {("polygon", 2023, 8): 650_000}
"""Recorded prices of gas tokens in micro-dollars, by chain, year and month of the bars: MATIC in August 2023.

They count for bars of that month only.
"""

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


@dataclass
class _Sorting:
    """The files of a folder by kind."""

    pools: dict[tuple[str, str], list[Path]] = field(default_factory=dict)
    gas: dict[str, list[Path]] = field(default_factory=dict)
    token_prices: dict[str, list[Path]] = field(default_factory=dict)
    rates: dict[tuple[str, str], list[Path]] = field(default_factory=dict)
    skipped: list[tuple[Path, str]] = field(default_factory=list)


def read_trace(
    folder: Path, *, native_usd_micros: int | None = None, pool: str | None = None, rates: bool = False
) -> tuple[Market, TraceReport]:
    """Read the minute bars of one pool and the gas prices of its chain from a folder, recursively.

    Parameters
    ----------
    folder : pool files `<chain>-<0xpool>-<date>.minute.csv`; gas files `<chain>-gas-….csv` with gas_price in gwei;
        optionally `<chain>-native-….csv` with price_usd, the price of the gas token in dollars
    native_usd_micros : price of the gas token in micro-dollars; None: that of the native file at the first bar, else
        the pool's first close on ETHER_CHAINS, else the recorded price of the month (NATIVE_USD_MICROS_BY_MONTH)
    pool : address of the pool, if the folder has several
    rates : also read Aave rates (`<chain>-aave_v3-<0xtoken>-<date>.minute.csv`) into reserves

    Raises
    ------
    TraceError : no folder, pool file, gas file, rates or price of the gas token; several pools and none named; a
        malformed file
    """
    if not folder.is_dir():
        raise TraceError(str(folder), "is not a folder; name one with demeter-fetch minute files")
    sorting = _sort_files(folder)
    chain, address = _choose_pool(folder, sorting, pool)
    pool_files, bars, liquidity_carried = _read_pool(folder, sorting.pools.pop((chain, address)))
    gas = _read_gas(folder, sorting, chain)
    place = last_known(bars.at_us, gas.at_us)
    price_files, recorded_price = _read_token_price(folder, sorting, chain, bars.at_us[:1])
    if native_usd_micros is None:
        native_usd_micros = _native_usd_micros(chain, bars) if recorded_price is None else recorded_price
    rate_files, reserves = _read_reserves(folder, sorting.rates, chain, bars.at_us) if rates else ((), None)
    market = _market(chain, address, bars, gas.columns["gwei"][place], native_usd_micros, reserves)
    close = bars.columns["close"]
    minutes_spanned = int(market.at_us[-1] - market.at_us[0]) // 60_000_000 + 1
    report = TraceReport(
        files_read=(*pool_files, *gas.names, *price_files, *rate_files),
        files_skipped=_skipped(folder, sorting, chain),
        bars=market.bars,
        gas_filled=int((gas.at_us[place] != bars.at_us).sum()),
        first_at=moment_at(int(market.at_us[0])),
        last_at=moment_at(int(market.at_us[-1])),
        liquidity_carried=liquidity_carried,
        minutes_missing=minutes_spanned - market.bars,
        extremes_widened=int(((close < bars.columns["lowest"]) | (close > bars.columns["highest"])).sum()),
    )
    return market, report


def _sort_files(folder: Path) -> _Sorting:
    sorting = _Sorting()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        if match := POOL_NAME.match(path.name):
            sorting.pools.setdefault((match["chain"].lower(), match["pool"].lower()), []).append(path)
        elif match := GAS_NAME.match(path.name):
            sorting.gas.setdefault(match["chain"].lower(), []).append(path)
        elif match := TOKEN_PRICE_NAME.match(path.name):
            sorting.token_prices.setdefault(match["chain"].lower(), []).append(path)
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
        return "a CSV file whose name is neither <chain>-<0xpool>-<date>.minute.csv nor <chain>-gas|native-<dates>.csv"
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
        cure = "name a folder with one pool with --trace, or name the pool with --pool (read_trace: pool=...)"
        raise TraceError(str(folder), f"holds {len(wanted)} pools ({names}); {cure}")
    return wanted[0]


def _pool_columns(table: TraceFile) -> dict[str, NDArray]:
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
    return {"close": close, "lowest": lowest, "highest": highest, "volume": micros, "liquidity": liquidity}


def _read_pool(folder: Path, paths: list[Path]) -> tuple[tuple[str, ...], Bars, int]:
    """Return the read files, the bars with the last positive liquidity, and the number of bars that had none."""
    bars = read_bars(folder, paths, POOL_COLUMNS, _pool_columns)
    names = [str(path.relative_to(folder)) for path in paths]
    liquidity = bars.columns["liquidity"]
    if liquidity[0] == 0:
        fact = "is zero and no earlier bar has a positive one to carry forward"
        raise TraceError(bars.names[0], fact, line=2, column="currentLiquidity")
    last_positive = np.maximum.accumulate(np.where(liquidity > 0, np.arange(len(liquidity)), 0))
    carried = Bars(bars.names, bars.at_us, bars.columns | {"liquidity": liquidity[last_positive]})
    empty = (name for name in names if name not in bars.names)
    return (*bars.names, *empty), carried, int((liquidity <= 0).sum())


def _gas_columns(table: TraceFile) -> dict[str, NDArray]:
    gwei = table.numbers("gas_price")
    table.refuse(gwei <= 0, "gas_price", "{cell} is not positive")
    return {"gwei": gwei}


def _read_gas(folder: Path, sorting: _Sorting, chain: str) -> Bars:
    cure = f"put a {chain}-gas-<dates>.csv with {','.join(GAS_COLUMNS)} beside the pool files"
    paths = sorting.gas.pop(chain, [])
    if not paths:
        raise TraceError(str(folder), f"holds no gas file of {chain}; {cure}")
    return read_bars(folder, paths, GAS_COLUMNS, _gas_columns)


def _token_price_columns(table: TraceFile) -> dict[str, NDArray]:
    dollars = table.numbers("price_usd")
    table.refuse((dollars < 1e-6) | (dollars > 1e9), "price_usd", "{cell} is no price in dollars")
    return {"micros": np.rint(dollars * 1e6)}


def _read_token_price(
    folder: Path, sorting: _Sorting, chain: str, first_at_us: IntBars
) -> tuple[tuple[str, ...], int | None]:
    """Return the read files and the gas token's price in micro-dollars at the first bar; None without a file."""
    paths = sorting.token_prices.pop(chain, [])
    if not paths:
        return (), None
    prices = read_bars(folder, paths, TOKEN_PRICE_COLUMNS, _token_price_columns)
    return prices.names, int(prices.columns["micros"][last_known(first_at_us, prices.at_us)][0])


def _rate_columns(table: TraceFile) -> dict[str, NDArray]:
    columns = {}
    for name, least in (("liquidity_index", 1.0), ("variable_borrow_index", 1.0), ("variable_borrow_rate", 0.0)):
        columns[name] = table.numbers(name)
        table.refuse(columns[name] < least, name, f"{{cell}} is below {least:.0f}")
    return columns


def _read_reserves(
    folder: Path, files: dict[tuple[str, str], list[Path]], chain: str, at_us: IntBars
) -> tuple[tuple[str, ...], Reserves]:
    """Return the names of the read files and the Aave reserves of both tokens at these minutes.

    A minute without rates gets the last known ones; the first minutes get the first known ones. Raises TraceError if a
    token has no file or a file is malformed. files: by chain and token; read files are removed.
    """
    read: tuple[str, ...] = ()
    reserves = []
    for asset, token in zip(ASSETS, TOKENS.get(chain, ("",) * len(ASSETS)), strict=True):
        paths = files.pop((chain, token), [])
        if not paths:
            cure = f"put {chain}-aave_v3-{token or '<0xtoken>'}-<date>.minute.csv there, or run without loans"
            raise TraceError(str(folder), f"has no Aave rates of {asset} on {chain}; {cure}")
        rates = read_bars(folder, paths, RATE_COLUMNS, _rate_columns)
        read += rates.names
        reserves.append(np.stack(list(rates.columns.values()))[:, last_known(at_us, rates.at_us)])
    return read, Reserves(*np.stack(reserves, axis=1))


def _market(
    chain: str, address: str, bars: Bars, gas_gwei: FloatBars, native_usd_micros: int,
    reserves: Reserves | None,
) -> Market:  # fmt: skip
    close = bars.columns["close"]
    return Market(
        name=f"{chain}-{address}",
        chain=chain,
        protocol="uniswap_v3",
        pair="WETH/USDC",
        pool=address,
        fee_ppm=FEE_PPM_BY_POOL.get(address, FEE_PPM_DEFAULT),
        native_usd_micros=native_usd_micros,
        at_us=bars.at_us,
        price=price_of_tick(close),
        # token0 is the dollar: a higher tick is a lower price
        price_low=price_of_tick(np.maximum(bars.columns["highest"], close)),
        price_high=price_of_tick(np.minimum(bars.columns["lowest"], close)),
        tick=close.astype(np.int32),
        volume_usd_micros=bars.columns["volume"],
        liquidity=bars.columns["liquidity"],
        gas_gwei=gas_gwei,
        reserves=reserves,
    )


def _native_usd_micros(chain: str, bars: Bars) -> int:
    """Return the price of the gas token at these bars, where pool or month state it. Raises TraceError otherwise."""
    if chain in ETHER_CHAINS:
        return round(float(price_of_tick(bars.columns["close"][:1])[0]) * 1e6)
    first, last = moment_at(int(bars.at_us[0])), moment_at(int(bars.at_us[-1]))
    known = {NATIVE_USD_MICROS_BY_MONTH.get((chain, at.year, at.month)) for at in (first, last)}
    price = known.pop()
    if price is None or known or last - first > timedelta(days=31):
        days = f"{first:%Y-%m-%d} to {last:%Y-%m-%d}"
        file = f"a {chain}-native-<dates>.csv with {','.join(TOKEN_PRICE_COLUMNS)}"
        cure = f"give --gas-token-price DOLLARS, or put {file} beside the pool files"
        raise TraceError(bars.names[0], f"states no price of the gas token of {chain} from {days}; {cure}")
    return price


def _skipped(folder: Path, sorting: _Sorting, chain: str) -> tuple[tuple[str, str], ...]:
    others = [(path, f"another pool ({'-'.join(key)})") for key, paths in sorting.pools.items() for path in paths]
    of_chains = [*sorting.gas.items(), *sorting.token_prices.items()]
    gas = [(path, f"gas of {name}; the pool is on {chain}") for name, paths in of_chains for path in paths]
    unused = "Aave rates, which are read only for golems that may borrow"
    rates = [(path, unused) for paths in sorting.rates.values() for path in paths]
    skipped = [*sorting.skipped, *others, *gas, *rates]
    return tuple(sorted((str(path.relative_to(folder)), why) for path, why in skipped))
