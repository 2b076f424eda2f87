"""GrimoireState: entries and candidates of some golems as integer columns, the curator's working state. Pure.

The state is the fold of the decisions. This module converts between it and the grimoire's Arrow table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.curator.causality.lagged_moments import Moments
from bardo_pipeline.curator.state.level_readings import LevelReadings
from bardo_pipeline.curator.state.structures import Structure, Structures
from bardo_pipeline.events.record.arrow_columns import contiguous
from bardo_pipeline.grimoire import confidence as conf
from bardo_pipeline.grimoire.entries import (
    CAME_OVER,
    COUNTED_FIELDS,
    DECAY_CLASSES,
    ENTRY_KINDS,
    ENTRY_SCHEMA,
    PROVENANCES,
    STATUSES,
)
from bardo_pipeline.grimoire.entry_columns import index_of, moments, sorted_by
from bardo_pipeline.grimoire.entry_text import (
    SIZE_EDGES_PPM,
    baseline_text,
    causal_text,
    choice_text,
    pattern_text,
    report_text,
    strategy_text,
)
from bardo_pipeline.policy import CuratorPolicy, DecayPolicy

INSIGHT, HEURISTIC, WARNING, CAUSAL_LINK, STRATEGY_FRAGMENT = range(5)
CANDIDATE, ACTIVE, PRUNED, RETRACTED, FOLDED = 0, 1, 2, 3, 4
COUNTED = tuple(f.name for f in COUNTED_FIELDS)
MOMENTS = ("anchor_us", "created_us", "validated_us")
CODED = ("golem", "structure", "origin", "kind", "status", "provenance", "decay_class")
FLAGS = ("is_anti_knowledge", "is_bloodstain")
COLUMNS = (*CODED, *FLAGS, *COUNTED, *MOMENTS)
_WORDS = {"kind": ENTRY_KINDS, "status": STATUSES, "provenance": PROVENANCES, "decay_class": DECAY_CLASSES}
_LINE = {name: line for line, name in enumerate(COLUMNS)}
_IDS_KEPT, _TEXTS_KEPT = 65_536, 4_096  # caches of ids and texts, which every cycle writes again


@lru_cache(_IDS_KEPT)
def entry_id(origin_golem_id: str, structure_key: str) -> str:
    """Return an entry's id from its origin and structure: 24 hex characters."""
    return hashlib.sha256(f"{origin_golem_id}|{structure_key}".encode()).hexdigest()[:24]


