"""Computes the four factors of a retrieval score: semantic, recency, importance, affect. Pure, elementwise.

Recall in the heartbeat and queries of a grimoire share these formulas.
Source: MEM (four-factor retrieval), KAT (retrieval in the heartbeat), HB S3, canon 15, 21, 22.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.grimoire.confidence import DAY_US, FOREVER_US, PPM
from bardo_pipeline.grimoire.entries import BASELINE_METRICS
from bardo_pipeline.policy import RetrievalPolicy

Floats = NDArray[np.floating[Any]]

FACTORS = ("semantic", "recency", "importance", "affect")
"""The four factors, in the order of their weights in RetrievalPolicy."""

LAYERS = ("vault", "clade", "lethe", "marketplace")
"""Origin of an entry relative to the asking golem: L0 to L3 (MEM, Styx layers)."""

VAULT, CLADE, LETHE, MARKETPLACE = range(4)

LAYER_OF_PROVENANCE = {
    **dict.fromkeys(("self", "death_testament", "archive", "import", "replicant", "dream_counterfactual"), VAULT),
    "clade_sibling": CLADE,
    "lethe": LETHE,
    "marketplace": MARKETPLACE,
}
"""Layer of each provenance; data of the golem and its owner are in the vault (MEM, canon 3)."""


def weights_of(policy: RetrievalPolicy) -> Float64Array:
    """Return the weights of FACTORS."""
    return np.array([getattr(policy, name) for name in FACTORS])


def contributions(factors: Floats, awake: Floats | float, policy: RetrievalPolicy) -> Int64Array:
    """Return wakefulness x weight x factor in whole ppm [4, entries]; their sum over the factors is the score.

    factors: [4, entries] in the order of FACTORS. awake: weight of each entry's regime (`situation.regime_weights`).
    """
    parts: Int64Array = np.rint(factors * weights_of(policy)[:, None] * awake * PPM).astype(np.int64)
    return parts


def covered_share(levels: int | Int64Array) -> Float64Array:
    """Return the share of the baseline metrics that are known (KAT: semantic coverage). levels: known metrics."""
    share: Float64Array = np.asarray(levels) / len(BASELINE_METRICS)
    return share


def recency_half_life(half_life_us: Int64Array, policy: RetrievalPolicy) -> Float64Array:
    """Return the half-life of recency in microseconds; `structural_recency_days` for permanent entries (canon 21)."""
    half = half_life_us.astype(np.float64)
    half[half >= FOREVER_US] = policy.structural_recency_days * DAY_US
    return half


def recency(at_us: Int64Array | int, last_us: Int64Array, half_us: Floats) -> Float64Array:
    """Return 2^(-t/h) since the last access or validation; 1 if it is in the future (canon 21)."""
    fresh: Float64Array = np.exp2(-np.maximum(at_us - last_us, 0) / half_us)
    return fresh


def validation_ratio(held: Int64Array, failed: Int64Array) -> Float64Array:
    """Return the smoothed share of tests that confirmed an entry, in (0, 1]; 1 before any test (canon 15)."""
    ratio: Float64Array = (held + 1) / (held + failed + 1)
    return ratio


def importance(
    confidence_ppm: Floats | Int64Array, ratio: Floats, bloodstain: BoolArray, policy: RetrievalPolicy
) -> Float64Array:
    """Return confidence x validation ratio, boosted for bloodstains (canon 7, 15). Confidence is decayed to now."""
    worth: Float64Array = confidence_ppm / PPM * ratio * np.where(bloodstain, policy.bloodstain_boost, 1.0)
    return worth


def layer_discounts(policy: RetrievalPolicy) -> Float64Array:
    """Return the confidence multiplier of each layer, in the order of LAYERS (canon 22)."""
    return np.array([1.0, policy.layer_clade, policy.layer_lethe, policy.layer_marketplace])
