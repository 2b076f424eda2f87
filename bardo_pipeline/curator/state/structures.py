"""Structures: the situation or relation that an entry is about, and a registry of them. Pure.

Evidence belongs to the same rule if its structure is equal; equal wording never decides (canon 17). The registry gives
each structure a small integer, so that passes work on integer arrays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire import entries
from bardo_pipeline.grimoire.conditions import conditions_in
from bardo_pipeline.grimoire.confidence import CLASS_FACT, CLASS_REGIME, CLASS_TACTICAL
from bardo_pipeline.grimoire.gas_bands import GAS_SPANS

ACTION_CATEGORY = {
    "rebalance": "rebalance_timing",
    "add_liquidity": "range_selection",
    "remove_liquidity": "risk_events",
}
_NO_NUMBERS = np.zeros(0, np.int64)
_PRESENCE_ACTS = {"enter": ("uniswap_v3_mint", "add_liquidity"), "leave": ("uniswap_v3_burn", "remove_liquidity")}
_LOAN_ACTS = {"borrow": "aave_v3_borrow", "repay": "aave_v3_repay"}


def choice_act(alternative: str, beside: str, horizon: str = "", anomaly_band: str = "") -> tuple[str, str]:
    """Return tool and action type of a choice's structure: ("uniswap_v3_mint", "range_400_over_160").

    alternative, beside: as a trial states them. horizon: of loans and of re-centring, which have an action type for
    each ("borrow_4_hours"). anomaly_band: of re-centring ("recenter_strained_4_hours").
    """
    if alternative in _LOAN_ACTS:
        return _LOAN_ACTS[alternative], f"{alternative}_{horizon}"
    if alternative == "recenter":
        return "uniswap_v3_rebalance", f"recenter_{anomaly_band}_{horizon}"
    if alternative in _PRESENCE_ACTS:
        return _PRESENCE_ACTS[alternative]
    return "uniswap_v3_mint", f"{alternative}_over_{beside.removeprefix('range_')}"


class Structure(NamedTuple):
    """One structure. A pattern uses tool to gas_band, a baseline metric, a causal link cause to lag_ticks.

    A choice uses tool and action_type, which names its parameter, and regime, None for all regimes. A strategy uses
    action_type, the acts of its parts, and regime.

    A dream entry uses a pattern's fields, and cause for the simulated change. A report uses action_type, and cause for
    its conditions, None for any situation. Unused fields hold None.
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
        if self.source == "report":
            return "strategic_patterns"
        if self.effect is not None:
            return entries.EFFECT_CATEGORY.get(self.effect, "general")
        if self.metric is not None:
            return entries.METRIC_CATEGORY.get(self.metric, "general")
        if entries.width_of_act(self.action_type) is not None:
            return "range_selection"
        if entries.recentring_of_act(self.action_type) is not None:
            return "rebalance_timing"
        return ACTION_CATEGORY.get(self.action_type or "", "strategic_patterns")

    @property
    def domain(self) -> str:
        """Return KAT's domain of the category; for a report the domain that its runtime states."""
        return self.protocol if self.source == "report" else entries.CATEGORIES[self.category]

    @property
    def decay_class(self) -> int:
        """Return the decay class: facts, regime-conditional for a rule with a regime or conditions, else tactical."""
        if self.source in ("baseline", "causal"):
            return CLASS_FACT
        if self.source == "report":
            return CLASS_TACTICAL if self.cause is None else CLASS_REGIME
        return CLASS_REGIME if self.regime not in (None, "unknown") else CLASS_TACTICAL


_PLAIN_PARTS = Structure._fields.index("cause")


def _escaped(name: str) -> str:
    return "\\-" if name == "-" else name.replace("\\", "\\\\").replace("|", "\\|")


