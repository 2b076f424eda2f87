"""The consolidation job: due golems, its effect, and no effect while the memory tools are closed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from bardo_pipeline.tools.due_consolidations import due_consolidations
from jobs.schedules import every_quarter_hour
from tests.definitions.running import decision_of, run
from tests.support.homes.tool_homes import ToolHome, tool_home

pytestmark = pytest.mark.row("MEM-21")


def store(home: ToolHome, count: int, **changed: object) -> None:
    """Store episodes of one tool."""
    for number in range(count):
        arguments = {
            "tool": "swap",
            "outcome": {"pnl_usd": -3.0},
            "reflection": f"Run {number} slipped.",
            "chain": "base",
        }
        home.call("memory_store_episode", **arguments | changed)
        home.wait(minutes=1)


def due(home: ToolHome) -> list[tuple[str, str]]:
    """Return the due consolidations at the home's present moment."""
    return [tuple(d) for d in due_consolidations(home.context, home.at)]


@pytest.mark.full
def test_a_consolidation_is_due_after_four_hours_or_at_once_for_tagged_episodes(tmp_path: Path) -> None:
    home = tool_home(tmp_path / "home")
    store(home, 2)
    assert due(home) == []
    store(home, 1)
    assert due(home) == [(home.golem, "3 episodes wait")]
    home.call("memory_consolidate")
    store(home, 3)
    assert due(home) == []
    home.at += timedelta(hours=4)
    assert due(home) == [(home.golem, "3 episodes wait")]
    home.call("memory_consolidate")
    store(home, 3, dream_tag="review")
    assert due(home) == [(home.golem, "episodes are imported or tagged")]


@pytest.mark.full
def test_the_job_consolidates_what_is_due(
    tmp_path: Path, at_home: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tool_home(tmp_path / "home")
    store(home, 3)
    root = at_home(home.root)
    assert isinstance(decision_of(every_quarter_hour, root), dg.SkipReason)
    run("consolidation_job", dg.DagsterInstance.ephemeral())
    assert "EpisodesConsolidated" not in home.kinds()
    monkeypatch.setenv("BARDO_MEMORY_ENABLED", "true")
    assert isinstance(decision_of(every_quarter_hour, root), dg.RunRequest)
    run("consolidation_job", dg.DagsterInstance.ephemeral())
    assert home.kinds().count("EpisodesConsolidated") == 1
    assert home.call("memory_get_insights").total == 1
    assert isinstance(decision_of(every_quarter_hour, root), dg.SkipReason)
