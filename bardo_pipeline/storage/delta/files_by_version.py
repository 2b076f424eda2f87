"""Find the files with the rows of some versions of a table.

A commit names its files. After compaction deletes them, their rows are selected by the column `version` in all files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import orjson
import pyarrow.dataset as ds

from bardo_pipeline.storage.delta.durable_commits import actions_of, commit_path


@dataclass(frozen=True)
class DataFile:
    """A Parquet file of the table.

    Parameters
    ----------
    path : absolute path
    bounds : minimum and maximum of columns with statistics
    only : condition on its rows; None for all
    span : versions (after, up to) of the request, for a retry if the file was deleted
    """

    path: str
    rows: int
    bounds: Mapping[str, tuple[Any, Any]] = field(default_factory=dict, compare=False)
    only: ds.Expression | None = field(default=None, compare=False)
    span: tuple[int | None, int | None] | None = field(default=None, compare=False)

    @property
    def exists(self) -> bool:
        """Whether the file still exists."""
        return Path(self.path).exists()


def absolute(table: Path, path: str) -> str:
    """Return the absolute path of a file named in a commit."""
    return str(table.absolute() / unquote(path))


def files_added(table: Path, since: int, until: int) -> list[DataFile] | None:
    """Return the files that the commits after `since` up to `until` added; None if a commit or a file is missing."""
    try:
        commits = [actions_of(commit_path(table, version)) for version in range(since + 1, until + 1)]
    except FileNotFoundError:
        return None
    adds = [add for actions in commits for a in actions if (add := a.get("add")) and add["dataChange"]]
    files = [_data_file(table, add["path"], orjson.loads(add["stats"])) for add in adds]
    return files if all(file.exists for file in files) else None


def _data_file(table: Path, path: str, stats: Mapping[str, Any]) -> DataFile:
    least, most = stats.get("minValues", {}), stats.get("maxValues", {})
    bounds = {name: (least[name], most[name]) for name in least.keys() & most.keys()}
    return DataFile(absolute(table, path), int(stats["numRecords"]), bounds)


def within(since: int | None, until: int | None) -> ds.Expression:
    """Return the condition on rows committed after `since` and up to `until` (None: no bound).

    Rows of schema version 1 have a null version and always match.
    """
    column = ds.field("version")
    bounds = [column > since] if since is not None else []
    bounds += [column <= until] if until is not None else []
    condition = bounds[0] if len(bounds) == 1 else bounds[0] & bounds[1]
    return condition | column.is_null()
