"""Episodes, search and insights by the memory tools, on a real home with the real embedder."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.record_overrides import grimoire_of
from bardo_pipeline.derivation.memory.ask import ask, golem_moment
from bardo_pipeline.derivation.memory.free_texts import search_texts
from bardo_pipeline.derivation.memory.search import search
from bardo_pipeline.errors import ToolError
from bardo_pipeline.retrieval.hybrid_search import Filters
from tests.conftest import copy_home
from tests.support.homes.tool_homes import ToolHome, tool_home
from tests.support.homes.two_owners import CORAL, belongings


@pytest.fixture
def home(tmp_path: Path) -> ToolHome:
    """A home with two owners' golems."""
    return tool_home(tmp_path / "home")


def store(home: ToolHome, reflection: str, **changed: Any) -> Any:
    """Store an episode of a swap on base."""
    arguments = {
        "tool": "uniswap_execute_swap",
        "outcome": {"pnl_usd": 2.0},
        "chain": "base",
        "token_pair": "WETH/USDC",
    }
    return home.call("memory_store_episode", reflection=reflection, **arguments | changed)


def add(home: ToolHome, content: str, category: str = "slippage", **changed: Any) -> Any:
    """Add an insight."""
    return home.call("memory_manage_insight", operation="ADD", content=content, category=category, **changed)


def change(home: ToolHome, operation: str, insight_id: str, **changed: Any) -> Any:
    """Vote on an insight, or edit it."""
    return home.call("memory_manage_insight", operation=operation, insight_id=insight_id, **changed)


def test_a_stored_episode_is_found_at_once_and_states_its_retention(home: ToolHome) -> None:
    stored = store(home, "The swap slipped by 40 bps because the pool was thin.", importance="Notable")
    assert (stored.counts.before, stored.counts.expected, stored.counts.after) == (0, 1, 1)
    assert stored.vector_dimension == 384
    lasts = datetime.fromisoformat(stored.estimated_retention_until) - home.at
    assert lasts / timedelta(days=1) == pytest.approx(89.87, abs=0.01)  # canon 14
    home.wait(hours=1)
    store(home, "Gas was cheap at night, so the rebalance paid.", tool="rebalance", chain="ethereum", token_pair=None)
    result = home.call("memory_search", query="why did the swap slip?")
    assert result.document() == result.model_dump(mode="json")
    assert (result.total_episodes_searched, result.total_insights_searched) == (2, 0)
    assert (result.results[0].id, result.results[0].source) == (stored.episode_id, "episode")
    assert result.results[0].metadata["tool"] == "uniswap_execute_swap"
    assert result.results[0].metadata["importance"] == "notable"
    assert home.kinds() == ["ToolCalled", "ToolCalled"]
    assert home.context.log.texts()[1].num_rows == 2
    for name, value in (("chain", "ethereum"), ("tool", "rebalance")):
        found = home.call("memory_search", query="the swap and the rebalance", **{name: value}).results
        assert ["night" in hit.content for hit in found] == [True]
    assert home.call("memory_search", query="swap", golem=home.other).results == ()


def test_an_episode_without_reflection_is_found_by_its_outcome(home: ToolHome) -> None:
    told = store(home, "", tool="chat", outcome={"text": "My sister moved to Lisbon.", "speaker": "Ana"}, chain="")
    (hit,) = home.call("memory_search", query="Where did the sister of Ana move?").results
    assert (hit.id, hit.content) == (told.episode_id, "My sister moved to Lisbon.")


@pytest.mark.parametrize("outcome", [{}, None, [], " ", {"note": "", "parts": [None, {}]}])
def test_an_episode_that_states_nothing_is_refused(home: ToolHome, outcome: Any) -> None:
    with pytest.raises(
        ToolError, match=r"an empty one needs an outcome that states a value, .*: give a valid reflection"
    ):
        store(home, " ", tool="swap", outcome=outcome)
    assert home.context.log.texts()[1].num_rows == 0
    for stated in (False, 0, {"note": [0.5]}):
        store(home, "", tool="swap", outcome=stated)
    assert {row["text_stored"]["text"] for row in home.context.log.texts()[1].to_pylist()} == {
        "swap: false", "swap: 0", 'swap: {"note":[0.5]}'
    }  # fmt: skip


