"""Advice: the rules of a golem about reported actions that hold in a situation, and the best action by them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.events.experience.reported_experience import word_of
from bardo_pipeline.grimoire.conditions import Pair, conditions_in
from bardo_pipeline.grimoire.confidence import PPM


class Rule(NamedTuple):
    """A rule about an action under conditions.

    Parameters
    ----------
    kind : insight, heuristic or warning
    effect : reward of the action less that of the other actions, in units of the best reward
    conditions : (name, value) pairs, none for any situation
    """

    entry_id: str
    action: str
    kind: str
    effect: float
    confidence: float
    conditions: tuple[Pair, ...]
    domain: str
    text: str

    def document(self) -> dict[str, Any]:
        """Return the rule as a JSON object."""
        return self._asdict() | {"conditions": dict(self.conditions)}


@dataclass(frozen=True)
class Advice:
    """The rules of a golem, the most special first, then the surest."""

    rules: tuple[Rule, ...]

    @classmethod
    def of(cls, entries: pa.Table, confidence_ppm: Int64Array) -> Advice:
        """Return the active rules among entries (ENTRY_SCHEMA). confidence_ppm: of each entry now."""
        entries = entries.append_column("confidence", pa.array(confidence_ppm, pa.int64()))
        is_rule = pc.and_(pc.equal(entries["source"], "report"), pc.equal(entries["status"], "active"))
        rows = entries.filter(is_rule).to_pylist()
        rules = [
            Rule(
                row["entry_id"], row["action_type"], row["kind"], row["effect_mean_ppm"] / PPM,
                row["confidence"] / PPM, conditions_in(row["cause"]), row["protocol"], row["text"],
            )
            for row in rows
        ]  # fmt: skip
        return cls(tuple(sorted(rules, key=lambda rule: (-len(rule.conditions), -rule.confidence, rule.entry_id))))

    def holding(self, situation: Mapping[str, Any], action: str | None = None) -> list[Rule]:
        """Return the rules that hold in a situation, about one action or all."""
        given = {name: word_of(value) for name, value in situation.items()}
        return [
            rule
            for rule in self.rules
            if action in (None, rule.action) and all(given.get(name) == value for name, value in rule.conditions)
        ]

    def worth(self, situation: Mapping[str, Any], action: str) -> float:
        """Return the effect of an action by its most special rule, weighted by confidence; 0 without a rule."""
        rules = self.holding(situation, action)
        return rules[0].effect * rules[0].confidence if rules else 0.0

    def best(self, situation: Mapping[str, Any], actions: Sequence[str]) -> str:
        """Return the action of the highest worth, the first one of equals."""
        return max(actions, key=lambda action: self.worth(situation, action))
