"""The row-at-a-time twin of curator/state/evidence.py: the evidence of each record by structure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction
from typing import Any

from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.events.life.proposal_events import Proposal
from bardo_pipeline.policy import CuratorPolicy

Record = Mapping[str, Any]
Key = tuple[str, int, Structure]
Cited = tuple[Structure, datetime, int, set[int]]
"""A judged decision: structure, time of the verdict, effect, and ticks."""

ANOMALY_BANDS = ("calm", "stirred", "strained", "stretched", "broken")
GAS_BANDS = ("cheap", "normal", "dear")


@dataclass
class Group:
    """Return the evidence of one cycle of one golem about one structure: the observations in each market window."""

    windows: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)
    causes: set[int] = field(default_factory=set)

    def add(self, window: int, value: int, mood: list[int], causes: set[int]) -> None:
        """Add an observation of a window; of a level, the window is the market day."""
        self.windows.setdefault(window, []).append((value, *mood))
        self.causes |= causes

    @property
    def readings(self) -> list[int]:
        """Return every value, in order."""
        return sorted(value for seen in self.windows.values() for value, *_ in seen)

    @property
    def witnesses(self) -> list[tuple[int, ...]]:
        """Return the mean effect and mean mood of each window, halves rounded up."""
        return [
            tuple(math.floor(Fraction(sum(column), len(column)) + Fraction(1, 2)) for column in zip(*seen, strict=True))
            for seen in self.windows.values()
        ]

    @property
    def count(self) -> int:
        """How many windows."""
        return len(self.windows)

    @property
    def total(self) -> int:
        """Sum of the effects."""
        return sum(effect for effect, *_ in self.witnesses)

    @property
    def squares(self) -> int:
        """Sum of their squares."""
        return sum(effect * effect for effect, *_ in self.witnesses)

    @property
    def mood(self) -> list[int]:
        """Sums of pleasure, arousal and dominance."""
        return [sum(column) for column in list(zip(*self.witnesses, strict=True))[1:]]


@dataclass
class Pooled(Group):
    """Return one cycle's evidence for a rule that replaces several. figures: witnesses, sum, squares, sums of mood."""

    figures: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """The certain number of windows."""
        return self.figures[0]

    @property
    def total(self) -> int:
        """Sum of the effects."""
        return self.figures[1]

    @property
    def squares(self) -> int:
        """Sum of their squares."""
        return self.figures[2]

    @property
    def mood(self) -> list[int]:
        """Sums of pleasure, arousal and dominance."""
        return list(self.figures[3:])


def evidence_by_row(records: Iterable[tuple[Record, int]], policy: CuratorPolicy) -> dict[Key, Group]:
    """Evidence of records, each with its cycle, by golem, cycle and structure."""
    groups: dict[Key, Group] = {}
    for row, cycle in records:
        mood = [round(row["pad_after"][name] * 1000) for name in ("pleasure", "arousal", "dominance")]
        window, day = (row["tick"] - 1) // policy.witness_ticks, row["observed_at"].date().toordinal()
        for structure, value, causes in (*_decisions(row, policy), *_levels(row)):
            group = groups.setdefault((row["golem_id"], cycle, structure), Group())
            group.add(window if structure.source == "pattern" else day, value, mood, causes)
    return groups


def cited_by_row(records: Iterable[Record], proposal: Proposal, policy: CuratorPolicy) -> list[Cited]:
    """Return every judged decision that a proposal cites by the tick of its verdict, or by its own tick if already
    judged.
    """
    return [
        (structure, row["observed_at"], effect, causes)
        for row in records
        if row["golem_id"] == proposal.golem_id and row["tick"] <= proposal.tick_seen
        for structure, effect, causes in _decisions(row, policy)
        if causes & set(proposal.evidence)
    ]


def is_episode(row: Record) -> bool:
    """An action, an anomaly, a regime change, tier T1 and above, or stored by a tool under a tag (canon 13)."""
    turned = row["prediction_error_sources"]["regime"] > 0 or row["dream_tag"] is not None
    return bool(row["actions"]) or bool(row["anomalies"]) or turned or row["tier"] in ("T1", "T2")


def is_verified(row: Record) -> bool:
    """Whether no action was executed, or its outcome was verified."""
    if row["outcome"] is None:
        return all(done["status"] != "executed" for done in row["actions"])
    return bool(row["outcome"]["verified"])


def band(value: float, edges: Iterable[float], names: tuple[str, ...]) -> str:
    """The band of a value; an edge belongs to the band above it."""
    return names[sum(value >= edge for edge in edges)]


def _market(row: Record) -> tuple[str, str, str]:
    seen = row["observation"]
    return seen["chain"], seen["protocol"], seen["pair"]


def _decisions(row: Record, policy: CuratorPolicy) -> Iterator[tuple[Structure, int, set[int]]]:
    for part in row["resolutions"]:
        if part["verified"]:
            structure = Structure(
                "pattern", *_market(row), part["tool_name"], part["action_type"], part["regime"],
                band(part["anomaly_score"], policy.anomaly_edges, ANOMALY_BANDS),
                band(part["gas_ratio"], policy.gas_edges, GAS_BANDS),
            )  # fmt: skip
            effect = max(-(10**6), min(10**6, part["effect_ppm"]))
            yield structure, effect, {part["decision_tick"], row["tick"]}


def _levels(row: Record) -> Iterator[tuple[Structure, int, set[int]]]:
    values = [
        ("gas_price", round(row["observation"]["gas_gwei"] * 1000)),
        ("pool_volume", row["observation"]["volume_micros"] // 10**6),
    ]
    for done in row["actions"] if is_verified(row) else ():
        if done["status"] == "executed":
            if done["slippage_ppm"] is not None:
                values.append(("slippage", done["slippage_ppm"]))
            values.append(("gas_cost", done["gas_cost_micros"]))
    for metric, value in values:
        yield Structure("baseline", *_market(row), metric=metric), max(0, min(10**8, value)), {row["tick"]}
