"""Deletion of files that a home no longer needs. Only maintenance calls this module.

From a table it deletes files that no commit names, after a grace period for readers, and commits that precede a
checkpoint. From the rest of the home it deletes caches and abandoned drafts. Rows of the log are never deleted.
Source: X-13 (quotas: CarePolicy); facts ("kill -9 leaves `*.parquet#1` files").
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from bardo_pipeline.errors import DamagedError
from bardo_pipeline.storage.checksums import checked_json
from bardo_pipeline.storage.delta.checksum_manifest import CHECKPOINT, COMMIT
from bardo_pipeline.storage.delta.durable_commits import checksum_path, commit_path, newest_checkpoint
from bardo_pipeline.storage.home import all_below, children, files_below, remove_tree, statuses, sync_folder
from bardo_pipeline.storage.index.lance_tables import record_checksums
from bardo_pipeline.storage.projections.derivation_folders import DROPPED, REBUILD

_CHECKPOINTS_KEPT = 2  # in addition to the checkpoint on which the kept commits build


@dataclass(frozen=True)
class Gone:
    """Number and bytes of the deleted files; of a dry run, of the files that would be deleted."""

    files: int = 0
    size: int = 0

    def __add__(self, other: Gone) -> Gone:
        return Gone(self.files + other.files, self.size + other.size)


def sweep(table: Path, active: Collection[str], *, before: datetime, dry_run: bool) -> Gone:
    """Delete a table's unreferenced files, and drafts of commits and checkpoints, not modified since `before`.

    active: paths, relative to the table, of the files that its newest version names. The caller holds the table's lock.
    """
    log = table / "_delta_log"
    files = [path for path, _ in files_below(table)]
    data = [path for path in files if log not in path.parents and ".parquet" in path.name]
    unnamed = [path for path in data if path.relative_to(table).as_posix() not in active]
    drafts = [path for path in files if log in path.parents and path.name.endswith(".tmp")]
    abandoned = [*unnamed, *drafts, *table.glob(".checkpoint-*"), *table.parent.glob(f".{table.name}-*")]
    return drop_drafts(abandoned, before=before, dry_run=dry_run)


def trim(table: Path, version: int, *, kept: int, dry_run: bool) -> Gone:
    """Delete commits before a checkpoint, except the last `kept` ones. version: the newest commit.

    The checkpoint on which the kept commits build stays, and so do the newest checkpoints.
    """
    floor = newest_checkpoint(table, version - kept)
    if floor is None:
        return Gone()
    log = table / "_delta_log"
    names = os.listdir(log)
    checkpoints = sorted(int(m.group(1)) for name in names if (m := CHECKPOINT.fullmatch(name)))
    idle = [v for v in checkpoints if v != floor and v not in checkpoints[-_CHECKPOINTS_KEPT:]]
    commits = sorted(int(m.group(1)) for name in names if (m := COMMIT.fullmatch(name)) and int(m.group(1)) < floor)
    # Checkpoints first, then the oldest commit, then the others, so that the log is readable after a crash anywhere.
    gone = Gone()
    for paths in (
        [log / f"{v:020}.checkpoint.parquet" for v in idle],
        [path for v in idle if (path := checksum_path(table, v)).exists()],
        [commit_path(table, v) for v in commits[:1]],
        [commit_path(table, v) for v in commits[1:]],
    ):
        if paths:
            gone += _delete(paths, dry_run)
            if not dry_run:
                sync_folder(log)
    return gone


def drop_derivations(
    folder: Path, in_force: Collection[str], *, superseded: datetime, abandoned: datetime, dry_run: bool
) -> tuple[Gone, list[str]]:
    """Delete derivations that are not in force and were last written before `superseded`, and abandoned rebuilds.

    Returns the deleted files and the names of the derivations.
    """
    going = []
    for path in children(folder):
        limit = abandoned if path.suffix in (REBUILD, DROPPED) else superseded
        if path.is_dir() and path.name not in in_force and last_written(path) < limit.timestamp():
            going.append(path)
    return _delete(going, dry_run), [path.name for path in going]


def drop_orphans(folder: Path, owners: Collection[str], *, dry_run: bool) -> Gone:
    """Delete the subfolders that are not named after one of these owners."""
    return _delete([path for path in children(folder) if path.is_dir() and path.name not in owners], dry_run)


def drop_drafts(paths: Iterable[Path], *, before: datetime, dry_run: bool) -> Gone:
    """Delete the files and folders that were last modified before a time."""
    return _delete([path for path, status in statuses(paths) if status.st_mtime < before.timestamp()], dry_run)


def drafts_of_readers(derivation: Path) -> Iterator[Path]:
    """Yield the unused files of log readers: drafts, and parts that no place.json names."""
    for folder in children(derivation / "readers"):
        try:
            named = set(checked_json(folder / "place.json").values())
        except (FileNotFoundError, NotADirectoryError, DamagedError):
            named = set()
        yield from (path for path in children(folder) if path.name not in {*named, "place.json"})


def drafts_of_bundles(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the bundles whose writing has not ended."""
    yield from (path for folder in folders for path in children(folder) if path.name.startswith(".draft-"))


def prune_versions(index: Path, *, kept: timedelta, versions_max: int, dry_run: bool) -> Gone:
    """Delete old versions of an index's Lance tables that have more than `versions_max` versions.

    kept: younger versions stay for searches in progress; LanceDB measures their age.
    """
    import lancedb

    connected = lancedb.connect(index)
    before = _total(index)
    for path in sorted(index.glob("*.lance")):
        table = connected.open_table(path.stem)
        count = len(table.list_versions())
        if count > versions_max:
            if dry_run:
                return Gone(count - 1, 0)
            table.optimize(cleanup_older_than=kept)
            record_checksums(index)
    after = _total(index)
    return Gone(max(before.files - after.files, 0), max(before.size - after.size, 0))


def _total(path: Path) -> Gone:
    sizes = [status.st_size for _, status in (files_below(path) if path.is_dir() else statuses([path]))]
    return Gone(len(sizes), sum(sizes))


def disk_bytes(folder: Path) -> int:
    """Return the bytes that a folder occupies on disk (allocated blocks)."""
    return sum(status.st_blocks * 512 for _, status in statuses([folder, *all_below(folder)]))


def last_written(folder: Path) -> float:
    """Return the time of the newest change of a folder or of anything below it; 0 if it is gone."""
    return max((status.st_mtime for _, status in statuses([folder, *all_below(folder)])), default=0.0)


def _delete(paths: Iterable[Path], dry_run: bool) -> Gone:
    gone = Gone()
    for path in paths:
        gone += _total(path)
        if not dry_run:
            remove_tree(path)
    return gone
