"""A LanceDB index over the episodes table: a cache for similarity search, built again from Delta when deleted.

The index has two tables: `episodes` (few columns, one row an episode) and `texts` (one row a text, with its vector and
its words). Numbers in episode texts are rounded to bands, so about 30 episodes share a text. A search ranks texts,
then takes their episodes, in a total order. Each row has the version of the Delta table at which it was added; the
watermark, written last, holds the version up to which rows are visible.

Under disk pressure the index omits expendable episodes. The table and the log keep them, and a newly built index
contains them again. lance_tables.py maintains the tables, nearest_episodes.py searches them.
Source: architecture ("The episodes table holds text and vector; LanceDB is its index"); facts ("LanceDB"); MEM-10.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Float32Array
from bardo_pipeline.errors import ConfigError, DamagedError, EmbedderMismatch, QueryError, StoreError
from bardo_pipeline.events.record.arrow_schema import MOMENT
from bardo_pipeline.policy import GrowthPolicy
from bardo_pipeline.storage.checksums import checked_json, json_with_checksum
from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable
from bardo_pipeline.storage.delta.files_by_version import DataFile
from bardo_pipeline.storage.delta.parquet_io import portions
from bardo_pipeline.storage.home import children, remove_tree, replace_file
from bardo_pipeline.storage.index.ivf_tuning import Approximate, learned
from bardo_pipeline.storage.index.lance_tables import (
    EPISODES,
    Opened,
    among,
    check_index_files,
    fold,
    missing_texts,
    opened_build,
    record_checksums,
    remove_episodes,
    rows_of,
    table_names,
    texts_schema,
)
from bardo_pipeline.storage.index.nearest_episodes import MATCH_SCHEMA, Texts, episodes_of
from bardo_pipeline.storage.projections.projections import GrowingTable

if TYPE_CHECKING:
    from lancedb.table import Table

_FORMAT = 2  # raise when the tables change: an index of another format is built again
_EPISODE_COLUMNS = ("episode_id", "golem_id", "tick", "text", "text_hash", "may_go_at")
_HELD = ["episode_id", "golem_id", "tick", "text_hash"]
_MERGE_ROWS = 50_000  # episodes in memory at a time, when there are many


@dataclass(frozen=True)
class Watermark:
    """The state of the index: all `rows` of Delta table `table_id` up to `version`, in the Lance tables of `build`.

    gone_before: the index omits episodes that may go before this time (ISO 8601).
    approximate: settings of approximate search; None if every text is compared.
    """

    format: int
    embedder: str
    dimension: int
    table_id: str
    build: str
    version: int
    rows: int
    texts: int
    gone_before: str | None = None
    approximate: Approximate | None = None


class EpisodeIndex:
    """Search over the episodes of one embedder, by vector and words.

    Any process may search at any time. The caller must ensure that only one process refreshes.

    Parameters
    ----------
    folder : parent folder of all embedders' indexes; this index is in the subfolder `embedder_key`
    dimension : number of components of the embedder's vectors
    policy : sets the number of vectors from which search is approximate

    Raises
    ------
    ConfigError : the key is not a valid folder name
    StoreError : the index on disk holds vectors of another embedder
    """

    def __init__(self, folder: Path, embedder_key: str, dimension: int, policy: GrowthPolicy | None = None) -> None:
        if not re.fullmatch(r"[\w-]+", embedder_key):
            raise ConfigError(f"an embedder's key consists of letters, digits and dashes, not {embedder_key!r}")
        self.folder, self.embedder_key, self.dimension = folder / embedder_key, embedder_key, dimension
        self._policy = policy or GrowthPolicy()
        self._held: tuple[str, Opened] | None = None
        with suppress(DamagedError):  # a search refuses it, a refresh replaces it
            self.watermark()

    def watermark(self) -> Watermark | None:
        """Read the visible state; None if there is no index. Raises StoreError for another embedder's index."""
        try:
            facts = checked_json(self.folder / "watermark.json")
        except FileNotFoundError:
            return None
        if facts.get("format") != _FORMAT:
            return None
        facts.pop("checksum", None)
        approximate = facts.pop("approximate")
        mark = Watermark(**facts, approximate=None if approximate is None else Approximate(**approximate))
        if (mark.embedder, mark.dimension) != (self.embedder_key, self.dimension):
            raise EmbedderMismatch(
                f"{self.folder} holds vectors of {mark.embedder} in {mark.dimension} dimensions, "
                f"not of {self.embedder_key} in {self.dimension}: two embedders never share an index; delete that "
                "folder and refresh, or `bardo reembed`"
            )
        return mark

    def is_current(self, episodes: AppendOnlyTable) -> bool:
        """Return whether the index is up to the newest version of an episodes table."""
        mark = self.watermark()
        return mark is not None and (mark.table_id, mark.version) == (episodes.table_id, episodes.version)

    # Writing

    def refresh(self, episodes: GrowingTable, *, gone_before: datetime | None = None) -> int:
        """Bring the index up to the episodes table. Returns the number of rows by which it grew.

        Retracted episodes are removed, with the texts that no other episode has. A refresh repeated after a crash
        inserts no row twice. A damaged index, or one of another table, is replaced by a new build.

        Parameters
        ----------
        gone_before : omit episodes that may go before this time; later refreshes keep at least this limit

        Raises
        ------
        StoreError : an episode has another embedder, or rows were lost
        """
        mark = self._intact_watermark(episodes.table)
        version, files, retracted_ids, rows = _changes_since(episodes, None if mark is None else mark.version)
        limit = _later(gone_before, None if mark is None else mark.gone_before)
        if mark is not None and (mark.version, mark.gone_before) == (version, limit):
            return 0
        build = uuid4().hex if mark is None else mark.build
        opened = self._open(build, create=mark is None)
        new_retracted_ids: list[str] = []
        for group in portions(files, lambda file: file.rows, _MERGE_ROWS):
            new = episodes.table.load(group, [*_EPISODE_COLUMNS, "embedder", "vector", "because"])
            new = new if limit is None else new.filter(pc.greater_equal(new["may_go_at"], _moment(limit)))
            self._merge(opened, new.filter(pc.invert(pc.is_in(new["episode_id"], value_set=retracted_ids))), version)
            new_retracted_ids += new.filter(pc.is_valid(new["because"]))["episode_id"].to_pylist()
        texts_removed = remove_episodes(opened, new_retracted_ids)
        if limit is not None:
            expendable = rows_of(opened.episodes, f"may_go_at < timestamp '{limit}'", ["episode_id"])
            texts_removed = remove_episodes(opened, expendable["episode_id"].to_pylist()) or texts_removed
            rows -= episodes.read(["episode_id"], only=pc.field("may_go_at") < _moment(limit)).num_rows
        if (count := opened.episodes.count_rows()) != rows:
            raise StoreError(f"{self.folder} holds {count} episodes of the {rows} on record: delete it and refresh")
        fold(opened, texts_removed=texts_removed)
        approximate = learned(opened.texts, None if mark is None else mark.approximate, self._policy)
        self._keep(
            Watermark(
                _FORMAT,
                self.embedder_key,
                self.dimension,
                episodes.table.table_id,
                build,
                version,
                rows,
                opened.texts.count_rows(),
                limit,
                approximate,
            )
        )
        return rows - (0 if mark is None else mark.rows)

    def leaving(self, episodes: GrowingTable, gone_before: datetime) -> int:
        """Count the additional episodes that a refresh with this `gone_before` would omit."""
        mark = self.watermark()
        expendable = pc.field("may_go_at") < pa.scalar(gone_before, MOMENT)
        if mark is not None and mark.gone_before is not None:
            expendable &= pc.field("may_go_at") >= _moment(mark.gone_before)
        return episodes.read(["episode_id"], only=expendable).num_rows if mark is not None else 0

    def _merge(self, opened: Opened, rows: pa.Table, version: int) -> None:
        """Insert the missing episodes after their texts. Readers ignore episodes above the watermark."""
        other_embedders = set(rows["embedder"].unique().to_pylist()) - {self.embedder_key}
        if other_embedders:
            raise EmbedderMismatch(
                f"{self.folder} is of embedder {self.embedder_key}, the episodes of "
                f"{', '.join(sorted(other_embedders))}: vectors of two models never mix; `bardo reembed` converts them"
            )
        texts = missing_texts(opened.texts, rows)
        vectors = self._matrix(texts["vector"])
        kind = texts_schema(self.dimension)
        columns = {
            "text_hash": texts["text_hash"],
            "text": texts["text"],
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), type=kind.field("vector").type),
            "version": pa.array(np.full(texts.num_rows, version)),
        }
        added = _put(opened.texts, "text_hash", pa.table(columns, schema=kind))
        if added != texts.num_rows:
            raise StoreError(f"{self.folder}: only {added} of {texts.num_rows} missing texts were written")
        episodes = rows.select(_EPISODE_COLUMNS).append_column("version", pa.array(np.full(rows.num_rows, version)))
        _put(opened.episodes, "episode_id", episodes.cast(EPISODES).combine_chunks())

    def _keep(self, mark: Watermark) -> None:
        """Make the merged rows visible by replacing the watermark, then delete the tables of other builds."""
        record_checksums(self.folder)
        replace_file(self.folder / "watermark.json", json_with_checksum(asdict(mark)))
        for table in children(self.folder):
            if table.suffix == ".lance" and table.stem not in table_names(mark.build):
                remove_tree(table)

    def _intact_watermark(self, table: AppendOnlyTable) -> Watermark | None:
        """Return the watermark if the index is of this table and has the row counts that it states."""
        try:
            mark = self.watermark()
        except DamagedError:
            return None
        if mark is None or mark.table_id != table.table_id or mark.version > table.version:
            return None
        try:
            opened, visible = self._open(mark.build), f"version <= {mark.version}"
            counts = (opened.episodes.count_rows(visible), opened.texts.count_rows(visible))
        except (StoreError, OSError, RuntimeError):  # missing or torn: the caller builds it again
            return None
        return mark if counts == (mark.rows, mark.texts) else None

    def _open(self, build: str, *, create: bool = False) -> Opened:
        if self._held is None or self._held[0] != build:
            if not create:
                check_index_files(self.folder, build)
            self._held = build, opened_build(self.folder, build, self.dimension, create=create)
        return self._held[1]

    def _matrix(self, vectors: pa.ChunkedArray) -> Float32Array:
        """Copy the vectors to an array [rows, dimension]; LanceDB silently drops slices of nested Arrow columns."""
        lengths = pc.list_value_length(vectors)
        wrong = pc.filter(lengths, pc.not_equal(lengths, self.dimension))
        if len(wrong):
            raise StoreError(f"{self.folder} has {self.dimension} dimensions, an episode's vector has {wrong[0]}")
        flat = pc.list_flatten(vectors).to_numpy().astype(np.float32)
        if not np.isfinite(flat).all():
            raise StoreError(f"{self.folder}: an episode's vector holds NaN or an infinity")
        return flat.reshape(-1, self.dimension)

    # Reading

    def held(self) -> tuple[pa.Table, pa.Table]:
        """Return all visible rows: episodes (episode_id, golem_id, tick, text_hash) and texts (text_hash)."""
        mark = self.watermark()
        if mark is None:
            return EPISODES.empty_table().select(_HELD), EPISODES.empty_table().select(["text_hash"])
        opened, visible = self._open(mark.build), f"version <= {mark.version}"
        return rows_of(opened.episodes, visible, _HELD), rows_of(opened.texts, visible, ["text_hash"])

    def search(
        self, vector: Float32Array, *, text: str | None = None, golem_ids: Iterable[str] | None = None, limit: int = 10
    ) -> pa.Table:
        """Return the episodes nearest to a vector, at most `limit` rows; ties in order of golem and tick.

        The search compares every text, unless the index is approximate and `golem_ids` is None; then its recall is the
        one in the watermark.

        Parameters
        ----------
        vector : float32 [dimension], of this index's embedder
        text : words to search by in addition (BM25); both rankings are fused by reciprocal rank
        golem_ids : return only episodes of these golems

        Returns
        -------
        pa.Table, MATCH_SCHEMA

        Raises
        ------
        QueryError : the vector has another dimension or no direction
        StoreError : there is no index, or its files are unreadable
        """
        query = self._checked_query(vector, limit)
        mark = self.watermark()
        if mark is None:
            raise StoreError(
                f"there is no index of episodes in {self.folder} yet: refresh it (the asset `episodes` does)"
            )
        if mark.rows == 0:
            return MATCH_SCHEMA.empty_table()
        visible = f"version <= {mark.version}"
        try:
            opened = self._open(mark.build)
            episodes_where, texts_where = visible, visible
            if golem_ids is not None:
                episodes_where = f"{visible} AND {among('golem_id', golem_ids)}"
                hashes = rows_of(opened.episodes, episodes_where, ["text_hash"])["text_hash"].unique()
                texts_where = f"{visible} AND {among('text_hash', hashes.to_pylist())}"
            # A few golems have few texts, so an exact comparison is cheap.
            looked_at = mark.approximate.looked_at if mark.approximate is not None and golem_ids is None else 0
            texts = Texts(opened.texts, texts_where, mark.texts, looked_at)
            ranked = texts.near(query, limit) if text is None else texts.fused(query, text, limit)
            return episodes_of(opened.episodes, ranked, episodes_where, limit)
        except (OSError, RuntimeError) as error:  # LanceDB reports missing or torn files by these
            raise StoreError(f"{self.folder} cannot be read ({error}): delete it and refresh") from error

    def _checked_query(self, vector: Float32Array, limit: int) -> Float32Array:
        query = np.asarray(vector, dtype=np.float32)
        if query.shape != (self.dimension,):
            raise QueryError(f"a query of {self.folder} has {self.dimension} numbers, not {list(query.shape)}")
        if not np.isfinite(query).all() or not query.any():
            raise QueryError("a query vector must be finite and have at least one component other than zero")
        if limit < 1:
            raise QueryError(f"the limit must be at least one episode, not {limit}")
        return query


