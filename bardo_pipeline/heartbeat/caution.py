"""Caution: how the priors that a golem retrieved move its threshold of re-centring. Pure, over columns.

Each prior about exactly the golem's situation counts with its importance: confidence times KAT's modifiers. A scar
speaks against acting, a proposition or a lesson for or against. Together they move the playbook's threshold towards the
edge of the anomaly band, all the way at a weight of one. A lesson of a dream is a staged revision of the playbook: it
moves the threshold by its confidence. Propositions and lessons give way to the golem's own rule about the situation.
Source: KAT (Retrieval in Heartbeat: Bayesian priors; the story of g-9b2d: advice, not control).
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.heartbeat.fleet import PRIORS
from bardo_pipeline.heartbeat.recall_table import Recall
from bardo_pipeline.heartbeat.recollection import Recollection
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.scoring import FACTORS

_SEMANTIC, _IMPORTANCE = FACTORS.index("semantic"), FACTORS.index("importance")
_HERE = 1.0 - 1e-9
"""Likeness of an entry about exactly the situation."""


def prior_weight(memory: Recollection | None, recall: Recall, size: int) -> Float64Array:
    """Return the weight of the retrieved priors for re-centring (negative: against) of each of `size` thinkers."""
    return _weights(memory, recall, size).sum(axis=0)


def lesson_weight(memory: Recollection | None, recall: Recall, size: int) -> Float64Array:
    """Return the part of the weight that lessons of dreams have."""
    return _weights(memory, recall, size)[2 * PRIORS :].sum(axis=0)


def _weights(memory: Recollection | None, recall: Recall, size: int) -> Float64Array:
    """Return the weight of each place of priors [3 x PRIORS, thinkers]."""
    if memory is None or not (memory.priors >= 0).any():
        return np.zeros((3 * PRIORS, size))
    has_rule = _is_about_acting(memory.recalled, memory.likeness, recall).any(axis=0)
    counts = _is_about_acting(memory.priors, memory.prior_factors[_SEMANTIC], recall)
    counts[PRIORS:] &= ~has_rule
    weight = np.minimum(memory.prior_factors[_IMPORTANCE], 1.0) * recall.sign[memory.priors]
    return np.where(counts, weight, 0.0)


def _is_about_acting(places: Int64Array, likeness: Float64Array, recall: Recall) -> BoolArray:
    """Return which places are of knowledge for or against re-centring in exactly the situation."""
    return (places >= 0) & (likeness >= _HERE) & recall.recentring[places] & (recall.sign[places] != 0)


def moved_threshold(threshold: Float64Array, weight: Float64Array, score: Float64Array, policy: Policy) -> Float64Array:
    """Move thresholds towards the upper edge of the score's anomaly band (negative weight) or the lower edge."""
    if not weight.any():
        return threshold
    edges = np.array(policy.curator.anomaly_edges)
    band = np.searchsorted(edges, score, side="right")
    upper, lower = np.append(edges, 1.0)[band], np.append(edges[0], edges)[band]
    raised = threshold + np.clip(-weight, 0.0, 1.0) * np.maximum(upper - threshold, 0.0)
    return raised - np.clip(weight, 0.0, 1.0) * np.maximum(threshold - lower, 0.0)
