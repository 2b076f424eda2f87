"""Weigh: new evidence is added to what each entry and candidate has, and its interval follows. Pure.

A rule is looked at after every cycle, and whoever looks often enough sees anything. The interval therefore holds at all
looks together: it is a confidence sequence (the normal mixture of Robbins; Waudby-Smith and others 2021, eq. 14), which
ever misses the true effect with the policy's chance (nearly: it takes the variance for known, and for effects that
spread twice as wide as the prior the chance is three times as high). Its variance is shrunk towards that prior, so that
three lucky windows do not look certain. Source: MEM-4, TOOLS (clusters of at least 3).
"""

from __future__ import annotations

import math

import numpy as np

from bardo_pipeline.curator.state.cycle_batch import Wave
from bardo_pipeline.curator.state.grimoire_state import FOLDED, PRUNED, GrimoireState
from bardo_pipeline.policy import Policy

_SUM_MAX = 2**62
"""Where a sum of squares stops, whatever order it is added up in, instead of turning negative."""


def interval(
    count: np.ndarray, total: np.ndarray, squares: np.ndarray, policy: Policy
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(mean, low, high) of an effect in ppm, rounded to integers, over witnesses of whom there are count > 0."""
    rules = policy.curator
    mean = total / count
    spread = np.maximum(squares - total * mean, 0.0)
    prior = rules.variance_prior * rules.effect_sigma_prior_ppm**2
    variance = (prior + spread) / (rules.variance_prior + np.maximum(count - 1, 0))
    surprise = -2.0 * math.log(rules.false_alarm)
    mixture = count * ((surprise + math.log(surprise + 1.0)) / rules.sharpest_witnesses)
    half = np.sqrt(
        variance * 2.0 * (mixture + 1.0) / (count * mixture) * np.log(np.sqrt(mixture + 1.0) / rules.false_alarm)
    )
    low, middle, high = (np.rint(x).astype(np.int64) for x in (mean - half, mean, mean + half))
    return middle, low, high


def weigh(state: GrimoireState, wave: Wave, policy: Policy) -> None:
    """Add the wave's evidence to its rows. What was forgotten and comes up again is from now on the golem's own."""
    rows = wave.rows
    gone = (state["status"][rows] >= PRUNED) & (state["status"][rows] != FOLDED)
    again = rows[gone & (state["own_count"][rows] == 0)]
    state["origin"][again] = state["golem"][again]
    for name, values in (("own_count", wave.count), ("own_sum", wave.total), ("own_sumsq", wave.squares)):
        state[name][rows] = np.minimum(state[name][rows] + values, _SUM_MAX)
    for i, name in enumerate(("pleasure_sum_milli", "arousal_sum_milli", "dominance_sum_milli")):
        state[name][rows] += wave.mood[:, i]


def standing(
    state: GrimoireState, rows: np.ndarray, policy: Policy
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(mean, low, high, sign) of all of a golem's own evidence for these rows; sign is 0 where it decides nothing yet.

    It decides where there are enough witnesses of a large enough effect, and the interval leaves zero out.
    """
    count = state["own_count"][rows]
    mean, low, high = interval(np.maximum(count, 1), state["own_sum"][rows], state["own_sumsq"][rows], policy)
    sure = (count >= policy.curator.cluster_min) & (np.abs(mean) >= policy.curator.effect_min_ppm)
    sure &= (low > 0) | (high < 0)
    return mean, low, high, np.where(sure, np.sign(mean), 0)