@dataclass
class GrimoireState:
    """Entries and candidates as columns, sorted by (golem, structure).

    block: int64 [COLUMNS, rows], one line per column, so one operation copies whole rows. golem, structure, origin are
    codes in `golems`, `structures`, `golems`. Other columns as in ENTRY_SCHEMA, times in UTC microseconds. moments:
    sums for the causal tests (lagged_moments.py). readings: histograms of levels.
    """

    golems: list[str] = field(default_factory=list)
    structures: Structures = field(default_factory=Structures)
    block: Int64Array = field(default_factory=lambda: np.zeros((len(COLUMNS), 0), np.int64))
    _golem_codes: dict[str, int] = field(default_factory=dict)
    moments: Moments = field(default_factory=Moments)
    readings: LevelReadings = field(default_factory=LevelReadings)

    def __getitem__(self, name: str) -> Int64Array:
        column: Int64Array = self.block[_LINE[name]]
        return column

    def columns(self, names: tuple[str, ...], rows: Int64Array) -> Int64Array:
        """Return several columns of these rows. [names, rows]."""
        return np.asarray(self.block[lines_of(names), rows])

    @property
    def rows(self) -> int:
        """Return the number of entries and candidates."""
        return self.block.shape[1]

    def golem_code(self, golem_id: str) -> int:
        """Return the code of a golem, registering it if new."""
        code = self._golem_codes.get(golem_id)
        if code is None:
            code = self._golem_codes[golem_id] = len(self.golems)
            self.golems.append(golem_id)
        return code

    def keys(self) -> Int64Array:
        """Return (golem, structure) packed into one ascending int64 per row."""
        return (self["golem"] << 32) | self["structure"]

    def ensure(self, golem: Int64Array, structure: Int64Array) -> None:
        """Add the missing ones of these (golem, structure) pairs as empty candidates."""
        wanted = (golem << 32) | structure
        missing = np.unique(wanted[index_of(self.keys(), wanted) < 0])
        if not len(missing):
            return
        decay = np.array([s.decay_class for s in self.structures.rows], dtype=np.int64)
        blank = {n: np.zeros(len(missing), np.int64) for n in COLUMNS}
        blank["golem"], blank["structure"] = missing >> 32, missing & 0xFFFFFFFF
        blank["origin"] = blank["golem"]
        blank["decay_class"] = decay[blank["structure"]]
        self.append(blank)

    def append(self, rows: dict[str, Int64Array]) -> None:
        """Add rows (all COLUMNS, int64) and restore the sort order."""
        self.block = np.hstack([self.block, np.stack([rows[n].astype(np.int64) for n in COLUMNS])])
        self.block = self.block.take(np.argsort(self.keys(), kind="stable"), axis=1)

    def absorb(self, entries: pa.Table) -> None:
        """Add entries (ENTRY_SCHEMA) whose (golem, structure) pairs are new."""
        self.append(rows_of(self, entries))

    def find(self, golem: Int64Array, structure: Int64Array) -> Int64Array:
        """Return the rows of these pairs, all of which must exist."""
        return np.searchsorted(self.keys(), (golem << 32) | structure)

    def find_keys(self, golem_ids: pa.ChunkedArray, structures: pa.ChunkedArray) -> Int64Array:
        """Return the rows of the distinct (golem id, structure key) pairs, all of which must exist."""
        keys = self.structures.keys()
        golem = pc.index_in(golem_ids, value_set=pa.array(self.golems, pa.string())).to_numpy().astype(np.int64)
        wanted = np.unique((golem << 32) | pc.index_in(structures, value_set=pa.array(keys, pa.string())).to_numpy())
        return self.find(wanted >> 32, wanted & 0xFFFFFFFF)

    def half_life(self, rows: Int64Array, policy: DecayPolicy) -> Int64Array:
        """Return the half-life of these rows in microseconds."""
        evidence = np.maximum(self["own_count"][rows], self["evidence_count"][rows])
        return conf.half_life_us(self["decay_class"][rows], evidence, self["is_bloodstain"][rows] == 1, policy)

    def floor(self, rows: Int64Array, policy: DecayPolicy) -> Int64Array:
        """Return the floor of these rows in ppm."""
        anti, stained = self["is_anti_knowledge"][rows] == 1, self["is_bloodstain"][rows] == 1
        return conf.floor_ppm(anti, stained, policy, self["pinned_ppm"][rows])

    def confidence_at(self, rows: Int64Array, at_us: Int64Array | int, policy: DecayPolicy) -> Int64Array:
        """Return the confidence of these rows in ppm at a moment."""
        half_life, floor = self.half_life(rows, policy), self.floor(rows, policy)
        return conf.confidence_at(self["confidence_ppm"][rows], self["anchor_us"][rows], at_us, half_life, floor)

    def snapshot(self, rows: Int64Array) -> dict[str, Int64Array]:
        """Return a copy of these rows' columns."""
        return dict(zip(COLUMNS, self.block.take(rows, axis=1), strict=True))

    def without_golems(self, golem_ids: set[str]) -> GrimoireState:
        """Return the state without these golems' rows."""
        dropped = np.array([g in golem_ids for g in self.golems], dtype=bool)
        keep = ~dropped[self["golem"]] if self.rows else np.zeros(0, bool)
        block, moments = self.block.compress(keep, axis=1), self.moments.without_golems(golem_ids)
        readings = self.readings.without_golems(golem_ids)
        return GrimoireState(list(self.golems), self.structures, block, dict(self._golem_codes), moments, readings)

    def reading_slots(self, rows: Int64Array) -> Int64Array:
        """Return the slot in `readings` of each of these rows."""
        codes = zip(self["golem"][rows].tolist(), self["structure"][rows].tolist(), strict=True)
        golems, keys = self.golems, self.structures.keys()
        return self.readings.slot([(golems[golem], keys[structure]) for golem, structure in codes])


@cache
def lines_of(names: tuple[str, ...]) -> Int64Array:
    """Return the lines of columns in a state's block. [names, 1]."""
    return np.array([_LINE[name] for name in names])[:, None]


def entry_ids(state: GrimoireState, rows: Int64Array) -> list[str]:
    """Return the entry id of each row."""
    golems, keys = state.golems, state.structures.keys()
    codes = zip(state["origin"][rows].tolist(), state["structure"][rows].tolist(), strict=True)
    return [entry_id(golems[origin], keys[structure]) for origin, structure in codes]


def is_quarantined(state: GrimoireState, rows: Int64Array | None = None) -> BoolArray:
    """Return which rows (all for None) are received candidates that wait for own outcomes."""
    chosen = slice(None) if rows is None else rows
    return np.asarray((state["status"][chosen] == CANDIDATE) & _IS_RECEIVED[state["provenance"][chosen]])


