"""History: which files hold the rows that some versions of a table brought, compacted or not.

A commit names the files that it brought. A compaction puts others in their place, and later they go; their rows are
then found by the column `version`, in the files that the compactions' commits lead to or, where those commits are
gone, in all files that are left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import orjson
import pyarrow.dataset as ds

from bardo_pipeline.storage.delta.durable_commits import commit_path


@dataclass(frozen=True)
class DataFile:
    """A Parquet file of the table: its absolute path and how many rows it holds.

    version: of the commit that brought it, where that is what was asked for. only: which of its rows are wanted; None
    for all. asked: after which version and up to which one, so that who finds it gone can ask again.
    """

    path: str
    rows: int
    version: int | None = None
    only: ds.Expression | None = field(default=None, compare=False)
    asked: tuple[int | None, int | None] | None = field(default=None, compare=False)

    @property
    def exists(self) -> bool:
        """Whether it has not been taken away since."""
        return Path(self.path).exists()


@dataclass
class _Walk:
    """What commits say: files by the version that brought them, and by what each rewritten file was replaced."""

    brought: dict[int, list[DataFile]]
    replaced: dict[str, list[DataFile]]


def absolute(table: Path, path: str) -> str:
    """Where a file lies that a commit names."""
    return str(table.absolute() / unquote(path))


def brought_between(table: Path, since: int, until: int, newest: int, *, by_version: bool) -> list[DataFile] | None:
    """The files with the rows of these commits. newest: the table's newest version.

    by_version: rows say which version brought them. None where the commits no longer lead to all of them.
    """
    walk = _walked(table, since, until)
    if walk is None:
        return None
    files = [file for version in sorted(walk.brought) for file in walk.brought[version]]
    lost = sorted({v for v, found in walk.brought.items() if not all(file.exists for file in found)})
    if not lost:
        return files
    later = _walked(table, until, newest)
    if later is None or not by_version:
        return None
    heirs = _heirs((f for v in lost for f in walk.brought[v]), walk.replaced | later.replaced)
    if heirs is None:
        return None
    whole = len(lost) == until - since or lost == sorted(walk.brought)
    only = within(since, until) if whole else ds.field("version").isin(lost)
    kept = [file for file in files if file.version not in lost]
    return kept + [DataFile(file.path, file.rows, only=only) for file in heirs]


def within(since: int | None, until: int | None) -> ds.Expression:
    """Rows that came after a version (None: from the first on), up to another (None: to the last).

    A row that does not say so came with version 1 of the schema; a reader must bear it.
    """
    column = ds.field("version")
    bounds = [column > since] if since is not None else []
    bounds += [column <= until] if until is not None else []
    wanted = bounds[0] if len(bounds) == 1 else bounds[0] & bounds[1]
    return wanted | column.is_null()


def _heirs(lost: Iterable[DataFile], replaced: Mapping[str, list[DataFile]]) -> list[DataFile] | None:
    """The files that there are now, in which the rows of lost ones lie."""
    found: dict[str, DataFile] = {}
    seen: set[str] = set()
    left = list(lost)
    while left:
        file = left.pop()
        if file.path in seen:
            continue
        seen.add(file.path)
        if file.path in replaced:
            left.extend(replaced[file.path])
        elif file.exists:
            found[file.path] = file
        else:
            return None
    return [found[path] for path in sorted(found)]


def _walked(table: Path, since: int, until: int) -> _Walk | None:
    """What the commits after a version say, up to another; None where one of them is gone."""
    walk = _Walk({}, {})
    for version in range(since + 1, until + 1):
        try:
            lines = commit_path(table, version).read_bytes().splitlines()
        except FileNotFoundError:
            return None
        actions = [orjson.loads(line) for line in lines]
        adds = [action["add"] for action in actions if action.get("add")]
        files = [DataFile(absolute(table, a["path"]), _rows(a), version) for a in adds]
        if fresh := [file for file, add in zip(files, adds, strict=True) if add["dataChange"]]:
            walk.brought[version] = fresh
        removed = [action["remove"]["path"] for action in actions if action.get("remove")]
        walk.replaced |= {absolute(table, path): files for path in removed}
    return walk


def _rows(add: Mapping[str, str]) -> int:
    return int(orjson.loads(add["stats"])["numRecords"])


def still_there(files: Collection[DataFile]) -> bool:
    """Whether none of these files has been taken away."""
    return all(file.exists for file in files)
