"""The two LanceDB tables of one build of the episode index: creation, queries, removals, index maintenance.

`episodes` has one row an episode; `texts` has one row a text, with its vector and its words.
Source: facts ("LanceDB").
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bardo_pipeline.errors import DamagedError, StoreError
from bardo_pipeline.events.record.arrow_columns import all_nullable
from bardo_pipeline.events.record.arrow_schema import MOMENT
from bardo_pipeline.storage.checksums import check_file, checked_json, checksum, json_with_checksum
from bardo_pipeline.storage.home import replace_file

if TYPE_CHECKING:
    from lancedb.table import Table

EPISODES = pa.schema(
    [
        *all_nullable(pa.string(), "episode_id", "golem_id"),
        pa.field("tick", pa.int64()),
        *all_nullable(pa.string(), "text", "text_hash"),
        pa.field("may_go_at", MOMENT),
        pa.field("version", pa.int64()),
    ]
)
"""One row an episode. version: version of the Delta table at which the row was added; likewise for texts."""

_BATCH = 1_000  # text hashes in one query
_SCAN_DIVISOR = 20  # read all hashes instead of filtering if more than 1/20 of them are wanted
_TAIL_DIVISOR = 10  # optimise the episode indexes when more than 1/10 of the rows are unindexed
_KEPT = timedelta(hours=1)  # old table versions stay this long for searches in progress


_SUMS = "files.json"


def record_checksums(folder: Path) -> None:
    """Write the CRC-32 of every file of the index's tables; LanceDB verifies none. Known files are not read again.

    The hint at the newest version is left out, because LanceDB rewrites it.
    """
    try:
        known = checked_json(folder / _SUMS)["files"]
    except (FileNotFoundError, DamagedError):
        known = {}
    names = [
        path.relative_to(folder).as_posix()
        for path in folder.glob("*.lance/**/*")
        if path.is_file() and path.suffix != ".json"
    ]
    sums = {name: known.get(name) or f"{checksum(folder / name):08x}" for name in sorted(names)}
    replace_file(folder / _SUMS, json_with_checksum({"files": sums}))


def check_index_files(folder: Path, build: str = "") -> None:
    """Compare the files of an index (of one build) with their recorded checksums, once per process.

    Missing files are no fault, because LanceDB deletes those of old versions.

    Raises DamagedError for an altered file.
    """
    try:
        sums = checked_json(folder / _SUMS)["files"]
    except FileNotFoundError:
        return  # made by an earlier version
    for name, expected in sums.items():
        if build not in name:
            continue
        with suppress(FileNotFoundError):
            check_file(str(folder / name), int(expected, 16))


@dataclass(frozen=True)
class Opened:
    """The two Lance tables of one build."""

    episodes: Table
    texts: Table


def opened_build(folder: Path, build: str, dimension: int, *, create: bool = False) -> Opened:
    """Open or create the two tables of a build. Raises StoreError if one of them is missing."""
    import lancedb  # takes a second, and most commands never search

    if create:
        folder.mkdir(parents=True, exist_ok=True)
    # Interval 0: at every use a handle checks whether another process wrote.
    connected = lancedb.connect(folder, read_consistency_interval=timedelta(0))
    schemas = (EPISODES, texts_schema(dimension))
    try:
        tables = [
            connected.create_table(name, schema=schema) if create else connected.open_table(name)
            for name, schema in zip(table_names(build), schemas, strict=True)
        ]
    except ValueError as error:  # LanceDB's error for a missing table
        raise StoreError(f"{folder} lacks a table ({error}): delete it and refresh") from error
    return Opened(*tables)


def texts_schema(dimension: int) -> pa.Schema:
    """Return the schema of texts: one row a text, with a vector of this dimension."""
    return pa.schema(
        [
            *all_nullable(pa.string(), "text_hash", "text"),
            pa.field("vector", pa.list_(pa.float32(), dimension)),
            pa.field("version", pa.int64()),
        ]
    )


def table_names(build: str) -> tuple[str, str]:
    """Return the names of the episodes table and of the texts table of a build."""
    return f"episodes-{build}", f"texts-{build}"


def missing_texts(table: Table, rows: pa.Table) -> pa.Table:
    """Return the first row of each text that the table lacks."""
    unique, first = np.unique(rows["text_hash"].to_numpy(), return_index=True)
    hashes, present = unique.tolist(), set[str]()
    few = len(hashes) * _SCAN_DIVISOR < table.count_rows()
    batches = [hashes[at : at + _BATCH] for at in range(0, len(hashes), _BATCH)]
    for where in (among("text_hash", batch) for batch in batches) if few else ("true",):
        present.update(rows_of(table, where, ["text_hash"])["text_hash"].to_pylist())
    return rows.take(pa.array([at for h, at in zip(hashes, first, strict=True) if h not in present], pa.int64()))


def rows_of(table: Table, where: str, columns: list[str]) -> pa.Table:
    """Return all rows that meet an SQL condition."""
    query: Any = table.search().where(where)
    return query.select(columns).limit(max(1, table.count_rows())).to_arrow()


def among(column: str, values: Iterable[str]) -> str:
    """Write the SQL condition that the column is one of these values. Values may come from users, so quotes double."""
    quoted = ",".join("'" + value.replace("'", "''") + "'" for value in sorted(set(values)))
    return f"{column} IN ({quoted})" if quoted else "false"


def remove_episodes(opened: Opened, episode_ids: list[str]) -> bool:
    """Delete these episodes, and the texts that no other episode has. Returns whether a text was deleted."""
    texts_removed = False
    for at in range(0, len(episode_ids), _BATCH):
        condition = among("episode_id", episode_ids[at : at + _BATCH])
        hashes = set(rows_of(opened.episodes, condition, ["text_hash"])["text_hash"].to_pylist())
        if hashes:
            opened.episodes.delete(condition)
            shared = rows_of(opened.episodes, among("text_hash", hashes), ["text_hash"])["text_hash"].to_pylist()
            opened.texts.delete(among("text_hash", hashes - set(shared)))
            texts_removed = texts_removed or bool(hashes - set(shared))
    return texts_removed


def fold(opened: Opened, *, texts_removed: bool) -> None:
    """Create the indexes, or add new rows to them.

    New texts are indexed at once, because BM25 scores an unindexed row by other statistics. After a removal of texts
    their index is created again, because its statistics still count the removed words. Episodes wait until 1/10 is
    unindexed: an optimisation copies the table, and results do not depend on it.
    """
    from lancedb.index import FTS, BTree

    if opened.episodes.count_rows() == 0:
        return
    wanted: list[tuple[Table, str, Any, int]] = [
        (opened.episodes, "episode_id", BTree(), _TAIL_DIVISOR),
        (opened.episodes, "golem_id", BTree(), _TAIL_DIVISOR),
        (opened.episodes, "text_hash", BTree(), _TAIL_DIVISOR),
        (opened.texts, "text_hash", BTree(), 0),
        (opened.texts, "text", FTS(with_position=False), 0),
    ]
    for table, column, config, share in wanted:
        indexes = [index for index in table.list_indices() if index.columns == [column]]
        if not indexes or (texts_removed and column == "text"):
            table.create_index(column, config=config)
            continue
        stats = table.index_stats(indexes[0].name)
        assert stats is not None, f"{indexes[0].name} was listed a moment ago"
        if stats.num_unindexed_rows * max(share, 1) > (stats.num_indexed_rows if share else 0):
            table.optimize(cleanup_older_than=_KEPT)
