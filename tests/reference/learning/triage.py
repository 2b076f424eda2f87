"""Row-at-a-time twin of the router of chain events: one golem, one event, plain numbers, and matrices solved anew."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bardo_pipeline.policy import Policy

KINDS = ("swap", "loan_usdc", "loan_weth")
SCORES = ("heuristic", "surprise", "error", "anomaly", "novelty")
ROUTES = ("escalate", "emit", "count", "discard")
RULES = 6
Values = Sequence[float | None]


def log_deviation(sizes: Sequence[float], at: int, window: int) -> float | None:
    """Return half the squared deviation of the logarithm of sizes[at] from the `window` sizes before it."""
    before = [math.log(size) for size in sizes[max(at - window, 0) : at]]
    if len(before) < window:
        return None
    mean = sum(before) / window
    spread = sum(value * value for value in before) / window - mean * mean
    return 0.5 * (math.log(sizes[at]) - mean) ** 2 / max(spread, 1e-6)


@dataclass
class Experts:
    """Weights from whole losses, none lighter than a share of the heaviest; eta of round t is sqrt(ln N / t)."""

    losses: list[float]

    def shares(self, rounds: int) -> list[float]:
        powers = [math.exp(-self.eta(rounds) * (loss - min(self.losses))) for loss in self.losses]
        return [power / sum(powers) for power in powers]

    def eta(self, rounds: int) -> float:
        return math.sqrt(math.log(len(self.losses)) / (rounds + 1))

    def mean(self, values: Values, rounds: int) -> float | None:
        awake = [(w, v) for w, v in zip(self.shares(rounds), values, strict=True) if v is not None]
        return sum(w * v for w, v in awake) / sum(w for w, _ in awake) if awake else None

    def update(self, values: Values, importance: float, weight: float) -> None:
        self.losses = [
            loss if v is None else loss + weight * min(abs(v - importance), 1.0)
            for loss, v in zip(self.losses, values, strict=True)
        ]

    def bound(self, rounds: int, ratio: float) -> None:
        furthest = -math.log(ratio) / self.eta(rounds)
        self.losses = [min(loss - min(self.losses), furthest) for loss in self.losses]


@dataclass
class Linear:
    """Ridge regression of rewards on contexts (Li et al. 2010): A = I + sum of x x', theta = A^-1 b."""

    a: np.ndarray = field(default_factory=lambda: np.eye(12))
    b: np.ndarray = field(default_factory=lambda: np.zeros(12))

    def bound(self, x: Sequence[float], alpha: float) -> float:
        vector = np.array(x)
        width = math.sqrt(vector @ np.linalg.solve(self.a, vector))
        return float(np.linalg.solve(self.a, self.b) @ vector + alpha * width)

    def update(self, x: Sequence[float], reward: float) -> None:
        self.a, self.b = self.a + np.outer(x, x), self.b + reward * np.array(x)


@dataclass
class Event:
    """A routed event of a past tick."""

    applied: Values
    scores: Values
    context: Sequence[float]
    route: str


