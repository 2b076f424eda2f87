"""Homes on which memory tools are called: two owners with a golem each, a clock that a test turns, numbered calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from bardo_pipeline.api import birth
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.events.life.tool_events import ExecutionRecorded, OutcomeRecorded, StrategyStored
from bardo_pipeline.events.record.model import Part
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.tools.call_tool import call_tool
from bardo_pipeline.tools.memory_gate import MemoryGate
from bardo_pipeline.tools.schemas import Result
from bardo_pipeline.tools.tool_call import Caller
from tests.conftest import NOW

OPEN = MemoryGate(enabled=True)
BORN_AT = datetime(2026, 3, 1, tzinfo=UTC)


@dataclass
class ToolHome:
    """A home with golems of owners `coral` and `pearl`. `golem` belongs to coral, `other` to pearl."""

    root: Path
    golem: str
    other: str
    at: datetime = BORN_AT
    gate: MemoryGate = OPEN
    _ids: Any = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self.context = DerivationContext.open(self.root)

    def call(self, name: str, *, golem: str | None = None, owner: str | None = None, **arguments: Any) -> Any:
        """Call a tool for `golem` at the home's present moment."""
        return self.call_with(name, arguments, golem=golem, owner=owner)

    def call_with(
        self, name: str, arguments: dict[str, Any], *, golem: str | None = None, owner: str | None = None
    ) -> Result:
        """Call a tool with arguments whose names may be wrong."""
        return call_tool(
            self.context, Caller(golem or self.golem, owner), name, arguments, clock=lambda: self.at,
            ids=lambda: f"call-{next(self._ids)}", gate=self.gate,
        )  # fmt: skip

    def wait(self, **span: float) -> None:
        """Turn the clock."""
        self.at += timedelta(**span)

    def kinds(self) -> list[str]:
        """Return the kinds of all life events in the log, read anew, without births and texts."""
        rows = [self.context.log.life(), self.context.log.life("ToolCalled")]
        return [kind for kind in sorted(pa.concat_tables(rows)["kind"].to_pylist()) if kind != "GolemBorn"]


def tool_facts() -> list[Part]:
    """Return a strategy, an execution of it and its outcome."""
    strategy = StrategyStored(
        strategy_name="narrow", version=1, description="", parameters="{}", chains=("base",), token_pairs=(),
        from_golem_id=None,
    )  # fmt: skip
    execution = ExecutionRecorded(
        execution_id="e-1", strategy_name="narrow", strategy_version=1, action_type="SWAP", portfolio_snapshot="{}",
        market_conditions="{}", decision_params="{}", predicted_outcome="{}", predicted_micros=2_000_000,
        interval_low_micros=None, interval_high_micros=None, interval_level=0.8, regime="volatile", volatility=0.1,
        gas_level=20.0, reasoning_chain=None, tx_hash=None, reflection=None,
    )  # fmt: skip
    outcome = OutcomeRecorded(
        execution_id="e-1", realized_micros=1_000_000, fees_micros=None, impermanent_loss_micros=None,
        unrealized_micros=None, gas_micros=100_000, slippage_bps=3.0, reflection=None,
    )  # fmt: skip
    return [strategy, execution, outcome]


def tool_home(folder: Path) -> ToolHome:
    """Make the home in a folder."""
    Home.create(folder, Policy(), NOW)
    golem, other = (birth(folder, owner=o, lineage=f"{o}/1", at=BORN_AT) for o in ("coral", "pearl"))
    return ToolHome(folder, golem, other)
