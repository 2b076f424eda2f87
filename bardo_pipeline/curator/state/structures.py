"""Structures: the situation or relation that an entry is about, and a registry of them. Pure.

Evidence belongs to the same rule if its structure is equal; equal wording never decides (canon 17). The registry gives
each structure a small integer, so that passes work on integer arrays.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bardo_pipeline.arrays import BoolArray, Int8Array, Int64Array
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire import entries
from bardo_pipeline.grimoire.confidence import CLASS_FACT, CLASS_REGIME, CLASS_TACTICAL
from bardo_pipeline.grimoire.gas_bands import GAS_SPANS

ACTION_CATEGORY = {
    "rebalance": "rebalance_timing",
    "add_liquidity": "range_selection",
    "remove_liquidity": "risk_events",
}


class Structure(NamedTuple):
    """One structure. A pattern uses tool to gas_band, a baseline metric, a causal link cause to lag_ticks.

    A dream entry uses a pattern's fields, and cause for the simulated change. Unused fields hold None.
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
        """Return the structure as a string; equal keys mean equal structures.

        Fields after metric appear only if there is a cause. Separators inside names are escaped, because writers of
        records choose the names.
        """
        parts = self[:_PLAIN_PARTS] if self.cause is None else self
        return "|".join("-" if part is None else _escaped(str(part)) for part in parts)

    @property
    def category(self) -> str:
        """Return one of the nineteen categories."""
        if self.source == "dream":
            return entries.CHANGE_CATEGORY.get(self.cause or "", "general")
        if self.effect is not None:
            return entries.EFFECT_CATEGORY.get(self.effect, "general")
        if self.metric is not None:
            return entries.METRIC_CATEGORY.get(self.metric, "general")
        return ACTION_CATEGORY.get(self.action_type or "", "strategic_patterns")

    @property
    def domain(self) -> str:
        """Return KAT's domain of the category."""
        return entries.CATEGORIES[self.category]

    @property
    def decay_class(self) -> int:
        """Return the decay class: facts, regime-conditional for a rule with a regime, tactical otherwise."""
        if self.source in ("baseline", "causal"):
            return CLASS_FACT
        return CLASS_REGIME if self.regime not in (None, "unknown") else CLASS_TACTICAL


_PLAIN_PARTS = Structure._fields.index("cause")


def _escaped(name: str) -> str:
    return "\\-" if name == "-" else name.replace("\\", "\\\\").replace("|", "\\|")


@dataclass
class Structures:
    """Registry of structures in the order of registration; codes are local to the registry and never stored."""

    rows: list[Structure] = field(default_factory=list)
    codes: dict[Structure, int] = field(default_factory=dict)
    _scenes: dict[Structure, int] = field(default_factory=dict)
    _placed: list[tuple[int, int]] = field(default_factory=list)
    _columns: tuple[Int64Array, Int64Array] | None = None
    _kin: Int64Array | None = field(default=None, repr=False, compare=False)
    _keys: list[str] = field(default_factory=list, repr=False, compare=False)
    _stable: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64), repr=False, compare=False)
    _effects: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64), repr=False, compare=False)
    _bands: Int8Array = field(default_factory=lambda: np.zeros((4, 0), np.int8), repr=False, compare=False)

    def code(self, structure: Structure) -> int:
        """Return the code of a structure, registering it if new."""
        code = self.codes.get(structure)
        if code is None:
            code = self.codes[structure] = len(self.rows)
            self.rows.append(structure)
            is_rule = structure.source == "pattern" and structure.gas_band is not None
            span = GAS_SPANS.index(structure.gas_band or "any") if is_rule else -1
            scene = structure._replace(gas_band=None)
            self._placed.append((self._scenes.setdefault(scene, len(self._scenes)), span))
            self._columns = self._kin = None
        return code

    def scenes(self) -> tuple[Int64Array, Int64Array]:
        """Return (scene, gas span) by code. Rules of one scene differ in gas only; the span is -1 for other sources."""
        if self._columns is None:
            placed = np.array(self._placed, np.int64).reshape(-1, 2)
            self._columns = placed[:, 0].copy(), placed[:, 1].copy()
        return self._columns

    def key(self, code: int) -> str:
        """Return the key of a code's structure."""
        self._keys += [row.key for row in self.rows[len(self._keys) :]]
        return self._keys[code]

    def column(self, name: str) -> list[str | int | None]:
        """Return one field of every structure, by code."""
        return [getattr(row, name) for row in self.rows]

    def kin(self) -> Int64Array:
        """Return the code of each scene and gas span, -1 if not registered. [scenes, spans]."""
        if self._kin is None:
            scene, span = self.scenes()
            self._kin = np.full((len(self._scenes), len(GAS_SPANS)), -1)
            self._kin[scene[span >= 0], span[span >= 0]] = np.flatnonzero(span >= 0)
        return self._kin

    def spanning(self, code: int, span: int) -> int:
        """Return the code of the same structure with another gas span, registering it if new."""
        return self.code(self.rows[code]._replace(gas_band=GAS_SPANS[span]))

    def stable(self) -> Int64Array:
        """Return a hash by code that depends on the structure only, to break ties."""
        fresh = self.rows[len(self._stable) :]
        if fresh:
            digests = (hashlib.sha256(r.key.encode()).digest()[:8] for r in fresh)
            self._stable = np.r_[self._stable, [int.from_bytes(d, "big") >> 1 for d in digests]]
        return self._stable

    def effects(self) -> Int64Array:
        """Return the effect variable of a causal link without a regime, by code; -1 for any other structure."""
        fresh = self.rows[len(self._effects) :]
        if fresh:
            links = (r.effect if r.source == "causal" and r.regime is None else None for r in fresh)
            codes = [entries.CAUSAL_VARIABLES.index(e) if e in entries.CAUSAL_VARIABLES else -1 for e in links]
            self._effects = np.r_[self._effects, codes]
        return self._effects

    def bands(self) -> tuple[Int8Array, Int8Array, Int8Array, BoolArray]:
        """Return (regime, anomaly band, gas span, is_rebalance) by code; -1 for none."""
        fresh = self.rows[self._bands.shape[1] :]
        if fresh:
            regime = [REGIMES.index(r.regime) if r.regime else -1 for r in fresh]
            anomaly = [entries.ANOMALY_BANDS.index(r.anomaly_band) if r.anomaly_band else -1 for r in fresh]
            gas = [GAS_SPANS.index(r.gas_band) if r.gas_band else -1 for r in fresh]
            moves = [r.action_type == "rebalance" for r in fresh]
            self._bands = np.hstack([self._bands, np.array([regime, anomaly, gas, moves], np.int8)])
        regimes, anomalies, gases, moving = self._bands
        return regimes, anomalies, gases, moving.astype(bool)
