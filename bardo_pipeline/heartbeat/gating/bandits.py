"""Bandits of the event router: arms of thresholds, linear confidence bounds, and an epsilon-greedy baseline. Pure.

State and choices are columns over golems. Source: HB online learning (Thompson 1933; Li et al. 2010, LinUCB; Sutton and
Barto 2018, epsilon-greedy); canon 29, 31.
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int8Array, Int64Array, UInt64Array
from bardo_pipeline.heartbeat.gating.boundaries import sampled
from bardo_pipeline.mortality.random_streams import STREAM_ARMS, STREAM_SHADOW, uniform
from bardo_pipeline.policy import TriagePolicy


def best_arms(seed: UInt64Array, tick: Int64Array, shapes: Float64Array) -> Int64Array:
    """Draw each arm from its Beta distribution, and return the arm with the largest draw (Thompson sampling).

    Parameters
    ----------
    tick : [ticks, golems]
    shapes : alpha and beta, 1 or more, [2, regimes, arms, golems]

    Returns
    -------
    positions of arms, [ticks, regimes, golems]
    """
    regimes, arms, golems = shapes.shape[1:]
    drawn = sampled(seed, tick, shapes.reshape(2, regimes * arms, golems), STREAM_ARMS)
    return np.argmax(drawn.reshape(len(tick), regimes, arms, golems), axis=2)


def after_outcomes(
    shapes: Float64Array, useful: Float64Array, useless: Float64Array, rules: TriagePolicy
) -> Float64Array:
    """Return the arms after a delta: earlier evidence fades towards 1, and new evidence counts.

    useful, useless : numbers of outcomes by arm, [regimes, arms, golems]
    """
    return np.asarray(1.0 + rules.arm_memory * (shapes - 1.0) + np.stack([useful, useless]))


def upper_bounds(inverse: Float64Array, theta: Float64Array, context: Float64Array, alpha: float) -> Float64Array:
    """Return theta' x + alpha * sqrt(x' A^-1 x) of each arm, [arms, events]; NaN if the matrix is degenerate.

    Parameters
    ----------
    inverse : A^-1, [arms, features, features, events]
    theta : [arms, features, events]
    context : x, [features, events]
    """
    square = np.einsum("aijn,in,jn->an", inverse, context, context)
    with np.errstate(invalid="ignore"):
        return np.einsum("ain,in->an", theta, context) + alpha * np.sqrt(square)


def after_reward(
    inverse: Float64Array, theta: Float64Array, context: Float64Array, reward: Float64Array
) -> tuple[Float64Array, Float64Array]:
    """Return A^-1 and theta of one arm after a reward in this context (Sherman and Morrison 1950).

    Parameters
    ----------
    inverse : [features, features, golems]
    theta, context : [features, golems]
    reward : [golems]
    """
    moved = np.einsum("ijn,jn->in", inverse, context)
    gain = moved / (1.0 + (context * moved).sum(axis=0))
    return inverse - gain[:, None] * moved[None], theta + gain * (reward - (theta * context).sum(axis=0))


def greedy_routes(
    seed: UInt64Array, tick: Int64Array, mean: Float64Array, count: Float64Array, kinds: int, rules: TriagePolicy
) -> Int8Array:
    """Return the route of the epsilon-greedy baseline for each event, [kinds, golems].

    mean, count : mean reward and number of judged events by route, [routes, golems]
    """
    share = np.maximum(rules.epsilon_first * rules.epsilon_decay ** count.sum(axis=0), rules.epsilon_min)
    kind = 2 * np.arange(kinds)[:, None]
    explores: BoolArray = uniform(seed, tick, STREAM_SHADOW + kind) < share
    random = np.floor(uniform(seed, tick, STREAM_SHADOW + kind + 1) * len(mean))
    return np.where(explores, random, np.argmax(mean, axis=0)).astype(np.int8)
