"""The table of the memory tools by name. Source: TOOLS, MEM-21."""

from __future__ import annotations

from bardo_pipeline.errors import ToolError
from bardo_pipeline.tools.archives import EXPORT_GRIMOIRE, IMPORT_GRIMOIRE
from bardo_pipeline.tools.comparison import COMPARE_PREDICTION
from bardo_pipeline.tools.consolidation import CONSOLIDATE
from bardo_pipeline.tools.definition import Tool
from bardo_pipeline.tools.episode_tools import SEARCH, STORE_EPISODE
from bardo_pipeline.tools.executions import RECORD_EXECUTION, RECORD_OUTCOME
from bardo_pipeline.tools.failure_patterns import GET_FAILURE_PATTERNS
from bardo_pipeline.tools.insights import GET_INSIGHTS, MANAGE_INSIGHT
from bardo_pipeline.tools.strategies import RETRIEVE_STRATEGIES, STORE_STRATEGY

TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        STORE_EPISODE,
        SEARCH,
        GET_INSIGHTS,
        MANAGE_INSIGHT,
        CONSOLIDATE,
        STORE_STRATEGY,
        RETRIEVE_STRATEGIES,
        RECORD_EXECUTION,
        RECORD_OUTCOME,
        COMPARE_PREDICTION,
        GET_FAILURE_PATTERNS,
        EXPORT_GRIMOIRE,
        IMPORT_GRIMOIRE,
    )
}
"""Every memory tool by name, in the order of TOOLS."""


def tool_named(name: str) -> Tool:
    """Return a tool by name. Raises ToolError for an unknown name."""
    if name not in TOOLS:
        raise ToolError(f"there is no tool {name!r}: call one of {', '.join(TOOLS)}")
    return TOOLS[name]
