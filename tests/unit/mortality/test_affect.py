"""Affect: appraisal, the octants, and the similarity of two moods."""

import numpy as np
import pytest
from numpy.typing import NDArray

from bardo_pipeline.events.record.model import EMOTIONS
from bardo_pipeline.mortality.affect import CONGRUENCE_UNFELT, appraise, emotion_codes, pad_congruence
from bardo_pipeline.policy import AffectPolicy, Policy

POLICY = Policy()
MEMORY = POLICY.affect.memory


def mood(*pad: float) -> NDArray[np.float64]:
    return np.array(pad)[:, None]


def after(
    before: NDArray[np.float64], change: float = 0.0, error: float = 0.15, held: float = np.nan, policy: Policy = POLICY
) -> list[float]:
    """Return the mood after a tick at threshold 0.3; an error of half the threshold keeps arousal."""
    pad = appraise(before, np.array([change]), np.array([error]), np.array([0.3]), np.array([held]), policy)
    return [float(part) for part in pad[:, 0]]


@pytest.mark.row("HB-28")
def test_an_uneventful_tick_decays_the_mood() -> None:
    assert after(mood(0.4, -0.2, 0.1)) == pytest.approx([0.4 * MEMORY, -0.2 * MEMORY, 0.1 * MEMORY])


@pytest.mark.row("HB-28")
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_pleasure_follows_the_change_of_value(sign: float) -> None:
    assert after(mood(0.0, 0.0, 0.0), change=sign * 0.005) == pytest.approx([sign * 0.2, 0.0, 0.0])


@pytest.mark.row("HB-28")
def test_arousal_rises_with_surprise_and_falls_without() -> None:
    assert after(mood(0.0, 0.0, 0.0), error=0.65) == pytest.approx([0.0, 0.4, 0.0])
    assert after(mood(0.0, 0.0, 0.0), error=0.0) == pytest.approx([0.0, -0.12, 0.0])


@pytest.mark.row("HB-28")
def test_dominance_follows_the_predictions_that_held() -> None:
    assert after(mood(0.0, 0.0, 0.0), held=1.0) == pytest.approx([0.0, 0.0, 0.09])
    assert after(mood(0.0, 0.0, 0.0), held=0.0) == pytest.approx([0.0, 0.0, -0.21])
    assert after(mood(0.0, 0.0, 0.0), held=0.7) == pytest.approx([0.0, 0.0, 0.0])


@pytest.mark.row("HB-28")
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_every_dimension_of_a_mood_stays_within_its_limits(sign: float) -> None:
    pad = after(mood(sign, sign, sign), change=sign * 0.9, error=1.0 if sign > 0 else -9.0, held=sign * 9.0)
    assert pad == [sign, sign, sign]


@pytest.mark.row("HB-28")
def test_appraise_applies_the_gains_of_the_policy() -> None:
    policy = Policy(affect=AffectPolicy(memory=0.0, pleasure_gain=1.0, arousal_pivot=1.0))
    assert after(mood(1.0, 1.0, 1.0), change=0.1, error=0.3, policy=policy) == pytest.approx([0.1, 0.0, 0.0])


def test_appraise_does_not_change_its_input() -> None:
    before = mood(0.4, -0.2, 0.1)
    after(before, change=0.1)
    assert before[:, 0].tolist() == [0.4, -0.2, 0.1]


@pytest.mark.row("HB-28")
@pytest.mark.parametrize(
    ("signs", "emotion"),
    [
        ((+1, +1, +1), "joy"),
        ((+1, +1, -1), "surprise"),
        ((+1, -1, +1), "trust"),
        ((+1, -1, -1), "anticipation"),
        ((-1, +1, +1), "anger"),
        ((-1, +1, -1), "fear"),
        ((-1, -1, +1), "disgust"),
        ((-1, -1, -1), "sadness"),
    ],
)
def test_each_octant_has_its_emotion(signs: tuple[int, int, int], emotion: str) -> None:
    for size in (1e-9, 0.3, 1.0):
        assert EMOTIONS[emotion_codes(mood(*(sign * size for sign in signs)))[0]] == emotion


@pytest.mark.row("HB-28")
def test_zero_counts_as_positive() -> None:
    pads = np.array([[0.0, -0.0, -0.1], [0.0, -0.0, 0.0], [0.0, -0.0, 0.0]])
    assert [EMOTIONS[code] for code in emotion_codes(pads)] == ["joy", "joy", "anger"]


def test_congruence_is_the_cosine_and_opposites_count_zero() -> None:
    anxious = mood(-0.5, 0.5, -0.5)
    others = np.array([[-0.5, 0.5, -0.5], [-0.1, 0.1, -0.1], [0.5, -0.5, 0.5], [0.5, 0.5, 0.0], [-0.5, 0.0, 0.0]]).T
    expected = [1.0, 1.0, 0.0, 0.0, 1 / np.sqrt(3)]
    np.testing.assert_allclose(pad_congruence(anxious, others), expected, rtol=1e-15, atol=1e-15)


def test_a_zero_mood_has_the_expected_congruence_of_a_random_mood() -> None:
    pads = mood(0.0, 0.0, 0.0), mood(0.3, -0.3, 0.3)
    assert pad_congruence(pads[0], pads[1])[0] == pad_congruence(pads[0], pads[0])[0] == CONGRUENCE_UNFELT
    # Archimedes: the cosine with a random direction in three dimensions is uniform in [-1, 1].
    cosines = np.linspace(-1.0, 1.0, 100_001)
    assert np.maximum(cosines, 0.0).mean() == pytest.approx(CONGRUENCE_UNFELT, abs=1e-4)
