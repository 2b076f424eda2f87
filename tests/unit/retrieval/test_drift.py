"""Drift: recorded vectors are the reference, the worst measure decides, and the bands are those of the documents."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bardo_pipeline.policy import EmbeddingPolicy
from bardo_pipeline.retrieval.embedder_drift import PPM, REFERENCE_TEXTS, drift_of, norm_variance_of
from bardo_pipeline.retrieval.embedder_interface import text_hash, unit

POLICY = EmbeddingPolicy()


def vectors(seed: int = 3, texts: int = 20, dimension: int = 64) -> NDArray[np.float32]:
    return unit(np.random.default_rng(seed).normal(size=(texts, dimension)))


def turned(recorded: NDArray[np.float32], distance: float, which: int = 0) -> NDArray[np.float32]:
    """Return the same vectors, one of them rotated by a cosine distance."""
    out = recorded.astype(np.float64)
    aside = np.random.default_rng(9).normal(size=recorded.shape[1])
    aside -= (aside @ out[which]) * out[which]
    aside /= np.linalg.norm(aside)
    cosine = 1.0 - distance
    out[which] = cosine * out[which] + np.sqrt(1.0 - cosine**2) * aside
    return out.astype(np.float32)


def judged(today: NDArray[np.float32], *, norm: int = 500_000, first: int | None = 500_000) -> tuple[str, int]:
    drift = drift_of(vectors(), today, norm_variance_ppm=norm, norm_first_ppm=first, policy=POLICY)
    return drift.verdict, len(drift.says)


@pytest.mark.row("MEM-12")
@pytest.mark.parametrize(
    ("distance", "verdict"), [(0.0, "healthy"), (0.019, "healthy"), (0.03, "warning"), (0.049, "warning"),
                              (0.051, "critical"), (1.5, "critical")],
)  # fmt: skip
def test_the_largest_distance_of_one_text_decides_the_verdict(distance: float, verdict: str) -> None:
    assert judged(turned(vectors(), distance, which=7))[0] == verdict


@pytest.mark.row("MEM-12")
@pytest.mark.parametrize(
    ("swapped", "verdict"), [(0, "healthy"), (3, "healthy"), (6, "warning"), (8, "warning"), (12, "critical")]
)
def test_the_share_of_kept_neighbours_decides_the_verdict(swapped: int, verdict: str) -> None:
    recorded = vectors()
    today = recorded.copy()
    for at in range(swapped):  # these vectors are swapped with their most distant vectors
        today[at] = -recorded[at]
    loose = EmbeddingPolicy(distance_warning=1.0, distance_critical=1.0)
    policy = loose.model_copy(update={"distance_warning": 3.0, "distance_critical": 3.0})
    drift = drift_of(recorded, today, norm_variance_ppm=1, norm_first_ppm=1, policy=policy)
    assert drift.verdict == verdict, drift
    assert drift.neighbours_ppm <= PPM - swapped * PPM // 20 + PPM // 10


@pytest.mark.row("MEM-12")
def test_five_neighbours_are_compared() -> None:
    recorded = vectors()
    cosine = recorded @ recorded.T
    np.fill_diagonal(cosine, -2.0)
    # each vector takes the place of its nearest neighbour, which stays its nearest
    today = recorded[np.argmax(cosine, axis=1)]
    drift = drift_of(recorded, today, norm_variance_ppm=1, norm_first_ppm=1, policy=POLICY)
    assert PPM // 5 <= drift.neighbours_ppm < PPM * 4 // 5


@pytest.mark.row("MEM-12")
@pytest.mark.parametrize(
    ("norm", "verdict"), [(500_000, "healthy"), (900_000, "healthy"), (1_000_100, "warning"), (3_000_000, "critical"),
                          (100_000, "critical"), (-1, "critical")],
)  # fmt: skip
def test_a_norm_variance_far_from_the_first_check_is_drift(norm: int, verdict: str) -> None:
    assert judged(vectors(), norm=norm)[0] == verdict


@pytest.mark.row("MEM-12")
def test_the_first_check_sets_the_reference_norm_variance() -> None:
    drift = drift_of(vectors(), vectors(), norm_variance_ppm=7, norm_first_ppm=None, policy=POLICY)
    assert (drift.verdict, drift.norm_first_ppm, drift.distance_max_ppm, drift.says) == ("healthy", 7, 0, ())
    assert drift.neighbours_ppm == PPM


@pytest.mark.row("MEM-12")
def test_a_model_that_returns_nan_is_critical() -> None:
    today = vectors()
    today[4] = np.nan
    drift = drift_of(vectors(), today, norm_variance_ppm=-1, norm_first_ppm=5, policy=POLICY)
    assert (drift.verdict, drift.distance_max_ppm) == ("critical", 2 * PPM)
    assert norm_variance_of(np.array([[1.0, np.nan], [1.0, 2.0]])) == -1


@given(st.integers(0, 2**32 - 1), st.floats(0.0, 1.0))
def test_exactly_the_measures_outside_their_bands_are_reported(seed: int, share: float) -> None:
    recorded = vectors(seed)
    noise = np.random.default_rng(seed + 1).normal(size=recorded.shape) * share
    drift = drift_of(recorded, unit(recorded + noise), norm_variance_ppm=9, norm_first_ppm=9, policy=POLICY)
    assert (drift.verdict == "healthy") == (not drift.says)
    assert 0 <= drift.distance_mean_ppm <= drift.distance_max_ppm <= 2 * PPM
    assert 0 <= drift.neighbours_ppm <= PPM
    far = drift.distance_max_ppm >= POLICY.distance_warning * PPM
    assert any("away from its own" in say for say in drift.says) == far


def test_there_are_twenty_different_reference_texts() -> None:
    assert len({text_hash(text) for text in REFERENCE_TEXTS}) == 20
