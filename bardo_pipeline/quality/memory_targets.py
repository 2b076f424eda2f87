"""Bounds: what a memory has to reach, beside what it reached. Pure. Source: issue 4 ("How it is judged"), X-5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bardo_pipeline.policy import WorthPolicy
from bardo_pipeline.quality.fade_times import Fade
from bardo_pipeline.quality.grimoire_precision import Look


class Bound(NamedTuple):
    """One bound: what is measured, what came out (None: there was nothing to measure), what is asked, and the verdict.

    way: "at least", "at most" or "below". What cannot be measured is not kept: who holds nothing is not right.
    """

    name: str
    value: float | None
    way: str
    limit: float
    kept: bool
    said: str


class Found(NamedTuple):
    """What a memory found where there is nothing to find: rules and links that it tested, holds, and ever held."""

    tested: int
    living: int
    ever: int
    golems: int
    golems_with: int

    @property
    def rate(self) -> float | None:
        """Share of what was tested that is held."""
        return self.living / self.tested if self.tested else None


def bounds(
    looks: Sequence[Look], faded: Sequence[Fade] | None, nothing: Found | None, policy: WorthPolicy
) -> tuple[Bound, ...]:
    """The bounds of the last look, of what faded, and of a market with nothing to learn (None: not asked).

    Where nobody held what expired, fading is not shown, and where nothing was tested, neither is restraint.
    """
    last = looks[-1]
    rules = last.count(0, 1, 2, 4, subjects=("rule", "link"))
    decoys = max(one.decoy_confidence for one in looks)
    out = [
        _least("precision", last.precision, policy.precision_min, f"of {rules:,} living rules and links are right"),
        _least(
            "recall", last.recall, policy.recall_min, f"mean over {_met(last)} truths above one sigma that were met"
        ),
        _below("junk", last.junk, policy.junk_max, f"of {last.verdicts.num_rows:,} living entries"),
        _most("decoys", decoys, policy.decoy_confidence_max, "highest confidence of a decoy as a causal link"),
    ]
    if faded is not None:
        worst = max((fade.left for fade in faded), default=None)
        span = f"{policy.fading_half_lives:g} half-lives"
        said = f"mean confidence of the slowest of {len(faded)} expired truths after {span}"
        out.append(_below("fading", worst, policy.retrieval_confidence, said))
    if nothing is not None:
        said = f"{nothing.living} of {nothing.tested} tested where nothing is to be found ({nothing.ever} at some time)"
        out.append(_most("null market", nothing.rate, policy.discovery_rate_max, said))
    return tuple(out)


def _met(look: Look) -> int:
    return sum(1 for one in look.recalled if one.met)


def _least(name: str, value: float | None, limit: float, said: str) -> Bound:
    return Bound(name, value, "at least", limit, value is not None and value >= limit, said)


def _most(name: str, value: float | None, limit: float, said: str) -> Bound:
    return Bound(name, value, "at most", limit, value is not None and value <= limit, said)


def _below(name: str, value: float | None, limit: float, said: str) -> Bound:
    return Bound(name, value, "below", limit, value is not None and value < limit, said)
