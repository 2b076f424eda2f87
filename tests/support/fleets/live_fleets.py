"""Live runs on a virtual clock, with steers at stated moments of the market."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.heartbeat.rhythm.heartbeat_state import Steer
from bardo_pipeline.market.market import Market
from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime.live.heart import NEVER
from bardo_pipeline.runtime.live.live_run import Latency, LiveRun, LiveTick
from bardo_pipeline.runtime.live.market_clock import VirtualClock
from bardo_pipeline.runtime.run_settings import Run
from bardo_pipeline.storage.home import Home
from tests.support.fleets.spending_checks import check_bands

NOW = datetime(2026, 11, 1, tzinfo=UTC)
AT_ONCE = Latency()
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class ScriptedSteers:
    """Steers at stated moments, in microseconds."""

    script: list[tuple[int, Steer]] = field(default_factory=list)
    settled: set[str] = field(default_factory=set)

    def arrivals(self, now_us: int) -> list[Steer]:
        due = [steer for at, steer in self.script if at <= now_us]
        self.script = [(at, steer) for at, steer in self.script if at > now_us]
        return due

    def next_us(self) -> int:
        return min((at for at, _ in self.script), default=NEVER)

    def settle(self, steer_ids: Iterable[str]) -> None:
        self.settled |= set(steer_ids)


def market_of(bars: int, seed: int = 7) -> Market:
    return synthetic_market(seed=seed, bars=bars, start=START)


def run_of(market: Market, lifespan: tuple[int, int] = (2_000, 3_000), **changes: Any) -> Run:
    defaults = {"golems": 1, "generations": 2, "founding": Founding(lifespan_ticks=lifespan)}
    return Run(name="live", market=market, **{**defaults, **changes})


def opened(root: Path, policy: Policy | None = None) -> DerivationContext:
    Home.create(root, Policy(), NOW)
    return DerivationContext.open(root, policy=policy)


def lived(
    stores: DerivationContext,
    run: Run,
    *,
    steers: Sequence[tuple[int, Steer]] = (),
    latency: Latency = AT_ONCE,
    clock: VirtualClock | None = None,
    on_tick: Callable[[LiveRun, LiveTick], None] = lambda *_: None,
) -> tuple[pa.Table, ScriptedSteers]:
    """Live a run on a virtual clock; return its records by golem and tick, and the steers."""
    script = ScriptedSteers(list(steers))
    live = LiveRun(
        stores, run, lambda: NOW, market_clock=clock or VirtualClock(), steers=script, latency=latency,
        on_tick=lambda tick: on_tick(live, tick),
    )  # fmt: skip
    asyncio.run(live.beat())
    return records_by_tick(stores), script


def records_by_tick(stores: DerivationContext) -> pa.Table:
    """Return the records of a home by golem and tick."""
    records = stores.log.read_cycles()
    return records.sort_by([("golem_id", "ascending"), ("tick", "ascending")]).combine_chunks()


def check_sound(records: Sequence[Mapping[str, Any]], schedule: Tape | None, policy: Policy | None = None) -> None:
    """Check what holds of every live run, whatever its steers, delays and kills.

    Each due tick up to the last one was lived or dropped; ticks have no gap; no action was executed without a permit;
    a cut tick sent as many calls as it states; an intervention reached one tick; spending kept to its bands.

    Parameters
    ----------
    records : by golem and tick
    schedule : the ticks that were due; None if the clock may have been throttled
    policy : of the run; None for the default
    """
    check_bands(records, policy or Policy())
    for golem_id in {row["golem_id"] for row in records}:
        rows = [row for row in records if row["golem_id"] == golem_id]
        assert [row["tick"] for row in rows] == list(range(1, len(rows) + 1))
        lived_us = [int(row["observed_at"].timestamp() * 1e6) for row in rows]
        dropped_us = [at for row in rows for at in row["clocks"]["dropped_at_us"]]
        if schedule is not None:
            due = [int(at) for at in schedule.at_us if lived_us[0] <= at <= lived_us[-1]]
            assert sorted([*lived_us, *(at for at in dropped_us if at >= lived_us[0])]) == due
        steers = [steer["intervention_id"] for row in rows for steer in row["active_interventions"]]
        assert len(steers) == len(set(steers))
        for row in rows:
            sent = [each for each in row["actions"] if each["status"] in ("executed", "reverted")]
            assert all(each["permit_id"] for each in sent if each["action_type"] != "liquidated")
            cut, told = row["clocks"]["calls_sent"], [each["block_reason"] for each in row["actions"]]
            is_cut = any(reason and reason.endswith("this call") for reason in told)
            assert is_cut == (cut is not None)
            assert cut is None or len(sent) == cut
            assert {s["intervention_id"] for s in row["clocks"]["steers"]} == {
                steer["intervention_id"] for steer in row["active_interventions"]
            }
            assert row["pipeline"]["queue_depth"] <= 3
            assert row["pipeline"]["ticks_dropped"] == len(row["clocks"]["dropped_at_us"])
