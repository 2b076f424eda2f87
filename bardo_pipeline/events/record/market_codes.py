"""Market of each record as a code. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.events.record.arrow_columns import contiguous
from bardo_pipeline.events.record.model import NO_MARKET

Market = tuple[str, str, str]
"""Chain, protocol, pair."""

MarketCodes = tuple[Int64Array, list[Market]]
"""Market of each record as a code, and the markets by code."""


def market_codes(records: pa.Table) -> MarketCodes:
    """Return the markets of records."""
    observation = contiguous(records.column("observation"))
    parts = [pc.struct_field(observation, n).dictionary_encode() for n in ("chain", "protocol", "pair")]
    codes = [part.indices.to_numpy(zero_copy_only=False).astype(np.int64) for part in parts]
    words = [part.dictionary.to_pylist() for part in parts]
    packed = (codes[0] * len(words[1]) + codes[1]) * len(words[2]) + codes[2]
    distinct = pa.array(packed).dictionary_encode()
    at = np.unravel_index(distinct.dictionary.to_numpy(), [max(len(names), 1) for names in words])
    markets = [(words[0][c], words[1][p], words[2][q]) for c, p, q in zip(*at, strict=True)]
    return distinct.indices.to_numpy(zero_copy_only=False), markets


def has_market(records: pa.Table) -> BoolArray:
    """Return which records observe a market; a runtime without one records NO_MARKET."""
    market = pc.struct_field(contiguous(records.column("observation")), "market")
    return np.asarray(pc.not_equal(market, NO_MARKET), np.bool_)
