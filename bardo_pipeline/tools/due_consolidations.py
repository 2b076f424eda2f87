"""Consolidations that are due: every four hours, and at once for imported and tagged episodes.

Source: TOOLS ("Dream cycle integration"), MEM-21.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.shared_texts import shared_texts
from bardo_pipeline.tools.call_tool import call_tool
from bardo_pipeline.tools.consolidation import (
    CONSOLIDATE,
    IMPORTED,
    ConsolidateArguments,
    ConsolidateResult,
    clusters_of,
    unconsolidated_episodes,
)
from bardo_pipeline.tools.memory_gate import MemoryGate
from bardo_pipeline.tools.tool_call import Caller, ToolCall


class DueConsolidation(NamedTuple):
    """A golem whose episodes wait, with the reason."""

    golem_id: str
    why: str


def due_consolidations(context: DerivationContext, now: datetime) -> list[DueConsolidation]:
    """Return the living golems with a cluster of waiting episodes whose consolidation is due, by id."""
    born, dead = (set(context.life(kind)["golem_id"].to_pylist()) for kind in ("GolemBorn", "DeathDeclared"))
    with shared_texts(context, now) as texts:
        with_texts = (born - dead).intersection(texts.index.keys)
    due = ((golem_id, _reason(context, golem_id, now)) for golem_id in sorted(with_texts))
    return [DueConsolidation(golem_id, why) for golem_id, why in due if why is not None]


def _reason(context: DerivationContext, golem_id: str, now: datetime) -> str | None:
    """Return why a golem's consolidation is due; None if it is not."""
    call = ToolCall(context, Caller(golem_id), CONSOLIDATE.name, (), now, "-", "-", lambda: now)
    defaults = ConsolidateArguments()
    clusters = clusters_of(unconsolidated_episodes(call), defaults.min_cluster_size, defaults.max_episodes)
    if not clusters:
        return None
    episodes = [episode for cluster in clusters for episode in cluster.episodes]
    if any(e.stored["dream_tag"] is not None or IMPORTED in e.stored["tags"] for e in episodes):
        return "episodes are imported or tagged"
    recorded = call.facts("EpisodesConsolidated")["recorded_at"].to_pylist()
    span = timedelta(hours=context.policy.tools.consolidation_hours)
    return f"{len(episodes)} episodes wait" if not recorded or recorded[-1] + span <= now else None


def consolidate_due(
    context: DerivationContext, *, clock: Callable[[], datetime], ids: Callable[[], str], gate: MemoryGate
) -> dict[str, ConsolidateResult]:
    """Call memory_consolidate for each golem whose consolidation is due; return the results by golem.

    Raises MemoryGateError if the memory tools are closed.
    """
    gate.check(CONSOLIDATE.name)
    results: dict[str, ConsolidateResult] = {}
    for golem_id, _ in due_consolidations(context, clock()):
        result = call_tool(context, Caller(golem_id), CONSOLIDATE.name, {}, clock=clock, ids=ids, gate=gate)
        assert isinstance(result, ConsolidateResult), "the tool's result"
        results[golem_id] = result
    return results
