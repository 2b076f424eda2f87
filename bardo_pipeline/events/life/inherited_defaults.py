"""Instincts: rules that survived several generations of a lineage and configure its heirs. Pure.

Source: INH S7.5 (Baldwin effect), canon 10.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.record.model import REGIMES, Name, Part, Regime, Unit


class Default(Part):
    """Initial threshold of the heir in a regime. entry_ids: the rules that determined it."""

    regime: Regime
    rebalance_threshold: Unit
    entry_ids: tuple[Name, ...]


class DefaultsInherited(Part):
    """Defaults of an heir's configuration, from rules that survived three generations, by regime."""

    bundle_hash: Name
    defaults: tuple[Default, ...]


@dataclass(frozen=True)
class Instincts:
    """Inherited defaults by golem."""

    by_golem: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    @classmethod
    def of(cls, events: pa.Table) -> Instincts:
        """Read life events (LIFE_SCHEMA); events of other kinds are ignored."""
        rows = events.filter(pc.equal(events["kind"], "DefaultsInherited")).select(["golem_id", "instincts"])
        return cls({row["golem_id"]: row["instincts"]["defaults"] for row in rows.to_pylist()})

    def base(self, golem_id: str, threshold: float) -> tuple[float, ...]:
        """Return the initial threshold of each regime: its default, else the golem's own."""
        by_regime = {row["regime"]: row["rebalance_threshold"] for row in self.by_golem.get(golem_id, ())}
        return tuple(by_regime.get(regime, threshold) for regime in REGIMES)

    def words(self, golem_id: str) -> tuple[str, ...]:
        """Return one line per default for PLAYBOOK.md, in the order of REGIMES."""
        order = sorted(self.by_golem.get(golem_id, ()), key=lambda row: REGIMES.index(row["regime"]))
        return tuple(
            f"{row['regime']}: {row['rebalance_threshold']:.2f}, by {', '.join(e[:12] for e in row['entry_ids'])}"
            for row in order
        )
