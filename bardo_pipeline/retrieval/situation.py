"""Describes a golem's situation, and decides whether it retrieves and which regimes' knowledge is active. Pure.

Source: INH S2 (regime tagging: dormant, not deleted), KAT (adaptive retrieval), HB S3, canon 24.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bardo_pipeline.arrays import Float64Array
from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.record.model import REGIMES, TIERS
from bardo_pipeline.policy import RetrievalPolicy

UNCLEAR = "unknown"
"""Regime of a market that fits no other regime."""

SILENT_TIERS = ("T0", "suppress")
"""Tiers in which the gate suppresses deliberation (canon 28)."""


@dataclass(frozen=True)
class Situation:
    """The situation in which a golem retrieves.

    at_us: event time in UTC microseconds. regime: None makes the knowledge of every regime active. regime_before,
    regime_ticks: the previous regime and the ticks since it ended. mood: pleasure, arousal, dominance in [-1, 1].
    tier, surprise: from the gate, None outside of a tick. thought_tick: the last earlier tick with deliberation, 0
    without one. Raises QueryError for an unknown regime or tier, and for a mood out of range.
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
    """Whether the golem skips retrieval, and the reason."""

    skipped: bool
    reason: str


def decide(situation: Situation, *, held: int, coverage: float, policy: RetrievalPolicy) -> Decision:
    """Decide whether to retrieve.

    The golem skips suppressed ticks (canon 24), ticks without active entries, and calm routine ticks with sufficient
    coverage (KAT). High arousal always retrieves.

    Parameters
    ----------
    held : int, number of active entries
    coverage : float, share of the protocol's baseline metrics with sufficient confidence, in [0, 1]
    """
    if situation.tier in SILENT_TIERS:
        return Decision(True, f"the gate chose {situation.tier}, which does not deliberate")
    if not held:
        return Decision(True, "no entry is active in this regime")
    if is_contrarian(situation, policy):
        return Decision(False, f"tick {situation.tick} is a contrarian turn: it prefers entries of the opposite mood")
    arousal = situation.mood[1]
    if arousal >= policy.skip_arousal_max:
        return Decision(False, f"arousal is {arousal:.2f}, at least {policy.skip_arousal_max:.2f}")
    if situation.surprise is None:
        return Decision(False, "the question was asked outside of a tick")
    if situation.surprise >= policy.skip_surprise_max:
        return Decision(False, f"surprise is {situation.surprise:.2f}, at least {policy.skip_surprise_max:.2f}")
    if coverage < policy.skip_coverage_min:
        return Decision(False, f"of {situation.protocol or 'the market'} only {coverage:.0%} of the levels are known")
    return Decision(
        True,
        f"routine: arousal {arousal:.2f}, surprise {situation.surprise:.2f}, and {coverage:.0%} of the levels of "
        f"{situation.protocol or 'the market'} are known",
    )


def is_contrarian(situation: Situation, policy: RetrievalPolicy) -> bool:
    """Return whether this tick retrieves for the opposite mood, which keeps a mood from reinforcing itself (HB S3).

    This happens every `contrarian_ticks`. If the gate suppresses that tick, the next deliberating tick replaces it.
    """
    span = policy.contrarian_ticks
    return situation.tier not in SILENT_TIERS and situation.tick // span > situation.thought_tick // span


def wakefulness(situation: Situation, policy: RetrievalPolicy) -> Float64Array:
    """Return the weight of each regime's knowledge in [0, 1], in the order of REGIMES; the last is for no regime.

    Knowledge of other regimes is dormant (weight 0) but not deleted. The weight of the previous regime falls linearly
    over `dormant_transition_ticks`. In an unclear regime all others weigh `dormant_unclear`.
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
        previous = REGIMES.index(situation.regime_before)
        fading_weight = 1.0 - situation.regime_ticks / policy.dormant_transition_ticks
        awake[previous] = max(awake[previous], fading_weight)
    return awake
