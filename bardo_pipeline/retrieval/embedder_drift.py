"""Drift: how far a model has moved from the vectors that it gave before. Pure.

An index compares vectors made at different times, so a model that gives others today makes every answer a little wrong
without an error. Three measures over the reference texts, each with its bands; the worst of them is the verdict.
Source: MEM (drift detection); canon 57 (60-85 % of the neighbours is a warning).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bardo_pipeline.policy import EmbeddingPolicy

Verdict = Literal["healthy", "warning", "critical"]
VERDICTS: tuple[Verdict, ...] = ("healthy", "warning", "critical")
PPM = 1_000_000
_FAR = 2.0  # the distance of opposites, and of what is no vector


@dataclass(frozen=True)
class Drift:
    """What a check found, in parts per million.

    texts: how many were compared. distance_mean_ppm, distance_max_ppm: cosine distance of today's vector from the one
    on record, in [0, 2 million]. neighbours_ppm: share of each text's nearest that are still its nearest when it is
    asked for by today's vector. norm_variance_ppm: variance of the lengths that the model gives; norm_first_ppm: the
    one of the first check. says: the measures that left their healthy band, each with its figure.
    """

    texts: int
    distance_mean_ppm: int
    distance_max_ppm: int
    neighbours_ppm: int
    norm_variance_ppm: int
    norm_first_ppm: int
    verdict: Verdict
    says: tuple[str, ...]


def drift_of(
    recorded: NDArray[np.float32],
    today: NDArray[np.float32],
    *,
    norm_variance_ppm: int,
    norm_first_ppm: int | None,
    policy: EmbeddingPolicy,
) -> Drift:
    """Compare today's vectors with those on record, text by text.

    recorded, today: float32 [texts, dimension], rows of L2 norm 1; a row with NaN in it is as far as can be.
    norm_first_ppm: None at the first check, which is then the measure of later ones.
    """
    distance = _distances(recorded, today)
    kept = _neighbours_kept(recorded, today, policy.neighbour_count)
    first = norm_variance_ppm if norm_first_ppm is None else norm_first_ppm
    mean, most = (round(float(x) * PPM) for x in (distance.mean(), distance.max()))
    ratio = _ratio(norm_variance_ppm, first)
    judged: list[tuple[Verdict, str]] = [
        (
            _above(most / PPM, policy.distance_warning, policy.distance_critical),
            f"a vector is {most / PPM:.4f} away from its own on record",
        ),
        (
            _below(kept, policy.neighbours_warning * PPM, policy.neighbours_critical * PPM),
            f"{kept / PPM:.0%} of the nearest texts are still the nearest",
        ),
        (
            _above(ratio, policy.norm_variance_warning, policy.norm_variance_critical),
            f"the lengths vary {ratio:.1f} times as much or as little as at first",
        ),
    ]
    verdict = max((v for v, _ in judged), key=VERDICTS.index)
    says = tuple(said for v, said in judged if v != "healthy")
    return Drift(len(recorded), mean, most, kept, norm_variance_ppm, first, verdict, says)


def norm_variance_of(raw: NDArray[np.float64]) -> int:
    """Variance of the lengths of vectors as a model gives them, in ppm; -1 where one is not finite."""
    lengths = np.linalg.norm(raw, axis=1)
    return round(float(np.var(lengths)) * PPM) if np.isfinite(lengths).all() else -1


def _distances(recorded: NDArray[np.float32], today: NDArray[np.float32]) -> NDArray[np.float64]:
    cosine = np.einsum("ij,ij->i", recorded.astype(np.float64), today.astype(np.float64))
    return np.where(np.isfinite(cosine), np.clip(1.0 - cosine, 0.0, _FAR), _FAR)


def _neighbours_kept(recorded: NDArray[np.float32], today: NDArray[np.float32], count: int) -> int:
    """Ppm of the nearest recorded texts of each recorded one that its vector of today finds, too; itself left out."""
    count = min(count, len(recorded) - 1)
    if count < 1:
        return PPM
    before, after = (_nearest(asked, recorded, count) for asked in (recorded, today))
    kept = sum(len(set(one) & set(other)) for one, other in zip(before.tolist(), after.tolist(), strict=True))
    return kept * PPM // (count * len(recorded))


def _nearest(asked: NDArray[np.float32], held: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    cosine = np.nan_to_num(asked.astype(np.float64) @ held.astype(np.float64).T, nan=-_FAR)
    np.fill_diagonal(cosine, -_FAR)
    return np.argsort(-cosine, axis=1, kind="stable")[:, :count]


def _ratio(now: int, first: int) -> float:
    """How many times more, or less, something varies: 1 or above; without bound where one of them is no number."""
    if now < 0 or first < 0:
        return float("inf")
    return max((now + 1) / (first + 1), (first + 1) / (now + 1))


def _above(value: float, warning: float, critical: float) -> Verdict:
    if value > critical:
        return "critical"
    return "warning" if value >= warning else "healthy"


def _below(value: float, warning: float, critical: float) -> Verdict:
    if value < critical:
        return "critical"
    return "warning" if value < warning else "healthy"
