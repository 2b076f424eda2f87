"""Find the files with the rows of some versions of a table, even after compaction.

A commit names its files. After compaction deletes them, their rows are selected by the column `version` in the files
that replaced them according to the commits, or in all files if those commits are missing.
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
    """A Parquet file of the table.

    Parameters
    ----------
    path : absolute path
    version : commit that added it, if known
    only : condition on its rows; None for all
    span : versions (after, up to) of the request, for a retry if the file was deleted
    """

    path: str
    rows: int
    version: int | None = None
    only: ds.Expression | None = field(default=None, compare=False)
    span: tuple[int | None, int | None] | None = field(default=None, compare=False)

    @property
    def exists(self) -> bool:
        """Whether the file still exists."""
        return Path(self.path).exists()


@dataclass
class _Walk:
    """Files added by each version, and the replacements of each rewritten file."""

    added: dict[int, list[DataFile]]
    replaced: dict[str, list[DataFile]]


def absolute(table: Path, path: str) -> str:
    """Return the absolute path of a file named in a commit."""
    return str(table.absolute() / unquote(path))


def files_between(table: Path, since: int, until: int, newest: int, *, by_version: bool) -> list[DataFile] | None:
    """Return the files with the rows of the commits after `since` up to `until`; None if commits are missing.

    Parameters
    ----------
    newest : newest version of the table
    by_version : the table has a column `version`
    """
    walk = _walked(table, since, until)
    if walk is None:
        return None
    files = [file for version in sorted(walk.added) for file in walk.added[version]]
    lost = sorted({v for v, added in walk.added.items() if not all(file.exists for file in added)})
    if not lost:
        return files
    later = _walked(table, until, newest)
    if later is None or not by_version:
        return None
    replacements = _replacements((f for v in lost for f in walk.added[v]), walk.replaced | later.replaced)
    if replacements is None:
        return None
    is_all = len(lost) == until - since or lost == sorted(walk.added)
    only = within(since, until) if is_all else ds.field("version").isin(lost)
    kept = [file for file in files if file.version not in lost]
    return kept + [DataFile(file.path, file.rows, only=only) for file in replacements]


def within(since: int | None, until: int | None) -> ds.Expression:
    """Return the condition on rows committed after `since` and up to `until` (None: no bound).

    Rows of schema version 1 have a null version and always match.
    """
    column = ds.field("version")
    bounds = [column > since] if since is not None else []
    bounds += [column <= until] if until is not None else []
    condition = bounds[0] if len(bounds) == 1 else bounds[0] & bounds[1]
    return condition | column.is_null()


def _replacements(lost: Iterable[DataFile], replaced: Mapping[str, list[DataFile]]) -> list[DataFile] | None:
    """Return the existing files with the rows of deleted files; None if a replacement is unknown."""
    existing: dict[str, DataFile] = {}
    seen: set[str] = set()
    pending = list(lost)
    while pending:
        file = pending.pop()
        if file.path in seen:
            continue
        seen.add(file.path)
        if file.path in replaced:
            pending.extend(replaced[file.path])
        elif file.exists:
            existing[file.path] = file
        else:
            return None
    return [existing[path] for path in sorted(existing)]


def _walked(table: Path, since: int, until: int) -> _Walk | None:
    """Read the commits after `since` up to `until`; None if one is missing."""
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
            walk.added[version] = fresh
        removed = [action["remove"]["path"] for action in actions if action.get("remove")]
        walk.replaced |= {absolute(table, path): files for path in removed}
    return walk


def _rows(add: Mapping[str, str]) -> int:
    return int(orjson.loads(add["stats"])["numRecords"])


def all_exist(files: Collection[DataFile]) -> bool:
    """Return whether all these files exist."""
    return all(file.exists for file in files)
