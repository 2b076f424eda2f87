"""Boundaries between tiers: Beta distributions, sampled at each tick by recorded seeds. Pure, over columns.

Source: HB S5 (Thompson sampling of thresholds, PAD modulation); canon 29.
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.arrays import Float64Array, Int64Array, UInt64Array
from bardo_pipeline.heartbeat.fleet import prior_boundaries
from bardo_pipeline.mortality.random_streams import DRAWS, STREAM_BOUNDARY, uniform_of, words
from bardo_pipeline.policy import GatingPolicy

_ATTEMPTS = 8
"""Attempts of the rejection sampler, of which one in 20 fails; after the last, the draw is the mode."""


def sampled(
    seed: UInt64Array, tick: Int64Array, boundaries: Float64Array, stream: int = STREAM_BOUNDARY
) -> Float64Array:
    """Draw each boundary from its Beta distribution at these ticks.

    Parameters
    ----------
    seed : [golems]
    tick : [ticks, golems]
    boundaries : alpha and beta, 1 or more, [2, boundaries, golems]
    stream : of the first boundary; each has DRAWS

    Returns
    -------
    [ticks, boundaries, golems], in (0, 1)
    """
    first, word = stream + DRAWS * np.arange(boundaries.shape[1])[:, None], words(seed, tick)[:, None]
    gammas = [_gamma(shape, word, first + 3 * _ATTEMPTS * part) for part, shape in enumerate(boundaries)]
    return np.asarray(gammas[0] / (gammas[0] + gammas[1]))


def _gamma(shape: Float64Array, word: UInt64Array, stream: Int64Array) -> Float64Array:
    """Draw from gamma distributions of these shapes (Marsaglia and Tsang 2000), [ticks, boundaries, golems].

    word: of `words`, [ticks, 1, golems]. stream: the first of each boundary, [boundaries, 1].
    """
    size = len(word), *shape.shape
    all_words, streams = np.broadcast_to(word, size).reshape(-1), np.broadcast_to(stream, size).reshape(-1)
    width = np.broadcast_to(shape - 1.0 / 3.0, size).reshape(-1)
    out, is_open = width.copy(), np.arange(len(width))
    for attempt in range(_ATTEMPTS):
        d, own, at = width[is_open], all_words[is_open], streams[is_open] + 3 * attempt
        u, v, w = (1.0 - uniform_of(own, at + draw) for draw in range(3))
        normal = np.sqrt(-2.0 * np.log(u)) * np.cos(2.0 * np.pi * v)
        cube = (1.0 + normal / np.sqrt(9.0 * d)) ** 3
        safe = np.maximum(cube, 1e-300)
        taken = (cube > 0.0) & (np.log(w) < 0.5 * normal * normal + d * (1.0 - cube + np.log(safe)))
        out[is_open[taken]] = (d * cube)[taken]
        is_open = is_open[~taken]
        if not len(is_open):
            break
    return out.reshape(size)


def thresholds(
    drawn: Float64Array, arousal: Float64Array, dominance: Float64Array, rules: GatingPolicy
) -> Float64Array:
    """Return the thresholds of T2, T1 and T0, descending, [3, golems].

    Arousal above 0 lowers the drawn boundaries, dominance raises the thresholds, and low dominance lowers them.

    drawn: boundaries in descending order, [3, golems]
    """
    shifted = drawn * (1.0 - rules.arousal_shift * arousal.clip(0.0, 1.0))
    return (shifted + rules.dominance_shift * dominance).clip(rules.threshold_min, rules.threshold_max)


def after_verdicts(
    boundaries: Float64Array, needless: Int64Array, missed: Int64Array, rules: GatingPolicy
) -> Float64Array:
    """Return the boundaries after a delta: older evidence fades towards the prior, and new evidence counts.

    needless, missed : numbers of needless escalations and missed events by boundary, [boundaries, golems]
    """
    prior = prior_boundaries(rules, boundaries.shape[2])
    return np.asarray(prior + rules.boundary_memory * (boundaries - prior) + np.stack([needless, missed]))
