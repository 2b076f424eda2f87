"""Bounds of a memory evaluation and the measured values. Pure. Source: issue 4 ("How it is judged"), X-5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bardo_pipeline.policy import WorthPolicy
from bardo_pipeline.quality.fade_times import Fade
from bardo_pipeline.quality.grimoire_precision import Look


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


def bounds(
    looks: Sequence[Look], faded: Sequence[Fade] | None, nothing: Discoveries | None, policy: WorthPolicy
) -> tuple[Bound, ...]:
    """Return the bounds of the last look, of fading, and of a market with nothing to learn (None: not evaluated)."""
    last = looks[-1]
    rules = last.count(0, 1, 2, 4, subjects=("rule", "link"))
    decoys = max(look.decoy_confidence for look in looks)
    results = [
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
        detail = f"mean confidence of the slowest of {len(faded)} expired truths after {span}"
        results.append(_below("fading", worst, policy.retrieval_confidence, detail))
    if nothing is not None:
        detail = (
            f"{nothing.living} of {nothing.tested} tested where nothing is to be found ({nothing.ever} at some time)"
        )
        results.append(_most("null market", nothing.rate, policy.discovery_rate_max, detail))
    return tuple(results)


def _met(look: Look) -> int:
    return sum(1 for truth in look.recalled if truth.met)


def _least(name: str, value: float | None, limit: float, detail: str) -> Bound:
    return Bound(name, value, "at least", limit, value is not None and value >= limit, detail)


def _most(name: str, value: float | None, limit: float, detail: str) -> Bound:
    return Bound(name, value, "at most", limit, value is not None and value <= limit, detail)


def _below(name: str, value: float | None, limit: float, detail: str) -> Bound:
    return Bound(name, value, "below", limit, value is not None and value < limit, detail)
