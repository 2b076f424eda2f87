"""The curator's working state: every entry and candidate of the golems at hand, as columns. Pure.

The state is the fold of the decisions; this module turns the grimoire's Arrow table into arrays and back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.causality.lagged_moments import Moments
from bardo_pipeline.curator.state.structures import Structure, Structures
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
from bardo_pipeline.grimoire.entry_columns import contiguous, sorted_by
from bardo_pipeline.grimoire.entry_text import SIZE_EDGES_PPM, baseline_text, causal_text, pattern_text
from bardo_pipeline.policy import CuratorPolicy, DecayPolicy

INSIGHT, HEURISTIC, WARNING, CAUSAL_LINK = 0, 1, 2, 3
CANDIDATE, ACTIVE, PRUNED, RETRACTED, FOLDED = 0, 1, 2, 3, 4
COUNTED = tuple(f.name for f in COUNTED_FIELDS)
MOMENTS = ("anchor_us", "created_us", "validated_us")
CODED = ("golem", "structure", "origin", "kind", "status", "provenance", "decay_class")
FLAGS = ("is_anti_knowledge", "is_bloodstain")
COLUMNS = (*CODED, *FLAGS, *COUNTED, *MOMENTS)
_LINE = {name: line for line, name in enumerate(COLUMNS)}
_IDS_KEPT, _TEXTS_KEPT = 65_536, 4_096  # of entries that are told again every cycle


@lru_cache(_IDS_KEPT)
def entry_id(origin_golem_id: str, structure_key: str) -> str:
    """An entry's id: whose experience, about what. 24 hex characters."""
    return hashlib.sha256(f"{origin_golem_id}|{structure_key}".encode()).hexdigest()[:24]


