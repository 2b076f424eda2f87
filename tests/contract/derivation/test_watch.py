"""The event stream `bardo watch`: a replay of the newest events, then live events, each once and in one order."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from threading import Timer

import numpy as np
import orjson
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from bardo_pipeline.cli.app import app_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.event_stream.sources import Mark, Place
from bardo_pipeline.derivation.event_stream.watch import Fabric, watch
from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.life.events import Gap, Struck, life_event
from bardo_pipeline.events.stream.catalogue import GolemEvent
from bardo_pipeline.policy import FabricPolicy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import EventLog
from tests.support.example_count import times
from tests.support.processes.bardo_command import command
from tests.support.processes.forked_processes import Forked
from tests.support.records.drawn_records import records

pytestmark = pytest.mark.row("EV-7")

NOW = datetime(2026, 11, 1, tzinfo=UTC)
GOLEM = "golem-0000"
SECONDS_MAX = 120.0
"""Seconds after which a test fails."""


def everything(home: Home) -> list[GolemEvent]:
    """Return all events of a home from the first."""
    return list(Fabric(DerivationContext.open(home.root)).behind(Place()))


def ids(events: list[GolemEvent]) -> list[str]:
    return [event.event_id for event in events]


def appended(log: EventLog, segment: int, rows: pa.Table) -> None:
    log.append(rows, writer="w", segment=segment, recorded_at=NOW)


# replay, then live


@pytest.mark.full
def test_a_late_subscriber_gets_the_last_10_000_events_and_then_new_events(home: Home) -> None:
    with EventLog(home) as log:
        for segment in range(1, 4):
            appended(log, segment, records(300, golems=20, tick=1 + 15 * segment, seed=segment))
        before = everything(home)
        assert len(before) > 10_500, "there must be more than a replay holds"
        subscriber = Forked(command, "watch", "--home", str(home.root), "--format", "json")
        enough = Timer(SECONDS_MAX, subscriber.kill)
        enough.start()
        lines = iter(subscriber.out)
        received = [orjson.loads(next(lines))]  # the replay is fixed once its first event arrives
        for segment in range(4, 8):
            appended(log, segment, records(20, golems=20, tick=1 + 15 * segment, seed=segment))
        after = everything(home)
        expected = ids(before)[-FabricPolicy().replay_events :] + ids(after)[len(before) :]
        received += [orjson.loads(line) for line in islice(lines, len(expected) - 1)]
        subscriber.kill()
        enough.cancel()
    assert FabricPolicy().replay_events == 10_000
    assert [event["event_id"] for event in received] == expected


def test_the_replay_window_spans_all_categories_and_is_filtered_by_subscription(home: Home) -> None:
    with EventLog(home) as log:
        appended(log, 1, records(60, golems=3))
        log.record([life_event("golem-0001", NOW, Gap(tick_from=90, tick_to=91, why="lost"))], NOW)
    last = everything(home)[-200:]
    for categories in ({"mortality", "dream"}, {"memory"}, {"hermes"}):
        fabric = Fabric(DerivationContext.open(home.root), categories)
        events = list(fabric.newest(200))
        assert ids(events) == ids([event for event in last if event.category in categories])
        assert not list(fabric.fresh())
    only = list(Fabric(DerivationContext.open(home.root), None, {"golem-0002"}).newest(200))
    assert ids(only) == ids([event for event in last if event.golem_id == "golem-0002"])


def test_a_replay_of_zero_is_empty_and_a_short_history_is_replayed_completely(home: Home) -> None:
    with EventLog(home) as log:
        assert not list(Fabric(DerivationContext.open(home.root)).newest(10))
        appended(log, 1, records(2, golems=1))
        fabric = Fabric(DerivationContext.open(home.root))
        assert not list(fabric.newest(0))
        assert not list(fabric.fresh())
        appended(log, 2, records(1, golems=1, tick=3))
        assert {event.tick for event in fabric.fresh()} == {3}
    assert ids(list(Fabric(DerivationContext.open(home.root)).newest(10**6))) == ids(everything(home))


@pytest.mark.parametrize("seed", range(times(2)))
def test_live_and_late_subscribers_see_the_same_events_in_the_same_order(home: Home, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = records(90, golems=3, seed=seed)
    order = rng.permutation(90) if seed % 2 else np.arange(90)  # includes late ticks
    follower = Fabric(DerivationContext.open(home.root))
    seen = list(follower.newest(0))
    with EventLog(home) as log:
        for segment, part in enumerate(np.array_split(order, rng.integers(4, 12)), 1):
            appended(log, segment, rows.take(pa.array(part)))
            if rng.random() < 0.7:
                seen += list(follower.fresh())
    seen += list(follower.fresh())
    assert ids(seen) == ids(everything(home))
    assert len(set(ids(seen))) == len(seen)
    assert ids(list(Fabric(DerivationContext.open(home.root)).newest(150))) == ids(seen)[-150:]


@pytest.mark.full
def test_a_reader_that_resumes_from_a_position_gets_later_events_once(home: Home) -> None:
    with EventLog(home) as log:
        for segment in range(1, 6):
            appended(log, segment, records(12, golems=3, tick=4 * segment, seed=segment))
    all_events = everything(home)
    for at in (0, 1, len(all_events) // 3, len(all_events) // 2, len(all_events) - 2, len(all_events) - 1):
        place = Place.parse(all_events[at].position)
        assert ids(list(Fabric(DerivationContext.open(home.root)).behind(place))) == ids(all_events)[at + 1 :]


@pytest.mark.row("INH-1")
@pytest.mark.parametrize("order", ["acceptance last", "record last", "earlier record last"])
def test_a_phase_change_across_an_accepted_gap_is_reported_once(home: Home, order: str) -> None:
    rows = in_phases(dict.fromkeys(range(1, 6), "thriving") | dict.fromkeys(range(9, 12), "declining"))
    before, after = rows.slice(0, 5), rows.slice(5)
    gap = life_event(GOLEM, NOW, Gap(tick_from=6, tick_to=8, why="lost"))
    follower = Fabric(DerivationContext.open(home.root))
    seen = list(follower.newest(0))
    with EventLog(home) as log:
        steps: list[Callable[[datetime], object]] = [
            lambda at: log.append(before, writer="w1", segment=1, recorded_at=at),
            lambda at: log.append(after, writer="w2", segment=1, recorded_at=at),
            lambda at: log.record([gap], at),
        ]
        turns = {"acceptance last": (0, 1, 2), "record last": (0, 2, 1), "earlier record last": (2, 1, 0)}[order]
        for minute, turn in enumerate(turns):
            steps[turn](NOW + timedelta(minutes=minute))
            seen += list(follower.fresh())
        log.record([life_event(GOLEM, NOW, Gap(tick_from=20, tick_to=21, why="more"))], NOW + timedelta(hours=1))
    transitions = [event for event in seen if event.name == "mortality:phase_transition"]
    assert [(e.tick, e.payload.before, e.payload.after) for e in transitions] == [(9, "thriving", "declining")]
    assert transitions[0].at == rows["observed_at"][5].as_py()
    all_events = everything(home)
    assert {*ids(all_events)} - {*ids(seen)} == {all_events[-1].event_id}, (
        "a later reader sees the same events and the newest event"
    )
    assert len(ids(all_events)) == len({*ids(all_events)})


def test_a_recorded_tick_inside_a_gap_splits_it(home: Home) -> None:
    rows = in_phases({1: "thriving", 2: "stable", 3: "declining"}, ticks=[1, 4, 7])
    with EventLog(home) as log:
        appended(log, 1, rows)
        log.record([life_event(GOLEM, NOW, Gap(tick_from=2, tick_to=6, why="lost"))], NOW)
    transitions = [event for event in everything(home) if event.name == "mortality:phase_transition"]
    assert [(e.tick, e.payload.before) for e in transitions] == [(4, "thriving"), (7, "stable")]


def in_phases(phases: dict[int, str], ticks: list[int] | None = None) -> pa.Table:
    """Return records of one golem at these ticks, each with its phase."""
    rows = records(len(phases), golems=1)
    for name, values in (("tick", list(ticks or phases)), ("phase", list(phases.values()))):
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(name), pa.array(values, rows.schema.field(name).type))
    return rows


@pytest.mark.parametrize("text", ["", "soon", "1.2", "1.2-3", "-1.0-0.0-0.0-0.0", "1-2-3-4", "1.0-1.0-1.0-1.0-1.0"])
def test_an_invalid_position_is_refused(text: str) -> None:
    with pytest.raises(QueryError, match="no position"):
        Place.parse(text)


def test_a_position_of_an_earlier_version_continues_with_all_dreams() -> None:
    assert Place.parse("3.0-1.116-1.0-1.0") == Place(Mark(3), Mark(1, 116), Mark(1), Mark(1), Mark(), Mark())
    with pytest.raises(QueryError, match="no position"):
        Place.parse("3.0-1.116-1.0-1.0-1.0")


def test_a_position_of_another_home_is_refused(home: Home) -> None:
    place = Place(records=Mark(7, 2))
    with pytest.raises(QueryError, match="after the newest records"):
        Fabric(DerivationContext.open(home.root)).behind(place)


@pytest.mark.full
def test_a_trimmed_table_is_replayed_but_not_resumed_before_its_checkpoint(home: Home) -> None:
    with EventLog(home) as log:
        for number in range(1, 25):
            log.record([life_event(GOLEM, NOW, Gap(tick_from=number, tick_to=number, why="lost"))], NOW)
    all_events = everything(home)
    checkpoint = max(int(path.name[:20]) for path in home.life.glob("_delta_log/*.checkpoint.parquet"))
    assert 5 < checkpoint < 24
    for version in range(checkpoint):
        (home.life / "_delta_log" / f"{version:020}.json").unlink()
    assert sorted(ids(everything(home))) == sorted(ids(all_events))
    assert ids(list(Fabric(DerivationContext.open(home.root)).newest(4))) == ids(all_events)[-4:]
    assert len(list(Fabric(DerivationContext.open(home.root)).newest(10**4))) == len(all_events)
    place = Place.parse(all_events[-3].position)
    assert ids(list(Fabric(DerivationContext.open(home.root)).behind(place))) == ids(all_events)[-2:]
    for early in (all_events[0], all_events[checkpoint - 1]):
        with pytest.raises(QueryError, match="before the oldest readable life"):
            Fabric(DerivationContext.open(home.root)).behind(Place.parse(early.position))


# every source


def test_a_home_reports_births_decisions_cycles_imports_and_deaths(small_home: Path) -> None:
    events = list(Fabric(DerivationContext.open(small_home)).behind(Place()))
    names = {event.name for event in events}
    expected_names = {
        "GolemBorn", "DeathDeclared", "GrimoireWrite", "CuratorCycleComplete", "grimoire:consolidation_complete",
        "grimoire:import_complete", "dream:import_hook", "mortality:phase_transition",
    }  # fmt: skip
    assert expected_names <= names
    (first, *_) = [event for event in events if event.name == "grimoire:import_complete"]
    assert first.payload.model_dump()["episodes"] > 0
    assert len(set(ids(events))) == len(events)


@pytest.mark.full
def test_retractions_of_a_strike_are_reported_with_their_own_ids(copied_home: Path) -> None:
    stores = DerivationContext.open(copied_home)
    follower = Fabric(DerivationContext.open(copied_home))
    before = list(follower.behind(Place()))
    decided = stores.projections.growing("curation").read(["golem_id", "cause_ticks"]).to_pylist()
    golem_id, tick = next((row["golem_id"], row["cause_ticks"][0]) for row in decided if row["cause_ticks"])
    stores.log.record([life_event(golem_id, NOW, Struck(tick=tick, why="a bad feed"))], NOW)
    derive_curation(stores)
    new_events = list(follower.fresh())
    assert {event.name for event in new_events} >= {"RecordStruck", "GrimoireWrite"}
    operations = [event.payload.model_dump()["operation"] for event in new_events if event.name == "GrimoireWrite"]
    assert "withdrawn" in operations
    assert {event.golem_id for event in new_events} == {golem_id}
    assert len(set(ids(before + new_events))) == len(before + new_events)
    assert ids(everything(Home.open(copied_home))) == ids(before + new_events)


def test_watching_writes_no_file(home: Home) -> None:
    with EventLog(home) as log:
        appended(log, 1, records(3, golems=1))
    before = sorted(path for path in home.root.rglob("*") if path.is_file())
    assert everything(home)
    assert sorted(path for path in home.root.rglob("*") if path.is_file()) == before


# the iterator


def run_with_timeout(test: Callable[[], object]) -> None:
    """Run a coroutine test under a timeout."""
    asyncio.run(asyncio.wait_for(test(), SECONDS_MAX))  # type: ignore[arg-type]


def test_live_events_arrive_and_a_slow_reader_delays_no_other_reader(home: Home) -> None:
    async def consume() -> None:
        with EventLog(home) as log:
            slow = watch(home.root, replay=0, poll_seconds=0.01)
            quick = watch(home.root, {"mortality"}, replay=0, poll_seconds=0.01)
            first, other = asyncio.ensure_future(anext(slow)), asyncio.ensure_future(anext(quick))
            segment = 0
            while not (first.done() and other.done()):  # until both iterators have fixed their starting positions
                segment += 1
                appended(log, segment, records(1, golems=1, tick=segment))
                await asyncio.sleep(0.05)
            for _ in range(5):  # one iterator is not read meanwhile
                segment += 1
                appended(log, segment, records(1, golems=1, tick=segment))
            vital = [other.result()]
            while vital[-1].tick != segment:
                vital.append(await anext(quick))
            assert {event.category for event in vital} == {"mortality"}
            received = [first.result()]
            expected = ids(everything(home))
            expected = expected[expected.index(received[0].event_id) :]
            while len(received) < len(expected):
                received.append(await anext(slow))
            assert ids(received) == expected

    run_with_timeout(consume)


def test_a_reader_without_follow_ends(home: Home) -> None:
    with EventLog(home) as log:
        appended(log, 1, records(4, golems=2))

    async def ends() -> list[GolemEvent]:
        return [event async for event in watch(home, follow=False)]

    assert ids(asyncio.run(ends())) == ids(everything(home))


# the command


def run(*arguments: str) -> tuple[int, str, BaseException | None]:
    result = CliRunner().invoke(app_of("watch"), ["watch", "--no-follow", *arguments])
    return result.exit_code, result.stdout, result.exception


def test_the_watch_command_prints_one_event_a_line_and_resumes_from_a_position(home: Home) -> None:
    with EventLog(home) as log:
        appended(log, 1, records(6, golems=2))
    home_option = ("--home", str(home.root))
    _, output, _ = run(*home_option, "--format", "json")
    events = [orjson.loads(line) for line in output.splitlines()]
    assert [event["event_id"] for event in events] == ids(everything(home))
    _, later_output, _ = run(*home_option, "--format", "json", "--since", events[9]["position"])
    assert later_output.splitlines() == output.splitlines()[10:]
    _, table, _ = run(*home_option, "--category", "mortality, dream", "--golem", "golem-0001", "--replay", "60")
    chosen = [e for e in events[-60:] if e["category"] in ("mortality", "dream") and e["golem_id"] == "golem-0001"]
    assert [line.split()[4] for line in table.splitlines()] == [event["name"] for event in chosen]


def test_the_watch_command_names_unknown_options(home: Home) -> None:
    home_option = ("--home", str(home.root))
    assert "there is no category weather" in str(run(*home_option, "--category", "weather")[2])
    assert "table or json" in str(run(*home_option, "--format", "yaml")[2])
    assert "no position" in str(run(*home_option, "--since", "yesterday")[2])


def test_the_watch_command_fails_without_a_home(tmp_path: Path) -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "bardo_pipeline.cli.app", "watch", "--no-follow", "--home", str(tmp_path)],
        capture_output=True, env=os.environ, check=False,
    )  # fmt: skip
    assert completed.returncode == 2
    assert b"there is no home" in completed.stderr