def test_votes_move_confidence_asymmetrically_between_its_bounds(home: ToolHome) -> None:
    added = add(home, "Swaps above 50,000 dollars slip by more than 30 bps on thin pools.")
    assert (added.operation, added.confidence_before, added.confidence_after) == ("ADD", 0.0, 0.6)
    seen = []
    for operation in ("UPVOTE", "UPVOTE", "upvote", "UPVOTE", "UPVOTE", "DOWNVOTE", *["DOWNVOTE"] * 6, "UPVOTE"):
        seen.append(change(home, operation, added.insight_id).confidence_after)
    assert seen == pytest.approx([0.7, 0.8, 0.9, 1.0, 1.0, 0.85, 0.7, 0.55, 0.4, 0.25, 0.1, 0.0, 0.1])
    (insight,) = home.call("memory_get_insights").insights
    assert (insight.confidence, insight.upvotes, insight.downvotes) == (pytest.approx(0.1), 6, 7)
    assert home.kinds() == ["InsightManaged"] * 14 + ["ToolCalled"] * 14


def test_an_insight_that_is_stated_already_gets_an_upvote(home: ToolHome) -> None:
    first = add(home, "Gas is cheapest between two and five in the morning UTC.", "gas_timing")
    home.wait(minutes=1)
    again = add(home, "Gas is cheapest between 2 and 5 in the morning, UTC.", "gas_timing")
    assert (again.operation, again.insight_id, again.confidence_after) == ("UPVOTE", first.insight_id, 0.7)
    assert again.counts.counted == f"TextStored of golem {home.golem}", "the vote is the text of the second call"
    assert (again.counts.before, again.counts.expected, again.counts.after) == (1, 2, 2)
    result = home.call("memory_get_insights")
    assert (result.total, result.insights[0].confidence, result.insights[0].upvotes) == (1, 0.7, 1)


def test_every_search_ranks_and_filters_an_insight_by_its_votes(home: ToolHome) -> None:
    trusted = add(home, "Gas is cheapest between two and five in the morning UTC.", "gas_timing")
    home.wait(minutes=1)
    doubted = add(home, "The gas price of a block tells nothing about the next hour.", "gas_timing")
    change(home, "UPVOTE", trusted.insight_id)
    for _ in range(3):
        change(home, "DOWNVOTE", doubted.insight_id)

    def retained(**options: Any) -> dict[str, float]:
        rows = search(home.context, "gas", now=home.at, store="entries", golem_id=home.golem, **options)
        return {row.id: row.retained for row in rows}

    assert retained() == {trusted.insight_id: 0.7, doubted.insight_id: pytest.approx(0.15)}
    assert retained(filters=Filters(confidence_min=0.7)) == {trusted.insight_id: 0.7}
    assert retained(without=[trusted.insight_id]) == {doubted.insight_id: pytest.approx(0.15)}
    found = search_texts(home.context, "gas", now=home.at, golem_ids=[home.golem], confidence_min=0.2)
    assert [hit.text_id for hit in found.hits] == [trusted.insight_id]


