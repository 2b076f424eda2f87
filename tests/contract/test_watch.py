"""Watching: the newest events first, then those that come, each once, in one order, from any position on."""

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

from bardo_pipeline.cli.app import app
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
from tests.support.bardo_command import command
from tests.support.drawn_records import records
from tests.support.example_count import times
from tests.support.forked_processes import Forked

pytestmark = pytest.mark.row("EV-7")

NOW = datetime(2026, 11, 1, tzinfo=UTC)
GOLEM = "golem-0000"
SOON = 120.0
"""Seconds after which a test gives up waiting."""


def everything(home: Home) -> list[GolemEvent]:
    """All events of a home, from the first."""
    return list(Fabric(DerivationContext.open(home.root)).behind(Place()))


def ids(events: list[GolemEvent]) -> list[str]:
    return [event.event_id for event in events]


def appended(log: EventLog, segment: int, rows: pa.Table) -> None:
    log.append(rows, writer="w", segment=segment, recorded_at=NOW)


# replay, then live


def test_a_late_subscriber_in_another_process_gets_exactly_the_last_10_000_and_then_what_comes(home: Home) -> None:
    with EventLog(home) as log:
        for segment in range(1, 4):
            appended(log, segment, records(300, golems=20, tick=1 + 15 * segment, seed=segment))
        before = everything(home)
        assert len(before) > 10_500, "there must be more than a replay holds"
        late = Forked(command, "watch", "--home", str(home.root), "--format", "json")
        enough = Timer(SOON, late.kill)
        enough.start()
        lines = iter(late.out)
        got = [orjson.loads(next(lines))]  # the replay is chosen by now
        for segment in range(4, 8):
            appended(log, segment, records(20, golems=20, tick=1 + 15 * segment, seed=segment))
        after = everything(home)
        wanted = ids(before)[-FabricPolicy().replay_events :] + ids(after)[len(before) :]
        got += [orjson.loads(line) for line in islice(lines, len(wanted) - 1)]
        late.kill()
        enough.cancel()
    assert FabricPolicy().replay_events == 10_000
    assert [event["event_id"] for event in got] == wanted


def test_the_replay_is_of_all_categories_and_a_subscriber_gets_its_own_among_it(home: Home) -> None:
    with EventLog(home) as log:
        appended(log, 1, records(60, golems=3))
        log.record([life_event("golem-0001", NOW, Gap(tick_from=90, tick_to=91, why="lost"))], NOW)
    last = everything(home)[-200:]
    for categories in ({"mortality", "dream"}, {"memory"}, {"hermes"}):
        fabric = Fabric(DerivationContext.open(home.root), categories)
        found = list(fabric.newest(200))
        assert ids(found) == ids([event for event in last if event.category in categories])
        assert not list(fabric.fresh())
    only = list(Fabric(DerivationContext.open(home.root), None, {"golem-0002"}).newest(200))
    assert ids(only) == ids([event for event in last if event.golem_id == "golem-0002"])


