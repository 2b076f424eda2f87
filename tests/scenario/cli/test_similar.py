"""Search by similarity: the command `bardo similar`, and the rows that it leaves out."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from bardo_pipeline import birth, open_home, store_episode
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.derive_episodes import derive_episodes, refresh_index, similar_episodes
from tests.conftest import NOW, copy_home
from tests.support.knowledge.handmade_episodes import all_matches
from tests.support.processes.bardo_command import bardo
from tests.support.processes.printed_cures import cure_in

QUESTION = "liquidity moved in a falling trend"


@pytest.fixture(scope="module")
def searched_home(small_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small home with all of its episodes, and no index of them yet."""
    root = copy_home(small_home, tmp_path_factory.mktemp("similar") / "home")
    derive_episodes(DerivationContext.open(root), now=NOW)
    return root


def test_similar_returns_recorded_episodes_with_distinct_texts(searched_home: Path) -> None:
    printed = json.loads(bardo("similar", QUESTION, "--format", "json", "--limit", "6", home=searched_home))
    assert [list(row) for row in printed] == [["episode_id", "at", "text", "score"]] * 6
    assert len({row["text"] for row in printed}) == 6
    assert sum("liquidity moved" in row["text"] for row in printed) >= 3
    assert [row["score"] for row in printed] == sorted((row["score"] for row in printed), reverse=True)
    stores = DerivationContext.open(searched_home)
    rows = stores.projections.growing("episodes").read(["episode_id", "at", "text"]).to_pylist()
    known = {row["episode_id"]: (row["at"].isoformat(), row["text"]) for row in rows}
    assert [known[row["episode_id"]] for row in printed] == [(row["at"], row["text"]) for row in printed]


def test_the_table_shows_id_time_text_and_score(searched_home: Path) -> None:
    (row,) = json.loads(bardo("similar", QUESTION, "--format", "json", "--limit", "1", home=searched_home))
    output = bardo("similar", QUESTION, "--limit", "1", home=searched_home)
    assert all(word in output for word in ("episode", "when", "text", "score", row["episode_id"]))
    assert row["at"][:16].replace("T", " ") in output
    assert "falling trend" in " ".join(output.split())


@pytest.mark.full
def test_the_golem_option_limits_results_to_one_golem(searched_home: Path) -> None:
    born = DerivationContext.open(searched_home).life("GolemBorn")["golem_id"].to_pylist()
    for golem in born[:2]:
        words = ("similar", QUESTION, "--golem", golem, "--format", "json")
        printed = json.loads(bardo(*words, home=searched_home))
        assert printed
        assert {row["episode_id"].split(":")[0] for row in printed} == {golem}


@pytest.mark.full
def test_later_episodes_are_added_to_the_index(small_home: Path, tmp_path: Path) -> None:
    root = copy_home(small_home, tmp_path / "home")
    bardo("similar", QUESTION, home=root)
    derive_episodes(DerivationContext.open(root), now=NOW)
    fresh = DerivationContext.open(root).projections.growing("episodes").digest().rows
    bardo("similar", QUESTION, home=root)
    assert refresh_index(DerivationContext.open(root)) == 0
    assert all_matches(DerivationContext.open(root), QUESTION, limit=10_000).num_rows == fresh


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("similar ' '", "name a subject"),
        ("similar gas --golem nobody", 'golem nobody: no golem of this name was born: `bardo sql "from dim_golem"`'),
        ("similar gas --format csv", "table or json"),
        ("similar gas --limit 0", "Invalid value for '--limit'"),
    ],
)
def test_an_invalid_question_is_refused_with_a_hint(searched_home: Path, words: str, hint: str) -> None:
    assert hint in bardo(*shlex.split(words), home=searched_home, expect=2)


def test_a_home_without_episodes_is_refused_with_a_hint(small_home: Path, tmp_path: Path) -> None:
    assert "bardo demo" in bardo("similar", "gas", home=tmp_path / "none", expect=2)
    assert not (tmp_path / "none").exists()
    due = copy_home(small_home, tmp_path / "due")
    shutil.rmtree(due / "derivations")
    assert "there are no episodes of minilm yet: `bardo derive`" in bardo("similar", "gas", home=due, expect=2)


def test_a_home_of_texts_alone_leads_to_the_command_that_searches_them(tmp_path: Path) -> None:
    home = open_home(tmp_path / "home")
    golem = birth(home, owner="me", lineage="agent/1", at=NOW)
    store_episode(home, golem, "Gas doubled at noon.", at=NOW)
    cure = cure_in(bardo("similar", "gas", home=home.root, expect=2), "search", TEXT="gas")
    assert "Gas doubled at noon." in bardo(*cure, home=home.root)


def test_results_are_distinct_by_text(searched_home: Path) -> None:
    stores = DerivationContext.open(searched_home)
    refresh_index(stores)
    crowd = all_matches(stores, QUESTION, limit=8)["text"].to_pylist()
    once = similar_episodes(stores, QUESTION, limit=8)["text"].to_pylist()
    assert len(set(crowd)) < 8
    assert len(set(once)) == len(once) == 8
    assert once[: len(set(crowd))] == list(dict.fromkeys(crowd))
