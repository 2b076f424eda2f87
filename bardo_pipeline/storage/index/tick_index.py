"""The tick index: every tick's category, cost and worth, answered fast over millions, cold or not.

It serves the four kinds of query of HB's SQL index (tier and regime; acted with an outcome; the distribution over
phases; the last ticks), for one golem, some or all. It only accelerates: derived from the table of cycles, brought up
to the log by what is new, and made again where it is torn or of another log. New ticks become a part; parts of like
size are merged, so that there are few and each row is written again only a logarithmic number of times.
Source: HB S6.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.errors import QueryError, StoreError
from bardo_pipeline.events.record.model import PHASES
from bardo_pipeline.storage.home import Home, replace_file
from bardo_pipeline.storage.index.tick_index_files import FIELDS, INDEX_SCHEMA, SOURCE_COLUMNS, Part, Wanted, checksum
from bardo_pipeline.storage.log.event_log import EventLog

PHASE_SCHEMA = pa.schema(
    [pa.field("phase", pa.string(), nullable=False), pa.field("tick_count", pa.int64(), nullable=False)]
)
"""One row per phase, in their order from thriving to terminal."""

_FORMAT = 1  # raise when a part's layout or the meaning of its codes changes: older ones are made again
_MANIFEST = "manifest.json"
_GROWTH = 2  # a part is merged with the one before while that one is at most this many times larger
_TRIES = 5  # readers look again when a merge took a part away between the manifest and its file
_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class _Manifest:
    """What the index holds: all records of table `table_id` up to `version`, in these parts (name, rows, checksum)."""

    format: int
    table_id: str
    version: int
    parts: tuple[tuple[str, int, int], ...]


class TickIndex:
    """The index of one home's ticks. `open` brings it up to the log; from any number of processes at a time."""

    def __init__(self, home: Home, log: EventLog) -> None:
        self._home, self._log = home, log
        self._folder = home.index / "ticks"
        self._manifest = _Manifest(_FORMAT, log.table_id, -1, ())
        self._parts: dict[str, Part] = {}
        self._struck: tuple[int, dict[str, list[tuple[int, int]]]] = (-1, {})

    @classmethod
    def open(cls, home: Home, log: EventLog) -> Self:
        """The index with all that the log holds now."""
        index = cls(home, log)
        index.refresh()
        return index

    @property
    def version(self) -> int:
        """The version of the log up to which it answers."""
        return self._manifest.version

    @property
    def tick_count(self) -> int:
        """How many ticks it holds."""
        return sum(rows for _, rows, _ in self._manifest.parts)

    # keeping up

    def refresh(self) -> int:
        """Take in what the log has beyond the index. Returns by how many ticks it grew.

        Where it is torn, or of another log, it is made again.
        """
        self._reload()
        if self.version == self._log.version:
            return 0
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._home.lock("ticks"):
            self._reload()
            before, known = self.tick_count, self.version
            until = self._log.version
            if known == until:
                return 0
            records = self._log.read_cycles_between([*SOURCE_COLUMNS, "version"], None if known < 0 else known, until)
            if known >= 0:  # a reader must bear rows that it has seen
                records = records.filter(pc.fill_null(pc.greater(records["version"], known), True))
            self._keep(until, Part.of_records(records.drop_columns("version")) if records.num_rows else None)
            return self.tick_count - before

    def _keep(self, version: int, fresh: Part | None) -> None:
        """Add a part, merge those of like size, and let readers count on the result."""
        kept = list(self._manifest.parts)
        if fresh is not None:
            merged = [fresh]
            while kept and kept[-1][1] <= _GROWTH * sum(map(len, merged)):
                merged.append(self._parts[kept.pop()[0]])
            part = fresh if len(merged) == 1 else Part.merged(merged)
            name = f"{version:020}-{len(part)}.arrow"
            draft = self._folder / f".{name}"
            kept.append((name, len(part), part.write(draft)))
            os.replace(draft, self._folder / name)
        facts = {"format": _FORMAT, "table_id": self._log.table_id, "version": version, "parts": kept}
        replace_file(self._folder / _MANIFEST, orjson.dumps(facts))
        for left in self._folder.glob("*.arrow"):
            if left.name not in {name for name, _, _ in kept}:
                left.unlink()
        self._reload()

    def _reload(self) -> None:
        """Open what the manifest names now; nothing where it is torn or of another log."""
        for _ in range(_TRIES):
            manifest = self._read_manifest()
            if manifest == self._manifest:
                return
            try:
                parts = {name: self._opened(name, rows) for name, rows, _ in manifest.parts}
            except FileNotFoundError:
                continue
            except StoreError:
                break
            self._manifest, self._parts = manifest, parts
            return
        self._manifest, self._parts = _Manifest(_FORMAT, self._log.table_id, -1, ()), {}

    def _opened(self, name: str, rows: int) -> Part:
        return self._parts[name] if name in self._parts else Part.open(self._folder / name, rows)

    def _read_manifest(self) -> _Manifest:
        none = _Manifest(_FORMAT, self._log.table_id, -1, ())
        try:
            facts = orjson.loads((self._folder / _MANIFEST).read_bytes())
            parts = tuple((str(name), int(rows), int(crc)) for name, rows, crc in facts["parts"])
            found = _Manifest(int(facts["format"]), str(facts["table_id"]), int(facts["version"]), parts)
        except (FileNotFoundError, orjson.JSONDecodeError, KeyError, TypeError, ValueError):
            return none
        ours = found.format == _FORMAT and found.table_id == self._log.table_id
        return found if ours and found.version <= self._log.version else none

    def damaged(self) -> list[str]:
        """Names of parts whose bytes are not those that were written. Reads all of them."""
        wrong = []
        for name, _, crc in self._manifest.parts:
            path = self._folder / name
            if not path.exists() or checksum(path) != crc:
                wrong.append(name)
        return wrong

    def drop(self) -> None:
        """Forget everything: the next refresh makes it again from the log."""
        with self._home.lock("ticks"):
            (self._folder / _MANIFEST).unlink(missing_ok=True)
            for part in self._folder.glob("*.arrow"):
                part.unlink()
        self._reload()

    # asking

    def ticks(
        self,
        *,
        golems: Collection[str] | None = None,
        tier: str | Collection[str] | None = None,
        regime: str | Collection[str] | None = None,
        phase: str | Collection[str] | None = None,
        primary_emotion: str | Collection[str] | None = None,
        has_action: bool | None = None,
        has_outcome: bool | None = None,
        limit: int = 1_000,
        struck: bool = True,
    ) -> pa.Table:
        """The last ticks that meet all conditions (INDEX_SCHEMA), the highest tick first, equals by golem backwards.

        golems: only theirs. limit: at most so many. struck: with those that were struck or reorged.
        Raises QueryError for a category's value that does not exist and for a limit below 1.
        """
        if limit < 1:
            raise QueryError(f"at least one tick must be wanted, not {limit}")
        asked: dict[str, Any] = {
            "tier": tier,
            "regime": regime,
            "phase": phase,
            "primary_emotion": primary_emotion,
            "has_action": has_action,
            "has_outcome": has_outcome,
        }
        wanted = Wanted.of({name: _values(name, value) for name, value in asked.items() if value is not None})
        names = None if golems is None else list(set(golems))
        found = []
        for name, _, _ in self._manifest.parts:
            part = self._parts[name]
            without = _NONE if struck else self._gone(part)
            found.append((part, part.newest(wanted, names, limit, without)))
        return _latest(found, limit)

    def phases(self, *, golems: Collection[str] | None = None, struck: bool = True) -> pa.Table:
        """How many ticks each phase has (PHASE_SCHEMA), over all golems or these; struck as in `ticks`."""
        names = None if golems is None else list(set(golems))
        counts = np.zeros(len(PHASES), np.int64)
        for name, _, _ in self._manifest.parts:
            part = self._parts[name]
            counts += part.phase_counts(names, _NONE if struck else self._gone(part))
        return pa.table([pa.array(PHASES), pa.array(counts)], schema=PHASE_SCHEMA)

    def _gone(self, part: Part) -> NDArray[np.int64]:
        """Positions of struck and reorged ticks, ascending."""
        version = self._log.life_version
        if version != self._struck[0]:
            self._struck = version, _struck_spans(self._log)
        found = [part.within(golem, *span) for golem, spans in self._struck[1].items() for span in spans]
        return np.unique(np.concatenate(found)) if found else _NONE


