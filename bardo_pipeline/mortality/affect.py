"""Affect: how a golem feels about what happened to it. Pure, elementwise over golems.

Moods are PAD vectors, rows pleasure, arousal, dominance, each in [-1, 1]. Source: MEM; HB S6; canon 39.
"""

import numpy as np
from numpy.typing import NDArray

from bardo_pipeline.events.record.model import EMOTIONS
from bardo_pipeline.policy import Policy

Floats = NDArray[np.float64]
Codes = NDArray[np.int8]

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
"""Signs of pleasure, arousal and dominance, the Plutchik label of that octant, and Mehrabian's name of it."""

_EMOTION_OF_OCTANT = np.array(
    [EMOTIONS.index(_OCTANTS[p, a, d]) for p in (-1, +1) for a in (-1, +1) for d in (-1, +1)], dtype=np.int8
)

CONGRUENCE_UNFELT = 0.25
"""Congruence with a mood of length zero: the mean of max(cosine, 0) over all directions in three dimensions."""


def appraise(
    pad_before: Floats,
    value_change_share: Floats,
    prediction_error: Floats,
    threshold: Floats,
    held_share: Floats,
    policy: Policy,
) -> Floats:
    """The mood after this tick: what stays of the last one, moved by what happened, within [-1, 1]. float64 [3, N].

    Pleasure follows the change of net value (a share, signed). Arousal rises with surprise over half the threshold and
    falls below it. Dominance rises when more of the predictions resolved this tick held than the prior (0.7) expects,
    and falls when fewer did; held_share is NaN if none was resolved, and dominance then only fades.
    """
    rules = policy.affect
    mood = pad_before * rules.memory
    mood[0] += rules.pleasure_gain * value_change_share
    mood[1] += rules.arousal_gain * (prediction_error - rules.arousal_pivot * threshold)
    mood[2] += rules.dominance_gain * np.where(np.isnan(held_share), 0.0, held_share - policy.prediction.fitness_prior)
    return mood.clip(-1.0, 1.0, out=mood)


def emotion_codes(pad: Floats) -> Codes:
    """Position in EMOTIONS by the octant of the mood's signs, int8 [N]; zero counts as positive.

    Octants and their names are Mehrabian's temperaments; each is labelled with the nearest of Plutchik's eight:
    exuberant joy, dependent surprise, relaxed trust, docile anticipation, hostile anger, anxious fear, disdainful
    disgust, bored sadness.
    """
    positive = pad >= 0.0
    codes: Codes = _EMOTION_OF_OCTANT[positive[0] * 4 + positive[1] * 2 + positive[2]]
    return codes


def pad_congruence(pad_a: Floats, pad_b: Floats) -> Floats:
    """How alike two moods are, in [0, 1]: their cosine, negatives counting 0 (canon 21). [3, N] each, broadcast.

    A mood of length zero has no direction: it scores 0.25, what a random direction scores on average. So knowledge
    without a feeling stands before what was felt the other way and behind what was felt alike.
    """
    dot = pad_a[0] * pad_b[0] + pad_a[1] * pad_b[1] + pad_a[2] * pad_b[2]
    length = np.sqrt(_square_length(pad_a) * _square_length(pad_b))
    felt = length > 0.0
    cosine = dot / np.where(felt, length, 1.0)
    return np.where(felt, np.clip(cosine, 0.0, 1.0), CONGRUENCE_UNFELT)


def _square_length(pad: Floats) -> Floats:
    square: Floats = pad[0] * pad[0] + pad[1] * pad[1] + pad[2] * pad[2]
    return square
