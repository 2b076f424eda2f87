"""The log's table of vectors: one row per embedder and text.

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
    """The table of vectors.

    Parameters
    ----------
    mutex : held while the list of files is read; the caller of `put` holds the log's lock
    """

    def __init__(self, table: AppendOnlyTable, mutex: RLock) -> None:
        self._table, self._mutex = table, mutex
        self._keys: set[tuple[str, str]] = set()
        self._seen = -1

    def put(self, vectors: pa.Table) -> int:
        """Append the vectors with a new (embedder, text_hash); return their number."""
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
        """Read the vectors of these texts (columns text_hash, vector) by text_hash."""
        condition = (ds.field("embedder") == embedder) & ds.field("text_hash").isin(pa.array(hashes, pa.string()))
        return self._read(["text_hash", "vector"], condition).sort_by("text_hash")

    def count(self, embedder: str, since: datetime | None) -> int:
        """Count the vectors of an embedder, all or those made after a time."""
        condition = ds.field("embedder") == embedder
        if since is not None:
            condition &= ds.field("created_at") > pa.scalar(since, MOMENT)
        return self._read(["text_hash"], condition).num_rows

    def identities(self) -> dict[str, EmbedderIdentity]:
        """Return the embedders with vectors by key."""
        names = [field.name for field in fields(EmbedderIdentity)]
        rows = self._read(["embedder", *names]).group_by(["embedder", *names]).aggregate([])
        return {row.pop("embedder"): EmbedderIdentity(**row) for row in rows.to_pylist()}

    def _read(self, columns: Sequence[str], only: ds.Expression | None = None) -> pa.Table:
        with self._mutex:
            files = self._table.tail()[1]
        return self._table.load(files, columns, only)


def _keys_of(vectors: pa.Table) -> Iterator[tuple[str, str]]:
    return zip(vectors.column("embedder").to_pylist(), vectors.column("text_hash").to_pylist(), strict=True)
