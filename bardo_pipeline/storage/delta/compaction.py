"""Compaction: merges small files of a table into few clustered ones, and moves old rows to cold files.

Files have three tiers: fresh (written by appends), warm (`warm/`) and cold (`cold/`, stronger compression), the latter
two clustered by bucket, golem and tick. A rewrite reads as many files as memory allows and writes the same rows to warm
and cold files, in a commit without a data change. Files of similar size are merged until they are full, so each row is
rewritten a logarithmic number of times; full warm files are rewritten once more to go cold.

Only ticks of closed cycles before the lookback go cold, so no late record belongs between them.
Source: HB S6 ("older than the Curator's lookback window"); EV-6; architecture ("clustered when the log is compacted").
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bardo_pipeline.errors import CustodyError, DamagedError, StoreError
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.events.record.row_digest import digest_column, row_digests
from bardo_pipeline.policy import CarePolicy
from bardo_pipeline.storage.checksums import named_by_checksum
from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable
from bardo_pipeline.storage.delta.durable_commits import Added, StoredFile, actions_of, commit_path
from bardo_pipeline.storage.delta.files_by_version import absolute
from bardo_pipeline.storage.delta.parquet_io import leaves_of, scan
from bardo_pipeline.storage.home import sync_file, sync_folder

Tier = Literal["fresh", "warm", "cold"]

_FULL = 2  # a file above 1/_FULL of the limit of a rewrite is not merged again
_GROWTH = 2  # smaller files are merged with a larger one up to this multiple of their total size
_PAGE_BYTES = 4 << 20  # zstd finds repetitions within a page only
_GROUP_ROWS = 16_384  # small row groups speed up reads of one golem; half the size costs 3 % more bytes
_COLD_SHARE = 2  # a warm file is rewritten if at least 1/_COLD_SHARE of its rows may go cold


def tier_of(path: str) -> Tier:
    """Return the tier of a file."""
    return "warm" if path.startswith("warm/") else "cold" if path.startswith("cold/") else "fresh"


@dataclass(frozen=True)
class Layout:
    """Layout of the rows of a table in its files.

    Parameters
    ----------
    order : clustering columns
    cold : rows (golem_id, tick) -> mask of the rows that may go cold; None if none may
    checked : each row has a digest of its content
    """

    order: tuple[str, ...]
    cold: Callable[[pa.Table], NDArray[np.bool_]] | None = None
    checked: bool = False


class Compaction:
    """The compaction of one table. lock: creates a lock that is held during a commit."""

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
        # Files appended from now on wait for the next run; else a run with busy writers would not end.
        self._initial = {file.path for file in table.stored()}
        self.damaged: dict[str, str] = {}

    def due(self) -> tuple[tuple[StoredFile, ...], str] | None:
        """Return the files to rewrite together next and the reason; None if no file needs it."""
        files = [file for file in self.table.stored() if file.path not in self.damaged]
        tiers = {tier: [f for f in files if tier_of(f.path) == tier] for tier in ("fresh", "warm", "cold")}
        fresh = sorted((f for f in tiers["fresh"] if f.path in self._initial), key=lambda f: (f.modified_ms, f.path))
        if fresh:
            return self._fitting(fresh), "fresh"
        cooling = [f for f in tiers["warm"] if self._cold_in(f) * _COLD_SHARE >= max(f.rows, 1)]
        if cooling:
            return self._fitting(sorted(cooling, key=lambda f: f.path)), "cold"
        for tier in ("warm", "cold"):
            if merged := self._mergeable(tiers[tier]):
                return merged, f"merged {tier}"
        return None

    def _fitting(self, files: Sequence[StoredFile]) -> tuple[StoredFile, ...]:
        """Return the leading files that fit into one rewrite, at least one."""
        count, rows, size = 0, 0, 0
        for file in files:
            rows, size = rows + file.rows, size + file.size
            if count and (rows > self._policy.rewrite_rows_max or size > self._policy.rewrite_bytes_max):
                break
            count += 1
        return tuple(files[:count])

    def _mergeable(self, files: Sequence[StoredFile]) -> tuple[StoredFile, ...]:
        """Return the smallest files of a tier, if several have a similar size and fit into one rewrite."""
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
        if self.layout.cold is None:
            return 0
        if file.path not in self._cold_rows:
            try:
                rows = scan([absolute(self.table.path, file.path)], self.table.schema, ("golem_id", "tick"))
            except DamagedError as error:
                self.damaged[file.path] = str(error)
                return 0
            self._cold_rows[file.path] = int(self.layout.cold(rows).sum())
        return self._cold_rows[file.path]

    def rewrite(self, files: Sequence[StoredFile]) -> int | None:
        """Write the rows to new files in one commit; return its version.

        Files that are unreadable or altered are skipped and reported in `damaged`.
        """
        versions = self._versions_of({f.path for f in files}) if self._lacks_version(files) else {}
        parts, read = [], []
        for file in files:
            try:
                parts.append(self._checked_rows(file, versions.get(file.path)))
                read.append(file)
            except (StoreError, OSError) as error:
                self.damaged[file.path] = str(error).splitlines()[0]
        if not read:
            return None
        rows = pa.concat_tables(parts).combine_chunks()
        del parts
        added = self._written(rows, always_cold=all(tier_of(f.path) == "cold" for f in read))
        del rows
        # The replaced files stay for present readers; their grace period starts now.
        for file in read:
            os.utime(absolute(self.table.path, file.path), (self._at.timestamp(), self._at.timestamp()))
        return self.table.replace([f.path for f in read], added, at=self._at, lock=self._lock(), versions=versions)

    def _lacks_version(self, files: Sequence[StoredFile]) -> bool:
        """Whether a file may be of schema version 1, without the column `version`."""
        fresh = (absolute(self.table.path, f.path) for f in files if tier_of(f.path) == "fresh")
        return self.table.by_version and not all(map(_has_version, fresh))

    def _versions_of(self, paths: Collection[str]) -> dict[str, int]:
        """Return the commit versions of these files, as far as the commits exist."""
        versions: dict[str, int] = {}
        for version in range(self.table.version + 1):
            with suppress(FileNotFoundError):
                adds = (a["add"] for a in actions_of(commit_path(self.table.path, version)) if a.get("add"))
                versions |= {add["path"]: version for add in adds if add["dataChange"] and add["path"] in paths}
        return versions

    def _checked_rows(self, file: StoredFile, version: int | None) -> pa.Table:
        """Read the rows of a file. Raises CustodyError unless they match their commit and digests."""
        rows = self.table.raised(scan([absolute(self.table.path, file.path)], self.table.schema), version)
        if rows.num_rows != file.rows:
            raise CustodyError(f"{file.path} holds {rows.num_rows} rows, its commit says {file.rows}")
        if self.layout.checked:
            digests = digest_column(row_digests(rows, RECORD_SCHEMA.names))
            wrong = pc.invert(pc.equal(digests, rows["content_hash"].combine_chunks()))
            if pc.any(wrong).as_py():
                row = rows.select(["golem_id", "tick"]).filter(wrong).slice(0, 1).to_pylist()[0]
                raise CustodyError(
                    f"{file.path}: golem {row['golem_id']}, tick {row['tick']} was altered: run `bardo verify` "
                    "and restore the file from a backup"
                )
        return rows

    def _written(self, rows: pa.Table, *, always_cold: bool) -> list[Added]:
        """Write the rows to new files without committing them."""
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
        leaves = [leaf for column in self.table.schema for leaf in leaves_of(column)]
        level = self._policy.cold_zstd_level if tier == "cold" else self._policy.warm_zstd_level
        try:
            with pq.ParquetWriter(
                path,
                self.table.schema,
                compression="zstd",
                compression_level=level,
                use_dictionary=[leaf for leaf, kind in leaves if not _is_unique(kind)],
                write_statistics=[leaf for leaf, _ in leaves if "." not in leaf],
                data_page_size=_PAGE_BYTES,
                write_page_checksum=True,
            ) as out:
                out.write_table(rows, row_group_size=_GROUP_ROWS)
            path = named_by_checksum(path)
            sync_file(path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return self.table.described(f"{tier}/{path.name}", rows)


def _is_unique(kind: pa.DataType) -> bool:
    """Whether values of this type seldom repeat (measures, hashes, payloads)."""
    return bool(pa.types.is_floating(kind) or pa.types.is_binary(kind))


def closed_below(heads: pa.Table, deaths: Mapping[str, int], cycle_ticks: int, lookback: int) -> dict[str, int]:
    """Return the last tick of each golem that may go cold: in a closed cycle and before the lookback.

    All records of a dead golem with a complete stream may go cold.

    Parameters
    ----------
    heads : HEADS_SCHEMA
    deaths : golem -> tick of its death
    """
    limits = {}
    for row in heads.to_pylist():
        golem_id, contiguous = row["golem_id"], row["contiguous"]
        death = deaths.get(golem_id)
        closed = min(contiguous, row["highest"] - lookback) // cycle_ticks * cycle_ticks
        limits[golem_id] = death if death is not None and contiguous >= death else closed
    return {golem_id: tick for golem_id, tick in limits.items() if tick > 0}


def below(limits: Mapping[str, int]) -> Callable[[pa.Table], NDArray[np.bool_]]:
    """Return a function that masks the rows (golem_id, tick) up to their golem's limit."""
    names = pa.array(list(limits), pa.string())
    ticks = np.array([*limits.values(), 0], dtype=np.int64)

    def is_below(rows: pa.Table) -> NDArray[np.bool_]:
        place = pc.fill_null(pc.index_in(rows["golem_id"].combine_chunks(), value_set=names), len(names))
        return np.asarray(rows["tick"].to_numpy() <= ticks[np.asarray(place)])

    return is_below


def _has_version(path: str) -> bool:
    """Whether a file has the column `version`. True for a damaged file: reading its rows reports the damage."""
    try:
        return "version" in pq.read_schema(path).names
    except (pa.ArrowException, OSError):
        return True