_IS_RECEIVED = np.array([name in CAME_OVER for name in PROVENANCES])
"""By the code of a provenance."""


def size_bands(effect_ppm: Int64Array) -> Int64Array:
    """Return the index in SIZE_WORDS of each effect's size."""
    return np.digitize(np.abs(effect_ppm), SIZE_EDGES_PPM)


@lru_cache(_TEXTS_KEPT)
def _text(structure: Structure, kind: int, sign: int, mean: int, low: int, high: int, has_evidence: int) -> str:
    pair, protocol = structure.pair, structure.protocol
    if structure.source == "baseline":
        figures = {"mean": mean, "low": low, "high": high}
        metric = structure.metric or ""
        return baseline_text(protocol=protocol, pair=pair, metric=metric, **figures, known=bool(has_evidence))
    if structure.source == "causal":
        cause, effect, lag = structure.cause or "", structure.effect or "", structure.lag_ticks or 0
        place = f"{pair} on {protocol}"
        return causal_text(cause=cause, effect=effect, lag_ticks=lag, regime=structure.regime, place=place, sign=sign)
    if structure.source == "choice":
        act, regime = structure.action_type or "", structure.regime or ""
        scene = {"protocol": protocol, "pair": pair, "action_type": act, "regime": regime}
        return choice_text(kind=ENTRY_KINDS[kind], **scene, sign=sign, mean_ppm=mean)
    if structure.source == "report":
        scene = {"protocol": protocol, "pair": pair, "action_type": structure.action_type or ""}
        return report_text(kind=ENTRY_KINDS[kind], **scene, cause=structure.cause, sign=sign)
    if structure.source == "strategy":
        acts, regime = (structure.action_type or "").split("+"), structure.regime or ""
        return strategy_text(acts=acts, protocol=protocol, pair=pair, regime=regime)
    names = ("action_type", "regime", "anomaly_band", "gas_band")
    scene = {name: getattr(structure, name) or "" for name in names}
    return pattern_text(kind=ENTRY_KINDS[kind], protocol=protocol, pair=pair, **scene, sign=sign, mean_ppm=mean)


def entry_columns(
    state: GrimoireState, rows: dict[str, Int64Array], curator: CuratorPolicy, decay: DecayPolicy
) -> dict[str, pa.Array]:
    """Return a snapshot's columns as the Arrow columns of ENTRY_SCHEMA, with text and expiry moment."""
    table = state.structures
    take = pa.array(rows["structure"], pa.int64())
    named = {n: pa.array(table.column(n), ENTRY_SCHEMA.field(n).type).take(take) for n in Structure._fields}
    golems = pa.array(state.golems, pa.string())
    keys = table.keys()
    ids = _ids(state, rows, keys)
    bloodstain, anti = rows["is_bloodstain"] == 1, rows["is_anti_knowledge"] == 1
    evidence = np.maximum(rows["own_count"], rows["evidence_count"])
    half = conf.half_life_us(rows["decay_class"], evidence, bloodstain, decay)
    floor = conf.floor_ppm(anti, bloodstain, decay, rows["pinned_ppm"])
    fades = conf.fades_at_us(rows["confidence_ppm"], rows["anchor_us"], half, floor, conf.ppm(curator.prune_confidence))
    fades_null = (fades >= conf.FOREVER_US) | (rows["status"] != ACTIVE)
    columns: dict[str, pa.Array] = {
        "golem_id": golems.take(pa.array(rows["golem"])),
        "entry_id": ids,
        "structure": pa.array(keys, pa.string()).take(take),
        "category": pa.array([s.category for s in table.rows], pa.string()).take(take),
        "domain": pa.array([s.domain for s in table.rows], pa.string()).take(take),
        **{name: pa.array(words).take(pa.array(rows[name])) for name, words in _WORDS.items()},
        "text": _texts(state, rows),
        "origin_golem_id": golems.take(pa.array(rows["origin"])),
        "is_anti_knowledge": pa.array(anti),
        "is_bloodstain": pa.array(bloodstain),
        **named,
        **{n: pa.array(rows[n], pa.int64()) for n in COUNTED},
        **{f"{name}_at": moments(rows[f"{name}_us"]) for name in ("anchor", "created", "validated")},
        "fades_at": moments(fades, fades_null),
    }
    return {name: columns[name] for name in ENTRY_SCHEMA.names}


def _ids(state: GrimoireState, rows: dict[str, Int64Array], keys: list[str]) -> pa.Array:
    pairs, inverse = np.unique((rows["origin"] << 32) | rows["structure"], return_inverse=True)
    words = [entry_id(state.golems[pair >> 32], keys[pair & 0xFFFFFFFF]) for pair in pairs.tolist()]
    return pa.array(words, pa.string()).take(pa.array(inverse))