def _changes_since(episodes: GrowingTable, since: int | None) -> tuple[int, list[DataFile], pa.Array, int]:
    """Return the table's version, its files after `since`, the retracted episode ids, and the count of the others.

    The loop repeats until all four are of the same version.
    """
    while True:
        version, files = episodes.table.tail(since)
        retracted_ids = episodes.taken_back(["episode_id"])["episode_id"].combine_chunks()
        version_after, all_files = episodes.table.tail()
        if version_after == version:
            return version, files, retracted_ids, sum(file.rows for file in all_files) - 2 * len(retracted_ids)


def _later(moment: datetime | None, before: str | None) -> str | None:
    """Return the later of two times, in UTC as written in the watermark."""
    text = None if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
    return max((time for time in (text, before) if time is not None), default=None)


def _moment(text: str) -> pa.Scalar:
    return pa.scalar(datetime.fromisoformat(text).replace(tzinfo=UTC), MOMENT)


def _put(table: Table, key: str, rows: pa.Table) -> int:
    """Insert the rows whose key is new. Returns their number."""
    before = table.count_rows()
    if rows.num_rows:
        reported = table.merge_insert(key).when_not_matched_insert_all().execute(rows).num_inserted_rows
        if table.count_rows() != before + reported:
            raise StoreError(f"LanceDB reported {reported} inserts, but has {table.count_rows() - before} more rows")
    return table.count_rows() - before
