"""Fading: the time until golems stop believing what a market no longer holds. Pure.

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
    """One expired truth, the golems that held it when it expired, and their mean confidence since.

    Parameters
    ----------
    means : (days since the turn, mean confidence) at each look
    half_life_days : median of the entries that state the truth
    days_below : day of the first look with a mean below the retrieval threshold; None without one
    left : mean after the allowed half-lives, extrapolated from the last look
    kept : whether `left` is below the threshold
    """

    name: str
    holders: int
    means: tuple[tuple[float, float], ...]
    half_life_days: float
    days_below: float | None
    left: float
    kept: bool


def fades(looks: Sequence[Look], last: pa.Table, ground: Ground, policy: Policy) -> list[Fade]:
    """Return the fading of each expired truth.

    Parameters
    ----------
    looks : in order of time
    last : ENTRY_SCHEMA, the grimoire at the last look
    """
    if ground.turn_us is None:
        return []
    before = [look for look in looks if not ground.turned(look.at_us)]
    after = [look for look in looks if ground.turned(look.at_us)]
    if not before or not after:
        return []
    expired = _with_verdict(after[-1], EXPIRED)
    expired_names = {name for look in after for name in _with_verdict(look, EXPIRED)["truth"].to_pylist()}
    expired_names |= {t.name for t in ground.truths if t.valid_until_bar is not None}
    held = _with_verdict(before[-1], RIGHT)
    held = held.filter(pc.greater_equal(held["confidence_ppm"], round(policy.worth.retrieval_confidence * PPM)))
    faded = []
    for name in sorted(expired_names & set(held["truth"].to_pylist())):
        holders = held.filter(pc.equal(held["truth"], name))["golem_id"].unique()
        faded.append(_fade(name, holders, before[-1], after, expired, last, ground, policy))
    return faded


def _with_verdict(look: Look, verdict: int) -> pa.Table:
    return look.verdicts.filter(pc.equal(look.verdicts["verdict"], VERDICTS[verdict]))


def _fade(
    name: str, holders: pa.Array, before: Look, after: Sequence[Look], expired: pa.Table, last: pa.Table,
    ground: Ground, policy: Policy,
) -> Fade:  # fmt: skip
    assert ground.turn_us is not None, "truths expire at a turn only"
    threshold, count = policy.worth.retrieval_confidence, len(holders)

    def rows_of(verdicts: pa.Table) -> pa.Table:
        is_holder = pc.is_in(verdicts["golem_id"], value_set=holders)
        return verdicts.filter(pc.and_(pc.equal(verdicts["truth"], name), is_holder))

    def mean(look: Look, verdict: int) -> float:
        rows = rows_of(_with_verdict(look, verdict))
        return (pc.sum(rows["confidence_ppm"]).as_py() or 0) / PPM / count

    means = [(0.0, mean(before, RIGHT))]
    means += [((look.at_us - ground.turn_us) / DAY_US, mean(look, EXPIRED)) for look in after]
    below = next((day for day, height in means if height < threshold), None)
    still_held = rows_of(expired)
    rows = last.filter(pc.is_in(last["entry_id"], value_set=still_held["entry_id"]))
    half_us = half_life_of(rows, policy.decay) if rows.num_rows else np.zeros(0, np.int64)
    at_us = ground.turn_us + np.rint(policy.worth.fading_half_lives * half_us).astype(np.int64)
    at_us = np.maximum(at_us, after[-1].at_us)
    left = float(confidence_of(rows, at_us, policy.decay).sum()) / PPM / count if rows.num_rows else 0.0
    half_days = float(np.median(half_us)) / DAY_US if rows.num_rows else 0.0
    return Fade(name, count, tuple(means), half_days, below, left, left < threshold)