def test_nothing_is_replayed_where_nothing_is_wanted_and_all_where_there_is_less(home: Home) -> None:
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
def test_who_followed_and_who_comes_later_see_the_same_events_in_the_same_order(home: Home, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = records(90, golems=3, seed=seed)
    order = rng.permutation(90) if seed % 2 else np.arange(90)  # ticks that come late, too
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


def test_who_goes_on_from_a_position_gets_what_is_behind_it_and_nothing_twice(home: Home) -> None:
    with EventLog(home) as log:
        for segment in range(1, 6):
            appended(log, segment, records(12, golems=3, tick=4 * segment, seed=segment))
    whole = everything(home)
    for at in (0, 1, len(whole) // 3, len(whole) // 2, len(whole) - 2, len(whole) - 1):
        place = Place.parse(whole[at].position)
        assert ids(list(Fabric(DerivationContext.open(home.root)).behind(place))) == ids(whole)[at + 1 :]


@pytest.mark.row("INH-1")
@pytest.mark.parametrize("order", ["acceptance last", "record last", "earlier record last"])
def test_a_phase_that_changed_over_ticks_that_were_given_up_is_told_once(home: Home, order: str) -> None:
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
    told = [event for event in seen if event.name == "mortality:phase_transition"]
    assert [(e.tick, e.payload.before, e.payload.after) for e in told] == [(9, "thriving", "declining")]
    assert told[0].at == rows["observed_at"][5].as_py()
    late = everything(home)
    assert {*ids(late)} - {*ids(seen)} == {late[-1].event_id}, "who comes later sees the same, and what came since"
    assert len(ids(late)) == len({*ids(late)})


def test_a_tick_of_a_gap_that_is_on_record_parts_it(home: Home) -> None:
    rows = in_phases({1: "thriving", 2: "stable", 3: "declining"}, ticks=[1, 4, 7])
    with EventLog(home) as log:
        appended(log, 1, rows)
        log.record([life_event(GOLEM, NOW, Gap(tick_from=2, tick_to=6, why="lost"))], NOW)
    told = [event for event in everything(home) if event.name == "mortality:phase_transition"]
    assert [(e.tick, e.payload.before) for e in told] == [(4, "thriving"), (7, "stable")]


def in_phases(phases: dict[int, str], ticks: list[int] | None = None) -> pa.Table:
    """Records of one golem at these ticks, each in its phase."""
    rows = records(len(phases), golems=1)
    for name, values in (("tick", list(ticks or phases)), ("phase", list(phases.values()))):
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(name), pa.array(values, rows.schema.field(name).type))
    return rows


@pytest.mark.parametrize("text", ["", "soon", "1.2", "1.2-3", "-1.0-0.0-0.0-0.0", "1-2-3-4", "1.0-1.0-1.0-1.0-1.0"])
def test_a_text_that_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(QueryError, match="no position"):
        Place.parse(text)


def test_a_position_of_another_home_is_refused(home: Home) -> None:
    place = Place(records=Mark(7, 2))
    with pytest.raises(QueryError, match="after the newest records"):
        Fabric(DerivationContext.open(home.root)).behind(place)


@pytest.mark.full
def test_where_the_log_of_a_table_was_trimmed_all_is_still_told_but_not_from_within_what_is_gone(home: Home) -> None:
    with EventLog(home) as log:
        for number in range(1, 25):
            log.record([life_event(GOLEM, NOW, Gap(tick_from=number, tick_to=number, why="lost"))], NOW)
    whole = everything(home)
    checkpoint = max(int(path.name[:20]) for path in home.life.glob("_delta_log/*.checkpoint.parquet"))
    assert 5 < checkpoint < 24
    for version in range(checkpoint):
        (home.life / "_delta_log" / f"{version:020}.json").unlink()
    assert sorted(ids(everything(home))) == sorted(ids(whole))
    assert ids(list(Fabric(DerivationContext.open(home.root)).newest(4))) == ids(whole)[-4:]
    assert len(list(Fabric(DerivationContext.open(home.root)).newest(10**4))) == len(whole)
    place = Place.parse(whole[-3].position)
    assert ids(list(Fabric(DerivationContext.open(home.root)).behind(place))) == ids(whole)[-2:]
    for early in (whole[0], whole[checkpoint - 1]):
        with pytest.raises(QueryError, match="before the life"):
            Fabric(DerivationContext.open(home.root)).behind(Place.parse(early.position))


# every source


def test_a_lived_home_tells_of_births_decisions_cycles_imports_and_deaths(small_home: Path) -> None:
    found = list(Fabric(DerivationContext.open(small_home)).behind(Place()))
    names = {event.name for event in found}
    wanted = {"GolemBorn", "DeathDeclared", "GrimoireWrite", "CuratorCycleComplete", "grimoire:consolidation_complete",
              "grimoire:import_complete", "dream:import_hook", "mortality:phase_transition"}  # fmt: skip
    assert wanted <= names
    (first, *_) = [event for event in found if event.name == "grimoire:import_complete"]
    assert first.payload.model_dump()["episodes"] > 0
    assert len(set(ids(found))) == len(found)


def test_what_a_strike_takes_back_is_told_under_ids_of_its_own(copied_home: Path) -> None:
    stores = DerivationContext.open(copied_home)
    follower = Fabric(DerivationContext.open(copied_home))
    before = list(follower.behind(Place()))
    decided = stores.projections.growing("curation").read(["golem_id", "cause_ticks"]).to_pylist()
    golem_id, tick = next((row["golem_id"], row["cause_ticks"][0]) for row in decided if row["cause_ticks"])
    stores.log.record([life_event(golem_id, NOW, Struck(tick=tick, why="a bad feed"))], NOW)
    derive_curation(stores)
    told = list(follower.fresh())
    assert {event.name for event in told} >= {"RecordStruck", "GrimoireWrite"}
    operations = [event.payload.model_dump()["operation"] for event in told if event.name == "GrimoireWrite"]
    assert "withdrawn" in operations
    assert {event.golem_id for event in told} == {golem_id}
    assert len(set(ids(before + told))) == len(before + told)
    assert ids(everything(Home.open(copied_home))) == ids(before + told)


def test_watching_makes_nothing(home: Home) -> None:
    with EventLog(home) as log:
        appended(log, 1, records(3, golems=1))
    before = sorted(path for path in home.root.rglob("*") if path.is_file())
    assert everything(home)
    assert sorted(path for path in home.root.rglob("*") if path.is_file()) == before


# the iterator


def soon(test: Callable[[], object]) -> None:
    """Run a coroutine's test, for at most so long."""
    asyncio.run(asyncio.wait_for(test(), SOON))  # type: ignore[arg-type]


def test_live_events_come_while_one_listens_and_a_slow_listener_holds_up_nobody(home: Home) -> None:
    async def listens() -> None:
        with EventLog(home) as log:
            slow = watch(home.root, replay=0, poll_seconds=0.01)
            quick = watch(home.root, {"mortality"}, replay=0, poll_seconds=0.01)
            first, other = asyncio.ensure_future(anext(slow)), asyncio.ensure_future(anext(quick))
            segment = 0
            while not (first.done() and other.done()):  # until both have chosen where to begin
                segment += 1
                appended(log, segment, records(1, golems=1, tick=segment))
                await asyncio.sleep(0.05)
            for _ in range(5):  # one listener takes nothing meanwhile
                segment += 1
                appended(log, segment, records(1, golems=1, tick=segment))
            vital = [other.result()]
            while vital[-1].tick != segment:
                vital.append(await anext(quick))
            assert {event.category for event in vital} == {"mortality"}
            got = [first.result()]
            wanted = ids(everything(home))
            wanted = wanted[wanted.index(got[0].event_id) :]
            while len(got) < len(wanted):
                got.append(await anext(slow))
            assert ids(got) == wanted

    soon(listens)


def test_who_does_not_follow_comes_to_an_end(home: Home) -> None:
    with EventLog(home) as log:
        appended(log, 1, records(4, golems=2))

    async def ends() -> list[GolemEvent]:
        return [event async for event in watch(home, follow=False)]

    assert ids(asyncio.run(ends())) == ids(everything(home))


# the command


def run(*arguments: str) -> tuple[int, str, BaseException | None]:
    result = CliRunner().invoke(app, ["watch", "--no-follow", *arguments])
    return result.exit_code, result.stdout, result.exception


def test_the_command_tells_events_a_line_each_and_goes_on_from_a_position(home: Home) -> None:
    with EventLog(home) as log:
        appended(log, 1, records(6, golems=2))
    where = ("--home", str(home.root))
    _, said, _ = run(*where, "--format", "json")
    told = [orjson.loads(line) for line in said.splitlines()]
    assert [event["event_id"] for event in told] == ids(everything(home))
    _, rest, _ = run(*where, "--format", "json", "--since", told[9]["position"])
    assert rest.splitlines() == said.splitlines()[10:]
    _, table, _ = run(*where, "--category", "mortality, dream", "--golem", "golem-0001", "--replay", "60")
    chosen = [e for e in told[-60:] if e["category"] in ("mortality", "dream") and e["golem_id"] == "golem-0001"]
    assert [line.split()[4] for line in table.splitlines()] == [event["name"] for event in chosen]


def test_the_command_names_what_it_does_not_know(home: Home) -> None:
    where = ("--home", str(home.root))
    assert "there is no category weather" in str(run(*where, "--category", "weather")[2])
    assert "table or json" in str(run(*where, "--format", "yaml")[2])
    assert "no position" in str(run(*where, "--since", "yesterday")[2])


def test_the_iterator_is_at_home_in_a_process_that_never_opened_one(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "bardo_pipeline.cli.app", "watch", "--no-follow", "--home", str(tmp_path)],
        capture_output=True, env=os.environ, check=False,
    )  # fmt: skip
    assert told.returncode == 2
    assert b"there is no home" in told.stderr