@dataclass
class Structures:
    """Registry of structures in the order of registration; codes are local to the registry and never stored.

    fragments: code of a strategy by the codes and verdicts of its parts and its regime (bind_fragments.py).
    """

    rows: list[Structure] = field(default_factory=list)
    codes: dict[Structure, int] = field(default_factory=dict)
    fragments: dict[tuple[int, ...], int] = field(default_factory=dict, repr=False, compare=False)
    _scenes: dict[Structure, int] = field(default_factory=dict)
    _acts: dict[str, int] = field(default_factory=dict)
    _keys: list[str] = field(default_factory=list, repr=False, compare=False)
    _numbers: dict[str, Int64Array] = field(default_factory=dict, repr=False, compare=False)

    def code(self, structure: Structure) -> int:
        """Return the code of a structure, registering it if new."""
        code = self.codes.get(structure)
        if code is None:
            code = self.codes[structure] = len(self.rows)
            self.rows.append(structure)
        return code

    def _number(self, name: str, number_of: Callable[[Structure], int]) -> Int64Array:
        """Return an integer for each structure, by code. It is computed once per structure and cached by name."""
        numbers = self._numbers.get(name, _NO_NUMBERS)
        if len(numbers) < len(self.rows):
            numbers = self._numbers[name] = np.r_[numbers, [number_of(row) for row in self.rows[len(numbers) :]]]
        return numbers

    def is_level(self) -> BoolArray:
        """Return which structures are levels of a metric, by code."""
        return self._number("level", lambda row: row.source == "baseline") == 1

    def scenes(self) -> tuple[Int64Array, Int64Array]:
        """Return (scene, gas span) by code. Rules of one scene differ in gas only; the span is -1 for other sources."""
        scene = self._number("scene", self._scene)
        span = self._number("span", lambda row: _index(GAS_SPANS, row.gas_band if row.source == "pattern" else None))
        return scene, span

    def _scene(self, structure: Structure) -> int:
        return self._scenes.setdefault(structure._replace(gas_band=None), len(self._scenes))

    def keys(self) -> list[str]:
        """Return the key of each structure, by code."""
        self._keys += [row.key for row in self.rows[len(self._keys) :]]
        return self._keys

    def column(self, name: str) -> list[str | int | None]:
        """Return one field of every structure, by code."""
        return [getattr(row, name) for row in self.rows]

    def kin(self) -> Int64Array:
        """Return the code of each scene and gas span, -1 if not registered. [scenes, spans]."""
        scene, span = self.scenes()
        kin = np.full((len(self._scenes), len(GAS_SPANS)), -1)
        kin[scene[span >= 0], span[span >= 0]] = np.flatnonzero(span >= 0)
        return kin

    def spanning(self, code: int, span: int) -> int:
        """Return the code of the same structure with another gas span, registering it if new."""
        return self.code(self.rows[code]._replace(gas_band=GAS_SPANS[span]))

    def stable(self) -> Int64Array:
        """Return a hash by code that depends on the structure only, to break ties."""
        return self._number("stable", _hash)

    def effects(self) -> Int64Array:
        """Return the effect variable of a causal link without a regime, by code; -1 for any other structure."""
        return self._number("effect", _effect)

    def choices(self) -> BoolArray:
        """Return whether each structure is a choice, by code."""
        return self._number("choice", lambda row: row.source == "choice").astype(bool)

    def chosen_acts(self) -> tuple[Int64Array, dict[str, int]]:
        """Return the act of each choice, by code, -1 for any other structure; and the code of each act."""
        return self._number("act", self._act), self._acts

    def _act(self, structure: Structure) -> int:
        is_choice = structure.source == "choice"
        return self._acts.setdefault(structure.action_type or "", len(self._acts)) if is_choice else -1

    def is_recalled(self) -> BoolArray:
        """Return whether a deliberation retrieves each structure, by code.

        Choices act through the playbook; a runtime asks for its reports itself.
        """
        return self._number("recalled", lambda row: row.source not in ("choice", "strategy", "report")).astype(bool)

    def reported(self) -> Int64Array:
        """Return the number of conditions of each report, by code; -1 for any other structure."""
        return self._number("reported", _conditions_of_report)

    def roles(self) -> Int64Array:
        """Return the part that each structure can have in a strategy, by code: a position in ROLES, -1 for none."""
        return self._number("role", _role)

    def bands(self) -> tuple[Int64Array, Int64Array, Int64Array, BoolArray]:
        """Return (regime, anomaly band, gas span, is_rebalance) by code; -1 where a field does not apply."""
        regime = self._number("regime", lambda row: _index(REGIMES, row.regime))
        anomaly = self._number("anomaly", lambda row: _index(entries.ANOMALY_BANDS, row.anomaly_band))
        gas = self._number("gas", lambda row: _index(GAS_SPANS, row.gas_band))
        is_rebalance = self._number("rebalance", lambda row: row.action_type == "rebalance" and row.source != "report")
        return regime, anomaly, gas, is_rebalance.astype(bool)


ROLES = ("sizing", "entry", "exit", "re-centring")
"""Parts of a strategy fragment."""


def _role(structure: Structure) -> int:
    if structure.source == "pattern" and structure.action_type == "rebalance":
        return ROLES.index("re-centring")
    if structure.source != "choice":
        return -1
    if entries.width_of_act(structure.action_type) is not None:
        return ROLES.index("sizing")
    return {"add_liquidity": ROLES.index("entry"), "remove_liquidity": ROLES.index("exit")}.get(
        structure.action_type or "", -1
    )


def _conditions_of_report(structure: Structure) -> int:
    return len(conditions_in(structure.cause)) if structure.source == "report" else -1


def _index(words: Sequence[str], word: str | None) -> int:
    return -1 if word is None else words.index(word)


def _hash(structure: Structure) -> int:
    return int.from_bytes(hashlib.sha256(structure.key.encode()).digest()[:8], "big") >> 1


def _effect(structure: Structure) -> int:
    is_general_link = structure.source == "causal" and structure.regime is None
    return _index(entries.CAUSAL_VARIABLES, structure.effect if is_general_link else None)
