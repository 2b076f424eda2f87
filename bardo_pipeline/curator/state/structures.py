"""Structures: what an entry is about, told apart from what it says. Pure.

Two pieces of evidence concern the same rule when their structures are equal; sameness of words never decides (canon
17). A registry gives each structure a small integer, so that everything after it is arithmetic over arrays.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.confidence import CLASS_FACT, CLASS_REGIME, CLASS_TACTICAL
from bardo_pipeline.grimoire.entries import (
    ANOMALY_BANDS,
    CATEGORIES,
    CAUSAL_VARIABLES,
    CHANGE_CATEGORY,
    EFFECT_CATEGORY,
    METRIC_CATEGORY,
)
from bardo_pipeline.grimoire.gas_bands import GAS_SPANS

ACTION_CATEGORY = {
    "rebalance": "rebalance_timing",
    "add_liquidity": "range_selection",
    "remove_liquidity": "risk_events",
}


class Structure(NamedTuple):
    """One structure: a pattern has tool to gas_band, a baseline metric, a link cause to lag_ticks; the rest is None.

    What a dream taught has a pattern's parts, and in cause what is changed.
    """

    source: str
    chain: str
    protocol: str
    pair: str
    tool: str | None = None
    action_type: str | None = None
    regime: str | None = None
    anomaly_band: str | None = None
    gas_band: str | None = None
    metric: str | None = None
    cause: str | None = None
    effect: str | None = None
    lag_ticks: int | None = None

    @property
    def key(self) -> str:
        """The structure as one string; only equal structures have equal keys.

        Only one with a cause goes past the metric. Names come from whoever writes records: what would read as a border,
        or as no name, is escaped.
        """
        parts = self[:_PLAIN_PARTS] if self.cause is None else self
        return "|".join("-" if part is None else _escaped(str(part)) for part in parts)

    @property
    def category(self) -> str:
        """One of the nineteen categories."""
        if self.source == "dream":
            return CHANGE_CATEGORY.get(self.cause or "", "general")
        if self.effect is not None:
            return EFFECT_CATEGORY.get(self.effect, "general")
        if self.metric is not None:
            return METRIC_CATEGORY.get(self.metric, "general")
        return ACTION_CATEGORY.get(self.action_type or "", "strategic_patterns")

    @property
    def domain(self) -> str:
        """KAT's domain of the category."""
        return CATEGORIES[self.category]

    @property
    def decay_class(self) -> int:
        """Baselines and causal links are facts; a rule with a regime lasts with regimes; any other is tactical."""
        if self.source in ("baseline", "causal"):
            return CLASS_FACT
        return CLASS_REGIME if self.regime not in (None, "unknown") else CLASS_TACTICAL


_PLAIN_PARTS = Structure._fields.index("cause")


def _escaped(name: str) -> str:
    return "\\-" if name == "-" else name.replace("\\", "\\\\").replace("|", "\\|")


@dataclass
class Structures:
    """The structures met so far, in the order of first sight; codes are private to one registry and never stored."""

    rows: list[Structure] = field(default_factory=list)
    codes: dict[Structure, int] = field(default_factory=dict)
    _scenes: dict[Structure, int] = field(default_factory=dict)
    _placed: list[tuple[int, int]] = field(default_factory=list)
    _columns: tuple[np.ndarray, np.ndarray] | None = None
    _kin: np.ndarray | None = field(default=None, repr=False, compare=False)
    _keys: list[str] = field(default_factory=list, repr=False, compare=False)
    _stable: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64), repr=False, compare=False)
    _effects: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64), repr=False, compare=False)
    _bands: np.ndarray = field(default_factory=lambda: np.zeros((4, 0), np.int8), repr=False, compare=False)

    def code(self, structure: Structure) -> int:
        """The code of a structure, given out on first sight."""
        known = self.codes.get(structure)
        if known is None:
            known = self.codes[structure] = len(self.rows)
            self.rows.append(structure)
            is_rule = structure.source == "pattern" and structure.gas_band is not None
            span = GAS_SPANS.index(structure.gas_band or "any") if is_rule else -1
            scene = structure._replace(gas_band=None)
            self._placed.append((self._scenes.setdefault(scene, len(self._scenes)), span))
            self._columns = self._kin = None
        return known

    def scenes(self) -> tuple[np.ndarray, np.ndarray]:
        """(scene, gas span) by code: rules of one scene differ in gas alone; the span is -1 for what is no rule."""
        if self._columns is None:
            placed = np.array(self._placed, np.int64).reshape(-1, 2)
            self._columns = placed[:, 0].copy(), placed[:, 1].copy()
        return self._columns

    def key(self, code: int) -> str:
        """The structure of a code as one string."""
        self._keys += [row.key for row in self.rows[len(self._keys) :]]
        return self._keys[code]

    def column(self, name: str) -> list[str | int | None]:
        """One attribute of every structure, by code."""
        return [getattr(row, name) for row in self.rows]

    def kin(self) -> np.ndarray:
        """The structure of each scene and gas span, -1 for one not met yet. int64 [scenes, spans]."""
        if self._kin is None:
            scene, span = self.scenes()
            self._kin = np.full((len(self._scenes), len(GAS_SPANS)), -1)
            self._kin[scene[span >= 0], span[span >= 0]] = np.flatnonzero(span >= 0)
        return self._kin

    def spanning(self, code: int, span: int) -> int:
        """The structure that is about another gas span and otherwise the same, given out on first sight."""
        return self.code(self.rows[code]._replace(gas_band=GAS_SPANS[span]))

    def stable(self) -> np.ndarray:
        """A number by code that depends on the structure alone, to break ties with. int64."""
        fresh = self.rows[len(self._stable) :]
        if fresh:
            digests = (hashlib.sha256(r.key.encode()).digest()[:8] for r in fresh)
            self._stable = np.r_[self._stable, [int.from_bytes(d, "big") >> 1 for d in digests]]
        return self._stable

    def effects(self) -> np.ndarray:
        """The variable that a link of all regimes is about, by code; -1 for any other structure. int64."""
        fresh = self.rows[len(self._effects) :]
        if fresh:
            links = (r.effect if r.source == "causal" and r.regime is None else None for r in fresh)
            known = [CAUSAL_VARIABLES.index(e) if e in CAUSAL_VARIABLES else -1 for e in links]
            self._effects = np.r_[self._effects, known]
        return self._effects

    def bands(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(regime, anomaly band, gas span: int8, -1 for none; rebalances: bool) by code."""
        fresh = self.rows[self._bands.shape[1] :]
        if fresh:
            regime = [REGIMES.index(r.regime) if r.regime else -1 for r in fresh]
            anomaly = [ANOMALY_BANDS.index(r.anomaly_band) if r.anomaly_band else -1 for r in fresh]
            gas = [GAS_SPANS.index(r.gas_band) if r.gas_band else -1 for r in fresh]
            moves = [r.action_type == "rebalance" for r in fresh]
            self._bands = np.hstack([self._bands, np.array([regime, anomaly, gas, moves], np.int8)])
        regimes, anomalies, gases, moving = self._bands
        return regimes, anomalies, gases, moving.astype(bool)