def test_ask_lists_an_insight_as_of_its_votes_edits_and_moments(home: ToolHome) -> None:
    added = add(home, "Gas is cheapest between two and five in the morning UTC.", "gas_timing", chain="base")
    store(home, "The swap of the morning slipped.")
    home.wait(hours=1)
    change(home, "UPVOTE", added.insight_id)
    home.wait(hours=1)
    change(home, "EDIT", added.insight_id, content="Gas is cheapest at three in the morning UTC.")

    def told(hours: float | None = None) -> list[tuple[str, str, float, int]]:
        moment = None if hours is None else home.at + timedelta(hours=hours)
        where = golem_moment(home.context, home.golem, at=moment)
        hits = ask(home.context, where, "when is gas cheap?", now=home.at).hits.to_pylist()
        return [(hit["text"][:25], hit["domain"], hit["confidence_ppm"] / 1e6, hit["foretold_ppm"]) for hit in hits]

    assert told() == [("Gas is cheapest at three ", "gas", 0.7, 700_000)]
    assert told(-0.5) == [("Gas is cheapest between t", "gas", 0.7, 700_000)]
    assert told(-1.5) == [("Gas is cheapest between t", "gas", 0.6, 600_000)]
    home.wait(days=60)
    add(home, "Gas is cheapest at 3 in the morning, UTC.", "gas_timing")
    assert [confidence for _, _, confidence, _ in told()] == [0.8], "a statement of the same is a vote"


def test_an_edited_insight_is_found_by_its_new_content_alone(home: ToolHome) -> None:
    added = add(home, "Rebalance at once when the price leaves the range.", "rebalance_timing", chain="base")
    home.wait(hours=1)
    change(home, "EDIT", added.insight_id, content="Wait an hour before rebalancing, since prices revert.")
    (insight,) = home.call("memory_get_insights", chain="base").insights
    assert insight.content == "Wait an hour before rebalancing, since prices revert."
    assert insight.created_at < insight.updated_at
    for question in ("Wait how long until prices revert?", "Rebalance at once when the price leaves the range."):
        rows = search(home.context, question, now=home.at, golem_id=home.golem, filters=Filters(chain="base"))
        hits = search_texts(home.context, question, now=home.at, golem_ids=[home.golem]).hits
        assert [row.text for row in rows] == [hit.text for hit in hits] == [insight.content], "the old words are gone"
    assert change(home, "UPVOTE", hits[0].text_id).insight_id == added.insight_id, "the id of a hit names the insight"
    result = home.call("memory_search", query="How long to wait until prices revert?", store="insights")
    assert result.document() == result.model_dump(mode="json")
    assert [(hit.id, hit.content) for hit in result.results] == [(added.insight_id, insight.content)]
    assert result.total_insights_searched == 1, "the old and the new words are one insight"


def test_words_that_an_edit_replaced_are_stated_anew_as_an_insight_of_their_own(home: ToolHome, tmp_path: Path) -> None:
    added = add(home, "Gas is cheapest on Sunday mornings.", "gas_timing")
    home.wait(minutes=1)
    restated = add(home, "Gas is cheapest on Sunday mornings!", "gas_timing")
    assert (restated.operation, restated.insight_id) == ("UPVOTE", added.insight_id)
    home.wait(minutes=1)
    change(home, "EDIT", added.insight_id, content="Bridges to Solana need a second confirmation.")
    home.wait(minutes=1)
    again = add(home, "Gas is cheapest on Sunday mornings.", "gas_timing")
    assert (again.operation, again.confidence_after) == ("ADD", 0.6)
    for context in (home.context, DerivationContext.open(copy_home(home.root, tmp_path / "opened"))):
        hits = search_texts(context, "when is gas cheapest?", now=home.at, golem_ids=[home.golem]).hits
        assert hits[0].text_id == again.insight_id
    votes = {i.id: (i.confidence, i.upvotes) for i in home.call("memory_get_insights").insights}
    assert votes == {added.insight_id: (pytest.approx(0.7), 1), again.insight_id: (0.6, 0)}