def _texts(state: GrimoireState, rows: dict[str, Int64Array]) -> pa.Array:
    """Return the texts of rows, formatting each distinct combination once."""
    parts = _stated(rows)
    first, inverse = _distinct(parts)
    distinct = zip(*(part[first].tolist() for part in parts), strict=True)
    words = [_text(state.structures.rows[s], *rest) for s, *rest in distinct]
    return pa.array(words, pa.string()).take(pa.array(inverse))


def _stated(rows: dict[str, Int64Array]) -> tuple[Int64Array | BoolArray, ...]:
    """Return what the texts of rows state: structures, and arguments of `_text`; a pattern uses its effect's band."""
    facts = rows["decay_class"] == conf.CLASS_FACT
    band = np.array([100, 300, 900])[size_bands(rows["effect_mean_ppm"])]
    mean = np.where(facts, rows["effect_mean_ppm"], band)
    low, high = (np.where(facts, rows[name], 0) for name in ("effect_low_ppm", "effect_high_ppm"))
    return rows["structure"], rows["kind"], rows["sign"], mean, low, high, rows["evidence_count"] > 0


def _distinct(columns: tuple[Int64Array | BoolArray, ...]) -> tuple[Int64Array, Int64Array]:
    """Return (first row of each distinct combination, combination of each row), as np.unique does for a 2-D array."""
    order = np.lexsort(columns[::-1])
    new = np.zeros(len(order), bool)
    new[:1] = True
    for column in columns:
        sorted_column = column[order]
        new[1:] |= sorted_column[1:] != sorted_column[:-1]
    inverse = np.empty(len(order), np.int64)
    inverse[order] = np.cumsum(new) - 1
    return order[new], inverse


def rule_texts(state: GrimoireState, rows: Int64Array) -> list[str]:
    """Return the current texts of these rows."""
    stated = zip(*(part.tolist() for part in _stated(state.snapshot(rows))), strict=True)
    return [_text(state.structures.rows[structure], *rest) for structure, *rest in stated]


def to_table(
    state: GrimoireState, curator: CuratorPolicy, decay: DecayPolicy, rows: Int64Array | None = None
) -> pa.Table:
    """Return the grimoire, or these rows of it, as ENTRY_SCHEMA sorted by golem and entry."""
    wanted = state.snapshot(np.arange(state.rows) if rows is None else rows)
    table = pa.table(entry_columns(state, wanted, curator, decay), schema=ENTRY_SCHEMA)
    return sorted_by(table, ("golem_id", "entry_id"))


def from_table(table: pa.Table) -> GrimoireState:
    """Build the state from a grimoire's table (ENTRY_SCHEMA)."""
    state = GrimoireState()
    if table.num_rows:
        state.absorb(table)
    return state


def rows_of(state: GrimoireState, table: pa.Table) -> dict[str, Int64Array]:
    """Convert ENTRY_SCHEMA rows to columns of codes, registering golems and structures in the state."""
    rows = {n: table.column(n).to_numpy().astype(np.int64) for n in COUNTED}
    keys = contiguous(table.column("structure")).dictionary_encode()
    place = keys.indices.to_numpy(zero_copy_only=False)
    _, first = np.unique(place, return_index=True)
    parts = table.select(list(Structure._fields)).take(pa.array(first)).to_pydict()
    codes = [state.structures.code(Structure(*part)) for part in zip(*parts.values(), strict=True)]
    rows["structure"] = np.array(codes, dtype=np.int64)[place]
    rows["golem"] = coded(table.column("golem_id"), state.golem_code)
    rows["origin"] = coded(table.column("origin_golem_id"), state.golem_code)
    for name, words in _WORDS.items():
        rows[name] = coded(table.column(name), words.index)
    for name in FLAGS:
        rows[name] = table.column(name).to_numpy(zero_copy_only=False).astype(np.int64)
    for name, column in zip(MOMENTS, ("anchor_at", "created_at", "validated_at"), strict=True):
        rows[name] = table.column(column).cast(pa.int64()).to_numpy()
    return rows


def coded(column: pa.ChunkedArray, code: Callable[[str], int]) -> Int64Array:
    """Return the code of each row's word; each distinct word is looked up once."""
    words = contiguous(column).dictionary_encode()
    codes = np.array([code(word) for word in words.dictionary.to_pylist()], dtype=np.int64)
    return codes[words.indices.to_numpy(zero_copy_only=False)]
