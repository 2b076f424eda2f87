"""Searching a home: the command `bardo search`, entries and episodes, filters, what it refuses."""

from __future__ import annotations

import json
import math
import shlex
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.search import search, search_table
from bardo_pipeline.retrieval.hybrid_search import Filters
from tests.conftest import NOW, copy_home
from tests.support.processes.bardo_command import bardo


@pytest.fixture(scope="module")
def home(asked_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small home with everything derived."""
    return copy_home(asked_home, tmp_path_factory.mktemp("search") / "home")


def search_json(home: Path, *words: str) -> list[dict[str, Any]]:
    return json.loads(bardo("search", *words, "--json", home=home))


@pytest.mark.row("MEM-10")
def test_search_returns_entries_and_episodes_with_distinct_texts(home: Path) -> None:
    hits = search_json(home, "gas price in a falling trend", "--limit", "50")
    stores = DerivationContext.open(home)
    entries = {(r["entry_id"], r["golem_id"]): r["text"] for r in stores.projections.read("grimoire").to_pylist()}
    rows = stores.projections.growing("episodes").read(["episode_id", "text"]).to_pylist()
    episodes = {r["episode_id"]: r["text"] for r in rows}
    assert {hit["store"] for hit in hits} == {"entries", "episodes"}
    for hit in hits:
        known = episodes[hit["id"]] if hit["store"] == "episodes" else entries[hit["id"], hit["golem_id"]]
        assert known == hit["text"]
        penalty = stores.policy.search.decay_penalty
        assert hit["score"] == pytest.approx(hit["relevance"] * (1.0 - penalty * (1.0 - hit["retained"])), abs=1e-8)
        assert 0.0 < hit["retained"] <= 1.0
    assert len({(hit["store"], hit["text"]) for hit in hits}) == len(hits)
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)


@pytest.mark.full
@pytest.mark.row("MEM-10")
def test_filters_narrow_the_results(home: Path) -> None:
    gas = search_json(home, "what is usual here", "--category", "gas_timing")
    assert gas
    assert {hit["store"] for hit in gas} == {"entries"}, "an episode has no category"
    rows = DerivationContext.open(home).projections.read("grimoire").to_pylist()
    of_gas = {r["text"] for r in rows if r["category"] == "gas_timing" and r["status"] == "active"}
    assert {hit["text"] for hit in gas} <= of_gas
    golem = gas[0]["golem_id"]
    hits = search_json(home, "gas", "--golem", golem, "--store", "episodes")
    assert {(hit["golem_id"], hit["store"]) for hit in hits} == {(golem, "episodes")}
    assert search_json(home, "gas", "--store", "entries", "--min-confidence", "1.0", "--status", "candidate") == []


@pytest.mark.row("MEM-10")
def test_episodes_of_equal_text_have_the_highest_retention_of_all(home: Path) -> None:
    stores = DerivationContext.open(home)
    rows = stores.projections.growing("episodes").read(["golem_id", "text", "at", "importance_tier"]).to_pylist()
    days = stores.policy.decay
    closed = stores.projections.growing("cycles").read(["golem_id", "closed_at"]).to_pylist()
    last: dict[str, datetime] = {}
    for row in closed:
        last[row["golem_id"]] = max(row["closed_at"], last.get(row["golem_id"], row["closed_at"]))
    kept: dict[str, list[float]] = {}
    for row in rows:
        age = max((last[row["golem_id"]] - row["at"]).total_seconds(), 0.0) / 86_400
        kept.setdefault(row["text"], []).append(math.exp(-age / getattr(days, f"{row['importance_tier']}_days")))
    found = search(stores, "gas price in a falling trend", now=NOW, store="episodes", limit=50)
    hits = search_table(found).to_pylist()
    assert any(len(set(kept[hit["text"]])) > 1 for hit in hits), "some text has episodes of different ages"
    for hit in hits:
        assert hit["retained"] == pytest.approx(max(kept[hit["text"]]))
        assert hit["holders"] == len({row["golem_id"] for row in rows if row["text"] == hit["text"]})
    assert any(hit["holders"] < len(kept[hit["text"]]) for hit in hits), "a golem has several episodes of a text"


@pytest.mark.row("MEM-10")
def test_an_episode_filter_applies_before_the_limit(home: Path) -> None:
    stores = DerivationContext.open(home)
    rows = stores.projections.growing("episodes").read(["episode_id", "regime", "text"]).to_pylist()
    regime = {row["episode_id"]: row["regime"] for row in rows}
    few = min(set(regime.values()), key=[*regime.values()].count)
    texts = {row["text"] for row in rows if row["regime"] == few}
    asked = Filters(regime=few, confidence_min=1.0)
    table = search_table(search(stores, "gas", now=NOW, filters=asked, limit=50)).to_pylist()
    assert {regime[hit["id"]] for hit in table if hit["store"] == "episodes"} == {few}
    assert len([hit for hit in table if hit["store"] == "episodes"]) == min(len(texts), 50)
    assert not search(stores, "gas", now=NOW, store="episodes", filters=Filters(pair="no/pair"))


def test_the_table_shows_score_holders_and_text(home: Path) -> None:
    output = bardo("search", "gas", "--store", "entries", home=home)
    assert all(
        word in output for word in ("score", "kept", "held by", "id", "text", "gas", "As of 2026", "log version")
    )
    assert "no text was found" in bardo("search", "gas", "--kind", "strategy_fragment", home=home)


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("search ' '", "name a subject"),
        ("search gas --store foo", "there is no store 'foo': entries, episodes, both"),
        ("search gas --golem nobody", "no golem of this name was born"),
        ("search gas --kind foo", "no kind is called 'foo'"),
        ("search gas --min-confidence 1.7", "a confidence is between 0 and 1, not 1.7"),
        ("search gas --limit 0", "a search gives 1 to 50 results, not 0"),
        ("search gas --store episodes --kind warning", "an episode has no kind"),
        ("search gas --embedder minilm-int8", "nothing is derived by minilm-int8 here: minilm is in force"),
    ],
)
def test_an_invalid_search_is_refused_with_a_hint(home: Path, words: str, hint: str) -> None:
    assert hint in " ".join(bardo(*shlex.split(words), home=home, expect=2).split())
