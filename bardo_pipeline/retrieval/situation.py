"""Situation: where a golem stands when it asks, what of its knowledge is awake there, and whether it asks. Pure.

Source: INH S2 (regime tagging: dormant, not deleted), KAT (adaptive retrieval), HB S3, canon 24.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.record.model import REGIMES, TIERS
from bardo_pipeline.policy import RetrievalPolicy

UNCLEAR = "unknown"
"""The regime of a market of which nobody can say what it does."""

SILENT_TIERS = ("T0", "suppress")
"""What the gate lets pass without a thought (canon 28)."""


@dataclass(frozen=True)
class Situation:
    """Where a golem stands.

    at_us: event time in UTC microseconds. tick: its own. regime: None where the asker names none; then nothing sleeps.
    regime_before, regime_ticks: the regime that it left for this one, and how many ticks ago. mood: pleasure, arousal,
    dominance in [-1, 1]. tier, surprise: what the gate said of this tick, None outside of a tick. protocol: at hand.
    thought_tick: the last tick before this one that the gate let think, 0 before the first.
    Raises QueryError for a regime or tier that there is not, and for a mood beyond its range.
    """

    at_us: int
    tick: int = 0
    regime: str | None = None
    regime_before: str | None = None
    regime_ticks: int = 0
    mood: tuple[float, float, float] = (0.0, 0.0, 0.0)
    tier: str | None = None
    surprise: float | None = None
    protocol: str | None = None
    thought_tick: int = 0

    def __post_init__(self) -> None:
        for regime in (self.regime, self.regime_before):
            if regime is not None and regime not in REGIMES:
                raise QueryError(f"no regime is called {regime!r}: there are {', '.join(REGIMES)}")
        if self.tier is not None and self.tier not in TIERS:
            raise QueryError(f"no tier is called {self.tier!r}: there are {', '.join(TIERS)}")
        if len(self.mood) != 3 or not all(-1.0 <= part <= 1.0 for part in self.mood):
            raise QueryError(f"a mood is three numbers from -1 to 1 (pleasure, arousal, dominance), not {self.mood}")


@dataclass(frozen=True)
class Decision:
    """Whether the golem looks into its memory at all, and why."""

    skipped: bool
    reason: str


def decide(situation: Situation, *, held: int, coverage: float, policy: RetrievalPolicy) -> Decision:
    """Whether to retrieve. held: entries that are awake; coverage: share of the protocol's levels that is known.

    Nothing is sought after a tick that was suppressed (canon 24), nor where nothing is awake. High arousal always
    seeks; calm routine of which enough is known may go without (KAT).
    """
    if situation.tier in SILENT_TIERS:
        return Decision(True, f"the gate let the tick pass without a thought ({situation.tier})")
    if not held:
        return Decision(True, "nothing that it knows is awake")
    if is_contrarian(situation, policy):
        return Decision(False, f"the turn of tick {situation.tick} seeks what was felt the other way")
    arousal = situation.mood[1]
    if arousal >= policy.skip_arousal_max:
        return Decision(False, f"arousal {arousal:.2f} asks for it")
    if situation.surprise is None:
        return Decision(False, "it was asked outside of a tick")
    if situation.surprise >= policy.skip_surprise_max:
        return Decision(False, f"surprise {situation.surprise:.2f} asks for it")
    if coverage < policy.skip_coverage_min:
        return Decision(False, f"of {situation.protocol or 'the market'} only {coverage:.0%} of the levels are known")
    return Decision(
        True,
        f"routine: arousal {arousal:.2f}, surprise {situation.surprise:.2f}, and {coverage:.0%} of the levels of "
        f"{situation.protocol or 'the market'} are known",
    )


def is_contrarian(situation: Situation, policy: RetrievalPolicy) -> bool:
    """Whether this turn seeks what was felt the other way, so that no mood feeds itself (HB S3).

    Every hundredth tick; where the gate let that one pass, the first after it that thinks, or most turns would be lost.
    """
    span = policy.contrarian_ticks
    return situation.tier not in SILENT_TIERS and situation.tick // span > situation.thought_tick // span


def wakefulness(situation: Situation, policy: RetrievalPolicy) -> NDArray[np.float64]:
    """How awake the knowledge of each regime is, in [0, 1], float64 [len(REGIMES) + 1]; the last is of none.

    What was learned in another regime sleeps until that returns: it is not in the running, and nothing of it is lost.
    What was learned in the regime just left falls asleep bit by bit; while the regime is unclear, all others are half
    awake.
    """
    awake = np.zeros(len(REGIMES) + 1)
    awake[-1] = 1.0
    if situation.regime is None:
        awake[:] = 1.0
        return awake
    if situation.regime == UNCLEAR:
        awake[:-1] = policy.dormant_unclear
    awake[REGIMES.index(situation.regime)] = 1.0
    if situation.regime_before is not None:
        left = REGIMES.index(situation.regime_before)
        drowsy = 1.0 - situation.regime_ticks / policy.dormant_transition_ticks
        awake[left] = max(awake[left], drowsy)
    return awake
