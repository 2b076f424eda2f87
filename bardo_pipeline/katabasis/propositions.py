"""Propositions: which entries can be said to strangers, and in which words. Pure.

A claim is written anew from an entry's structure, never cut out of its text: it names the chain, the protocol, the
public pair, the regime and bands in words, and which side won. It has no place for who learned it, a position, a size,
a threshold, a moment or a profit. Source: KAT (Lethe), canon 44.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.grimoire.entry_columns import contiguous, int_column, to_bools
from bardo_pipeline.grimoire.entry_text import ACTION_WORDS, GAS_WORDS, REGIME_WORDS
from bardo_pipeline.grimoire.gas_bands import split_by_band

PUBLIC_METRICS = ("gas_price", "pool_volume")
"""Baselines that anyone can read off the chain. Slippage and gas cost were measured on the golem's own trades, and the
first grows with their size: both stay at home."""

RANGE_WORDS = {
    "calm": "a range that price is well inside",
    "stirred": "a range whose centre price has left",
    "strained": "a range at whose edge price stands",
    "stretched": "a range that price has just left",
    "broken": "a range that price has left far behind",
}
"""Where price stands to the range in question, by anomaly band."""

_STEPS = np.array([0] + [m * 10**e for e in range(8) for m in (1, 2, 5)], dtype=np.int64)
"""Edges of the bands in which a level is told: 1, 2, 5, 10, ... in the metric's unit. Golems that saw nearly the same
level then make the same claim."""

_PARTS = (
    "source",
    "domain",
    "chain",
    "protocol",
    "pair",
    "action_type",
    "regime",
    "anomaly_band",
    "gas_band",
    "metric",
)


def proposition_id(domain: str, claim: str) -> str:
    """SHA-256 of domain and claim, 16 hex characters (KAT, canon 48)."""
    return hashlib.sha256((domain + claim).encode()).hexdigest()[:16]


def is_public(entries: pa.Table) -> NDArray[np.bool_]:
    """Which rows become propositions: active patterns that take a side, and baselines of public metrics."""
    pattern = pc.and_(pc.equal(entries.column("source"), "pattern"), pc.not_equal(entries.column("sign"), 0))
    measured = pc.is_in(entries.column("metric"), value_set=pa.array(PUBLIC_METRICS))
    level = pc.and_(pc.equal(entries.column("source"), "baseline"), measured)
    return to_bools(pc.and_(pc.equal(entries.column("status"), "active"), pc.or_(pattern, level)))


def level_steps(levels: NDArray[np.int64]) -> NDArray[np.int64]:
    """In which of the 1-2-5 steps each level lies: what lies in one step is said in the same words."""
    return np.searchsorted(_STEPS, np.maximum(levels, 0), side="right") - 1


def with_claims(entries: pa.Table) -> pa.Table:
    """The rows that become propositions, with two columns more: proposition_id and claim.

    entries: rows of ENTRY_SCHEMA or DECISION_SCHEMA. Golems that learned the same rule make the same claim; the size of
    its effect is left out, so that they do even if they met it in different strength. A rule that stands for several
    makes the claim of each, so that they do even where one has folded it and another has not.
    """
    entries = split_by_band(entries.filter(pa.array(is_public(entries))))
    sign, level = int_column(entries, "sign"), to_bools(pc.equal(entries.column("source"), "baseline"))
    step = np.where(level, level_steps(int_column(entries, "effect_mean_ppm")), 0)
    alike = _alike([sign - sign.min(initial=0), step, *(_codes(entries.column(name)) for name in _PARTS)])
    _, first, inverse = np.unique(alike, return_index=True, return_inverse=True)
    parts = entries.select(_PARTS).take(pa.array(first)).to_pylist()
    sides = zip(parts, sign[first].tolist(), step[first].tolist(), strict=True)
    claims = [claim_of(part, sign, step) for part, sign, step in sides]
    ids = [proposition_id(part["domain"], claim) for part, claim in zip(parts, claims, strict=True)]
    place = pa.array(inverse)
    entries = entries.append_column("proposition_id", pa.array(ids, pa.string()).take(place))
    return entries.append_column("claim", pa.array(claims, pa.string()).take(place))


def _codes(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """A number from 0 for each value of a column, nulls among them."""
    indices = contiguous(column).dictionary_encode().indices
    return pc.add(pc.fill_null(indices.cast(pa.int64()), -1), 1).to_numpy()


def _alike(columns: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """A number for each row, the same for those that are alike in all of these columns of numbers from 0."""
    number, count = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        values = int(column.max(initial=0)) + 1
        if count * values >= 2**62:
            number = np.unique(number, return_inverse=True)[1]
            count = int(number.max(initial=0)) + 1
        number, count = number * values + column, count * values
    return number


def claim_of(part: dict[str, str], sign: int, step: int) -> str:
    """One sentence from a structure's parts, the side that won, and the band of a level (which of the 1-2-5 steps)."""
    place = f"On {part['chain']}, {part['protocol']} {part['pair']}"
    if part["source"] == "baseline":
        low, high = int(_STEPS[step]), int(_STEPS[min(step + 1, len(_STEPS) - 1)])
        if part["metric"] == "gas_price":
            return f"{place}: gas usually costs {low / 1000:g} to {high / 1000:g} gwei."
        return f"{place}: {low:,} to {high:,} dollars usually trade between two looks."
    scene = f"in {REGIME_WORDS[part['regime']]}, with {GAS_WORDS[part['gas_band']]}"
    act = f"{ACTION_WORDS.get(part['action_type'], part['action_type'])} {RANGE_WORDS[part['anomaly_band']]}"
    return f"{place}: {scene}, {act} {'beats' if sign > 0 else 'loses to'} holding."
