"""Vectors: an index over the episodes table, in LanceDB. It only accelerates: deleted, it is made again from Delta.

Two tables make it: `episodes` (thin, one row an episode) and `texts` (one row a text, with its vector and its words).
Episodes are worded in bands, so a text and its vector serve thirty of them: a search weighs texts and then takes their
episodes, and no tie is left to chance. Every row says at which version of Delta's table it came; the watermark, written
last, says up to which version they count.
How the tables are kept: lance_tables.py; how they are searched: nearest_episodes.py. Where the disk is under
pressure, episodes that
may go are left out: table and log keep them, and an index that is deleted is made with them again.
Source: architecture ("The episodes table holds text and vector; LanceDB is its index"); facts ("LanceDB"); MEM-10.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.errors import ConfigError, EmbedderMismatch, QueryError, StoreError
from bardo_pipeline.events.record.arrow_schema import MOMENT
from bardo_pipeline.policy import GrowthPolicy
from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable
from bardo_pipeline.storage.delta.files_by_version import DataFile
from bardo_pipeline.storage.index.ivf_tuning import Approximate, learned
from bardo_pipeline.storage.index.lance_tables import (
    EPISODES,
    Opened,
    among,
    fold,
    missing_texts,
    opened_build,
    rows_of,
    table_names,
    take_out,
    texts_schema,
)
from bardo_pipeline.storage.index.nearest_episodes import MATCH_SCHEMA, Texts, episodes_of
from bardo_pipeline.storage.projections.projections import GrowingTable

if TYPE_CHECKING:
    from lancedb.table import Table

_FORMAT = 2  # raise when the tables change: an index of another number is made again
_EPISODE_COLUMNS = ("episode_id", "golem_id", "tick", "text", "text_hash", "may_go_at")
_HELD = ["episode_id", "golem_id", "tick", "text_hash"]
_MERGE_ROWS = 50_000  # episodes in memory at a time, when there are many


@dataclass(frozen=True)
class Watermark:
    """What the index holds: all `rows` of Delta's table `table_id` up to `version`, in the Lance tables of `build`.

    gone_before: without those that may go before this moment (ISO 8601). approximate: how texts are searched; None:
    each is compared.
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
    """The episodes of one embedder, found by vector and words.

    folder: of all embedders' indexes; this one's lies in the folder of its key. dimension: of the embedder's vectors.
    policy: from how many vectors on it is approximate.
    Anyone may search at any time; refreshing is for one process at a time, which the caller sees to.
    Raises ConfigError for a key that cannot name a folder, StoreError when the index on disk is of other vectors.
    """

    def __init__(self, folder: Path, embedder_key: str, dimension: int, policy: GrowthPolicy | None = None) -> None:
        if not re.fullmatch(r"[\w-]+", embedder_key):
            raise ConfigError(f"an embedder's key is of letters, digits and dashes, not {embedder_key!r}")
        self.folder, self.embedder_key, self.dimension = folder / embedder_key, embedder_key, dimension
        self._policy = policy or GrowthPolicy()
        self._held: tuple[str, Opened] | None = None
        self.watermark()

    def watermark(self) -> Watermark | None:
        """What readers may count on; None without an index. Raises StoreError for an index of other vectors."""
        try:
            facts = orjson.loads((self.folder / "watermark.json").read_bytes())
        except FileNotFoundError:
            return None
        except orjson.JSONDecodeError as error:
            raise StoreError(f"{self.folder / 'watermark.json'} is damaged: delete {self.folder}") from error
        if facts.get("format") != _FORMAT:
            return None
        told = facts.pop("approximate")
        mark = Watermark(**facts, approximate=None if told is None else Approximate(**told))
        if (mark.embedder, mark.dimension) != (self.embedder_key, self.dimension):
            raise EmbedderMismatch(
                f"{self.folder} holds vectors of {mark.embedder} in {mark.dimension} dimensions, "
                f"not of {self.embedder_key} in {self.dimension}: two embedders never share an index; delete that "
                "folder and refresh, or `bardo reembed`"
            )
        return mark

    # Writing

    def refresh(self, episodes: GrowingTable, *, gone_before: datetime | None = None) -> int:
        """Take in what the episodes table has beyond the watermark. Returns by how many rows the index grew.

        gone_before: leave out, from now on, the episodes that may go before this moment; it never goes back.
        Episodes that the table took back are taken out, and with them the texts that no other episode has. Repeated
        after an interruption it doubles nothing; where the index is damaged, or of another table, it is made anew
        beside the old one. Raises StoreError for episodes of another embedder, or when rows were lost.
        """
        mark = self._sound(episodes.table)
        version, files, gone, rows = _news(episodes, None if mark is None else mark.version)
        limit = _later(gone_before, None if mark is None else mark.gone_before)
        if mark is not None and (mark.version, mark.gone_before) == (version, limit):
            return 0
        build = uuid4().hex if mark is None else mark.build
        opened = self._open(build, create=mark is None)
        back: list[str] = []
        for some in _groups(files):
            told = episodes.table.load(some, [*_EPISODE_COLUMNS, "embedder", "vector", "because"])
            told = told if limit is None else told.filter(pc.greater_equal(told["may_go_at"], _moment(limit)))
            self._merge(opened, told.filter(pc.invert(pc.is_in(told["episode_id"], value_set=gone))), version)
            back += told.filter(pc.is_valid(told["because"]))["episode_id"].to_pylist()
        lost = take_out(opened, back)
        if limit is not None:
            leaving = rows_of(opened.episodes, f"may_go_at < timestamp '{limit}'", ["episode_id"])
            lost = take_out(opened, leaving["episode_id"].to_pylist()) or lost
            rows -= episodes.read(["episode_id"], only=pc.field("may_go_at") < _moment(limit)).num_rows
        if (held := opened.episodes.count_rows()) != rows:
            raise StoreError(f"{self.folder} holds {held} episodes of the {rows} on record: delete it and refresh")
        fold(opened, words_lost=lost)
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
        """How many episodes a refresh that leaves out what may go before a moment would take out or not take in."""
        mark = self.watermark()
        due = pc.field("may_go_at") < pa.scalar(gone_before, MOMENT)
        if mark is not None and mark.gone_before is not None:
            due &= pc.field("may_go_at") >= _moment(mark.gone_before)
        return episodes.read(["episode_id"], only=due).num_rows if mark is not None else 0

    def _merge(self, opened: Opened, rows: pa.Table, version: int) -> None:
        """Put in the episodes that are missing, their texts first. They do not count until the watermark says so."""
        others = set(rows["embedder"].unique().to_pylist()) - {self.embedder_key}
        if others:
            raise EmbedderMismatch(
                f"{self.folder} is of embedder {self.embedder_key}, the episodes of {', '.join(sorted(others))}: "
                "vectors of two models never mix; `bardo reembed` goes from one to the other"
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
            raise StoreError(f"{self.folder}: {added} texts were written of {texts.num_rows} that were missing")
        episodes = rows.select(_EPISODE_COLUMNS).append_column("version", pa.array(np.full(rows.num_rows, version)))
        _put(opened.episodes, "episode_id", episodes.cast(EPISODES).combine_chunks())

    def _keep(self, mark: Watermark) -> None:
        """Let readers count on what was merged, at once, and remove what another build left."""
        draft = self.folder / ".watermark.json"
        draft.write_bytes(orjson.dumps(asdict(mark)))
        os.replace(draft, self.folder / "watermark.json")
        for table in self.folder.glob("*.lance"):
            if table.stem not in table_names(mark.build):
                shutil.rmtree(table)

    def _sound(self, table: AppendOnlyTable) -> Watermark | None:
        """The watermark, if the index is of this table and holds what it says."""
        mark = self.watermark()
        if mark is None or mark.table_id != table.table_id or mark.version > table.version:
            return None
        try:
            opened, visible = self._open(mark.build), f"version <= {mark.version}"
            counts = (opened.episodes.count_rows(visible), opened.texts.count_rows(visible))
        except (StoreError, OSError, RuntimeError):  # missing or torn: it is made anew
            return None
        return mark if counts == (mark.rows, mark.texts) else None

    def _open(self, build: str, *, create: bool = False) -> Opened:
        if self._held is None or self._held[0] != build:
            self._held = build, opened_build(self.folder, build, self.dimension, create=create)
        return self._held[1]

    def _matrix(self, vectors: pa.ChunkedArray) -> NDArray[np.float32]:
        """The vectors as float32 [rows, dimension]: a copy, for LanceDB drops slices of nested Arrow (facts)."""
        wrong = pc.filter(pc.list_value_length(vectors), pc.not_equal(pc.list_value_length(vectors), self.dimension))
        if len(wrong):
            raise StoreError(f"{self.folder} is of {self.dimension} dimensions, an episode's vector has {wrong[0]}")
        flat = pc.list_flatten(vectors).to_numpy().astype(np.float32)
        if not np.isfinite(flat).all():
            raise StoreError(f"{self.folder}: an episode's vector holds NaN or an infinity")
        return flat.reshape(-1, self.dimension)

    # Reading

    def held(self) -> tuple[pa.Table, pa.Table]:
        """All that a search may find: episodes (episode_id, golem_id, tick, text_hash) and texts (text_hash)."""
        mark = self.watermark()
        if mark is None:
            return EPISODES.empty_table().select(_HELD), EPISODES.empty_table().select(["text_hash"])
        opened, visible = self._open(mark.build), f"version <= {mark.version}"
        return rows_of(opened.episodes, visible, _HELD), rows_of(opened.texts, visible, ["text_hash"])

    def search(
        self,
        vector: NDArray[np.float32],
        *,
        text: str | None = None,
        golem_ids: Iterable[str] | None = None,
        limit: int = 10,
    ) -> pa.Table:
        """The episodes nearest to a vector (MATCH_SCHEMA, at most `limit` rows); equals by golem and tick.

        Each text is compared, unless the index is approximate and nobody's alone are asked for: then it finds the share
        that the watermark says.

        vector: float32 [dimension], of this index's embedder. text: words to search by as well (BM25); both rankings
        are fused by reciprocal rank. golem_ids: only episodes of these.
        Raises QueryError for a vector of another dimension or without a direction, StoreError without an index.
        """
        asked = self._asked(vector, limit)
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
            whose, which = visible, visible
            if golem_ids is not None:
                whose = f"{visible} AND {among('golem_id', golem_ids)}"
                hashes = rows_of(opened.episodes, whose, ["text_hash"])["text_hash"].unique()
                which = f"{visible} AND {among('text_hash', hashes.to_pylist())}"
            # Of a few golems only few texts are asked for, which are compared one by one.
            looked_at = mark.approximate.looked_at if mark.approximate is not None and golem_ids is None else 0
            texts = Texts(opened.texts, which, mark.texts, looked_at)
            ranked = texts.near(asked, limit) if text is None else texts.fused(asked, text, limit)
            return episodes_of(opened.episodes, ranked, whose, limit)
        except (OSError, RuntimeError) as error:  # ours are neither: so LanceDB speaks of missing or torn files
            raise StoreError(f"{self.folder} cannot be read ({error}): delete it and refresh") from error

    def _asked(self, vector: NDArray[np.float32], limit: int) -> NDArray[np.float32]:
        asked = np.asarray(vector, dtype=np.float32)
        if asked.shape != (self.dimension,):
            raise QueryError(f"{self.folder} is searched by {self.dimension} numbers, not by {list(asked.shape)}")
        if not np.isfinite(asked).all() or not asked.any():
            raise QueryError("a vector of zeros, or with NaN or an infinity in it, is near to nothing")
        if limit < 1:
            raise QueryError(f"at least one episode must be wanted, not {limit}")
        return asked


def _news(episodes: GrowingTable, since: int | None) -> tuple[int, list[DataFile], pa.Array, int]:
    """The table's version, the files since another, the ids of all episodes that were taken back, and how many stand.

    All as of one and the same moment.
    """
    while True:
        version, files = episodes.table.tail(since)
        gone = episodes.taken_back(["episode_id"])["episode_id"].combine_chunks()
        now, every = episodes.table.tail()
        if now == version:
            return version, files, gone, sum(file.rows for file in every) - 2 * len(gone)


def _later(asked: datetime | None, before: str | None) -> str | None:
    """The later of two moments as the watermark spells it, in UTC."""
    told = None if asked is None else asked.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
    return max((moment for moment in (told, before) if moment is not None), default=None)


def _moment(spelt: str) -> pa.Scalar:
    return pa.scalar(datetime.fromisoformat(spelt).replace(tzinfo=UTC), MOMENT)


def _groups(files: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    group: list[DataFile] = []
    for file in files:
        if group and sum(f.rows for f in group) + file.rows > _MERGE_ROWS:
            yield group
            group = []
        group.append(file)
    if group:
        yield group


def _put(table: Table, key: str, rows: pa.Table) -> int:
    """Insert the rows whose key is new. Returns how many there were."""
    before = table.count_rows()
    if rows.num_rows:
        told = table.merge_insert(key).when_not_matched_insert_all().execute(rows).num_inserted_rows
        if table.count_rows() != before + told:
            raise StoreError(f"LanceDB says that it wrote {told} rows, and has {table.count_rows() - before} more")
    return table.count_rows() - before
