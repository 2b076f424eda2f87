"""Propositions: which entries can be said to strangers, and in which words. Pure.

A claim is written anew from an entry's structure, never cut out of its text: it names the chain, the protocol, the public
pair, the regime and bands in words, and which side won. It has no place for who learned it, a position, a size, a
threshold, a moment or a profit. Source: KAT (Lethe), canon 44.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.grimoire.columns import whole
from bardo_pipeline.grimoire.wording import ACTION_WORDS, GAS_WORDS, REGIME_WORDS

PUBLIC_METRICS = ("gas_price", "pool_volume")
"""Baselines that anyone can read off the chain. Slippage and gas cost were measured on the golem's own trades; the first
grows with their size, so both stay at home."""

RANGE_WORDS = {
    "calm": "a range that price is well inside",
    "stirred": "a range whose centre price has left",
    "strained": "a range at whose edge price stands",
    "stretched": "a range that price has just left",
    "broken": "a range that price has left far behind",
}

_STEPS = np.array([0] + [m * 10**e for e in range(8) for m in (1, 2, 5)], dtype=np.int64)
"""Edges of the bands in which a level is told: 1, 2, 5, 10, ... in the metric's unit."""

_WORDED = (
    "structure",
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


def is_public(entries: pa.Table) -> np.ndarray:
    """Which rows become propositions: active patterns that take a side, and baselines of public metrics. bool [rows]."""
    pattern = pc.and_(pc.equal(entries.column("source"), "pattern"), pc.not_equal(entries.column("sign"), 0))
    level = pc.and_(
        pc.equal(entries.column("source"), "baseline"),
        pc.is_in(entries.column("metric"), value_set=pa.array(PUBLIC_METRICS)),
    )
    active = pc.equal(entries.column("status"), "active")
    return pc.and_(active, pc.or_(pattern, level)).to_numpy(zero_copy_only=False).astype(bool)


def with_claims(entries: pa.Table) -> pa.Table:
    """The rows that become propositions, with two columns more: proposition_id and claim.

    entries: rows of ENTRY_SCHEMA or DECISION_SCHEMA. Golems that learned the same rule make the same claim.
    """
    entries = entries.filter(pa.array(is_public(entries)))
    structure = pc.dictionary_encode(entries.column("structure")).combine_chunks()
    if isinstance(structure, pa.ChunkedArray):
        structure = structure.chunk(0) if structure.num_chunks else pa.array([], pa.string()).dictionary_encode()
    codes = structure.indices.to_numpy().astype(np.int64)
    band = np.searchsorted(_STEPS, np.maximum(whole(entries, "effect_mean_ppm"), 0), side="right") - 1
    level = pc.equal(entries.column("source"), "baseline").to_numpy(zero_copy_only=False).astype(bool)
    parts = np.stack([codes, whole(entries, "sign"), np.where(level, band, 0)], axis=1)
    unique, first, inverse = np.unique(parts, axis=0, return_index=True, return_inverse=True)
    rows = entries.select(_WORDED).take(pa.array(first)).to_pylist()
    claims = [claim_of(row, int(sign), int(step)) for row, (_, sign, step) in zip(rows, unique.tolist(), strict=True)]
    ids = [proposition_id(row["domain"], claim) for row, claim in zip(rows, claims, strict=True)]
    take = pa.array(inverse.reshape(-1))
    entries = entries.append_column("proposition_id", pa.array(ids, pa.string()).take(take))
    return entries.append_column("claim", pa.array(claims, pa.string()).take(take))


def claim_of(row: dict[str, str | None], sign: int, band: int) -> str:
    """One sentence from a structure's parts, the side that won, and the band of a level (index into the 1-2-5 steps)."""
    place = f"On {row['chain']}, {row['protocol']} {row['pair']}"
    if row["source"] == "baseline":
        low, high = int(_STEPS[band]), int(_STEPS[min(band + 1, len(_STEPS) - 1)])
        if row["metric"] == "gas_price":
            return f"{place}: gas usually costs {low / 1000:g} to {high / 1000:g} gwei."
        return f"{place}: {low:,} to {high:,} dollars usually trade between two looks."
    act = ACTION_WORDS.get(row["action_type"] or "", row["action_type"])
    scene = f"in {REGIME_WORDS[row['regime'] or 'unknown']}, with {GAS_WORDS[row['gas_band'] or 'normal']}"
    side = "beats" if sign > 0 else "loses to"
    return f"{place}: {scene}, {act} {RANGE_WORDS[row['anomaly_band'] or 'calm']} {side} holding."
