"""Transactions: how far each app of a table has come, learnt from its log once and kept.

Delta's library reads the log from the last checkpoint on for every single app that it is asked for.
"""

from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow.parquet as pq

from bardo_pipeline.storage.delta.durable_commits import commit_path, newest_checkpoint

_COLUMNS = ["txn.appId", "txn.version"]


class Transactions:
    """The newest transaction of each app of a table. table: its folder."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self._known: dict[str, int] = {}
        self._at = -1

    def newest(self, app: str, at: int) -> int | None:
        """The newest transaction of an app that is committed by a version of the table; None when there is none.

        at: never lower than the time before.
        """
        if at != self._at:
            try:
                self._follow(at)
            except FileNotFoundError:  # trimmed behind a checkpoint
                self._begin(at)
        return self._known.get(app)

    def _follow(self, at: int) -> None:
        for version in range(self._at + 1, at + 1):
            for line in commit_path(self._table, version).read_bytes().splitlines():
                if txn := orjson.loads(line).get("txn"):
                    self._known[txn["appId"]] = int(txn["version"])
            self._at = version

    def _begin(self, at: int) -> None:
        newest = newest_checkpoint(self._table, at)
        assert newest is not None, f"{self._table}: commits are gone, and no checkpoint has gathered them"
        path = self._table / "_delta_log" / f"{newest:020}.checkpoint.parquet"
        apps, numbers = (column.drop_null().to_pylist() for column in pq.read_table(path, columns=_COLUMNS).flatten())
        self._known, self._at = {app: int(n) for app, n in zip(apps, numbers, strict=True)}, newest
        self._follow(at)