@dataclass
class Router:
    """The learning state of one golem's router."""

    policy: Policy
    rounds: int = 0
    scores: Experts = field(default_factory=lambda: Experts([0.0] * len(SCORES)))
    rules: Experts = field(default_factory=lambda: Experts([0.0] * RULES))
    linear: list[Linear] = field(default_factory=lambda: [Linear() for _ in ROUTES[:-1]])
    means: list[float] = field(default_factory=lambda: [0.0] * len(ROUTES))
    counts: list[int] = field(default_factory=lambda: [0] * len(ROUTES))
    arms: dict[tuple[int, int], list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start every arm with its prior."""
        for regime in range(3):
            for arm, prior in enumerate(self.policy.triage.arm_priors):
                self.arms.setdefault((regime, arm), [prior, prior])

    def route(self, score: float | None, arm: int, context: Sequence[float], shadow: str) -> tuple[str, str]:
        """Return the route and what decides it."""
        rules = self.policy.triage
        if score is None:
            return shadow, "baseline"
        high, medium, low = rules.arms[arm]
        if abs(score - high) < rules.borderline:
            bounds = [linear.bound(context, rules.ucb_alpha) for linear in self.linear]
            return ROUTES[bounds.index(max(bounds))], "context"
        for limit, route in ((high, "escalate"), (medium, "emit"), (low, "count")):
            if score > limit:
                return route, "threshold"
        return "discard", "threshold"

    def baseline(self, draw: float, random: float) -> str:
        """Return the route of the epsilon-greedy baseline. draw, random: two numbers in [0, 1)."""
        rules = self.policy.triage
        if draw < max(rules.epsilon_first * rules.epsilon_decay ** sum(self.counts), rules.epsilon_min):
            return ROUTES[math.floor(random * len(ROUTES))]
        return ROUTES[self.means.index(max(self.means))]

    def learn(self, judged: Sequence[tuple[Sequence[Event], tuple[int, int], bool]]) -> None:
        """Learn from the judged ticks of a delta, in order: their events, (regime of arousal, arm), importance."""
        rules, weights = self.policy.triage, self.policy.gating
        for cell in self.arms.values():
            cell[:] = [1.0 + rules.arm_memory * (value - 1.0) for value in cell]
        for events, arm, important in judged:
            escalated = any(event.route == "escalate" for event in events)
            if events and (escalated or important):
                self.arms[arm][0 if escalated and important else 1] += 1.0
            for event in events:
                self.rounds += 1
                weight = 1.0 if important else weights.negative_weight
                self.scores.update(event.scores, float(important), weight)
                self.rules.update(event.applied, float(important), weight)
                at, reward = ROUTES.index(event.route), float((event.route == "escalate") == important)
                self.counts[at] += 1
                self.means[at] += (reward - self.means[at]) / self.counts[at]
                if event.route != "discard":
                    self.linear[at].update(event.context, reward)
        for experts in (self.scores, self.rules):
            experts.bound(self.rounds, weights.weight_ratio_min)

    def state(self) -> dict[str, list[float]]:
        """Return the state as a record holds it."""
        upper = np.triu_indices(12)
        logs = [
            [-experts.eta(self.rounds) * (loss - min(experts.losses)) for loss in experts.losses]
            for experts in (self.scores, self.rules)
        ]
        inverses = [np.linalg.inv(linear.a) for linear in self.linear]
        return {
            "log_weights": logs[0],
            "rule_log_weights": logs[1],
            "arms": [self.arms[r, a][part] for part in (0, 1) for r in range(3) for a in range(5)],
            "inverse": [float(v) for inverse in inverses for v in inverse[upper]],
            "theta": [float(v) for i, linear in zip(inverses, self.linear, strict=True) for v in i @ linear.b],
            "route_means": self.means,
            "route_counts": [float(count) for count in self.counts],
            "rounds": [float(self.rounds)],
        }


def applied_rules(row: Mapping[str, Any], kind: str, value_micros: int, policy: Policy) -> list[float | None]:
    """Return the six rules of an event in a record; None for a rule without a source."""
    protocol = row["observation"]["protocol"] if kind == "swap" else "aave_v3"
    held = next((p for p in row["observation"]["positions"] if p["protocol"] == protocol), None)
    since = int(held["position_id"].rsplit("/", 1)[1].removeprefix("loan-")) if held else 0
    rules = policy.triage
    return [
        float(held is not None and (kind != "swap" or held["in_range"])),
        float(protocol in policy.cage.protocols),
        float(value_micros > rules.large_value_micros),
        float(held is not None and since > row["tick"] - rules.recent_ticks),
        None,
        None,
    ]


def context_of(
    row: Mapping[str, Any], event: Mapping[str, Any], applied: Values, hours_since_escalation: float
) -> list[float]:
    """Return the twelve features of an event in a record."""
    scores = event["scores"]
    parts = [
        event["score"], scores["surprise"], scores["error"], scores["anomaly"], row["pad_before"]["arousal"],
        row["pad_before"]["pleasure"], applied[0], applied[1], row["observation"]["gas_hour_ratio"],
        math.log10(max(event["value_micros"] / 1e6, 1.0)) / 10.0, row["tick_interval_seconds"] / 60.0 / 10.0,
        min(hours_since_escalation, 1.0),
    ]  # fmt: skip
    return [0.0 if part is None else float(part) for part in parts]
