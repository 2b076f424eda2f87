"""Bounds of a memory evaluation, and how soon golems stop believing what a market no longer holds. Pure.

Source: X-5; docs/adr/0027 (expired truths fall below the retrieval threshold within two half-lives).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.grimoire.confidence import DAY_US, PPM
from bardo_pipeline.grimoire.entry_columns import confidence_of, half_life_of
from bardo_pipeline.policy import Policy, WorthPolicy
from bardo_pipeline.quality.calibration import Calibration
from bardo_pipeline.quality.grimoire_precision import EXPIRED, RIGHT, Ground, Look, with_verdict

_IS_KEPT = {"at least": operator.ge, "at most": operator.le, "above": operator.gt, "below": operator.lt}


class Bound(NamedTuple):
    """One bound: measure, value, limit and verdict. A bound without a value (None: nothing to measure) is missed.

    Parameters
    ----------
    way : "at least", "at most", "above" or "below"
    """

    name: str
    value: float | None
    way: str
    limit: float
    kept: bool
    detail: str

    @classmethod
    def of(cls, name: str, value: float | None, way: str, limit: float, detail: str) -> Bound:
        """Compare a value with its limit."""
        return cls(name, value, way, limit, value is not None and _IS_KEPT[way](value, limit), detail)


class Discoveries(NamedTuple):
    """Rules and links that golems of a market without truths tested, hold now, and ever held."""

    tested: int
    living: int
    ever: int
    golems: int
    golems_with: int

    @property
    def rate(self) -> float | None:
        """Share of the tested rules and links that is held."""
        return self.living / self.tested if self.tested else None


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
    expired = with_verdict(after[-1].verdicts, EXPIRED)
    expired_names = {name for look in after for name in with_verdict(look.verdicts, EXPIRED)["truth"].to_pylist()}
    expired_names |= {t.name for t in ground.truths if t.valid_until_bar is not None}
    held = with_verdict(before[-1].verdicts, RIGHT)
    held = held.filter(pc.greater_equal(held["confidence_ppm"], round(policy.worth.retrieval_confidence * PPM)))
    faded = []
    for name in sorted(expired_names & set(held["truth"].to_pylist())):
        holders = held.filter(pc.equal(held["truth"], name))["golem_id"].unique()
        faded.append(_fade(name, holders, before[-1], after, expired, last, ground, policy))
    return faded


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
        rows = rows_of(with_verdict(look.verdicts, verdict))
        return (pc.sum(rows["confidence_ppm"]).as_py() or 0) / PPM / count

    means = [(0.0, mean(before, RIGHT))]
    means += [((look.at_us - ground.turn_us) / DAY_US, mean(look, EXPIRED)) for look in after]
    below = next((day for day, height in means if height < threshold), None)
    still_held = rows_of(expired)
    rows = last.filter(pc.is_in(last["entry_id"], value_set=still_held["entry_id"]))
    half_us = half_life_of(rows, policy.decay)
    at_us = ground.turn_us + np.rint(policy.worth.fading_half_lives * half_us).astype(np.int64)
    at_us = np.maximum(at_us, after[-1].at_us)
    left = float(confidence_of(rows, at_us, policy.decay).sum()) / PPM / count
    half_days = float(np.median(half_us)) / DAY_US if rows.num_rows else 0.0
    return Fade(name, count, tuple(means), half_days, below, left, left < threshold)


def bounds(
    looks: Sequence[Look],
    faded: Sequence[Fade] | None,
    nothing: Discoveries | None,
    policy: WorthPolicy,
    foretold: Calibration | None = None,
) -> tuple[Bound, ...]:
    """Return the bounds of the last look, of fading, of a market with nothing to learn, and of foretold confidence.

    None for the last three: not evaluated.
    """
    last = looks[-1]
    rules = last.count(0, 1, 2, 4, subjects=("rule", "link"))
    met = sum(truth.met > 0 for truth in last.recalled)
    decoys = max(look.decoy_confidence for look in looks)
    right = f"of {rules:,} living rules and links are right"
    recalled = f"mean over {met} truths above one sigma that were met"
    surest = "highest confidence of a decoy as a causal link"
    results = [
        Bound.of("precision", last.precision, "at least", policy.precision_min, right),
        Bound.of("recall", last.recall, "at least", policy.recall_min, recalled),
        Bound.of("junk", last.junk, "below", policy.junk_max, f"of {last.verdicts.num_rows:,} living entries"),
        Bound.of("decoys", decoys, "at most", policy.decoy_confidence_max, surest),
    ]
    if faded is not None:
        worst = max((fade.left for fade in faded), default=None)
        span = f"{policy.fading_half_lives:g} half-lives"
        detail = f"mean confidence of the slowest of {len(faded)} expired truths after {span}"
        results.append(Bound.of("fading", worst, "below", policy.retrieval_confidence, detail))
    if nothing is not None:
        detail = (
            f"{nothing.living} of {nothing.tested} tested where nothing is to be found ({nothing.ever} at some time)"
        )
        results.append(Bound.of("null market", nothing.rate, "at most", policy.discovery_rate_max, detail))
    if foretold is not None:
        score = None if foretold.brier_held_ppm is None else foretold.brier_held_ppm / PPM
        detail = f"of what {foretold.belief_count:,} beliefs foretold for the following day"
        results.append(Bound.of("Brier score", score, "at most", policy.brier_max, detail))
    return tuple(results)
