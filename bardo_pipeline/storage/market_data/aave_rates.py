"""Aave v3 rates of the two tokens of a pool, from minute files of demeter-fetch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bardo_pipeline.errors import TraceError
from bardo_pipeline.market.market import ASSETS, FloatBars, IntBars, Reserves
from bardo_pipeline.storage.market_data.trace_csv import TraceFile, in_time_order, last_known, load_trace_file

RATE_COLUMNS = (
    "block_timestamp", "liquidity_rate", "stable_borrow_rate", "variable_borrow_rate", "liquidity_index",
    "variable_borrow_index",
)  # fmt: skip
RATE_NAME = re.compile(r"^(?P<chain>[a-z]+)-aave_v3-(?P<token>0x[0-9a-f]{40})-[^/]*\.minute\.csv$", re.IGNORECASE)

TOKENS = {
    "polygon": ("0x2791bca1f2de4661ed88a30c99a7a9449aa84174", "0x7ceb23fd6bc0add59e62ac25578270cff1b9f619"),
    "ethereum": ("0xa0b86991c6218b36c1d19d4a2e9eb0ce3606eb48", "0xc02aaa39b223fe8d0a0e5c4f27ead9083c756cc2"),
}
"""Token addresses by chain, in the order of ASSETS."""


@dataclass(frozen=True)
class _RateBars:
    name: str
    at_us: IntBars
    values: FloatBars


def read_reserves(
    folder: Path, files: dict[tuple[str, str], list[Path]], chain: str, at_us: IntBars
) -> tuple[tuple[str, ...], Reserves]:
    """Return the names of the read files and the reserves of both tokens at these minutes.

    A minute without rates gets the last known ones; the first minutes get the first known ones. Raises TraceError if a
    token has no file or a file is malformed.

    Parameters
    ----------
    files : by chain and token; read files are removed
    """
    read: tuple[str, ...] = ()
    columns = []
    for asset, token in zip(ASSETS, TOKENS.get(chain, ("",) * len(ASSETS)), strict=True):
        paths = files.pop((chain, token), [])
        if not paths:
            cure = f"put {chain}-aave_v3-{token or '<0xtoken>'}-<date>.minute.csv there, or run without loans"
            raise TraceError(str(folder), f"has no Aave rates of {asset} on {chain}; {cure}")
        parts = [_read(load_trace_file(folder, path, RATE_COLUMNS)) for path in paths]
        parts = in_time_order([part for part in parts if len(part.at_us)], RATE_COLUMNS[0])
        if not parts:
            raise TraceError(str(paths[0].relative_to(folder)), "has no minute below its header", line=1)
        read += tuple(part.name for part in parts)
        place = last_known(at_us, np.concatenate([part.at_us for part in parts]))
        columns.append(np.concatenate([part.values for part in parts], axis=1)[:, place])
    return read, Reserves(*np.stack(columns, axis=1))


def _read(table: TraceFile) -> _RateBars:
    at_us = table.minutes(RATE_COLUMNS[0])
    values = []
    for column, least in (("liquidity_index", 1.0), ("variable_borrow_index", 1.0), ("variable_borrow_rate", 0.0)):
        numbers = table.numbers(column)
        table.refuse(numbers < least, column, f"{{cell}} is below {least:.0f}")
        values.append(numbers)
    return _RateBars(table.name, at_us, np.stack(values))
