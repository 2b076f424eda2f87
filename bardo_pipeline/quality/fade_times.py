"""Fading: how soon what a market no longer holds is no longer believed. Pure.

Source: X-5 ("how soon expired truths fade"), issue 4 (below the retrieval threshold within two half-lives).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.grimoire.confidence import DAY_US, PPM
from bardo_pipeline.grimoire.entry_columns import confidence_of, half_life_of
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.grimoire_precision import EXPIRED, RIGHT, VERDICTS, Ground, Look


class Fade(NamedTuple):
    """One expired truth: how many golems held it when it expired, and how their confidence went on the mean.

    means: (days since the turn, mean confidence) at each look. half_life_days: of the entries that state it.
    days_below: the first look at which the mean was below the retrieval threshold; None: at none. left: the mean after
    the allowed half-lives, as the last look's entries fade from there. kept: left is below the threshold.
    """

    name: str
    holders: int
    means: tuple[tuple[float, float], ...]
    half_life_days: float
    days_below: float | None
    left: float
    kept: bool


def fades(looks: Sequence[Look], last: pa.Table, ground: Ground, policy: Policy) -> list[Fade]:
    """How each expired truth faded. looks: in order of time. last: the grimoire (ENTRY_SCHEMA) at the last of them."""
    if ground.turn_us is None:
        return []
    before = [one for one in looks if not ground.turned(one.at_us)]
    after = [one for one in looks if ground.turned(one.at_us)]
    if not before or not after:
        return []
    gone = after[-1].verdicts.filter(pc.equal(after[-1].verdicts["verdict"], VERDICTS[EXPIRED]))
    gone_names = {name for one in after for name in _of(one.verdicts, EXPIRED)["truth"].to_pylist()}
    gone_names |= {t.name for t in ground.truths if t.valid_until_bar is not None}
    held = _of(before[-1].verdicts, RIGHT)
    held = held.filter(pc.greater_equal(held["confidence_ppm"], round(policy.worth.retrieval_confidence * PPM)))
    out = []
    for name in sorted(gone_names & set(held["truth"].to_pylist())):
        holders = held.filter(pc.equal(held["truth"], name))["golem_id"].unique()
        out.append(_fade(name, holders, before[-1], after, gone, last, ground, policy))
    return out


def _of(verdicts: pa.Table, verdict: int) -> pa.Table:
    return verdicts.filter(pc.equal(verdicts["verdict"], VERDICTS[verdict]))


def _fade(
    name: str, holders: pa.Array, before: Look, after: Sequence[Look], gone: pa.Table, last: pa.Table, ground: Ground,
    policy: Policy,
) -> Fade:  # fmt: skip
    assert ground.turn_us is not None, "only what a turn ended fades"
    threshold, count = policy.worth.retrieval_confidence, len(holders)

    def mean(one: Look, verdict: int) -> float:
        rows = _of(one.verdicts, verdict)
        rows = rows.filter(pc.and_(pc.equal(rows["truth"], name), pc.is_in(rows["golem_id"], value_set=holders)))
        return (pc.sum(rows["confidence_ppm"]).as_py() or 0) / PPM / count

    means = [(0.0, mean(before, RIGHT))]
    means += [((one.at_us - ground.turn_us) / DAY_US, mean(one, EXPIRED)) for one in after]
    below = next((day for day, height in means if height < threshold), None)
    still = gone.filter(pc.and_(pc.equal(gone["truth"], name), pc.is_in(gone["golem_id"], value_set=holders)))
    rows = last.filter(pc.is_in(last["entry_id"], value_set=still["entry_id"]))
    half_us = half_life_of(rows, policy.decay) if rows.num_rows else np.zeros(0, np.int64)
    then = ground.turn_us + np.rint(policy.worth.fading_half_lives * half_us).astype(np.int64)
    then = np.maximum(then, after[-1].at_us)
    left = float(confidence_of(rows, then, policy.decay).sum()) / PPM / count if rows.num_rows else 0.0
    half_days = float(np.median(half_us)) / DAY_US if rows.num_rows else 0.0
    return Fade(name, count, tuple(means), half_days, below, left, left < threshold)
