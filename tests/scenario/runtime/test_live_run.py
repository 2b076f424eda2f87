"""A live run on a virtual clock: the records of a simulated life, steers, backpressure, and resuming after a kill."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import ForkError
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.events.record.row_digest import digest_column, row_digests
from bardo_pipeline.heartbeat.fleet import Founding, golem_name
from bardo_pipeline.heartbeat.rhythm.heartbeat_state import Steer
from bardo_pipeline.market.market import LENDER
from bardo_pipeline.market.tick_series import tape_of
from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime.fleet_run import FleetRun
from bardo_pipeline.runtime.live.live_run import Latency, LiveRun, LiveTick
from bardo_pipeline.runtime.live.market_clock import VirtualClock
from bardo_pipeline.runtime.live.measurements import MEASURED
from bardo_pipeline.storage.market_data.demeter_trace import read_trace
from tests.scenario.runtime.test_recorded_fleet import DATA, RECORDED
from tests.support.fleets.live_fleets import NOW, lived, market_of, opened, records_by_tick, run_of
from tests.support.fleets.loan_markets import CENTRE, RICH, lending, loan
from tests.support.fleets.memory_fleets import drawn_market

DAY_BARS = 1_440
SECOND_US = 1_000_000
COMPARED = [name for name in RECORD_SCHEMA.names if name not in MEASURED]
TABLES = ("curation", "cycles", "playbooks", "grimoire")


class Killed(Exception):
    """The process ended in the middle of a run."""


def rows_with(records: Any, **wanted: Any) -> Iterator[dict[str, Any]]:
    for row in records.to_pylist():
        if all(row[name] == value for name, value in wanted.items()):
            yield row


@RECORDED
@pytest.mark.parametrize(
    ("bars", "lifespan"), [(240, (80, 110)), pytest.param(DAY_BARS, (400, 500), marks=pytest.mark.full)]
)
def test_a_live_day_differs_from_a_simulated_one_in_pipeline_and_clocks_only(
    tmp_path: Path, bars: int, lifespan: tuple[int, int]
) -> None:
    market = read_trace(DATA)[0].slice(0, bars)
    run = run_of(market, founding=Founding(lifespan_ticks=lifespan))
    simulated, live = opened(tmp_path / "simulated"), opened(tmp_path / "live")
    FleetRun(simulated, run, lambda: NOW).live()
    records, _ = lived(live, run)
    expected = records_by_tick(simulated)
    assert records.num_rows > 0.6 * bars
    assert len(set(records["golem_id"].to_pylist())) > 1  # an heir lives too
    differing = [name for name in RECORD_SCHEMA.names if records[name] != expected[name]]
    assert differing == list(MEASURED)
    assert records["pipeline"].null_count == records["clocks"].null_count == 0
    for name in TABLES:
        assert (rows := digests(live, name)) == digests(simulated, name), name
        assert rows or bars < DAY_BARS, name
    assert events_of(live) == events_of(simulated)


def digests(stores: DerivationContext, name: str) -> list[bytes]:
    projections = stores.projections
    table = projections.replaceable(name) if name == "grimoire" else projections.growing(name)
    return sorted(digest_column(row_digests(table.read())).to_pylist())


def events_of(stores: DerivationContext) -> list[str]:
    return sorted(stores.log.life()["event_id"].to_pylist())


@pytest.mark.row("HB-11")
def test_a_steer_takes_effect_by_the_state_in_which_it_arrives(tmp_path: Path) -> None:
    market = market_of(12)
    start = int(market.at_us[0])
    latency = Latency(deciding=4.0, simulating=4.0, validating=4.0, call=4.0)
    golem = _golem_id(tmp_path / "asked", market)

    def steers(*script: tuple[float, bool]) -> list[tuple[int, Steer]]:
        return [
            (start + round(at * SECOND_US), Steer(f"s-{i}", golem, high, "hold"))
            for i, (at, high) in enumerate(script)
        ]  # fmt: skip

    def told(name: str, *script: tuple[float, bool]) -> list[dict[str, Any]]:
        records, left = lived(opened(tmp_path / name), run_of(market), steers=steers(*script), latency=latency)
        assert left.settled == {f"s-{i}" for i in range(len(script))}
        return list(records.slice(0, 3).to_pylist())

    # The first tick of a life deliberates at T2 and enters the market by one call: deciding to 4 s, simulating to 8 s,
    # validating to 12 s, executing to 16 s.
    plain = told("plain")
    assert [(a["action_type"], a["status"]) for a in plain[0]["actions"]] == [("add_liquidity", "executed")]

    deciding = told("deciding", (2.0, False))
    assert taken(deciding[0]) == [("s-0", "deciding", "interrupts")]
    assert deciding[0]["prediction_error_sources"]["interventions"] > 0.0

    for name, at in (("simulating", 6.0), ("validating", 10.0)):
        first = told(name, (at, True))[0]
        assert taken(first) == [("s-0", name, "cancels")], name
        assert first["clocks"]["calls_sent"] == 0
        [action] = first["actions"]
        assert (action["status"], action["block_reason"]) == ("blocked", "the owner's steer cancelled this call")
        assert first["cost"]["gas_micros"] == 0
        assert first["pipeline"]["steer_state"] == name

    low = told("low", (10.0, False))
    assert low[0]["actions"] == plain[0]["actions"]
    assert taken(low[1]) == [("s-0", "validating", "waits")]
    assert [each["kind"] for each in low[1]["active_interventions"]] == ["follow_up"]

    executing = told("executing", (13.0, True), (14.0, False))  # the call is in flight, so a chain takes nothing back
    assert executing[0]["actions"] == plain[0]["actions"]
    assert taken(executing[0]) == []
    assert sorted(taken(executing[1])) == [("s-0", "executing", "waits"), ("s-1", "executing.cancel_pending", "waits")]
    assert (executing[1]["tier"], executing[1]["forced_by"]) == ("T2", "steer")

    idle = told("idle", (30.0, True))
    assert taken(idle[1]) == [("s-0", "idle", "waits")]
    assert idle[1]["forced_by"] == "steer"


def taken(row: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(s["intervention_id"], s["state"], s["effect"]) for s in row["clocks"]["steers"]]


def _golem_id(root: Path, market: Any) -> str:
    ids: list[str] = []

    def ends(live: LiveRun, tick: LiveTick) -> None:
        ids.extend(tick.records["golem_id"].to_pylist())
        live.stop()

    lived(opened(root), run_of(market), on_tick=ends)
    return ids[0]


@pytest.mark.row("HB-11")
def test_a_high_steer_cancels_the_calls_behind_the_one_in_flight(tmp_path: Path) -> None:
    market = lending([CENTRE] * 60)
    run = run_of(market, founding=replace(RICH, loan=loan(0.5)))
    golem, latency = golem_name("live/0", 0), Latency(call=4.0)
    steer = (int(market.at_us[0]) + 2 * SECOND_US, Steer("s-0", golem, True, "stop"))
    plain, _ = lived(opened(tmp_path / "plain"), run, latency=latency)
    acts = [(a["action_type"], a["status"]) for a in plain.slice(0, 1).to_pylist()[0]["actions"]]
    assert acts == [("borrow", "executed"), ("add_liquidity", "executed")]
    records, _ = lived(opened(tmp_path / "cut"), run, latency=latency, steers=[steer])
    first = records.slice(0, 1).to_pylist()[0]
    assert [(a["action_type"], a["status"]) for a in first["actions"]] == [
        ("borrow", "executed"), ("add_liquidity", "blocked"),
    ]  # fmt: skip
    assert first["clocks"]["calls_sent"] == 1
    assert taken(first) == [("s-0", "executing", "cancels")]
    kinds = [p["protocol"] for p in records.slice(1, 1).to_pylist()[0]["observation"]["positions"]]
    assert kinds == [LENDER]  # the loan stays, no position was opened
    low = [(at, steer._replace(is_high=False)) for at, steer in [steer]]
    whole, _ = lived(opened(tmp_path / "low"), run, latency=latency, steers=low)
    assert whole.slice(0, 1)["actions"] == plain.slice(0, 1)["actions"]


@pytest.mark.row("HB-11")
def test_the_kill_switch_restricts_the_calls_of_a_tick(tmp_path: Path) -> None:
    market, stores, thrown = market_of(60), opened(tmp_path / "home"), [True]

    def ends(live: LiveRun, tick: LiveTick) -> None:
        if tick.records["tick"].to_pylist() == [5]:
            live.stop()

    run = run_of(market, killed=lambda: thrown[0])
    records, _ = lived(stores, run, on_tick=ends)
    first = records.slice(0, 1).to_pylist()[0]
    assert [a["block_reason"] for a in first["actions"]] == ["a safety constraint blocked this call"]
    assert first["clocks"]["calls_sent"] == 0
    thrown[0] = False  # a resumed run lives the recorded ticks with the switch of their time
    records, _ = lived(stores, run)
    assert [row["anomalies"] != [] for row in records.slice(0, 6).to_pylist()] == [True] * 5 + [False]
    assert "add_liquidity" in {a["action_type"] for row in records.to_pylist() for a in row["actions"]}


@pytest.mark.full
@pytest.mark.row("HB-11")
def test_a_resumed_run_lives_whole_cycles_in_one_pass(tmp_path: Path) -> None:
    market, again = market_of(190), list[int]()
    whole, _ = lived(opened(tmp_path / "whole"), run_of(market))
    stores = opened(tmp_path / "stopped")

    def ends(live: LiveRun, tick: LiveTick) -> None:
        if tick.records["tick"].to_pylist() == [110]:
            live.stop()

    def noted(live: LiveRun, tick: LiveTick) -> None:
        again.extend(tick.records["tick"].to_pylist() if tick.is_replay else [])

    lived(stores, run_of(market), on_tick=ends)
    records, _ = lived(stores, run_of(market), on_tick=noted)
    assert again == list(range(101, 111))  # the first two cycles passed at once
    assert records.select(COMPARED) == whole.select(COMPARED)
    assert digests(stores, "cycles")


@pytest.mark.row("HB-18")
def test_a_slow_tick_drops_the_oldest_due_ticks_and_merges_their_probes(tmp_path: Path) -> None:
    policy = Policy()
    market = drawn_market([CENTRE] * 3 + [CENTRE + 300] + [CENTRE] * 60)  # the price leaps by 3 % and comes back
    schedule = tape_of(market, policy)
    records, _ = lived(opened(tmp_path / "home"), run_of(market), latency=Latency(deciding=600.0))
    assert records["tick"].to_pylist() == list(range(1, records.num_rows + 1))  # a dropped tick has no number
    second = records.slice(1, 1).to_pylist()[0]
    dropped = second["clocks"]["dropped_at_us"]
    first_us = int(schedule.at_us[0])
    due = [int(at) for at in schedule.at_us[1:] if at <= first_us + 600 * SECOND_US]
    assert dropped == due[:-3]  # three wait, the others were dropped
    assert second["pipeline"]["queue_depth"] == 3
    assert second["pipeline"]["ticks_dropped"] == len(dropped)
    assert int(second["observed_at"].timestamp() * 1e6) == due[-3]
    bars = np.searchsorted(market.at_us, [first_us + 1, due[-3] + 1])
    assert second["observation"]["volume_micros"] == int(market.volume_usd_micros[slice(*bars)].sum())
    severity = {"none": 0, "low": 1, "high": 2}
    worst = {p["probe"]: severity.get(p["severity"], -1) for p in second["probe_results"]}
    price = {int(at): float(market.price[i]) for i, at in enumerate(market.at_us)}
    own = abs(price[due[-3]] / price[first_us] - 1.0)
    moved = [own, *(abs(np.expm1(schedule.price_return[i])) for i in range(1, len(dropped) + 1))]
    limits = policy.probes.price_delta_low, policy.probes.price_delta_high
    severities = [sum(move > limit for limit in limits) for move in moved]
    assert worst["price_delta"] == max(severities)
    assert (severities[0], max(severities)) == (0, 2)


@pytest.mark.row("HB-11")
def test_a_killed_run_lives_its_recorded_ticks_again_and_goes_on(tmp_path: Path) -> None:
    market, latency = market_of(150), Latency(deciding=150.0)
    start = int(market.at_us[0])
    golem = _golem_id(tmp_path / "asked", market)
    script = [(start + at * SECOND_US, Steer(f"s-{at}", golem, at % 2 == 0, "hold")) for at in (100, 1_001, 3_000)]
    whole, _ = lived(opened(tmp_path / "whole"), run_of(market), steers=script, latency=latency)
    stores = opened(tmp_path / "killed")

    def dies(live: LiveRun, tick: LiveTick) -> None:
        if tick.records["tick"].to_pylist() == [whole.num_rows // 2]:
            raise Killed

    with pytest.raises(Killed):
        lived(stores, run_of(market), steers=script, latency=latency, on_tick=dies)
    again, _ = lived(stores, run_of(market), steers=script, latency=latency)  # two of them are on record
    reached = [each["intervention_id"] for row in again["active_interventions"].to_pylist() for each in row]
    assert sorted(reached) == sorted(steer.steer_id for _, steer in script)
    assert whole.num_rows > 50
    assert set(again["tick"].to_pylist()) == set(range(1, again.num_rows + 1))
    half = whole.num_rows // 2
    assert again.slice(0, half).select(list(RECORD_SCHEMA.names)) == whole.slice(0, half).select(
        list(RECORD_SCHEMA.names)
    )
    other = run_of(market, founding=Founding(lifespan_ticks=(2_000, 3_000), budget_micros=60_000_000))
    with pytest.raises(ForkError, match="on record with other content"):
        lived(stores, other, latency=latency)


@pytest.mark.row("HB-21")
def test_gamma_resolves_predictions_between_ticks_and_clocks_keep_their_intervals(tmp_path: Path) -> None:
    market, policy = market_of(400), Policy()
    records, _ = lived(opened(tmp_path / "home"), run_of(market))
    rows, schedule = records.to_pylist(), tape_of(market, policy)
    assert [row["clocks"]["theta_seconds"] for row in rows] == schedule.interval_seconds.tolist()
    assert {row["clocks"]["theta_seconds"] for row in rows} <= {30, 60, 120}
    resolved = [row for row in rows if row["clocks"]["resolutions"]]
    assert resolved, "no bar lay between two ticks"
    violations = [(row, each) for row in resolved for each in row["clocks"]["violations"]]
    assert violations
    for row, each in violations:
        foretold = {p["quantity"]: p for p in row["predictions"]}[each["quantity"]]
        assert each["expected"] == foretold["expected"]  # made before the tick before this one ended
        assert not foretold["low"] <= each["actual"] <= foretold["high"]
        bar = int(np.searchsorted(market.at_us, each["observed_at_us"]))
        assert each["actual"] == (market.price if each["quantity"] == "price" else market.gas_gwei)[bar]
        assert each["observed_at_us"] < int(row["observed_at"].timestamp() * 1e6)
    assert all(5.0 <= row["clocks"]["gamma_seconds"] <= 15.0 for row in rows)
    first, last = rows[0]["observed_at"], rows[-1]["observed_at"]
    pulses = sum(row["clocks"]["gamma_pulses"] for row in rows)
    assert (last - first).total_seconds() / 15.0 <= pulses <= (last - first).total_seconds() / 5.0


@pytest.mark.row("HB-11")
def test_a_dream_suspends_the_heartbeat_and_is_whole_or_not_at_all(tmp_path: Path) -> None:
    market, clock, dreams = market_of(190), VirtualClock(), list[int]()
    schedule, golem = tape_of(market, Policy()), _golem_id(tmp_path / "asked", market)

    def dream_on() -> None:
        """Let 900 market seconds pass in a dream, and end the process in the first one, which is dreamt again."""
        dreams.append(clock.now_us())
        if len(dreams) == 1:
            raise Killed
        clock.start_at(clock.now_us() + 900 * SECOND_US)

    stores, run = opened(tmp_path / "home"), run_of(market, back_up=dream_on)
    with pytest.raises(Killed):
        lived(stores, run, clock=clock)
    begun = int(schedule.at_us[99])
    steers = [(begun + 300 * SECOND_US, Steer("s-dream", golem, True, "wake"))]
    records, _ = lived(stores, run, clock=clock, steers=steers)
    rows = records.to_pylist()
    assert [row["tick"] for row in rows] == list(range(1, len(rows) + 1))
    first = rows[100]
    due = [int(at) for at in schedule.at_us[100:] if at <= begun + 900 * SECOND_US]
    assert first["clocks"]["dropped_at_us"] == due[:-3]
    assert first["pipeline"]["dropped_while_dreaming"]
    assert first["pipeline"]["ticks_dropped"] == len(due) - 3
    assert taken(first) == [("s-dream", "dreaming", "waits")]
    assert first["clocks"]["gamma_pulses"] <= 1  # perception is suspended too
    assert not rows[101]["pipeline"]["dropped_while_dreaming"]
    whole = opened(tmp_path / "whole")
    FleetRun(whole, run_of(market), lambda: NOW).live()
    dreamt, plain = (
        [row for row in each.projections.growing("cycles").read().to_pylist() if row["cycle"] == 1]
        for each in (stores, whole)
    )
    assert len(dreamt) == 1  # the dream that was broken off left nothing
    assert dreamt == plain


@pytest.mark.full
@pytest.mark.row("HB-12")
def test_prefetched_reads_are_asked_for_and_save_time(tmp_path: Path) -> None:
    records, _ = lived(opened(tmp_path / "home"), run_of(market_of(700)), latency=Latency(reading=2.0))
    rows = [row for row in records.to_pylist() if row["deliberation"] is not None]
    early, late = rows[:5], [row for row in rows if row["tick"] > 500]
    assert all(row["clocks"]["prefetched"] == 0 for row in early)
    prefetched, hits = (sum(row["clocks"][name] for row in late) for name in ("prefetched", "prefetch_hits"))
    assert prefetched > 10
    assert hits >= 0.7 * prefetched  # HB S8: 70 to 85 % after 500 ticks
    for row in (*early, *late):
        reads = [run for run in row["pipeline"]["tool_runs"] if run["tool"].startswith("read_")]
        waited = sum(run["duration_ms"] for run in reads)
        assert waited == 2_000 * len(reads) if row in early else waited < 2_000 * len(reads)
        sent = [each["tool_name"] for each in row["actions"] if each["status"] == "executed"]
        assert [run["tool"] for run in row["pipeline"]["tool_runs"]][len(reads) :] == sent
    quiet = [row for row in records.to_pylist() if row["deliberation"] is None]
    assert all(row["pipeline"]["tool_runs"] is None for row in quiet)


def with_part(name: str, **changes: int) -> Policy:
    policy = Policy()
    return policy.model_copy(update={name: getattr(policy, name).model_copy(update=changes)})


@pytest.mark.row("HB-21")
def test_clocks_slow_down_near_the_budget_and_reads_have_a_limit(tmp_path: Path) -> None:
    market = market_of(60)
    poor = with_part("gateway", daily_budget_micros=1)
    records, _ = lived(opened(tmp_path / "poor", poor), run_of(market))
    rows = records.to_pylist()
    assert all(row["clocks"]["throttled"] for row in rows[1:])  # the first tick costs more than the day's budget
    gaps = np.diff(pc.cast(records["observed_at"], pa.int64()).to_numpy()) // SECOND_US
    assert (gaps[1:] == 120).all()
    assert {row["clocks"]["gamma_seconds"] for row in rows[2:]} == {15.0}
    few = with_part("clocks", reads_per_minute_max=2)
    limited, _ = lived(opened(tmp_path / "few", few), run_of(market))
    assert sum(row["clocks"]["cached_reads"] for row in limited.to_pylist()) > 25
    same = [name for name in COMPARED if name != "derivation_id"]
    plain, _ = lived(opened(tmp_path / "plain"), run_of(market))
    assert limited.select(same) == plain.select(same)  # a cached reading of gamma changes no decision