@dataclass
class GrimoireState:
    """Entries and candidates as columns, sorted by (golem, structure).

    block: int64 [COLUMNS, rows], one line a column, so that rows are copied whole in one pass. golem, structure,
    origin: codes into `golems`, `structures`, `golems`. Everything else as in ENTRY_SCHEMA, moments in UTC
    microseconds. moments: what their ticks say of causes; kept beside the entries (lagged_moments.py).
    """

    golems: list[str] = field(default_factory=list)
    structures: Structures = field(default_factory=Structures)
    block: np.ndarray = field(default_factory=lambda: np.zeros((len(COLUMNS), 0), np.int64))
    _golem_codes: dict[str, int] = field(default_factory=dict)
    moments: Moments = field(default_factory=Moments)

    def __getitem__(self, name: str) -> np.ndarray:
        column: np.ndarray = self.block[_LINE[name]]
        return column

    def columns(self, names: tuple[str, ...], rows: np.ndarray) -> np.ndarray:
        """Several columns of these rows. int64 [names, rows]."""
        found: np.ndarray = self.block[_lines(names), rows]
        return found

    @property
    def rows(self) -> int:
        """Number of entries and candidates."""
        return self.block.shape[1]

    def golem_code(self, golem_id: str) -> int:
        """The code of a golem, given out on first sight."""
        known = self._golem_codes.get(golem_id)
        if known is None:
            known = self._golem_codes[golem_id] = len(self.golems)
            self.golems.append(golem_id)
        return known

    def keys(self) -> np.ndarray:
        """(golem, structure) packed into one ascending int64 a row."""
        return (self["golem"] << 32) | self["structure"]

    def ensure(self, golem: np.ndarray, structure: np.ndarray) -> None:
        """Make room for these (golem, structure) pairs: those not there yet enter as empty candidates."""
        wanted = np.unique((golem << 32) | structure)
        fresh = wanted[~np.isin(wanted, self.keys())]
        if not len(fresh):
            return
        decay = np.array([s.decay_class for s in self.structures.rows], dtype=np.int64)
        blank = {n: np.zeros(len(fresh), np.int64) for n in COLUMNS}
        blank["golem"], blank["structure"] = fresh >> 32, fresh & 0xFFFFFFFF
        blank["origin"] = blank["golem"]
        blank["decay_class"] = decay[blank["structure"]]
        self.append(blank)

    def append(self, rows: dict[str, np.ndarray]) -> None:
        """Add rows (all COLUMNS, int64) and restore the order."""
        self.block = np.hstack([self.block, np.stack([rows[n].astype(np.int64) for n in COLUMNS])])
        self.block = self.block.take(np.argsort(self.keys(), kind="stable"), axis=1)

    def absorb(self, entries: pa.Table) -> None:
        """Take in entries (ENTRY_SCHEMA) of golems that have none of these structures yet."""
        self.append(rows_of(self, entries))

    def find(self, golem: np.ndarray, structure: np.ndarray) -> np.ndarray:
        """Rows of these pairs, all of which must be there. int64 [len(golem)]."""
        return np.searchsorted(self.keys(), (golem << 32) | structure)

    def told_of(self, golem_ids: pa.ChunkedArray, structures: pa.ChunkedArray) -> np.ndarray:
        """Rows of these pairs of golems and structures' keys, each once, all of which must be there. int64 [pairs]."""
        keys = [self.structures.key(code) for code in range(len(self.structures.rows))]
        golem = pc.index_in(golem_ids, value_set=pa.array(self.golems, pa.string())).to_numpy().astype(np.int64)
        wanted = np.unique((golem << 32) | pc.index_in(structures, value_set=pa.array(keys, pa.string())).to_numpy())
        return self.find(wanted >> 32, wanted & 0xFFFFFFFF)

    def half_life(self, rows: np.ndarray, policy: DecayPolicy) -> np.ndarray:
        """Half-life in microseconds of these rows."""
        evidence = np.maximum(self["own_count"][rows], self["evidence_count"][rows])
        return conf.half_life_us(self["decay_class"][rows], evidence, self["is_bloodstain"][rows] == 1, policy)

    def floor(self, rows: np.ndarray, policy: DecayPolicy) -> np.ndarray:
        """Floor in ppm of these rows."""
        anti, stained = self["is_anti_knowledge"][rows] == 1, self["is_bloodstain"][rows] == 1
        return conf.floor_ppm(anti, stained, policy, self["pinned_ppm"][rows])

    def confidence_at(self, rows: np.ndarray, at_us: np.ndarray | int, policy: DecayPolicy) -> np.ndarray:
        """Confidence in ppm of these rows at a moment."""
        return conf.confidence_at(
            self["confidence_ppm"][rows],
            self["anchor_us"][rows],
            at_us,
            self.half_life(rows, policy),
            self.floor(rows, policy),
        )

    def snapshot(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """A copy of these rows' columns."""
        return dict(zip(COLUMNS, self.block.take(rows, axis=1), strict=True))

    def without_golems(self, golem_ids: set[str]) -> GrimoireState:
        """The state of all other golems."""
        gone = np.array([g in golem_ids for g in self.golems], dtype=bool)
        keep = ~gone[self["golem"]] if self.rows else np.zeros(0, bool)
        return GrimoireState(
            list(self.golems),
            self.structures,
            self.block.compress(keep, axis=1),
            dict(self._golem_codes),
            self.moments.without_golems(golem_ids),
        )


@cache
def _lines(names: tuple[str, ...]) -> np.ndarray:
    """Where these columns stand in the block. int64 [names, 1]."""
    return np.array([_LINE[name] for name in names])[:, None]


def is_quarantined(state: GrimoireState, rows: np.ndarray | None = None) -> np.ndarray:
    """Which rows (all for None) came over in the midst of life and still wait for own outcomes. bool."""
    some = slice(None) if rows is None else rows
    waits: np.ndarray = (state["status"][some] == CANDIDATE) & _CAME_OVER[state["provenance"][some]]
    return waits


_CAME_OVER = np.array([name in CAME_OVER for name in PROVENANCES])
"""By the code of a provenance."""


def size_bands(effect_ppm: np.ndarray) -> np.ndarray:
    """Which of SIZE_WORDS an effect's size reads as, by row."""
    return np.digitize(np.abs(effect_ppm), SIZE_EDGES_PPM)


@lru_cache(_TEXTS_KEPT)
def _text(structure: Structure, kind: int, sign: int, mean: int, low: int, high: int, known: int) -> str:
    if structure.source == "baseline":
        return baseline_text(
            protocol=structure.protocol,
            pair=structure.pair,
            metric=structure.metric or "",
            mean=mean,
            low=low,
            high=high,
            known=bool(known),
        )
    if structure.source == "causal":
        return causal_text(
            cause=structure.cause or "",
            effect=structure.effect or "",
            lag_ticks=structure.lag_ticks or 0,
            regime=structure.regime,
            place=f"{structure.pair} on {structure.protocol}",
            sign=sign,
        )
    return pattern_text(
        kind=ENTRY_KINDS[kind],
        action_type=structure.action_type or "",
        protocol=structure.protocol,
        pair=structure.pair,
        regime=structure.regime or "",
        anomaly_band=structure.anomaly_band or "",
        gas_band=structure.gas_band or "",
        sign=sign,
        mean_ppm=mean,
    )


def entry_columns(
    state: GrimoireState, rows: dict[str, np.ndarray], curator: CuratorPolicy, decay: DecayPolicy
) -> dict[str, pa.Array]:
    """Snapshot columns to the Arrow columns of ENTRY_SCHEMA, text and fading moment computed."""
    table = state.structures
    take = pa.array(rows["structure"], pa.int64())
    named = {n: pa.array(table.column(n), ENTRY_SCHEMA.field(n).type).take(take) for n in Structure._fields}
    golems = pa.array(state.golems, pa.string())
    keys = [table.key(code) for code in range(len(table.rows))]
    ids = _ids(state, rows, keys)
    bloodstain, anti = rows["is_bloodstain"] == 1, rows["is_anti_knowledge"] == 1
    half = conf.half_life_us(
        rows["decay_class"], np.maximum(rows["own_count"], rows["evidence_count"]), bloodstain, decay
    )
    floor = conf.floor_ppm(anti, bloodstain, decay, rows["pinned_ppm"])
    fades = conf.fades_at_us(rows["confidence_ppm"], rows["anchor_us"], half, floor, conf.ppm(curator.prune_confidence))
    fades_null = (fades >= conf.FOREVER_US) | (rows["status"] != ACTIVE)
    out: dict[str, pa.Array] = {
        "golem_id": golems.take(pa.array(rows["golem"])),
        "entry_id": ids,
        "structure": pa.array(keys, pa.string()).take(take),
        "category": pa.array([s.category for s in table.rows], pa.string()).take(take),
        "domain": pa.array([s.domain for s in table.rows], pa.string()).take(take),
        "kind": pa.array(ENTRY_KINDS).take(pa.array(rows["kind"])),
        "status": pa.array(STATUSES).take(pa.array(rows["status"])),
        "text": _texts(state, rows),
        "provenance": pa.array(PROVENANCES).take(pa.array(rows["provenance"])),
        "origin_golem_id": golems.take(pa.array(rows["origin"])),
        "decay_class": pa.array(DECAY_CLASSES).take(pa.array(rows["decay_class"])),
        "is_anti_knowledge": pa.array(anti),
        "is_bloodstain": pa.array(bloodstain),
        **named,
        **{n: pa.array(rows[n], pa.int64()) for n in COUNTED},
        "anchor_at": _moments(rows["anchor_us"]),
        "created_at": _moments(rows["created_us"]),
        "validated_at": _moments(rows["validated_us"]),
        "fades_at": _moments(fades, fades_null),
    }
    return {name: out[name] for name in ENTRY_SCHEMA.names}


def _moments(us: np.ndarray, null: np.ndarray | None = None) -> pa.Array:
    return pa.array(us, pa.int64(), mask=null).cast(pa.timestamp("us", tz="UTC"))


def _ids(state: GrimoireState, rows: dict[str, np.ndarray], keys: list[str]) -> pa.Array:
    pairs, inverse = np.unique((rows["origin"] << 32) | rows["structure"], return_inverse=True)
    words = [entry_id(state.golems[pair >> 32], keys[pair & 0xFFFFFFFF]) for pair in pairs.tolist()]
    return pa.array(words, pa.string()).take(pa.array(inverse))


def _texts(state: GrimoireState, rows: dict[str, np.ndarray]) -> pa.Array:
    """Texts, written once for each distinct combination; patterns depend only on the band of their effect."""
    facts = rows["decay_class"] == conf.CLASS_FACT
    band = np.array([100, 300, 900])[size_bands(rows["effect_mean_ppm"])]
    parts = (
        rows["structure"],
        rows["kind"],
        rows["sign"],
        np.where(facts, rows["effect_mean_ppm"], band),
        np.where(facts, rows["effect_low_ppm"], 0),
        np.where(facts, rows["effect_high_ppm"], 0),
        rows["evidence_count"] > 0,
    )
    first, inverse = _distinct(parts)
    distinct = zip(*(part[first].tolist() for part in parts), strict=True)
    words = [_text(state.structures.rows[s], *rest) for s, *rest in distinct]
    return pa.array(words, pa.string()).take(pa.array(inverse))


def _distinct(columns: tuple[np.ndarray, ...]) -> tuple[np.ndarray, np.ndarray]:
    """(a row of each distinct combination, which of them each row has), as np.unique has them, a column at a time."""
    order = np.lexsort(columns[::-1])
    new = np.zeros(len(order), bool)
    new[:1] = True
    for column in columns:
        sorted_column = column[order]
        new[1:] |= sorted_column[1:] != sorted_column[:-1]
    inverse = np.empty(len(order), np.int64)
    inverse[order] = np.cumsum(new) - 1
    return order[new], inverse


def rule_texts(state: GrimoireState, rows: np.ndarray) -> list[str]:
    """Texts of these rows as they stand."""
    return _texts(state, state.snapshot(rows)).to_pylist() if len(rows) else []


def to_table(
    state: GrimoireState, curator: CuratorPolicy, decay: DecayPolicy, rows: np.ndarray | None = None
) -> pa.Table:
    """The grimoire, or these of its rows, as a table of ENTRY_SCHEMA, sorted by golem and entry."""
    wanted = state.snapshot(np.arange(state.rows) if rows is None else rows)
    table = pa.table(entry_columns(state, wanted, curator, decay), schema=ENTRY_SCHEMA)
    return sorted_by(table, ("golem_id", "entry_id"))


def from_table(table: pa.Table) -> GrimoireState:
    """A grimoire's table (ENTRY_SCHEMA) back to columns."""
    state = GrimoireState()
    if table.num_rows:
        state.absorb(table)
    return state


def rows_of(state: GrimoireState, table: pa.Table) -> dict[str, np.ndarray]:
    """Rows of ENTRY_SCHEMA as columns of codes; golems and structures enter the state's registries."""
    rows = {n: table.column(n).to_numpy().astype(np.int64) for n in COUNTED}
    keys = contiguous(table.column("structure")).dictionary_encode()
    place = keys.indices.to_numpy(zero_copy_only=False)
    _, first = np.unique(place, return_index=True)
    parts = table.select(list(Structure._fields)).take(pa.array(first)).to_pydict()
    known = [state.structures.code(Structure(*part)) for part in zip(*parts.values(), strict=True)]
    rows["structure"] = np.array(known, dtype=np.int64)[place]
    rows["golem"] = _coded(table.column("golem_id"), state.golem_code)
    rows["origin"] = _coded(table.column("origin_golem_id"), state.golem_code)
    for name, words in (
        ("kind", ENTRY_KINDS),
        ("status", STATUSES),
        ("provenance", PROVENANCES),
        ("decay_class", DECAY_CLASSES),
    ):
        rows[name] = _coded(table.column(name), words.index)
    for name in FLAGS:
        rows[name] = table.column(name).to_numpy(zero_copy_only=False).astype(np.int64)
    for name, column in zip(MOMENTS, ("anchor_at", "created_at", "validated_at"), strict=True):
        rows[name] = table.column(column).cast(pa.int64()).to_numpy()
    return rows


def _coded(column: pa.ChunkedArray, code: Callable[[str], int]) -> np.ndarray:
    """The code of each row's word; every word is looked up once."""
    words = contiguous(column).dictionary_encode()
    codes = np.array([code(word) for word in words.dictionary.to_pylist()], dtype=np.int64)
    return codes[words.indices.to_numpy(zero_copy_only=False)]
