"""Affect: moods of golems, their update per tick, and their congruence. Pure, elementwise over golems.

Moods are PAD vectors, rows pleasure, arousal, dominance, each in [-1, 1]. Source: MEM; HB S6; canon 39.
"""

import numpy as np

from bardo_pipeline.arrays import Float64Array, Int8Array
from bardo_pipeline.events.record.model import EMOTIONS
from bardo_pipeline.policy import Policy

_OCTANTS = {
    (+1, +1, +1): "joy",  # exuberant
    (+1, +1, -1): "surprise",  # dependent
    (+1, -1, +1): "trust",  # relaxed
    (+1, -1, -1): "anticipation",  # docile
    (-1, +1, +1): "anger",  # hostile
    (-1, +1, -1): "fear",  # anxious
    (-1, -1, +1): "disgust",  # disdainful
    (-1, -1, -1): "sadness",  # bored
}
"""Plutchik label by signs of pleasure, arousal and dominance; the comment is Mehrabian's temperament."""

_EMOTION_OF_OCTANT = np.array(
    [EMOTIONS.index(_OCTANTS[p, a, d]) for p in (-1, +1) for a in (-1, +1) for d in (-1, +1)], dtype=np.int8
)

CONGRUENCE_UNFELT = 0.25
"""Congruence with a mood of length zero: the mean of max(cosine, 0) over all directions in three dimensions."""


def appraise(
    pad_before: Float64Array,
    value_change_share: Float64Array,
    prediction_error: Float64Array,
    threshold: Float64Array,
    held_share: Float64Array,
    policy: Policy,
) -> Float64Array:
    """Return the mood after this tick [3, N]: the decayed last mood plus gains, within [-1, 1].

    Pleasure follows the signed change of net value. Arousal rises with surprise above half the threshold and falls
    below it. Dominance rises if the share of resolved predictions that held exceeds the prior (0.7), and falls below
    it; it only decays if held_share is NaN (no prediction was resolved).
    """
    rules = policy.affect
    mood = pad_before * rules.memory
    mood[0] += rules.pleasure_gain * value_change_share
    mood[1] += rules.arousal_gain * (prediction_error - rules.arousal_pivot * threshold)
    mood[2] += rules.dominance_gain * np.where(np.isnan(held_share), 0.0, held_share - policy.prediction.fitness_prior)
    return mood.clip(-1.0, 1.0, out=mood)


def emotion_codes(pad: Float64Array) -> Int8Array:
    """Return positions in EMOTIONS by the octant of the mood's signs; zero counts as positive."""
    positive = pad >= 0.0
    return _EMOTION_OF_OCTANT[positive[0] * 4 + positive[1] * 2 + positive[2]]


def pad_congruence(pad_a: Float64Array, pad_b: Float64Array) -> Float64Array:
    """Return the cosine of two moods [3, N], negative values as 0 (canon 21).

    A mood of length zero scores 0.25, the mean score of a random direction. So knowledge without a mood ranks between
    knowledge of an opposite and of a similar mood.
    """
    dot = pad_a[0] * pad_b[0] + pad_a[1] * pad_b[1] + pad_a[2] * pad_b[2]
    length = np.sqrt(_square_length(pad_a) * _square_length(pad_b))
    felt = length > 0.0
    cosine = dot / np.where(felt, length, 1.0)
    return np.where(felt, np.clip(cosine, 0.0, 1.0), CONGRUENCE_UNFELT)


def _square_length(pad: Float64Array) -> Float64Array:
    return pad[0] * pad[0] + pad[1] * pad[1] + pad[2] * pad[2]
