"""Selects the entries that may become public propositions, and writes their claims. Pure.

A claim is composed from an entry's structured columns, never copied from its text. It names the chain, protocol, pair,
regime, bands and the better side. It contains no golem, position, size, threshold, time or profit.
Source: KAT (Lethe), canon 44.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.events.record.arrow_columns import contiguous
from bardo_pipeline.grimoire.entry_columns import int_column, to_bools
from bardo_pipeline.grimoire.entry_text import ACTION_WORDS, GAS_WORDS, REGIME_WORDS
from bardo_pipeline.grimoire.gas_bands import split_by_band

PUBLIC_METRICS = ("gas_price", "pool_volume")
"""Baselines that are readable from the chain. Slippage and gas cost stay private, because they were measured on the
golem's own trades and slippage grows with their size."""

PUBLIC_CHOICES = ("add_liquidity", "remove_liquidity")
"""Choices that state no parameter: entering and leaving. A half-width is a parameter of a strategy (canon 44)."""

RANGE_WORDS = {
    "calm": "a range that price is well inside",
    "stirred": "a range whose centre price has left",
    "strained": "a range at whose edge price stands",
    "stretched": "a range that price has just left",
    "broken": "a range that price has left far behind",
}
"""Words for the price's position relative to the range, by anomaly band."""

_STEPS = np.array([0] + [m * 10**e for e in range(8) for m in (1, 2, 5)], dtype=np.int64)
"""Band edges of published levels: 1, 2, 5, 10, ... in the metric's unit. Golems with similar levels therefore make the
same claim."""

LEVEL_STEPS = len(_STEPS)
"""Number of bands of published levels."""

_PARTS = "source", "domain", "chain", "protocol", "pair", "action_type", "regime", "anomaly_band", "gas_band", "metric"


def proposition_id(domain: str, claim: str) -> str:
    """SHA-256 of domain and claim, 16 hex characters (KAT, canon 48)."""
    return hashlib.sha256((domain + claim).encode()).hexdigest()[:16]


def is_public(entries: pa.Table) -> BoolArray:
    """Mark the rows that become propositions: active patterns and public choices with a sign, public baselines."""
    acts = pc.is_in(entries.column("action_type"), value_set=pa.array(PUBLIC_CHOICES))
    choice = pc.and_(pc.equal(entries.column("source"), "choice"), acts)
    rule = pc.or_(pc.equal(entries.column("source"), "pattern"), choice)
    rule = pc.and_(rule, pc.not_equal(entries.column("sign"), 0))
    measured = pc.is_in(entries.column("metric"), value_set=pa.array(PUBLIC_METRICS))
    level = pc.and_(pc.equal(entries.column("source"), "baseline"), measured)
    return to_bools(pc.and_(pc.equal(entries.column("status"), "active"), pc.or_(rule, level)))


def level_steps(levels: Int64Array) -> Int64Array:
    """Return the index of the 1-2-5 band of each level; levels of one band share their wording."""
    return np.searchsorted(_STEPS, np.maximum(levels, 0), side="right") - 1


def with_claims(entries: pa.Table) -> pa.Table:
    """Return the rows that become propositions, with the additional columns proposition_id, question_id and claim.

    entries: rows of ENTRY_SCHEMA or DECISION_SCHEMA. Golems with the same rule make the same claim, because the claim
    leaves out the effect size, and because a rule generalized over several bands makes one claim per band. Claims of
    one question exclude each other: the bands of one level. Another claim is its own question.
    """
    entries = split_by_band(entries.filter(pa.array(is_public(entries))))
    sign, level = int_column(entries, "sign"), to_bools(pc.equal(entries.column("source"), "baseline"))
    step = np.where(level, level_steps(int_column(entries, "effect_mean_ppm")), 0)
    structure = contiguous(entries["structure"]).dictionary_encode().indices.to_numpy().astype(np.int64)
    claim_codes = (structure * 3 + sign + 1) * len(_STEPS) + step
    _, first, inverse = np.unique(claim_codes, return_index=True, return_inverse=True)
    parts = entries.select(_PARTS).take(pa.array(first)).to_pylist()
    sides = zip(parts, sign[first].tolist(), step[first].tolist(), strict=True)
    claims = [claim_of(part, sign, step) for part, sign, step in sides]
    ids = [proposition_id(part["domain"], claim) for part, claim in zip(parts, claims, strict=True)]
    asked = [
        proposition_id(part["domain"], question_of(part)) if part["source"] == "baseline" else own_id
        for part, own_id in zip(parts, ids, strict=True)
    ]
    claim_index = pa.array(inverse)
    entries = entries.append_column("proposition_id", pa.array(ids, pa.string()).take(claim_index))
    entries = entries.append_column("question_id", pa.array(asked, pa.string()).take(claim_index))
    return entries.append_column("claim", pa.array(claims, pa.string()).take(claim_index))


def claim_of(part: dict[str, str], sign: int, step: int) -> str:
    """Return the claim of a structure, its sign, and (for baselines) the 1-2-5 band of its level."""
    place = f"On {part['chain']}, {part['protocol']} {part['pair']}"
    if part["source"] == "baseline":
        low, high = int(_STEPS[step]), int(_STEPS[min(step + 1, len(_STEPS) - 1)])
        if part["metric"] == "gas_price":
            return f"{place}: gas usually costs {low / 1000:g} to {high / 1000:g} gwei."
        return f"{place}: {low:,} to {high:,} dollars usually trade between two looks."
    if part["source"] == "choice":
        where = f"in {REGIME_WORDS[part['regime']]}" if part["regime"] else "in any market"
        act, verdict = ACTION_WORDS[part["action_type"]], "beats" if sign > 0 else "loses to"
        return f"{place}: {where}, {act} {verdict} staying as it is."
    scene = f"in {REGIME_WORDS[part['regime']]}, with {GAS_WORDS[part['gas_band']]}"
    act = f"{ACTION_WORDS.get(part['action_type'], part['action_type'])} {RANGE_WORDS[part['anomaly_band']]}"
    return f"{place}: {scene}, {act} {'beats' if sign > 0 else 'loses to'} holding."


def question_of(part: dict[str, str]) -> str:
    """Return the question that all bands of a level answer."""
    return f"On {part['chain']}, {part['protocol']} {part['pair']}: the level of {part['metric']}."
