"""Instincts: what a line learned so surely and for so long that an heir is configured with it. Pure.

Source: INH S7.5 (Baldwin effect), canon 10.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.record.model import REGIMES, Name, Part, Regime, Unit


class Default(Part):
    """From birth on the heir's threshold in this regime starts here; entry_ids: the rules that made it so."""

    regime: Regime
    rebalance_threshold: Unit
    entry_ids: tuple[Name, ...]


class DefaultsInherited(Part):
    """What survived three generations of a line is a default of its heir's configuration, by regime."""

    bundle_hash: Name
    defaults: tuple[Default, ...]


@dataclass(frozen=True)
class Instincts:
    """What heirs were configured with: the thresholds that they start from, and why, by golem."""

    by_golem: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    @classmethod
    def of(cls, events: pa.Table) -> Instincts:
        """From life events (LIFE_SCHEMA); events of other kinds do no harm."""
        rows = events.filter(pc.equal(events["kind"], "DefaultsInherited")).select(["golem_id", "instincts"])
        return cls({row["golem_id"]: row["instincts"]["defaults"] for row in rows.to_pylist()})

    def base(self, golem_id: str, threshold: float) -> tuple[float, ...]:
        """The threshold of each regime from which a golem starts, whose own is `threshold`."""
        return based(self.by_golem.get(golem_id, ()), threshold)

    def words(self, golem_id: str) -> tuple[str, ...]:
        """One line a default, as PLAYBOOK.md tells it."""
        return words_of(self.by_golem.get(golem_id, ()))


def based(defaults: Iterable[Mapping[str, Any]], threshold: float) -> tuple[float, ...]:
    """Thresholds by regime: what a default says, and elsewhere the golem's own."""
    said = {row["regime"]: row["rebalance_threshold"] for row in defaults}
    return tuple(said.get(regime, threshold) for regime in REGIMES)


def words_of(defaults: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """One line a default, regimes in their order."""
    order = sorted(defaults, key=lambda row: REGIMES.index(row["regime"]))
    return tuple(
        f"{row['regime']}: {row['rebalance_threshold']:.2f}, by {', '.join(e[:12] for e in row['entry_ids'])}"
        for row in order
    )
