"""Live runs under steers, delays and kills at any moment: what always holds, over minutes here and a day in full."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from datetime import UTC, datetime
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bardo_pipeline.heartbeat.fleet import golem_name
from bardo_pipeline.heartbeat.rhythm.heartbeat_state import Steer
from bardo_pipeline.market.tick_series import tape_of
from bardo_pipeline.policy import GatewayPolicy, Policy
from bardo_pipeline.runtime.live.live_run import Latency, LiveRun, LiveTick
from bardo_pipeline.runtime.live.market_clock import PacedClock
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.market_data.demeter_trace import read_trace
from bardo_pipeline.storage.operations.live_files import SteerFolder, read_views
from tests.scenario.runtime.test_recorded_fleet import DATA, RECORDED
from tests.support.example_count import times
from tests.support.fleets.live_fleets import (
    NOW,
    ScriptedSteers,
    check_sound,
    lived,
    market_of,
    opened,
    records_by_tick,
    run_of,
)
from tests.support.processes.bardo_command import bardo
from tests.support.processes.live_processes import WAIT_SECONDS, awaited, living, rows_of

SECOND_US = 1_000_000
SECONDS = st.integers(0, 150).map(float)
STEERS = st.lists(st.tuples(st.integers(0, 4_000), st.booleans()), max_size=6)
SPEED = 600.0
GROWTH_MAX = 0.05
PAUSE_SECONDS = 0.2
GROWTH_MAX_OF_HOURS = {1: 0.08, 4: 0.05}
"""Hour of a day -> growth from it to the end. The first compaction, in the fourth hour, loads code of deltalake."""
KILLS = 5
SMALL_BUDGET_MICROS = 150_000
"""Less than four deliberations at T2 cost."""


class Killed(Exception):
    """The process ended in the middle of a run."""


@pytest.mark.row("HB-11", "HB-18", "HB-21")
@settings(max_examples=times(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, STEERS, st.integers(1, 40))
def test_any_interleaving_of_steers_delays_and_a_kill_leaves_a_sound_record(
    reading: float, deciding: float, simulating: float, validating: float, call: float, source: float,
    script: list[tuple[int, bool]], kill_at: int,
) -> None:  # fmt: skip
    market, latency = market_of(70), Latency(reading, deciding, simulating, validating, call, source)
    start, golem = int(market.at_us[0]), golem_name("live/0", 0)
    steers = [
        (start + at * SECOND_US, Steer(f"s-{i}", golem, is_high, "hold")) for i, (at, is_high) in enumerate(script)
    ]  # fmt: skip
    acknowledged, sent = set[int](), list(steers)

    def dies(live: LiveRun, tick: LiveTick) -> None:
        acknowledged.update(tick.records["tick"].to_pylist())
        if len(acknowledged) == kill_at and not tick.is_replay:
            raise Killed

    with TemporaryDirectory() as folder:
        stores, run, left = opened(Path(folder) / "home"), run_of(market), ScriptedSteers(list(steers))
        for _ in range(3):
            try:
                records, left = lived(stores, run, steers=steers, latency=latency, on_tick=dies)
                break
            except Killed:
                steers = [(at, steer) for at, steer in steers if steer.steer_id not in left.settled]
        check_sound(records.to_pylist(), tape_of(market, Policy()))
        assert acknowledged == set(records["tick"].to_pylist())
        reached = {each["intervention_id"] for row in records["active_interventions"].to_pylist() for each in row}
        *_, before, _ = [int(at.timestamp() * 1e6) for at in records["observed_at"].to_pylist()]
        assert {steer.steer_id for at, steer in sent if at < before} <= reached <= {each.steer_id for _, each in sent}
        stores.log.close()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@RECORDED
@pytest.mark.full
def test_a_recorded_day_at_600_times_speed_keeps_its_memory_and_loses_nothing(tmp_path: Path) -> None:
    market, luck = read_trace(DATA)[0].slice(0, 1_440), random.Random(7)
    run, stores = run_of(market), opened(tmp_path / "home")
    start, golem = int(market.at_us[0]), golem_name("live/0", 0)
    times = sorted(luck.randrange(86_400) for _ in range(60))
    steers = [
        (start + at * SECOND_US, Steer(f"s-{at}", golem, luck.random() < 0.5, "look again")) for at in times
    ]  # fmt: skip
    kills, used, acknowledged = {200, 500, 900}, list[tuple[int, int]](), set[int]()
    while True:
        latency = Latency(*(luck.uniform(0.0, 20.0) for _ in range(6)))
        script = ScriptedSteers(list(steers))

        def on_tick(tick: LiveTick) -> None:
            ticks = set(tick.records["tick"].to_pylist())
            acknowledged.update(ticks)
            used.append((int(tick.at.timestamp()), resident_bytes()))
            if kills & ticks and not tick.is_replay:
                kills.difference_update(ticks)
                raise Killed

        live = LiveRun(
            stores, run, lambda: NOW, market_clock=PacedClock(SPEED, time.monotonic), steers=script, latency=latency,
            on_tick=on_tick,
        )  # fmt: skip
        try:
            asyncio.run(live.beat())
            break
        except Killed:
            steers = [(at, steer) for at, steer in steers if steer.steer_id not in script.settled]
    records = records_by_tick(stores)
    check_sound(records.to_pylist(), tape_of(market, Policy()))
    assert acknowledged == set(records["tick"].to_pylist())
    hour = [size for at, size in used if at >= used[-1][0] - 3_600 * 12]
    assert hour[-1] <= (1.0 + GROWTH_MAX) * hour[0], (hour[0], hour[-1])


@RECORDED
@pytest.mark.full
@pytest.mark.row("HB-17", "HB-25", "HB-27")
def test_a_recorded_day_of_killed_processes_keeps_to_its_budget_and_its_permits(tmp_path: Path) -> None:
    """Processes live a day at 600 times speed, with a budget that runs out, steers, a slow source and SIGKILLs."""
    luck, home = random.Random(11), tmp_path / "home"
    settings = tmp_path / "bardo.toml"
    settings.write_text(f"[heartbeat]\nmax_daily_cost_usd = {SMALL_BUDGET_MICROS / 1e6}\n", "utf-8")
    day = ("--trace", str(DATA), "--config", str(settings), "--golems", "2", "--speed", f"{SPEED:g}")
    market = read_trace(DATA)[0]
    ends_at = datetime.fromtimestamp(int(market.at_us[0]) / 1e6 + 86_400, UTC)
    kills = [luck.uniform(4.0, 20.0) for _ in range(KILLS)]
    seen, sent, sizes = dict[str, int](), set[str](), list[int]()

    def watched(process: BaseProcess, until: float) -> bool:
        """Note what the run shows and steer it; return whether the day ended before that moment."""
        while time.monotonic() < until:
            assert process.is_alive(), "the run ended by itself"
            views = [view for view in read_views(Home.open(home)) if not view["is_replay"]]
            for view in views:
                seen[view["golem_id"]] = max(seen.get(view["golem_id"], 0), view["tick"])
                if luck.random() < 0.02:
                    sent.add(name := f"s-{len(sent)}")
                    SteerFolder(Home.open(home)).send(Steer(name, view["golem_id"], luck.random() < 0.5, "look again"))
            sizes.append(int(Path(f"/proc/{process.pid}/statm").read_text("utf-8").split()[1]))
            if views and max(view["at"] for view in views) >= ends_at.isoformat():
                return True
            time.sleep(PAUSE_SECONDS)
        return False

    for lived_seconds in [*kills, float("inf")]:
        slow = ",".join(f"{luck.uniform(0.0, 20.0):.0f}" for _ in range(5))
        delays = ("--latency", slow, "--lag", f"{luck.uniform(0.0, 60.0):.0f}")
        with living(home, *day, *delays, is_alone=True) as process:
            awaited(
                lambda: (home / "home.json").exists() and any(not v["is_replay"] for v in read_views(Home.open(home)))
            )
            sizes.clear()
            if watched(process, time.monotonic() + lived_seconds):
                os.kill(process.pid or 0, signal.SIGTERM)
                process.join(WAIT_SECONDS)
                assert process.exitcode == 0
                break
    rows = rows_of(home)
    check_sound(rows, None, Policy(gateway=GatewayPolicy(daily_budget_micros=SMALL_BUDGET_MICROS)))
    newest = {row["golem_id"]: row["tick"] for row in rows}
    assert all(newest[golem] >= tick for golem, tick in seen.items()), "each shown record is durable"
    reached = {steer["intervention_id"] for row in rows for steer in row["active_interventions"]}
    assert len(sent) >= 10
    assert reached <= sent
    assert {row["spending"]["band"] for row in rows if row["spending"]} >= {"no_large_model", "no_model"}
    assert "clean" in bardo("verify", home=home)
    warm = sizes[len(sizes) // 2 :]
    assert warm[-1] <= (1.0 + GROWTH_MAX) * warm[0], (warm[0], warm[-1])


@RECORDED
@pytest.mark.full
def test_a_process_that_lives_for_a_day_returns_freed_memory(tmp_path: Path) -> None:
    home, begins_at = tmp_path / "home", int(read_trace(DATA)[0].at_us[0]) / 1e6
    sizes = list[tuple[float, int]]()
    with living(home, "--trace", str(DATA), "--golems", "2", "--speed", "1200", is_alone=True) as process:
        awaited(lambda: (home / "home.json").exists() and read_views(Home.open(home)))
        while not sizes or sizes[-1][0] < 23.5:
            assert process.is_alive(), "the run ended by itself"
            newest = max(datetime.fromisoformat(view["at"]).timestamp() for view in read_views(Home.open(home)))
            pages = int(Path(f"/proc/{process.pid}/statm").read_text("utf-8").split()[1])
            sizes.append(((newest - begins_at) / 3_600, pages))
            time.sleep(PAUSE_SECONDS)
    for hour, growth_max in GROWTH_MAX_OF_HOURS.items():
        before = next(pages for at, pages in sizes if at >= hour)
        assert sizes[-1][1] <= (1.0 + growth_max) * before, (hour, before, sizes[-1])
