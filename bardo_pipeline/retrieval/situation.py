"""Describes a golem's situation, and decides whether it retrieves and which regimes' knowledge is active. Pure.

The rules are elementwise over golems: the recall of a fleet's tick and a question to one golem use the same functions.
Source: INH S2 (regime tagging: dormant, not deleted), KAT (adaptive retrieval), HB S3, canon 24.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
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


SILENT, EMPTY, CONTRARIAN, AROUSED, ASKED, SURPRISED, UNCOVERED, ROUTINE = range(8)
"""Rules that decide about retrieval, in the order in which they apply; ROUTINE if no other rule applies."""

_SKIPS = np.isin(np.arange(8), (SILENT, EMPTY, ROUTINE))


def decide(situation: Situation, *, held: int, coverage: float, policy: RetrievalPolicy) -> Decision:
    """Decide whether to retrieve, by `retrieval_rules`.

    Parameters
    ----------
    held : int, number of active entries
    coverage : float, share of the protocol's baseline metrics with sufficient confidence, in [0, 1]
    """
    arousal, surprise = situation.mood[1], situation.surprise
    rules = retrieval_rules(
        np.array([situation.tier in SILENT_TIERS]), np.array([held]), np.array([is_contrarian(situation, policy)]),
        np.array([arousal]), np.array([np.nan if surprise is None else surprise]), np.array([coverage]), policy,
    )  # fmt: skip
    reason = reason_text(
        int(rules[0]), situation.tick, situation.tier, arousal, surprise, coverage, situation.protocol, policy
    )
    return Decision(bool(skips(rules)[0]), reason)


def retrieval_rules(
    silent: BoolArray, held: Int64Array, contrarian: BoolArray, arousal: Float64Array, surprise: Float64Array,
    coverage: Float64Array, policy: RetrievalPolicy,
) -> Int64Array:  # fmt: skip
    """Return the rule that decides whether each golem retrieves.

    A golem skips suppressed ticks (canon 24), ticks without active entries, and calm routine ticks with sufficient
    coverage (KAT). High arousal always retrieves. surprise: NaN outside of a tick. Other arguments are as in `decide`.
    """
    cases = (
        silent, held == 0, contrarian, arousal >= policy.skip_arousal_max, np.isnan(surprise),
        surprise >= policy.skip_surprise_max, coverage < policy.skip_coverage_min,
    )  # fmt: skip
    rules: Int64Array = np.argmax(np.stack([*cases, np.ones(len(held), bool)]), axis=0)
    return rules


def skips(rules: Int64Array) -> BoolArray:
    """Return whether each of these rules skips the retrieval."""
    skipped: BoolArray = _SKIPS[rules]
    return skipped


def reason_text(
    rule: int, tick: int, tier: str | None, arousal: float, surprise: float | None, coverage: float,
    protocol: str | None, policy: RetrievalPolicy,
) -> str:  # fmt: skip
    """Return the sentence that states a rule with its numbers."""
    market = protocol or "the market"
    if rule == SILENT:
        return f"the gate chose {tier}, which does not deliberate"
    if rule == EMPTY:
        return "no entry is active in this regime"
    if rule == CONTRARIAN:
        return f"tick {tick} is a contrarian turn: it prefers entries of the opposite mood"
    if rule == AROUSED:
        return f"arousal is {arousal:.2f}, at least {policy.skip_arousal_max:.2f}"
    if rule == ASKED:
        return "the question was asked outside of a tick"
    if rule == SURPRISED:
        return f"surprise is {surprise:.2f}, at least {policy.skip_surprise_max:.2f}"
    if rule == UNCOVERED:
        return f"of {market} only {coverage:.0%} of the levels are known"
    return (
        f"routine: arousal {arousal:.2f}, surprise {surprise:.2f}, and {coverage:.0%} of the levels of {market} are "
        "known"
    )


def is_contrarian(situation: Situation, policy: RetrievalPolicy) -> bool:
    """Return whether this situation is a contrarian turn (`contrarian_turns`)."""
    turn = contrarian_turns(np.array([situation.tick]), np.array([situation.thought_tick]), policy)
    return situation.tier not in SILENT_TIERS and bool(turn[0])


def contrarian_turns(tick: Int64Array, thought_tick: Int64Array, policy: RetrievalPolicy) -> BoolArray:
    """Return which deliberating golems retrieve for the opposite mood, which keeps a mood from reinforcing itself.

    This happens every `contrarian_ticks` (HB S3). If the gate suppresses that tick, the next deliberating tick
    replaces it. thought_tick: as in Situation.
    """
    turns: BoolArray = tick // policy.contrarian_ticks > thought_tick // policy.contrarian_ticks
    return turns


def wakefulness(situation: Situation, policy: RetrievalPolicy) -> Float64Array:
    """Return the weight of each regime's knowledge in [0, 1], in the order of REGIMES; the last is for no regime.

    Without a regime all weights are 1; otherwise they follow `regime_weights`.
    """
    if situation.regime is None:
        return np.ones(len(REGIMES) + 1)
    regime, before = np.array([REGIMES.index(situation.regime)]), situation.regime_before
    previous = np.array([-1 if before is None else REGIMES.index(before)])
    return regime_weights(regime, previous, np.array([situation.regime_ticks]), policy)[:, 0]


def regime_weights(
    regime: Int64Array, regime_before: Int64Array, regime_ticks: Int64Array, policy: RetrievalPolicy
) -> Float64Array:
    """Return the weight of each regime's knowledge for golems in these regimes, [REGIMES + 1, golems] in [0, 1].

    Knowledge of other regimes is dormant (weight 0) but not deleted. The weight of the previous regime falls linearly
    over `dormant_transition_ticks`. In an unclear regime all others weigh `dormant_unclear`. The last row is for no
    regime. regime_before: -1 for golems without an earlier regime.
    """
    golem = np.arange(len(regime))
    awake = np.zeros((len(REGIMES) + 1, len(regime)))
    awake[:-1] = np.where(regime == REGIMES.index(UNCLEAR), policy.dormant_unclear, 0.0)
    awake[regime, golem], awake[-1] = 1.0, 1.0
    fading = np.where(regime_before >= 0, 1.0 - regime_ticks / policy.dormant_transition_ticks, 0.0)
    awake[regime_before, golem] = np.maximum(awake[regime_before, golem], fading)
    return awake
