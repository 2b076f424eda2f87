"""Cache of the newest transaction number of each app of a table.

Delta's library reads the log since the last checkpoint for every single app.
"""

from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow.parquet as pq

from bardo_pipeline.storage.delta.durable_commits import commit_path, newest_checkpoint

_COLUMNS = ["txn.appId", "txn.version"]


class Transactions:
    """The newest transactions of the table in this folder."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self._numbers: dict[str, int] = {}
        self._at = -1

    def newest(self, app: str, at: int) -> int | None:
        """Return the newest transaction of an app at a version (never lower than before); None without one."""
        if at != self._at:
            try:
                self._follow(at)
            except FileNotFoundError:  # maintenance removed commits before a checkpoint
                self._load_checkpoint(at)
        return self._numbers.get(app)

    def _follow(self, at: int) -> None:
        for version in range(self._at + 1, at + 1):
            for line in commit_path(self._table, version).read_bytes().splitlines():
                if txn := orjson.loads(line).get("txn"):
                    self._numbers[txn["appId"]] = int(txn["version"])
            self._at = version

    def _load_checkpoint(self, at: int) -> None:
        newest = newest_checkpoint(self._table, at)
        assert newest is not None, f"{self._table}: commits are missing, and no checkpoint contains them"
        path = self._table / "_delta_log" / f"{newest:020}.checkpoint.parquet"
        apps, numbers = (column.drop_null().to_pylist() for column in pq.read_table(path, columns=_COLUMNS).flatten())
        self._numbers, self._at = {app: int(n) for app, n in zip(apps, numbers, strict=True)}, newest
        self._follow(at)
