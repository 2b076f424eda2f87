"""Checksums: seconds to write and to read a table with them, against the same files without."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from bardo_pipeline.storage.delta import parquet_io
from benchmarks.figures import Figure, seconds
from benchmarks.world import World

ROUNDS = 9


def checksum_figures(world: World, root: Path) -> list[Figure]:
    """Compare writing and reading the world's records with and without checksums of pages and files."""
    root.mkdir(parents=True)
    rows = pa.concat_tables(world.cycles).combine_chunks()
    schema = rows.schema
    spent: dict[str, list[float]] = {name: [] for name in ("write", "read", "write plain", "read plain")}
    for turn in range(ROUNDS):
        path, plain = root / f"{turn}.parquet", root / f"{turn}-plain.parquet"
        written: list[Path] = []
        spent["write"].append(
            seconds(lambda p=path, w=written: w.append(parquet_io.write_parquet(p, rows, schema, stats=["tick"])))
        )
        spent["write plain"].append(seconds(lambda p=plain: _write_plain(p, rows, schema)))
        spent["read"].append(seconds(lambda w=written: parquet_io.scan([str(w[0])], schema)))
        spent["read plain"].append(seconds(lambda p=plain: _read_plain(p, schema)))
    best = {name: min(times) for name, times in spent.items()}
    size = f"{rows.num_rows:,} records in one file, page cache warm, best of {ROUNDS} alternating runs"
    return [
        Figure(
            f"checksums_{what}",
            best[what],
            "s",
            best[f"{what} plain"],
            best[what] / best[f"{what} plain"],
            "ratio <= 1.1",
            f"{how}, {size}; peer: the same code without checksums",
        )
        for what, how in (
            ("write", "CRC-32 of every page, and of the file in its name"),
            ("read", "both verified, all columns, as on the first read of a process"),
        )
    ]


def _write_plain(path: Path, rows: pa.Table, schema: pa.Schema) -> None:
    def writer(*args: object, **options: object) -> pq.ParquetWriter:
        return honest(*args, **{**options, "write_page_checksum": False})

    honest = pq.ParquetWriter
    with (
        mock.patch.object(parquet_io.pq, "ParquetWriter", writer),
        mock.patch.object(parquet_io, "named_by_checksum", lambda written: written),
    ):
        parquet_io.write_parquet(path, rows, schema, stats=["tick"])


def _read_plain(path: Path, schema: pa.Schema) -> None:
    with mock.patch.object(parquet_io, "_FORMAT", ds.ParquetFileFormat()):
        parquet_io.scan([str(path)], schema)
