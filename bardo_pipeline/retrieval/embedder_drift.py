"""Measures how far an embedding model's vectors have drifted from its recorded vectors. Pure.

An index compares vectors made at different times, so a drifted model degrades every answer without raising an error.
The verdict is the worst of three measures over the reference texts.
Source: MEM (drift detection); canon 57 (60-85 % of the neighbours is a warning).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from bardo_pipeline.arrays import Float32Array, Float64Array, Int64Array
from bardo_pipeline.policy import EmbeddingPolicy

Verdict = Literal["healthy", "warning", "critical"]
VERDICTS: tuple[Verdict, ...] = ("healthy", "warning", "critical")
PPM = 1_000_000
_FAR = 2.0  # cosine distance of opposite vectors; also used for vectors with NaN

REFERENCE_TEXTS = (
    "In a volatile market with WETH/USDC on uniswap_v3, gas spiked and the golem re-centred the position.",
    "In a calm market with WETH/USDC on uniswap_v3, the position ran out of range and the golem held.",
    "In a falling trend with WETH/USDC, the price jumped and the golem left the market at a loss.",
    "In a rising trend with WBTC/USDC, liquidity moved and the golem opened a position that earned fees.",
    "Credits ran low; the golem put off collecting fees because gas was dear.",
    "Re-centring failed on inclusion: the slippage limit was reached.",
    "Re-centring pays when the anomaly score is above 0.9 and gas is usual.",
    "Re-centring harms in a calm market: holding would have been better by a third of a percent.",
    "The usual gas price on this chain lies between two and four cents a swap.",
    "Volume doubles in the hour before the price leaves the range.",
    "Never add liquidity to a pool whose depth fell by half within a day.",
    "When peers signal a threat, wait for two confirmations before acting.",
    "Its forecasts failed for fifty ticks: the model of the world no longer holds.",
    "What I suspect but cannot prove is that the pool's fees are worth less than the gas they cost.",
    "What should my successor find out about ranges that are twice as wide?",
    "Health factor of the lending position fell below 1.2; the debt was repaid in part.",
    "How expensive was gas while the market crashed?",
    "Which positions earned more than holding?",
    "The kill switch was thrown and every position was closed.",
    "The golem died of old age and left its playbook to an heir.",
)
"""The texts of the drift check (MEM: 20 reference documents). They resemble episodes, entries and questions of golems,
so they show drift that matters. A changed text has no recorded vector and is not compared until it has one."""


@dataclass(frozen=True)
class Drift:
    """Result of a drift check; figures in parts per million.

    texts: number of compared texts. distance_*: cosine distance between the current and the recorded vector, in
    [0, 2,000,000]. neighbours_ppm: share of recorded nearest neighbours that the current vectors still return.
    norm_variance_ppm: variance of the raw vector norms, now; norm_first_ppm: at the first check. says: one sentence per
    measure outside of its healthy band.
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
    recorded: Float32Array,
    today: Float32Array,
    *,
    norm_variance_ppm: int,
    norm_first_ppm: int | None,
    policy: EmbeddingPolicy,
) -> Drift:
    """Compare current vectors with recorded vectors, text by text.

    recorded, today: [texts, dimension], rows of L2 norm 1; a row with NaN has the maximal distance. norm_first_ppm:
    None at the first check, whose own variance then becomes the reference.
    """
    cosine = np.einsum("ij,ij->i", recorded.astype(np.float64), today.astype(np.float64))
    distance = np.where(np.isfinite(cosine), np.clip(1.0 - cosine, 0.0, _FAR), _FAR)
    kept_ppm = _neighbours_kept(recorded, today, policy.neighbour_count)
    first = norm_variance_ppm if norm_first_ppm is None else norm_first_ppm
    mean, most = (round(float(x) * PPM) for x in (distance.mean(), distance.max()))
    ratio = _ratio(norm_variance_ppm, first)
    judged: list[tuple[Verdict, str]] = [
        (
            _above(most / PPM, policy.distance_warning, policy.distance_critical),
            f"a vector is {most / PPM:.4f} away from its own on record",
        ),
        (
            _below(kept_ppm, policy.neighbours_warning * PPM, policy.neighbours_critical * PPM),
            f"{kept_ppm / PPM:.0%} of the nearest texts are still the nearest",
        ),
        (
            _above(ratio, policy.norm_variance_warning, policy.norm_variance_critical),
            f"the lengths vary {ratio:.1f} times as much or as little as at first",
        ),
    ]
    verdict = max((v for v, _ in judged), key=VERDICTS.index)
    says = tuple(sentence for v, sentence in judged if v != "healthy")
    return Drift(len(recorded), mean, most, kept_ppm, norm_variance_ppm, first, verdict, says)


def norm_variance_of(raw: Float64Array) -> int:
    """Return the variance of the norms of raw vectors in ppm, -1 if a norm is not finite."""
    lengths = np.linalg.norm(raw, axis=1)
    return round(float(np.var(lengths)) * PPM) if np.isfinite(lengths).all() else -1


def _neighbours_kept(recorded: Float32Array, today: Float32Array, count: int) -> int:
    """Return the share of recorded nearest neighbours that the current vectors also return, in ppm."""
    count = min(count, len(recorded) - 1)
    if count < 1:
        return PPM
    before, after = (_nearest(queries, recorded, count) for queries in (recorded, today))
    kept = sum(len(set(old) & set(new)) for old, new in zip(before.tolist(), after.tolist(), strict=True))
    return kept * PPM // (count * len(recorded))


def _nearest(queries: Float32Array, vectors: Float32Array, count: int) -> Int64Array:
    """Return the row numbers of the `count` nearest vectors of each query, its own row excluded."""
    cosine = np.nan_to_num(queries.astype(np.float64) @ vectors.astype(np.float64).T, nan=-_FAR)
    np.fill_diagonal(cosine, -_FAR)
    return np.argsort(-cosine, axis=1, kind="stable")[:, :count]


def _ratio(now: int, first: int) -> float:
    """Return the ratio of two variances, larger over smaller; infinite if one is unknown (-1)."""
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
