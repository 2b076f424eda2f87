"""Weights of experts by their losses: discounted Hedge, or exponential weights. Pure, over columns.

The state is the sum of an expert's losses, discounted for Hedge: `w = w^0.99 * exp(-eta * loss)` (canon 30) is
`log w = -eta * losses` with `losses = 0.99 * losses + loss`. A sleeping expert neither counts nor changes.
Source: HB S5 (Herbster and Warmuth 1998); HB online learning (Freund and Schapire 1997); canon 30.
"""

from __future__ import annotations

import math

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.policy import GatingPolicy


def expert_weights(losses: Float64Array, rounds: Int64Array, rules: GatingPolicy) -> Float64Array:
    """Return the weights of experts, which sum to 1, [experts, golems].

    losses : sums of losses, [experts, golems]
    rounds : rounds so far, [golems]; the next one's eta is sqrt(ln N / t) for exponential weights
    """
    eta = learning_rate(len(losses), rounds, rules)
    powers = np.exp(eta * (losses.min(axis=0) - losses))
    return np.asarray(powers / powers.sum(axis=0))


def learning_rate(experts: int, rounds: Int64Array, rules: GatingPolicy) -> Float64Array | float:
    """Return eta of the next round: constant for Hedge, sqrt(ln N / t) for exponential weights."""
    return rules.eta if rules.combiner == "discounted" else np.sqrt(math.log(experts) / (rounds + 1))


def combined(weights: Float64Array, signals: Float64Array) -> Float64Array:
    """Return the mean of the signals by weight over experts that are awake, [golems]; NaN if all sleep."""
    awake = ~np.isnan(signals)
    total = np.where(awake, weights, 0.0).sum(axis=0)
    return np.asarray(np.where(awake, weights * signals, 0.0).sum(axis=0) / np.where(total > 0.0, total, np.nan))


def after_losses(losses: Float64Array, new: Float64Array, counts: BoolArray, rules: GatingPolicy) -> Float64Array:
    """Return the sums of losses after more rounds.

    losses : [experts, golems]
    new : losses in [0, 1] by round in order, [rounds, experts, golems]; NaN for a sleeping expert
    counts : rounds that took place, [rounds, golems]
    """
    kept = 1.0 if rules.combiner == "exponential" else rules.discount
    present = counts[:, None] & ~np.isnan(new)
    later = present[::-1].cumsum(axis=0)[::-1] - present
    return np.asarray(losses * kept ** present.sum(axis=0) + np.where(present, new * kept**later, 0.0).sum(axis=0))


def bounded(losses: Float64Array, rounds: Int64Array, rules: GatingPolicy) -> Float64Array:
    """Return the sums less the smallest one, so far that no weight is below `weight_ratio_min` of the heaviest.

    So the weights in a record restore the sums, and one burst of losses does not silence an expert.
    """
    furthest = -math.log(rules.weight_ratio_min) / learning_rate(len(losses), rounds, rules)
    return np.minimum(losses - losses.min(axis=0), furthest)


def expert_losses(signals: Float64Array, importance: Float64Array, rules: GatingPolicy) -> Float64Array:
    """Return each expert's loss: min(abs(signal - importance), 1), less for ticks without importance.

    Unimportant ticks are many times as frequent, so at equal losses the expert that never speaks would win.
    signals : [..., experts, golems]
    importance : in [0, 1], [..., golems]
    """
    weight = np.where(importance > 0.0, 1.0, rules.negative_weight)
    return np.minimum(np.abs(signals - importance[..., None, :]), 1.0) * weight[..., None, :]