def _latest(found: Sequence[tuple[Part, NDArray[np.int64]]], limit: int) -> pa.Table:
    """The last rows among those that each part has found."""
    sizes = [len(positions) for _, positions in found]
    if sum(sizes) > limit:  # only ticks from the limit-th highest on can be among the last
        ticks = np.concatenate([part.tick[positions] for part, positions in found])
        least = np.partition(ticks, len(ticks) - limit)[len(ticks) - limit]
        found = [(part, positions[part.tick[positions] >= least]) for part, positions in found]
    tables = [part.rows(positions) for part, positions in found if len(positions)]
    if not tables:
        return INDEX_SCHEMA.empty_table()
    if len(tables) == 1:
        return tables[0].slice(0, limit)
    rows = pa.concat_tables(tables)
    order = pc.sort_indices(rows, sort_keys=[("tick", "descending"), ("golem_id", "descending")])
    return rows.take(order.slice(0, limit)).combine_chunks()


def _values(name: str, asked: str | bool | Collection[str]) -> list[object]:
    """What is asked of a category, as a list. Raises QueryError for a value that it does not have."""
    given: list[object] = [asked] if isinstance(asked, str | bool) else [*sorted(set(asked))]
    known = FIELDS[name][1]
    for value in given:
        if value not in known:
            raise QueryError(f"there is no {name} {value!r}: {', '.join(str(k) for k in known)}")
    return given


def _struck_spans(log: EventLog) -> dict[str, list[tuple[int, int]]]:
    """Runs of ticks that were struck or reorged, by golem."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for row in log.life("RecordStruck").select(["golem_id", "struck"]).to_pylist():
        spans.setdefault(row["golem_id"], []).append((row["struck"]["tick"], row["struck"]["tick"]))
    for row in log.life("ReorgObserved").select(["golem_id", "reorg"]).to_pylist():
        spans.setdefault(row["golem_id"], []).append((row["reorg"]["tick_from"], row["reorg"]["tick_to"]))
    return spans
