"""Scoring: the factors by which knowledge is weighed against a question. Pure, elementwise over entries.

The heartbeat's recall and whoever asks a grimoire use the same formulas.
Source: MEM (four-factor retrieval), KAT (retrieval in the heartbeat), HB S3, canon 15, 21, 22.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bardo_pipeline.grimoire.confidence import DAY_US, FOREVER_US, PPM
from bardo_pipeline.policy import RetrievalPolicy

Floats = NDArray[np.floating[Any]]
Whole = NDArray[np.int64]
Truth = NDArray[np.bool_]

FACTORS = ("semantic", "recency", "importance", "affect")
"""The four factors, in the order of their weights in RetrievalPolicy."""

LAYERS = ("vault", "clade", "lethe", "marketplace")
"""Where an entry comes from to the one who asks: L0 to L3 (MEM, Styx layers)."""

VAULT, CLADE, LETHE, MARKETPLACE = range(4)

LAYER_OF_PROVENANCE = {
    "self": VAULT,
    "death_testament": VAULT,
    "archive": VAULT,
    "import": VAULT,
    "replicant": VAULT,
    "dream_counterfactual": VAULT,
    "clade_sibling": CLADE,
    "lethe": LETHE,
    "marketplace": MARKETPLACE,
}
"""The layer of what a golem holds itself: its own and its owner's data are the vault (MEM, canon 3)."""


def weights_of(policy: RetrievalPolicy) -> NDArray[np.float64]:
    """Weights of FACTORS, float64 [4]."""
    return np.array([getattr(policy, name) for name in FACTORS])


def recency_half_life(half_life_us: Whole, policy: RetrievalPolicy) -> NDArray[np.float64]:
    """Half-life of recency in microseconds: the entry's own, 14 days for what does not fade (canon 21)."""
    half = half_life_us.astype(np.float64)
    half[half >= FOREVER_US] = policy.structural_recency_days * DAY_US
    return half


def recency(at_us: Whole | int, last_us: Whole, half_us: Floats) -> NDArray[np.float64]:
    """2^(-t/h) since the last access or validation, 1 for one that is still to come; in (0, 1] (canon 21)."""
    fresh: NDArray[np.float64] = np.exp2(-np.maximum(at_us - last_us, 0) / half_us)
    return fresh


def validation_ratio(held: Whole, failed: Whole) -> NDArray[np.float64]:
    """How often what an entry says held when it was put to the test, in (0, 1]: 1 before any test (canon 15)."""
    ratio: NDArray[np.float64] = (held + 1) / (held + failed + 1)
    return ratio


def importance(
    confidence_ppm: Floats | Whole, ratio: Floats, bloodstain: Truth, policy: RetrievalPolicy
) -> NDArray[np.float64]:
    """Confidence x validation ratio, x 1.2 for bloodstains (canon 7, 15). confidence_ppm: at the moment of asking."""
    worth: NDArray[np.float64] = confidence_ppm / PPM * ratio * np.where(bloodstain, policy.bloodstain_boost, 1.0)
    return worth


def layer_discounts(policy: RetrievalPolicy) -> NDArray[np.float64]:
    """What the confidence of an entry counts by its layer, in the order of LAYERS (canon 22)."""
    return np.array([1.0, policy.layer_clade, policy.layer_lethe, policy.layer_marketplace])
