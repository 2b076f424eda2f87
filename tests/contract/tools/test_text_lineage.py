"""The lineage of a text in a runtime's own words: the operations that gave it its confidence, and its evidence."""

from __future__ import annotations

from pathlib import Path

import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.reports.lineage import Holding, lineage_of
from bardo_pipeline.errors import QueryError
from tests.conftest import NOW
from tests.contract.tools.test_consolidation import SLIPPED, store
from tests.support.homes.tool_homes import ToolHome, tool_home

RULE = "Gas doubles at noon on weekdays."


def traced(home: ToolHome, text_id: str) -> Holding:
    (held,) = lineage_of(home.context, text_id, now=NOW)
    return held


def steps(held: Holding) -> list[tuple[str, int, int]]:
    """Operation and confidence in percent, before and after, of each decision."""
    return [
        (d["operation"], round(d["confidence_before_ppm"] / 1e4), round(d["confidence_ppm"] / 1e4))
        for d in held.decisions
    ]


@pytest.mark.row("X-2", "MEM-21")
def test_an_insight_is_traced_to_its_votes_edits_and_repetitions(tmp_path: Path) -> None:
    home = tool_home(tmp_path / "home")
    first = home.call("memory_manage_insight", operation="ADD", content=RULE, category="gas_timing").insight_id
    for operation, more in (
        ("UPVOTE", {}),
        ("DOWNVOTE", {"reason": "Cheap today."}),
        ("EDIT", {"content": f"{RULE} Often."}),
    ):
        home.wait(hours=1)
        home.call("memory_manage_insight", operation=operation, insight_id=first, **more)
    home.wait(hours=1)
    again = home.call("memory_store_episode", tool="note", outcome={}, reflection=RULE, chain="", sort="insight")
    held = traced(home, first[:8])
    assert (held.entry_id, held.golem_id, held.kind, held.text) == (first, home.golem, "insight", f"{RULE} Often.")
    assert steps(held) == [
        ("stored", 0, 60),
        ("upvote", 60, 70),
        ("downvote", 70, 55),
        ("edit", 55, 55),
        ("upvote", 55, 65),
    ]
    assert held.confidence_ppm == 650_000
    assert [d["reason"] for d in held.decisions][2:] == [
        "Cheap today.",
        "by its runtime",
        "stored again in similar words",
    ]
    assert held.decisions[-1]["cause_event"] == again.episode_id
    edit = home.call("memory_search", query="when does gas double often?", store="insights").results[0]
    assert edit.id == first
    for other in (again.episode_id, held.decisions[3]["cause_event"]):
        assert other != first
    assert traced(home, again.episode_id) == held, "the id of a repetition leads to the insight"
    with pytest.raises(QueryError, match="no entry begins with"):
        lineage_of(DerivationContext.open(home.root, owner="pearl"), first, now=NOW)
    with pytest.raises(QueryError, match="never held"):
        lineage_of(home.context, first, home.other, now=NOW)


@pytest.mark.row("X-2", "MEM-24")
def test_an_insight_of_a_consolidation_is_traced_to_its_episodes_and_back(tmp_path: Path) -> None:
    home = tool_home(tmp_path / "home")
    episodes = store(home, SLIPPED, -3.0)
    home.call("memory_consolidate")
    (insight,) = home.call("memory_get_insights").insights
    held = traced(home, insight.id)
    assert all(episode in held.decisions[0]["reason"] for episode in episodes)
    episode = traced(home, episodes[0])
    assert (episode.kind, episode.text) == ("episode", SLIPPED[0])
    assert steps(episode) == [("stored", 0, 100), ("consolidated", 100, 100)]
    assert episode.decisions[1]["reason"] == f"evidence of insight {insight.id}"
