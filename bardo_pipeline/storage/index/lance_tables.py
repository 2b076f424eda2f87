"""Lance: the two tables of one build of an index of episodes, how they are made, asked, thinned and folded.

`episodes` is thin, one row an episode; `texts` has one row a text, with its vector and its words.
Source: facts ("LanceDB").
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bardo_pipeline.errors import StoreError
from bardo_pipeline.events.record.arrow_schema import MOMENT

if TYPE_CHECKING:
    from lancedb.table import Table

EPISODES = pa.schema(
    [
        pa.field("episode_id", pa.string()),
        pa.field("golem_id", pa.string()),
        pa.field("tick", pa.int64()),
        pa.field("text", pa.string()),
        pa.field("text_hash", pa.string()),
        pa.field("may_go_at", MOMENT),
        pa.field("version", pa.int64()),
    ]
)
"""One row an episode. version: of the episodes table, at which the row came; so also of a text."""

_ASKED = 1_000  # text hashes in one question
_ASKED_SHARE = 20  # where more than one hash in so many would be asked for, all are read
_TAIL_SHARE = 10  # episodes are folded into their indexes when those miss more than one row in so many
_KEPT = timedelta(hours=1)  # what a fold replaced stays for readers that are in the middle of a search


@dataclass(frozen=True)
class Opened:
    """The two Lance tables of one build."""

    episodes: Table
    texts: Table


def opened_build(folder: Path, build: str, dimension: int, *, create: bool = False) -> Opened:
    """The two tables of a build. dimension: of its vectors. Raises StoreError where one of them is missing."""
    import lancedb  # takes a second, and most commands never search

    if create:
        folder.mkdir(parents=True, exist_ok=True)
    # Zero: a handle looks at every use whether another process wrote.
    connected = lancedb.connect(folder, read_consistency_interval=timedelta(0))
    schemas = (EPISODES, texts_schema(dimension))
    try:
        tables = [
            connected.create_table(name, schema=schema) if create else connected.open_table(name)
            for name, schema in zip(table_names(build), schemas, strict=True)
        ]
    except ValueError as error:  # how LanceDB says that there is no such table
        raise StoreError(f"{folder} lacks a table ({error}): delete it and refresh") from error
    return Opened(*tables)


def texts_schema(dimension: int) -> pa.Schema:
    """One row a text. dimension: of its vector."""
    return pa.schema(
        [
            pa.field("text_hash", pa.string()),
            pa.field("text", pa.string()),
            pa.field("vector", pa.list_(pa.float32(), dimension)),
            pa.field("version", pa.int64()),
        ]
    )


def table_names(build: str) -> tuple[str, str]:
    """Of the episodes and of the texts of a build."""
    return f"episodes-{build}", f"texts-{build}"


def missing_texts(table: Table, rows: pa.Table) -> pa.Table:
    """The first row of each text that the table does not hold."""
    hashes, first = np.unique(rows["text_hash"].to_numpy(), return_index=True)
    names, known = hashes.tolist(), set[str]()
    few = len(names) * _ASKED_SHARE < table.count_rows()
    asked = [names[at : at + _ASKED] for at in range(0, len(names), _ASKED)]
    for where in (among("text_hash", some) for some in asked) if few else ("true",):
        known.update(rows_of(table, where, ["text_hash"])["text_hash"].to_pylist())
    return rows.take(pa.array([at for name, at in zip(names, first, strict=True) if name not in known], pa.int64()))


def rows_of(table: Table, where: str, columns: list[str]) -> pa.Table:
    """All rows that a condition in SQL holds for."""
    asked: Any = table.search().where(where)
    return asked.select(columns).limit(max(1, table.count_rows())).to_arrow()


def among(column: str, values: Iterable[str]) -> str:
    """SQL for: the column is one of these, exactly. Values come from users; in SQL only the quote is special."""
    quoted = ",".join("'" + value.replace("'", "''") + "'" for value in sorted(set(values)))
    return f"{column} IN ({quoted})" if quoted else "false"


def take_out(opened: Opened, episode_ids: list[str]) -> bool:
    """Take out these episodes, and the texts that are nobody's any more. Returns whether a text went."""
    lost = False
    for at in range(0, len(episode_ids), _ASKED):
        these = among("episode_id", episode_ids[at : at + _ASKED])
        hashes = set(rows_of(opened.episodes, these, ["text_hash"])["text_hash"].to_pylist())
        if hashes:
            opened.episodes.delete(these)
            left = rows_of(opened.episodes, among("text_hash", hashes), ["text_hash"])["text_hash"].to_pylist()
            opened.texts.delete(among("text_hash", hashes - set(left)))
            lost = lost or bool(hashes - set(left))
    return lost


def fold(opened: Opened, *, words_lost: bool) -> None:
    """Make the indexes, or take new rows into them. words_lost: texts were taken out, whose words still count.

    Texts at once: BM25 scores a row outside the index by other statistics, so the same words would score differently.
    Episodes when enough have come: a fold copies the table, and what is found does not depend on it.
    """
    from lancedb.index import FTS, BTree

    if opened.episodes.count_rows() == 0:
        return
    wanted: list[tuple[Table, str, Any, int]] = [
        (opened.episodes, "episode_id", BTree(), _TAIL_SHARE),
        (opened.episodes, "golem_id", BTree(), _TAIL_SHARE),
        (opened.episodes, "text_hash", BTree(), _TAIL_SHARE),
        (opened.texts, "text_hash", BTree(), 0),
        (opened.texts, "text", FTS(with_position=False), 0),
    ]
    for table, column, config, share in wanted:
        made = [index for index in table.list_indices() if index.columns == [column]]
        if not made or (words_lost and column == "text"):
            table.create_index(column, config=config)
            continue
        stats = table.index_stats(made[0].name)
        assert stats is not None, f"{made[0].name} was listed a moment ago"
        if stats.num_unindexed_rows * max(share, 1) > (stats.num_indexed_rows if share else 0):
            table.optimize(cleanup_older_than=_KEPT)
