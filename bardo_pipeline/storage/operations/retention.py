"""Retention: what may go of all that grows. Only maintenance calls this; nothing else of ours takes files away.

Of a table goes what no commit names and nobody can be reading any more, and commits that a checkpoint has gathered;
of the rest of a home, what only accelerates or was abandoned. Rows of the log never go.
Source: X-13 (quotas: CarePolicy); facts ("kill -9 leaves `*.parquet#1` files").
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import orjson

from bardo_pipeline.storage.delta.durable_commits import commit_path, newest_checkpoint
from bardo_pipeline.storage.home import sync_folder
from bardo_pipeline.storage.projections.derivation_folders import DROPPED, REBUILD

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
_CHECKPOINTS_KEPT = 2  # beside the one that the commits which stay begin with


@dataclass(frozen=True)
class Gone:
    """How many files went, or would go, and their bytes."""

    files: int = 0
    size: int = 0

    def __add__(self, other: Gone) -> Gone:
        return Gone(self.files + other.files, self.size + other.size)


def sweep(table: Path, active: Collection[str], *, before: datetime, dry_run: bool) -> Gone:
    """Take away the files of a table that no commit names and nobody has touched since a moment.

    active: paths in the folder of the files that its newest version names. Drafts of commits and checkpoints go, too.
    The caller keeps appends out meanwhile.
    """
    log = table / "_delta_log"
    data = [path for path in _files(table) if log not in path.parents and ".parquet" in path.name]
    unnamed = [path for path in data if path.relative_to(table).as_posix() not in active]
    drafts = [path for path in _files(log) if path.name.endswith(".tmp")] if log.exists() else []
    gone = _take([path for path in [*unnamed, *drafts] if _untouched(path, before)], dry_run)
    abandoned = [*table.glob(".checkpoint-*"), *table.parent.glob(f".{table.name}-*")]
    return gone + _take_folders([path for path in abandoned if _untouched(path, before)], dry_run)


def trim(table: Path, version: int, *, kept: int, dry_run: bool) -> Gone:
    """Take away the commits that a checkpoint has gathered, except for the last `kept`.

    version: the newest one. The checkpoint that those begin with stays, and the newest ones.
    """
    floor = newest_checkpoint(table, version - kept)
    if floor is None:
        return Gone()
    log = table / "_delta_log"
    names = os.listdir(log)
    checkpoints = sorted(int(m.group(1)) for name in names if (m := _CHECKPOINT.fullmatch(name)))
    idle = [v for v in checkpoints if v != floor and v not in checkpoints[-_CHECKPOINTS_KEPT:]]
    commits = sorted(int(m.group(1)) for name in names if (m := _COMMIT.fullmatch(name)) and int(m.group(1)) < floor)
    # Checkpoints first, then the oldest commit, then the others: wherever this ends, what is left is a whole log.
    gone = Gone()
    for paths in (
        [log / f"{v:020}.checkpoint.parquet" for v in idle],
        [commit_path(table, v) for v in commits[:1]],
        [commit_path(table, v) for v in commits[1:]],
    ):
        if paths:
            gone += _take(paths, dry_run)
            if not dry_run:
                sync_folder(log)
    return gone


def drop_derivations(
    folder: Path, in_force: Collection[str], *, superseded: datetime, abandoned: datetime, dry_run: bool
) -> tuple[Gone, list[str]]:
    """Take away derivations that are not in force and were last written to before a moment, and rebuilds left behind.

    Returns what went, and the names of the derivations.
    """
    going = []
    for path in sorted(folder.iterdir()) if folder.exists() else []:
        limit = abandoned if path.suffix in (REBUILD, DROPPED) else superseded
        if path.is_dir() and path.name not in in_force and _last_written(path) < limit.timestamp():
            going.append(path)
    return _take_folders(going, dry_run), [path.name for path in going]


def drop_orphans(folder: Path, owners: Collection[str], *, dry_run: bool) -> Gone:
    """Take away the folders below one that belong to none of these owners."""
    found = sorted(folder.iterdir()) if folder.exists() else []
    return _take_folders([path for path in found if path.is_dir() and path.name not in owners], dry_run)


def drop_drafts(paths: Iterable[Path], *, before: datetime, dry_run: bool) -> Gone:
    """Take away files and folders that were abandoned before a moment."""
    old = [path for path in paths if path.exists() and _untouched(path, before)]
    files = _take([path for path in old if not path.is_dir()], dry_run)
    return files + _take_folders([path for path in old if path.is_dir()], dry_run)


def drafts_of_readers(derivation: Path) -> Iterator[Path]:
    """What readers of the log keep no more: parts that wait and that no place names, and drafts."""
    for folder in sorted((derivation / "readers").glob("*")):
        try:
            named = set(orjson.loads((folder / "place.json").read_bytes()).values())
        except (FileNotFoundError, orjson.JSONDecodeError):
            named = set()
        yield from (path for path in folder.iterdir() if path.name not in {*named, "place.json"})


def prune_versions(index: Path, *, kept: timedelta, versions_max: int, dry_run: bool) -> Gone:
    """Take away what older versions of an index's Lance tables held, where it has more than so many of them.

    kept: versions younger than this stay for searches that are under way; by LanceDB's own clock.
    """
    import lancedb

    connected = lancedb.connect(index)
    before = _weight(index)
    for path in sorted(index.glob("*.lance")):
        table = connected.open_table(path.stem)
        count = len(table.list_versions())
        if count > versions_max:
            if dry_run:
                return Gone(count - 1, 0)
            table.optimize(cleanup_older_than=kept)
    after = _weight(index)
    return Gone(max(before.files - after.files, 0), max(before.size - after.size, 0))


def _weight(folder: Path) -> Gone:
    files = _files(folder)
    return Gone(len(files), sum(path.stat().st_size for path in files))


def disk_bytes(folder: Path) -> int:
    """Bytes that a folder takes on its disk: allocated blocks, not lengths."""
    return sum(path.lstat().st_blocks * 512 for path in [folder, *folder.rglob("*")])


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _untouched(path: Path, before: datetime) -> bool:
    try:
        return path.stat().st_mtime < before.timestamp()
    except FileNotFoundError:
        return False


def _last_written(folder: Path) -> float:
    return max((path.stat().st_mtime for path in [folder, *folder.rglob("*")]), default=0.0)


def _take(paths: Iterable[Path], dry_run: bool) -> Gone:
    gone = Gone()
    for path in paths:
        gone += Gone(1, path.stat().st_size)
        if not dry_run:
            path.unlink()
    return gone


def _take_folders(folders: Iterable[Path], dry_run: bool) -> Gone:
    gone = Gone()
    for folder in folders:
        gone += _weight(folder)
        if not dry_run:
            shutil.rmtree(folder)
    return gone
