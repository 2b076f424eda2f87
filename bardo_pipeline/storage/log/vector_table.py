"""The vectors of the log: each text's vector by each embedder, once.

Source: architecture ("Laws"); MEM-10.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from datetime import datetime
from threading import RLock

import pyarrow as pa
import pyarrow.dataset as ds

from bardo_pipeline.events.record.arrow_schema import MOMENT
from bardo_pipeline.retrieval.embedder_interface import EmbedderIdentity
from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable


class VectorLog:
    """The log's table of vectors. mutex: held while it is asked for its files; who calls `put` decides alone."""

    def __init__(self, table: AppendOnlyTable, mutex: RLock) -> None:
        self._table, self._mutex = table, mutex
        self._keys: set[tuple[str, str]] = set()
        self._seen = -1

    def put(self, vectors: pa.Table) -> int:
        """Append those whose (embedder, text_hash) is not on record; returns how many."""
        version, files = self._table.tail(self._seen)
        self._keys.update(_keys_of(self._table.load(files, ["embedder", "text_hash"])))
        self._seen = version
        fresh: dict[tuple[str, str], int] = {}
        for row, key in enumerate(_keys_of(vectors)):
            if key not in self._keys:
                fresh.setdefault(key, row)
        if fresh:
            self._table.append(vectors.take(pa.array(list(fresh.values()))), transactions={})
        return len(fresh)

    def of(self, embedder: str, hashes: Sequence[str]) -> pa.Table:
        """The vectors of these texts (columns text_hash, vector), by text_hash."""
        asked = (ds.field("embedder") == embedder) & ds.field("text_hash").isin(pa.array(hashes, pa.string()))
        return self._read(["text_hash", "vector"], asked).sort_by("text_hash")

    def count(self, embedder: str, since: datetime | None) -> int:
        """How many an embedder has, all or those made after a moment."""
        asked = ds.field("embedder") == embedder
        if since is not None:
            asked &= ds.field("created_at") > pa.scalar(since, MOMENT)
        return self._read(["text_hash"], asked).num_rows

    def identities(self) -> dict[str, EmbedderIdentity]:
        """Every embedder that has vectors, by its key."""
        names = [field.name for field in fields(EmbedderIdentity)]
        rows = self._read(["embedder", *names]).group_by(["embedder", *names]).aggregate([])
        return {row.pop("embedder"): EmbedderIdentity(**row) for row in rows.to_pylist()}

    def _read(self, columns: Sequence[str], only: ds.Expression | None = None) -> pa.Table:
        with self._mutex:
            files = self._table.tail()[1]
        return self._table.load(files, columns, only)


def _keys_of(vectors: pa.Table) -> Iterator[tuple[str, str]]:
    return zip(vectors.column("embedder").to_pylist(), vectors.column("text_hash").to_pylist(), strict=True)