def test_insights_are_filtered_and_ordered(home: ToolHome) -> None:
    texts = {
        "slippage": "Large swaps slip.",
        "volatility": "Volatility doubles on Mondays.",
        "general": "Patience pays.",
    }
    ids = {}
    for category, content in texts.items():
        ids[category] = add(
            home, content, category, token_pair="WETH/USDC" if category == "slippage" else None
        ).insight_id
        home.wait(minutes=1)
    change(home, "UPVOTE", ids["volatility"])
    home.wait(minutes=1)
    change(home, "DOWNVOTE", ids["slippage"], reason="It did not slip.")
    get = lambda **given: [i.category for i in home.call("memory_get_insights", **given).insights]  # noqa: E731
    assert get() == ["volatility", "general", "slippage"]
    assert get(sort_by="created") == ["general", "volatility", "slippage"]
    assert get(sort_by="updated") == ["slippage", "volatility", "general"]
    assert get(min_confidence=0.6) == ["volatility", "general"]
    assert get(category="general") == ["general"]
    assert get(token_pair="WETH/USDC") == ["slippage"]
    limited = home.call("memory_get_insights", limit=1)
    assert (len(limited.insights), limited.total) == (1, 3)
    hits = home.call("memory_search", query="swaps slip on Mondays", store="insights", min_confidence=0.5).results
    assert ids["slippage"] not in {hit.id for hit in hits}
    assert {hit.id: hit.adjusted_score for hit in hits}[ids["volatility"]] == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"operation": "ADD", "content": "x"}, "ADD of an insight needs category"),
        ({"operation": "ADD", "content": "x", "category": "weather"}, "no category 'weather'"),
        ({"operation": "UPVOTE"}, "UPVOTE of an insight needs insight_id"),
        ({"operation": "UPVOTE", "insight_id": "nothing"}, "memory_get_insights lists"),
        ({"operation": "ERASE", "insight_id": "x"}, "operation"),
    ],
)
def test_an_invalid_operation_is_refused(home: ToolHome, arguments: dict[str, Any], part: str) -> None:
    with pytest.raises(ToolError, match=part):
        home.call_with("memory_manage_insight", arguments)
    assert home.kinds() == []


@pytest.mark.row("MEM-21")
def test_an_entry_that_is_not_active_is_no_insight_and_is_not_exported(two_owners_home: Path, tmp_path: Path) -> None:
    root = copy_home(two_owners_home, tmp_path / "home")
    heir = belongings(root, CORAL).heir
    home = ToolHome(root, heir, heir)
    rows = grimoire_of(home.context, heir).entries.select(["entry_id", "status", "text"]).to_pylist()
    active = {row["entry_id"]: row["text"] for row in rows if row["status"] == "active"}
    assert active
    assert active.keys() < {row["entry_id"] for row in rows}, "some entries are not active"
    assert {insight.id for insight in home.call("memory_get_insights", limit=1_000).insights} == active.keys()
    searched = home.call("memory_search", query="gas", store="insights")
    assert searched.total_insights_searched == len(active)
    exported = home.call("memory_export_grimoire", min_confidence=0.0)
    archived = json.loads(Path(exported.path).read_text())["grimoire"]["insights"]
    assert sorted(insight["content"] for insight in archived) == sorted(active.values())


@pytest.mark.full
def test_a_vote_on_an_entry_of_the_curator_is_an_owners_correction(half_lived: Path, tmp_path: Path) -> None:
    root = copy_home(half_lived, tmp_path / "home")
    context = DerivationContext.open(root)
    born = sorted(context.life("GolemBorn")["golem_id"].to_pylist())
    golem = next(golem_id for golem_id in born if grimoire_of(context, golem_id).entries.num_rows)
    home = ToolHome(root, golem, golem)
    entry = home.call("memory_get_insights").insights[0]
    voted = change(home, "DOWNVOTE", entry.id, reason="It lost money.")
    assert voted.confidence_after == pytest.approx(voted.confidence_before - 0.15)
    assert voted.takes_effect == "when the open cycle closes"
    assert change(home, "DOWNVOTE", entry.id).confidence_before == pytest.approx(voted.confidence_after)
    corrected = home.context.log.life("EntryCorrected")["corrected"].to_pylist()
    assert [row["entry_id"] for row in corrected] == [entry.id] * 2
    found = home.call("memory_search", query=entry.content, store="insights").results
    assert entry.id in {hit.id for hit in found}
