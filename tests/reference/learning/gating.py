"""Row-at-a-time twins of the learned gate: one golem, one tick, plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bardo_pipeline.policy import GatingPolicy

EXPERTS = ("oracle", "surprise", "topology", "contradiction", "risk")


@dataclass
class Hedge:
    """Weights of experts by multiplication: w = w^discount * exp(-eta * loss); a sleeping expert keeps its weight."""

    discount: float
    eta: float
    weights: list[float]

    def share(self) -> list[float]:
        return [w / sum(self.weights) for w in self.weights]

    def combine(self, signals: Sequence[float | None]) -> float | None:
        awake = [(w, s) for w, s in zip(self.weights, signals, strict=True) if s is not None]
        return sum(w * s for w, s in awake) / sum(w for w, _ in awake) if awake else None

    def update(self, losses: Sequence[float | None]) -> None:
        self.weights = [
            w if loss is None else w**self.discount * math.exp(-self.eta * loss)
            for w, loss in zip(self.weights, losses, strict=True)
        ]


@dataclass
class ExponentialWeights:
    """Weights of experts from their whole losses; eta of round t is sqrt(ln N / t)."""

    losses: list[float]
    rounds: int = 0

    def share(self) -> list[float]:
        eta = math.sqrt(math.log(len(self.losses)) / (self.rounds + 1))
        powers = [math.exp(-eta * (loss - min(self.losses))) for loss in self.losses]
        return [power / sum(powers) for power in powers]

    def update(self, losses: Sequence[float | None]) -> None:
        self.losses = [whole + (loss or 0.0) for whole, loss in zip(self.losses, losses, strict=True)]
        self.rounds += 1


def thresholds(drawn: Sequence[float], arousal: float, dominance: float, rules: GatingPolicy) -> list[float]:
    """Return the thresholds of T2, T1 and T0."""
    shifted = sorted((d * (1.0 - rules.arousal_shift * min(max(arousal, 0.0), 1.0)) for d in drawn), reverse=True)
    return [min(max(s + rules.dominance_shift * dominance, rules.threshold_min), rules.threshold_max) for s in shifted]


@dataclass
class Past:
    """A tick as its golem judges it later. tier: before exploration; signals: None for a sleeping expert."""

    tick: int
    tier: str
    signals: tuple[float | None, ...]
    decided: bool
    explored: bool
    found: bool
    error: float
    worth: int
    effects: list[tuple[int, int]] = field(default_factory=list)
    """(tick that closed the trial of this tick's decision, effect in ppm)"""
    verdict: str | None = None


def verdicts(past: Mapping[int, Past], now: int, rules: GatingPolicy) -> list[tuple[Past, str]]:
    """Return the ticks judged at tick `now`, which ends a delta, with their verdicts, in order; and set these."""
    newest, out = now - rules.window_ticks, []
    for tick in range(max(newest - 2 * rules.delta_ticks + 1, 1), newest + 1):
        row = past[tick]
        thinks = row.tier in ("T1", "T2")
        closed = [(at, effect) for at, effect in row.effects if at <= now]
        at, effect = closed[-1] if closed else (0, 0)
        paid, harmed = (at > 0 and effect >= rules.effect_min_ppm), (at > 0 and effect <= 0)
        if tick > newest - rules.delta_ticks:
            if thinks:
                right = row.found and not (row.tier == "T2" and harmed)
                verdict = "right" if right else "needless"
            else:
                missed = paid or (row.explored and row.found) or restless(past, tick, rules)
                verdict = "missed" if missed else "right"
        else:
            late = at > now - rules.delta_ticks
            if not thinks and paid and late and row.verdict != "missed":
                verdict = "missed"
            elif row.tier == "T2" and row.found and harmed and late:
                verdict = "needless"
            else:
                continue
        row.verdict = verdict
        out.append((row, verdict))
    return out


def restless(past: Mapping[int, Past], tick: int, rules: GatingPolicy) -> bool:
    """Return whether something happened in the window after a tick, and nothing deliberated about it."""
    window = [past[at] for at in range(tick + 1, tick + 1 + rules.window_ticks)]
    if any(row.tier in ("T1", "T2") or row.explored for row in window):
        return False
    lost = window[-1].worth <= past[tick].worth * (1.0 - rules.event_loss_min)
    return lost or any(row.error >= rules.event_error_min for row in window)


def learn(judged: Sequence[tuple[Past, str]], hedge: Hedge, boundaries: list[list[float]], rules: GatingPolicy) -> None:
    """Update experts and boundaries ([alpha, beta] of T2, T1, T0) by the verdicts of one delta."""
    for boundary, prior in zip(boundaries, rules.boundary_priors, strict=True):
        for i in (0, 1):
            boundary[i] = prior[i] + rules.boundary_memory * (boundary[i] - prior[i])
    for row, verdict in judged:
        thinks = row.tier in ("T1", "T2")
        importance = 1.0 if verdict == "missed" or (thinks and row.found and verdict == "right") else 0.0
        weight = 1.0 if importance else rules.negative_weight
        hedge.update([None if s is None else weight * min(abs(s - importance), 1.0) for s in row.signals])
        if verdict == "needless":
            boundaries[0][0] += 1.0 if row.decided or row.tier == "T1" else 0.0
            boundaries[1][0] += 1.0 if row.decided else 0.0
        if verdict == "missed" and row.decided:
            for at in {"suppress": (1, 2), "T0": (1,)}[row.tier]:
                boundaries[at][1] += 1.0
    hedge.weights = [max(w / max(hedge.weights), rules.weight_ratio_min) for w in hedge.weights]
