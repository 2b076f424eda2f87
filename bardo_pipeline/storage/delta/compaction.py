"""Compaction: many small files of a table become few clustered ones, and what lies past the lookback goes cold.

Files lie in three tiers: fresh, as appends wrote them; warm (`warm/`) and cold (`cold/`, heavier compression), each
clustered by bucket, golem and tick. A rewrite takes some files, as many as memory allows, and gives the same rows in
warm and cold ones; its commit says that no row changed. Files of like size are merged until they are full, so that a
row is written again a logarithmic number of times, and full files only once more, to go cold.

Only ticks of closed cycles go cold, so nothing late can belong between them.
Source: HB S6 ("older than the Curator's lookback window"); EV-6; architecture ("clustered when the log is compacted").
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bardo_pipeline.errors import CustodyError
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.events.record.row_digest import digest_column, row_digests
from bardo_pipeline.policy import CarePolicy
from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable
from bardo_pipeline.storage.delta.durable_commits import Added, StoredFile, commit_path
from bardo_pipeline.storage.delta.files_by_version import absolute
from bardo_pipeline.storage.delta.parquet_io import leaves_of, scan
from bardo_pipeline.storage.home import sync_file, sync_folder
from bardo_pipeline.storage.log.checksum_manifest import adds_of

Tier = Literal["fresh", "warm", "cold"]

_FULL = 2  # a file of more than one part in so many of what a rewrite may take is never merged again
_GROWTH = 2  # files are merged with a larger one while that is at most this many times as large as all of them
_PAGE_BYTES = 4 << 20  # zstd finds what repeats within a page
_GROUP_ROWS = 16_384  # who asks for one golem opens the groups that hold it; twice as many cost 3 % more bytes
_COLD_SHARE = 2  # a warm file is rewritten when at least one row in so many may go cold


@dataclass(frozen=True)
class Rewrite:
    """Files to be taken together, and why, in a word."""

    files: tuple[StoredFile, ...]
    why: str


def tier_of(path: str) -> Tier:
    """The tier in which a file lies."""
    return "warm" if path.startswith("warm/") else "cold" if path.startswith("cold/") else "fresh"


@dataclass(frozen=True)
class Layout:
    """How the rows of a table lie in its files.

    order: columns by which they are clustered. cold: which rows of a table may go cold; None where nothing does.
    checked: whether each row carries the digest of its content, as cycles do.
    """

    order: tuple[str, ...]
    cold: Callable[[pa.Table], NDArray[np.bool_]] | None = None
    cold_columns: tuple[str, ...] = ()
    checked: bool = False


class Compaction:
    """The compaction of one table. lock: made anew for each commit, held for its length."""

    def __init__(
        self,
        table: AppendOnlyTable,
        layout: Layout,
        lock: Callable[[], AbstractContextManager[None]],
        policy: CarePolicy,
        at: datetime,
    ) -> None:
        self.table, self.layout, self._lock, self._policy, self._at = table, layout, lock, policy, at
        self._cold_rows: dict[str, int] = {}
        # What is appended from here on waits for the next run, or one beside busy writers would not end.
        self._before = {file.path for file in table.stored()}
        self.damaged: dict[str, str] = {}

    def due(self) -> Rewrite | None:
        """What to rewrite next; None when everything lies as it should."""
        files = [file for file in self.table.stored() if file.path not in self.damaged]
        tiers = {tier: [f for f in files if tier_of(f.path) == tier] for tier in ("fresh", "warm", "cold")}
        fresh = sorted((f for f in tiers["fresh"] if f.path in self._before), key=lambda f: (f.modified_ms, f.path))
        if fresh:
            return Rewrite(self._fitting(fresh), "fresh")
        going = [f for f in tiers["warm"] if self._cold_in(f) * _COLD_SHARE >= max(f.rows, 1)]
        if going:
            return Rewrite(self._fitting(sorted(going, key=lambda f: f.path)), "cold")
        for tier in ("warm", "cold"):
            merged = self._alike(tiers[tier])
            if merged:
                return Rewrite(merged, f"merged {tier}")
        return None

    def _fitting(self, files: Sequence[StoredFile]) -> tuple[StoredFile, ...]:
        """The first of these files, as many as a rewrite may take, and at least one."""
        taken, rows, size = 0, 0, 0
        for file in files:
            rows, size = rows + file.rows, size + file.size
            if taken and (rows > self._policy.rewrite_rows_max or size > self._policy.rewrite_bytes_max):
                break
            taken += 1
        return tuple(files[:taken])

    def _alike(self, files: Sequence[StoredFile]) -> tuple[StoredFile, ...]:
        """The smallest files of a tier, if several are of like size and fit into one rewrite."""
        open_files = sorted((f for f in files if not self._is_full(f)), key=lambda f: (f.rows, f.path))
        together = self._fitting(open_files)
        count, rows = 0, 0
        for number, file in enumerate(together):
            if number and file.rows <= _GROWTH * rows:
                count = number + 1
            rows += file.rows
        return together[:count]

    def _is_full(self, file: StoredFile) -> bool:
        policy = self._policy
        return file.rows * _FULL > policy.rewrite_rows_max or file.size * _FULL > policy.rewrite_bytes_max

    def _cold_in(self, file: StoredFile) -> int:
        """How many rows of a file may go cold."""
        if self.layout.cold is None:
            return 0
        if file.path not in self._cold_rows:
            rows = scan([absolute(self.table.path, file.path)], self.table.schema, self.layout.cold_columns)
            self._cold_rows[file.path] = int(self.layout.cold(rows).sum())
        return self._cold_rows[file.path]

    def rewrite(self, what: Rewrite) -> int | None:
        """Put the same rows into new files, in one commit; returns its version.

        Files that cannot be read, or hold something else than they should, are left alone and named in `damaged`.
        """
        versions = _versions_of(self.table, {f.path for f in what.files}) if self._lacks_version(what) else {}
        parts, taken = [], []
        for file in what.files:
            try:
                parts.append(self._sound(file, versions.get(file.path)))
                taken.append(file)
            except (CustodyError, pa.ArrowException, OSError) as error:
                self.damaged[file.path] = str(error).splitlines()[0]
        if not taken:
            return None
        rows = pa.concat_tables(parts).combine_chunks()
        del parts
        added = self._written(rows, always_cold=all(tier_of(f.path) == "cold" for f in taken))
        del rows
        # What no commit names any more stays for its readers: for them the grace begins now.
        touch((Path(absolute(self.table.path, f.path)) for f in taken), self._at)
        return self.table.replace([f.path for f in taken], added, at=self._at, lock=self._lock(), versions=versions)

    def _lacks_version(self, what: Rewrite) -> bool:
        """Whether a file may be of schema version 1, which had no column for the version that brought a row."""
        if not self.table.by_version:
            return False
        return any(
            tier_of(f.path) == "fresh" and "version" not in _columns(absolute(self.table.path, f.path))
            for f in what.files
        )

    def _sound(self, file: StoredFile, version: int | None) -> pa.Table:
        """A file's rows as they will be written. Raises CustodyError unless they are those that were recorded."""
        rows = self.table.raised(scan([absolute(self.table.path, file.path)], self.table.schema), version)
        if rows.num_rows != file.rows:
            raise CustodyError(f"{file.path} holds {rows.num_rows} rows, its commit says {file.rows}")
        if self.layout.checked:
            known = digest_column(row_digests(rows, RECORD_SCHEMA.names))
            wrong = pc.invert(pc.equal(known, rows["content_hash"].combine_chunks()))
            if pc.any(wrong).as_py():
                row = rows.select(["golem_id", "tick"]).filter(wrong).slice(0, 1).to_pylist()[0]
                raise CustodyError(
                    f"{file.path}: golem {row['golem_id']}, tick {row['tick']} is not what was recorded: run "
                    "`bardo verify`, and put the file back from a backup"
                )
        return rows

    def _written(self, rows: pa.Table, *, always_cold: bool) -> list[Added]:
        """The rows in new files that no commit names yet."""
        if always_cold:
            cold = np.ones(rows.num_rows, np.bool_)
        elif self.layout.cold is None:
            cold = np.zeros(rows.num_rows, np.bool_)
        else:
            cold = self.layout.cold(rows)
        order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in self.layout.order]).to_numpy()
        cold = cold[order]
        added: list[Added] = []
        try:
            for tier, chosen in (("warm", order[~cold]), ("cold", order[cold])):
                parts = np.array_split(chosen, -(-len(chosen) // self._policy.rewrite_rows_max) or 1)
                added.extend(self._put(tier, rows.take(pa.array(part))) for part in parts if len(part))
        except BaseException:
            self.table.discard(added)
            raise
        return added

    def _put(self, tier: str, rows: pa.Table) -> Added:
        folder = self.table.path / tier
        if not folder.exists():
            folder.mkdir()
            sync_folder(self.table.path)
        name = f"{tier}/part-{uuid4()}-c000.zstd.parquet"
        path = self.table.path / name
        try:
            self._write(path, rows, cold=tier == "cold")
            sync_file(path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return self.table.described(name, rows)

    def _write(self, path: Path, rows: pa.Table, *, cold: bool) -> None:
        kinds = [(leaf, kind) for column in self.table.schema for leaf, kind in leaves_of(column)]
        with pq.ParquetWriter(
            path,
            self.table.schema,
            compression="zstd",
            compression_level=self._policy.cold_zstd_level if cold else self._policy.warm_zstd_level,
            use_dictionary=[leaf for leaf, kind in kinds if not _is_unique(kind)],
            write_statistics=[leaf for leaf, _ in kinds if "." not in leaf],
            data_page_size=_PAGE_BYTES,
            write_page_checksum=True,
        ) as out:
            out.write_table(rows, row_group_size=_GROUP_ROWS)


def _is_unique(kind: pa.DataType) -> bool:
    """Whether values of this type seldom repeat: measures, hashes and the sender's bytes."""
    return bool(pa.types.is_floating(kind) or pa.types.is_binary(kind))


def _versions_of(table: AppendOnlyTable, paths: Collection[str]) -> dict[str, int]:
    """The versions that brought the rows of these files, as far as the table's log still says so."""
    found: dict[str, int] = {}
    for version in range(table.version + 1):
        try:
            commit = commit_path(table.path, version).read_bytes()
        except FileNotFoundError:
            continue
        found |= {add["path"]: version for add in adds_of(commit) if add["dataChange"] and add["path"] in paths}
    return found


def _columns(path: str) -> Iterable[str]:
    return pq.read_schema(path).names


def closed_below(heads: pa.Table, deaths: Mapping[str, int], cycle_ticks: int, lookback: int) -> dict[str, int]:
    """The last tick of each golem that may go cold: of a closed cycle, and past the lookback.

    heads: HEADS_SCHEMA. deaths: golem to the tick of its death. Of a golem that died and is complete, nothing is warm.
    """
    limits = {}
    for row in heads.to_pylist():
        golem_id, contiguous = row["golem_id"], row["contiguous"]
        death = deaths.get(golem_id)
        if death is not None and contiguous >= death:
            limits[golem_id] = death
        else:
            limits[golem_id] = min(contiguous, row["highest"] - lookback) // cycle_ticks * cycle_ticks
    return {golem_id: tick for golem_id, tick in limits.items() if tick > 0}


def below(limits: Mapping[str, int]) -> Callable[[pa.Table], NDArray[np.bool_]]:
    """Which rows (golem_id, tick) lie at or below their golem's limit."""
    names = pa.array(list(limits), pa.string())
    ticks = np.array([*limits.values(), 0], dtype=np.int64)

    def chosen(rows: pa.Table) -> NDArray[np.bool_]:
        place = pc.fill_null(pc.index_in(rows["golem_id"].combine_chunks(), value_set=names), len(names))
        return np.asarray(rows["tick"].to_numpy() <= ticks[np.asarray(place)])

    return chosen


def touch(paths: Iterable[Path], at: datetime) -> None:
    """Say of files that they were last of use at this moment."""
    for path in paths:
        os.utime(path, (at.timestamp(), at.timestamp()))
