"""The index of episodes: exact answers, each episode once, none past the watermark, and no state outside its files."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from numpy.typing import NDArray

from bardo_pipeline.curator.episodes import EPISODE_SCHEMA
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.derive_episodes import refresh_index, similar_episodes
from bardo_pipeline.errors import ConfigError, DamagedError, QueryError, StoreError
from bardo_pipeline.policy import GrowthPolicy, Policy
from bardo_pipeline.retrieval.embedder_interface import Embedder, text_hash
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.index import episode_index, ivf_tuning, lance_tables, nearest_episodes
from bardo_pipeline.storage.index.episode_index import EpisodeIndex
from bardo_pipeline.storage.index.nearest_episodes import MATCH_SCHEMA
from bardo_pipeline.storage.projections.projections import GrowingTable, Projections
from tests.conftest import NOW
from tests.support.knowledge.handmade_episodes import TEXTS, lives, many, rows

QUESTIONS = ("gas was expensive while nothing happened", "running out of money", "predictions were wrong", TEXTS[17])
USERS_IDS = (
    "g-1",
    "o'brien",
    "''",
    "' OR '1'='1",
    "a\\",
    'say "g"',
    "g-1') OR (1=1",
    "%",
    "émile 流动性",
    "a\nb",
    "g--",
)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> DerivationContext:
    root = tmp_path_factory.mktemp("home")
    Home.create(root, Policy(), NOW)
    return DerivationContext.open(root)


@pytest.fixture(scope="module")
def embedder(stores: DerivationContext) -> Embedder:
    return stores.embedder


@pytest.fixture(scope="module")
def matrix(embedder: Embedder) -> NDArray[np.float32]:
    return embedder.embed(TEXTS)


@pytest.fixture
def table(tmp_path: Path) -> GrowingTable:
    return GrowingTable("episodes", tmp_path / "episodes", TABLES["episodes"], Policy())


@pytest.fixture
def index(tmp_path: Path, embedder: Embedder) -> EpisodeIndex:
    return open_index(tmp_path, embedder)


def open_index(folder: Path, embedder: Embedder) -> EpisodeIndex:
    return EpisodeIndex(folder / "index", embedder.identity.key, embedder.identity.dimension)


def commit(table: GrowingTable, batch: pa.Table) -> None:
    table.put(batch, {"test": (table.done("test") or 0) + 1})


def answers(index: EpisodeIndex, embedder: Embedder) -> list[dict[str, Any]]:
    """Return the answers of the index to every query: by vector, by vector and words, for all golems and for one."""
    asked = [
        index.search(vector, text=text, golem_ids=golems, limit=limit)
        for question, vector in zip(QUESTIONS, embedder.embed(QUESTIONS), strict=True)
        for text in (None, question)
        for golems in (None, ["g-1"])
        for limit in (3, 30)
    ]
    return [row for result in asked for row in result.to_pylist()]


def ids(result: pa.Table) -> list[str]:
    return result["episode_id"].to_pylist()


def crash_before_watermark(index: EpisodeIndex, table: GrowingTable) -> None:
    """Refresh the index, but stop after the last merge, as a killed process does."""

    class Killed(Exception):
        pass

    def killed(*_: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EpisodeIndex, "_keep", killed)
        with pytest.raises(Killed):
            index.refresh(table)


# Answers


def test_search_equals_a_comparison_with_every_vector(
    index: EpisodeIndex, table: GrowingTable, embedder: Embedder, matrix: NDArray
) -> None:
    episodes = lives(1, 60, matrix)
    commit(table, episodes)
    index.refresh(table)
    for golems, asked in product((None, ["g-0"], ["g-0", "g-2"]), embedder.embed(QUESTIONS)):
        selected = episodes if golems is None else episodes.filter(pc.is_in(episodes["golem_id"], pa.array(golems)))
        vector = np.vstack(selected["vector"].to_pylist()).astype(np.float64)
        cosine = vector @ asked.astype(np.float64)
        # Episodes of one text are equals; rounding keeps them so.
        best = sorted(
            zip(-cosine.round(6), selected["golem_id"].to_pylist(), selected["tick"].to_pylist(), strict=True)
        )[:25]
        hits = index.search(asked, golem_ids=golems, limit=25)
        assert hits.schema == MATCH_SCHEMA
        assert ids(hits) == [f"{golem}:{tick}" for _, golem, tick in best]
        np.testing.assert_allclose(hits["distance"], [1 + distance for distance, _, _ in best], atol=2e-6)
        np.testing.assert_allclose(hits["score"], [-distance for distance, _, _ in best], atol=2e-6)


def test_a_limit_among_ties_keeps_the_first_by_golem_and_tick(
    index: EpisodeIndex, table: GrowingTable, matrix: NDArray
) -> None:
    shuffled = np.random.default_rng(3).permutation(40)
    far = rows([6] * 3, ["g-0"] * 3, [90, 91, 92], matrix)
    commit(table, far)
    commit(table, rows([5] * 40, [f"g-{at % 4}" for at in shuffled], [int(at) for at in shuffled], matrix))
    index.refresh(table)
    hits = index.search(matrix[5], limit=12)
    assert ids(hits) == [f"g-0:{t}" for t in range(0, 40, 4)] + ["g-1:1", "g-1:5"]


def test_a_tie_for_the_last_place_is_broken_by_text_hash() -> None:
    stored = pa.table({"text_hash": ["e", "d", "c", "b", "a"], "_score": [9.0, 7.0, 7.0, 7.0, 1.0]})
    result = nearest_episodes._best(lambda count: stored.slice(0, count), 2, stored.num_rows, "_score", "descending")
    assert result["text_hash"].to_pylist() == ["e", "b"]


def test_a_text_match_raises_an_episode_that_is_last_by_vector(
    index: EpisodeIndex, table: GrowingTable, embedder: Embedder, matrix: NDArray
) -> None:
    odd = "The zyzzogeton fell silent."
    rare = rows([0], ["g-9"], [1], embedder.embed([odd]), text=[odd], text_hash=[text_hash(odd)])
    commit(table, pa.concat_tables([lives(1, 60, matrix), rare]))
    index.refresh(table)
    by_vector = index.search(matrix[3], limit=200)
    assert ids(by_vector)[-1] == "g-9:1"
    by_both = index.search(matrix[3], text="ZYZZOGETON!", limit=9)
    # First in one ranking and last in the other, beside the text that is first by vector: both are on top.
    assert ids(by_both).index("g-9:1") <= by_both["text"].to_pylist().count(TEXTS[3])
    distance = dict(zip(ids(by_vector), by_vector["distance"].to_pylist(), strict=True))
    assert by_both["distance"].to_pylist() == pytest.approx([distance[i] for i in ids(by_both)], abs=1e-6)
    assert by_both["score"].to_pylist() == sorted(by_both["score"].to_pylist(), reverse=True)


def test_ranks_are_counted_among_the_selected_golems(index: EpisodeIndex, table: GrowingTable, matrix: NDArray) -> None:
    commit(table, pa.concat_tables([lives(1, 60, matrix), rows([0], ["g-9"], [1], matrix)]))
    index.refresh(table)
    assert index.search(matrix[3], text=TEXTS[3], golem_ids=["g-9"])["score"].to_pylist() == pytest.approx([2 / 61])


def test_a_text_without_matches_keeps_the_ranking_by_vector(
    index: EpisodeIndex, table: GrowingTable, matrix: NDArray
) -> None:
    commit(table, lives(1, 20, matrix))
    index.refresh(table)
    by_vector = ids(index.search(matrix[3]))
    for text in ("", "the", "...", "AND ( OR \" ' * ~", "a\x00b", "word " * 500):
        assert ids(index.search(matrix[3], text=text)) == by_vector, text


def test_a_golem_id_with_special_characters_selects_only_its_episodes(
    index: EpisodeIndex, table: GrowingTable, matrix: NDArray
) -> None:
    commit(table, rows([*range(len(USERS_IDS))], [*USERS_IDS], [1] * len(USERS_IDS), matrix))
    index.refresh(table)
    for golem in USERS_IDS:
        for text in (None, "gas spiked"):
            assert index.search(matrix[0], text=text, golem_ids=[golem])["golem_id"].to_pylist() == [golem]
    assert index.search(matrix[0], golem_ids=USERS_IDS, limit=99).num_rows == len(USERS_IDS)
    for absent in ([], ["g-77"], ["g-1' --"]):
        assert index.search(matrix[0], text="gas", golem_ids=absent).num_rows == 0


# Growing


@pytest.mark.full
def test_a_refresh_adds_only_new_episodes(
    index: EpisodeIndex, table: GrowingTable, embedder: Embedder, matrix: NDArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert index.refresh(table) == 0
    assert index.search(matrix[0], text="gas").num_rows == 0
    commit(table, lives(1, 50, matrix))
    assert (index.refresh(table), index.refresh(table)) == (150, 0)
    before = answers(index, embedder)
    read: list[int] = []
    load = table.table.load
    monkeypatch.setattr(table.table, "load", lambda files, *more: read.append(len(files)) or load(files, *more))
    assert open_index(index.folder.parents[1], embedder).refresh(table) == 0
    assert answers(index, embedder) == before
    commit(table, lives(51, 1, matrix))
    commit(table, lives(52, 1, matrix))
    assert (index.refresh(table), index.refresh(table)) == (6, 0)
    assert read == [2], "only the two new files are read, once"
    assert "g-2:52" in ids(index.search(matrix[0], limit=999))


@pytest.mark.full
def test_a_grown_index_answers_like_a_rebuilt_index(
    index: EpisodeIndex, table: GrowingTable, embedder: Embedder, matrix: NDArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the limit is below the number of texts, so some texts get no score
    monkeypatch.setattr(nearest_episodes, "_FUSED_COUNT", 6)
    for first in range(1, 31, 5):  # texts arrive in batches, so each refresh changes the document frequencies
        commit(table, lives(first, 5, matrix, golems=2))
        index.refresh(table)
    grown = answers(index, embedder)
    assert len(grown) > 300
    shutil.rmtree(index.folder)
    with pytest.raises(StoreError, match="no index of episodes"):
        index.search(matrix[0])
    assert index.refresh(table) == 60
    assert answers(index, embedder) == grown
    assert answers(open_index(index.folder.parents[1], embedder), embedder) == grown


def test_many_rows_are_merged_in_parts(
    index: EpisodeIndex, table: GrowingTable, matrix: NDArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episode_index, "_MERGE_ROWS", 20)
    monkeypatch.setattr(lance_tables, "_BATCH", 2)
    monkeypatch.setattr(lance_tables, "_SCAN_DIVISOR", 1)
    for first in range(1, 25, 3):
        commit(table, lives(first, 3, matrix))
    assert index.refresh(table) == 72
    assert sorted(ids(index.search(matrix[0], limit=999))) == sorted(lives(1, 24, matrix)["episode_id"].to_pylist())


def test_the_index_of_a_recreated_table_is_rebuilt(
    index: EpisodeIndex, table: GrowingTable, tmp_path: Path, matrix: NDArray
) -> None:
    commit(table, lives(1, 10, matrix))
    index.refresh(table)
    other = GrowingTable("episodes", tmp_path / "again", TABLES["episodes"], Policy())
    commit(other, lives(100, 4, matrix))
    assert index.refresh(other) == 12
    assert set(index.search(matrix[0], limit=99)["tick"].to_pylist()) == {100, 101, 102, 103}


# Crashes


def test_rows_past_the_watermark_are_hidden_and_added_once_by_the_next_refresh(
    index: EpisodeIndex, table: GrowingTable, embedder: Embedder, tmp_path: Path, matrix: NDArray
) -> None:
    commit(table, rows([0, 1, 2], ["g-0"] * 3, [1, 2, 3], matrix))
    index.refresh(table)
    commit(table, rows([2, 30, 31], ["g-0", "g-0", "g-1"], [4, 5, 1], matrix))
    crash_before_watermark(index, table)
    reader = open_index(tmp_path, embedder)
    for text in (None, TEXTS[30]):
        for golems in (None, ["g-0"]):
            assert sorted(ids(reader.search(matrix[30], text=text, golem_ids=golems))) == ["g-0:1", "g-0:2", "g-0:3"]
        assert reader.search(matrix[30], text=text, golem_ids=["g-1"]).num_rows == 0
    commit(table, rows([31], ["g-1"], [2], matrix))
    assert index.refresh(table) == 4
    assert sorted(ids(reader.search(matrix[30], limit=99))) == sorted(
        table.read(["episode_id"])["episode_id"].to_pylist()
    )
    assert ids(reader.search(matrix[30], text=TEXTS[30]))[0] == "g-0:5"
    assert index.refresh(table) == 0


@pytest.mark.row("X-9")
@pytest.mark.parametrize("pattern", ["texts-*.lance/data/*.lance", "files.json", "watermark.json"])
def test_an_altered_index_is_refused_by_name_and_built_again(
    index: EpisodeIndex, table: GrowingTable, embedder: Embedder, tmp_path: Path, matrix: NDArray, pattern: str
) -> None:
    commit(table, lives(1, 10, matrix))
    index.refresh(table)
    path = next(index.folder.glob(pattern))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedError, match=rf"{path.name} is damaged"):
        open_index(tmp_path, embedder).search(matrix[0])
    assert open_index(tmp_path, embedder).refresh(table) == 30
    assert open_index(tmp_path, embedder).search(matrix[0], limit=99).num_rows == 30


def test_a_repeated_refresh_cleans_up_after_a_killed_first_refresh(
    index: EpisodeIndex, table: GrowingTable, embedder: Embedder, tmp_path: Path, matrix: NDArray
) -> None:
    commit(table, lives(1, 10, matrix))
    crash_before_watermark(index, table)
    with pytest.raises(StoreError, match="no index of episodes"):
        index.search(matrix[0])
    assert open_index(tmp_path, embedder).refresh(table) == 30
    assert index.search(matrix[0], limit=99).num_rows == 30
    assert len(list(index.folder.glob("*.lance"))) == 2


def test_rows_lost_by_lancedb_are_detected_before_the_watermark_moves(
    index: EpisodeIndex, table: GrowingTable, matrix: NDArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = episode_index._put
    monkeypatch.setattr(episode_index, "_put", lambda to, key, batch: put(to, key, batch.slice(0, batch.num_rows - 1)))
    commit(table, lives(1, 10, matrix))
    with pytest.raises(StoreError, match="27 of 28 missing texts were written"):
        index.refresh(table)
    monkeypatch.setattr(
        episode_index, "_put", lambda to, key, batch: put(to, key, batch if key == "text_hash" else batch.slice(1))
    )
    with pytest.raises(StoreError, match="holds 29 episodes of the 30"):
        index.refresh(table)
    assert index.watermark() is None


def test_a_damaged_index_is_refused_by_readers_and_rebuilt_by_a_refresh(
    index: EpisodeIndex, table: GrowingTable, embedder: Embedder, tmp_path: Path, matrix: NDArray
) -> None:
    commit(table, lives(1, 10, matrix))
    index.refresh(table)
    for file in index.folder.glob("*.lance/data/*"):
        file.unlink()
    with pytest.raises(StoreError, match="delete it and refresh"):
        open_index(tmp_path, embedder).search(matrix[0])
    assert open_index(tmp_path, embedder).refresh(table) == 30
    assert open_index(tmp_path, embedder).search(matrix[0], limit=99).num_rows == 30


def test_an_index_with_fewer_rows_than_its_watermark_is_rebuilt(
    index: EpisodeIndex, table: GrowingTable, matrix: NDArray
) -> None:
    commit(table, lives(1, 10, matrix))
    index.refresh(table)
    mark = index.watermark()
    assert mark is not None
    index._open(mark.build).episodes.delete("tick = 3")
    assert index.search(matrix[0], limit=99).num_rows == 27
    assert index.refresh(table) == 30
    assert index.search(matrix[0], limit=99).num_rows == 30


# One embedder, one index


def test_an_index_refuses_vectors_of_another_embedder(
    index: EpisodeIndex, table: GrowingTable, embedder: Embedder, tmp_path: Path, matrix: NDArray
) -> None:
    key, dimension = embedder.identity.key, embedder.identity.dimension
    commit(table, lives(1, 10, matrix))
    index.refresh(table)
    other = EpisodeIndex(tmp_path / "index", "another", 3)
    with pytest.raises(StoreError, match="is of embedder another"):
        other.refresh(table)
    with pytest.raises(StoreError, match="no index of episodes"):
        other.search(np.ones(3, np.float32))
    with pytest.raises(StoreError, match="two embedders never share"):
        EpisodeIndex(tmp_path / "index", key, 768)
    shutil.copytree(index.folder, other.folder, dirs_exist_ok=True)
    with pytest.raises(StoreError, match=f"holds vectors of {key} in {dimension} dimensions, not of another"):
        EpisodeIndex(tmp_path / "index", "another", dimension)
    assert index.search(matrix[0], limit=99).num_rows == 30


def test_episodes_with_invalid_vectors_are_refused(index: EpisodeIndex, table: GrowingTable, matrix: NDArray) -> None:
    short = GrowingTable("episodes", table.table.path.parent / "short", TABLES["episodes"], Policy())
    commit(short, rows([0], ["g-0"], [1], matrix, vector=[[1.0, 0.0]]))
    with pytest.raises(StoreError, match="384 dimensions, an episode's vector has 2"):
        index.refresh(short)
    commit(table, rows([0], ["g-0"], [1], matrix, vector=[[float("nan")] * 384]))
    with pytest.raises(StoreError, match="NaN"):
        index.refresh(table)


def test_invalid_queries_are_refused(index: EpisodeIndex, table: GrowingTable, tmp_path: Path, matrix: NDArray) -> None:
    commit(table, lives(1, 2, matrix))
    index.refresh(table)
    for vector in (np.ones(383), np.ones((1, 384)), np.zeros(384), np.full(384, np.nan)):
        with pytest.raises(QueryError):
            index.search(vector.astype(np.float32))
    with pytest.raises(QueryError, match="at least one"):
        index.search(matrix[0], limit=0)
    for key in ("", "../x", "a b"):
        with pytest.raises(ConfigError, match="an embedder's key"):
            EpisodeIndex(tmp_path, key, 384)


# In a home


def test_similar_episodes_ignores_the_index_of_a_derivation_beside(
    stores: DerivationContext, tmp_path: Path, matrix: NDArray
) -> None:
    with pytest.raises(StoreError, match="no index of episodes"):
        similar_episodes(stores, "gas")
    commit(stores.projections.growing("episodes"), lives(1, 60, matrix))
    beside = replace(stores, projections=Projections(tmp_path / "beside", stores.home.bucket_count, stores.policy))
    commit(beside.projections.growing("episodes"), lives(500, 2, matrix))
    assert (refresh_index(stores), refresh_index(beside), refresh_index(stores)) == (180, 6, 0)
    assert (stores.home.index / "episodes" / stores.derivation_id / stores.embedder.identity.key).is_dir()
    hits = similar_episodes(stores, "fuel for transactions was expensive; gas spiked", golem_ids=["g-1"])
    assert hits.num_rows == 5
    assert set(hits["golem_id"].to_pylist()) == {"g-1"}
    assert all("gas spiked" in text for text in hits["text"].to_pylist())
    assert similar_episodes(beside, "gas", limit=99).num_rows == 6
    with pytest.raises(QueryError, match="the question is empty"):
        similar_episodes(stores, " \n")


# Growth


@pytest.mark.full
@pytest.mark.row("MEM-13")
def test_a_search_above_the_vector_limit_is_approximate_with_measured_recall(
    tmp_path: Path, table: GrowingTable, embedder: Embedder
) -> None:
    key, dimension = embedder.identity.key, embedder.identity.dimension
    growth = GrowthPolicy(approximate_vectors_min=1_000, recall_questions=20)
    index = EpisodeIndex(tmp_path / "index", key, dimension, growth)
    exact = EpisodeIndex(tmp_path / "exact", key, dimension)
    episodes = many(1_500)
    commit(table, episodes.slice(0, 950).take(pa.array(range(950))))
    index.refresh(table)
    mark = index.watermark()
    assert mark is not None
    assert mark.approximate is None, "below the number each vector is compared"
    commit(table, episodes.take(pa.array(range(950, 1_500))))
    for item in (index, exact):
        item.refresh(table)
    mark = index.watermark()
    assert mark is not None
    assert mark.approximate is not None
    result = mark.approximate
    assert 0 < result.looked_at <= result.lists // 2
    assert (result.vectors, result.questions, result.nearest) == (1_500, 20, 10)
    assert growth.recall_min * 1e6 <= result.recall_ppm <= 1e6
    hits, asked = 0, np.vstack(episodes["vector"].to_pylist())[::100] + 0.02
    for vector in asked.astype(np.float32):
        near, truth = (set(ids(item.search(vector, limit=10))) for item in (index, exact))
        hits += len(near & truth)
        lines = [set(ids(item.search(vector, limit=10, golem_ids=["g-3"]))) for item in (index, exact)]
        assert lines[0] == lines[1], "of a golem each text is compared"
    assert hits / (10 * len(asked)) > 0.85
    others = pa.array([f"n:{at}" for at in range(100)])
    commit(table, many(100, seed=6).set_column(0, EPISODE_SCHEMA.field("episode_id"), others))
    index.refresh(table)
    again = index.watermark()
    assert again is not None
    assert again.approximate == result, "a tenth more vectors do not retrain the lists"


@pytest.mark.row("MEM-13")
def test_searches_stay_exact_if_no_list_count_reaches_the_recall_minimum(
    tmp_path: Path, table: GrowingTable, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ivf_tuning, "_recall_ppm", lambda exact, approximate: 940_000)
    growth = GrowthPolicy(approximate_vectors_min=500, recall_questions=4)
    index = EpisodeIndex(tmp_path / "index", embedder.identity.key, embedder.identity.dimension, growth)
    episodes = many(600)
    commit(table, episodes)
    index.refresh(table)
    mark = index.watermark()
    assert mark is not None
    assert mark.approximate is not None
    assert (mark.approximate.looked_at, mark.approximate.recall_ppm) == (0, 940_000)
    matrix = np.vstack(episodes["vector"].to_pylist())
    asked = (matrix[3] + matrix[400]).astype(np.float32)
    best = np.argsort(-(matrix @ asked), kind="stable")[:10]
    assert set(ids(index.search(asked, limit=10))) == {episodes["episode_id"][int(at)].as_py() for at in best}


@pytest.mark.full
@pytest.mark.row("MEM-13")
def test_expired_episodes_leave_the_index_but_not_the_table(
    index: EpisodeIndex, table: GrowingTable, embedder: Embedder, tmp_path: Path, matrix: NDArray
) -> None:
    going = [NOW + timedelta(days=day) for day in range(60)]
    first = rows([at % 10 for at in range(60)], ["g-0"] * 60, [*range(60)], matrix, may_go_at=going)
    commit(table, first)
    index.refresh(table)
    digest = table.digest()
    limit = NOW + timedelta(days=25)
    assert index.leaving(table, limit) == 25
    assert index.refresh(table, gone_before=limit) == -25
    assert index.leaving(table, limit) == 0
    assert sorted(index.search(matrix[0], limit=99)["tick"].to_pylist()) == [*range(25, 60)]
    assert table.digest() == digest, "the table keeps them"
    assert index.refresh(table, gone_before=NOW) == 0, "an earlier limit restores no episode"
    later = [NOW, NOW + timedelta(days=90)]
    commit(table, rows([20, 21], ["g-1", "g-1"], [1, 2], matrix, may_go_at=later))
    assert index.refresh(table) == 1, "new episodes are compared with the same limit"
    fresh = open_index(tmp_path / "other", embedder)
    assert fresh.refresh(table, gone_before=limit) == 36
    assert answers(fresh, embedder) == answers(index, embedder), "both indexes leave out the same episodes"
    shutil.rmtree(index.folder)
    assert open_index(tmp_path, embedder).refresh(table) == 62
