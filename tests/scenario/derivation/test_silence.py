"""Silent golems: an observer declares each dead once, it leaves a legacy, and its runtime's later records are
refused.
"""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.derive_thanatopsis import phases_of
from bardo_pipeline.derivation.death.silence import declarations, declare_silent_golems
from bardo_pipeline.derivation.derive_home import curate_and_complete_deaths
from bardo_pipeline.errors import DeclaredDeadError
from bardo_pipeline.events.life.events import LifeEvent, life_event
from bardo_pipeline.events.life.thanatopsis_events import PHASES_OF_DYING
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA, to_models
from bardo_pipeline.events.record.model import DecisionCycleRecord
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal.event_writer import EventWriter
from bardo_pipeline.storage.log.event_log import EventLog
from tests.conftest import NOW, copy_home
from tests.support.processes.bardo_command import bardo
from tests.support.processes.forked_processes import Forked, die

LAST = 60
"""The last recorded tick of the golem that falls silent."""

HOUR = timedelta(hours=1)

WITNESS = "g-witness"
"""A golem with the records of the other one, which witnesses the silence with it."""


@pytest.fixture(scope="module")
def gone_silent(brief_home: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, list[bytes]]:
    """Return a home in which one of three golems has no tick after the sixtieth, that golem, and its missing ticks.

    Two dead golems with equal records witness the silence.
    """
    root = tmp_path_factory.mktemp("silent") / "home"
    known, home = DerivationContext.open(brief_home), Home.create(root, Policy(), NOW)
    shutil.copytree(known.home.vectors, home.vectors)
    births = {e["golem_id"]: e["born"] for e in known.life("GolemBorn").to_pylist()}
    victim, other = sorted(g for g, born in births.items() if born["generation"] == 0)
    rows = known.log.read_cycles(golems=[victim, other])
    late = pc.and_(pc.equal(rows["golem_id"], victim), pc.greater(rows["tick"], LAST))
    never = to_models(rows.filter(late).sort_by("tick").select(RECORD_SCHEMA.names), DecisionCycleRecord)
    events = to_models(known.log.life().drop_columns("recorded_at"), LifeEvent)
    kept = rows.filter(pc.invert(late)).select(RECORD_SCHEMA.names).cast(RECORD_SCHEMA)
    again = kept.filter(pc.equal(kept["golem_id"], other))
    again = again.set_column(
        again.column_names.index("golem_id"), RECORD_SCHEMA.field("golem_id"), pa.array([WITNESS] * len(again))
    )
    events += [life_event(WITNESS, e.observed_at, e.payload) for e in events if e.golem_id == other]
    with EventLog(home) as log:
        log.record([e for e in events if e.kind == "GolemBorn" and e.golem_id in (victim, other, WITNESS)], NOW)
        log.append(pa.concat_tables([kept, again]), writer="copy", segment=1, recorded_at=NOW)
        log.record([e for e in events if e.kind == "DeathDeclared" and e.golem_id in (other, WITNESS)], NOW)
    return root, victim, [record.model_dump_json().encode() for record in never]


@pytest.mark.row("INH-2", "INH-4")
def test_a_silent_golem_is_declared_dead_and_leaves_a_legacy(
    gone_silent: tuple[Path, str, list[bytes]], tmp_path: Path
) -> None:
    root, victim, never = gone_silent
    home = copy_home(root, tmp_path / "home")
    assert "No golem fell silent" in bardo("golem", "observe", home=home)
    printed = bardo("golem", "observe", "--silence", "0.5", "--dry-run", home=home)
    assert victim in printed
    assert "would be declared dead" in printed
    assert DerivationContext.open(home).log.death_of(victim) is None
    printed = bardo("golem", "observe", "--silence", "0.5", home=home)
    assert "declared dead" in printed
    assert f"{victim} (generation 0) died at tick {LAST}: it fell silent." in printed
    stores = DerivationContext.open(home)
    (death,) = [e for e in stores.life("DeathDeclared").to_pylist() if e["golem_id"] == victim]
    last = stores.log.read_stretch(["observed_at", "phase", "vitality", "credits_micros"], [victim], LAST, LAST)
    died = death["died"]
    assert (died["cause"], died["tick"], death["observed_at"]) == ("silence", LAST, last["observed_at"][0].as_py())
    assert {n: died[n] for n in ("phase", "vitality", "credits_micros")} == {
        n: last[n][0].as_py() for n in ("phase", "vitality", "credits_micros")
    }
    assert [p.kind for p in phases_of(stores)[victim]] == list(PHASES_OF_DYING)
    assert phases_of(stores)[victim][-1].payload["published"]
    assert "I fell silent" in stores.projections.growing("testaments").read(golems=[victim])["markdown"][0].as_py()
    output = bardo("golem", "death", victim, home=home)
    assert all(word in output for word in ("acceptance", "settlement", "reflection", "legacy", "silence"))
    assert "silence" in bardo("watch", "--category", "mortality", "--no-follow", home=home)
    returning(home, victim, never)


def returning(home: Path, victim: str, never: list[bytes]) -> None:
    """Write records of a golem that was declared dead, by each way of writing."""
    answer = (
        f"golem {victim}: tick {LAST + 1} comes after its end at tick {LAST}: it fell silent there and was declared"
    )
    with (
        EventWriter.open(Home.open(home), victim, clock=lambda: NOW, drain="nobody") as writer,
        pytest.raises(DeclaredDeadError, match=answer),
    ):
        writer.append(never[0])
    batch = (
        DerivationContext.open(home)
        .log.read_cycles(RECORD_SCHEMA.names, golems=[victim])
        .sort_by("tick")
        .slice(LAST - 1)
    )
    batch = batch.set_column(batch.column_names.index("tick"), "tick", pc.add(batch["tick"], 1)).cast(RECORD_SCHEMA)
    with EventLog(Home.open(home)) as log, pytest.raises(DeclaredDeadError, match=answer):
        log.append(batch, writer="back", segment=1, recorded_at=NOW)


@pytest.mark.full
@pytest.mark.row("INH-2")
def test_two_observers_record_one_death_and_one_legacy(
    gone_silent: tuple[Path, str, list[bytes]], tmp_path: Path
) -> None:
    root, victim, _ = gone_silent
    home = copy_home(root, tmp_path / "home")
    item, other = DerivationContext.open(home), DerivationContext.open(home)
    (first,), (again,) = declarations(item, [victim]).values(), declarations(other, [victim]).values()
    assert first == again
    assert item.log.record(first, NOW) == 1
    assert other.log.record(again, NOW + 9 * HOUR) == 0
    runtime = first[0].model_copy(update={"event_id": "x" * 32})
    assert runtime.died is not None
    poor = runtime.died.model_copy(update={"cause": "economic", "tick": LAST + 1})
    assert other.log.record([life_event(victim, NOW, poor)], NOW) == 0
    assert [s.outcome for s in declare_silent_golems(other, now=NOW + 99 * HOUR, silence=HOUR, clock="wall")] == []
    published = curate_and_complete_deaths(item, now=NOW)
    assert curate_and_complete_deaths(other, now=NOW + HOUR) == []
    stores = DerivationContext.open(home)
    assert len(published) == 3
    for kind in ("DeathDeclared", "BundlePublished", "BundleJudged", *PHASES_OF_DYING):
        assert stores.life(kind)["golem_id"].to_pylist().count(victim) == 1, kind


def live_and_be_killed(root: str, golem_id: str) -> None:
    """Write these ticks in a process that is killed after them."""
    lines = (Path(root) / "lines").read_bytes().splitlines()
    writer = EventWriter.open(Path(root), golem_id, clock=lambda: NOW, drain="nobody")
    for line in lines:
        writer.append(line)
    die()


@pytest.mark.full
@pytest.mark.row("INH-2")
def test_a_killed_process_leaves_a_legacy_with_all_acknowledged_records(
    gone_silent: tuple[Path, str, list[bytes]], tmp_path: Path
) -> None:
    root, victim, never = gone_silent
    home = copy_home(root, tmp_path / "home")
    acknowledged = [*never[:7], *never[8:10]]  # the eighth never came
    (home / "lines").write_bytes(b"\n".join(acknowledged))
    process = Forked(live_and_be_killed, str(home), victim)
    assert process.wait(60) == -9
    stores = DerivationContext.open(home)
    assert stores.log.head_of(victim).highest == LAST
    assert declare_silent_golems(stores, now=NOW + HOUR, clock="wall") == [], "less than a day of silence"
    assert declare_silent_golems(stores, now=NOW + 25 * HOUR, clock="wall") == [], (
        "the drained records came an hour later"
    )
    (result,) = declare_silent_golems(stores, now=NOW + 26 * HOUR, clock="wall")
    assert (result.golem_id, result.tick, result.outcome) == (victim, LAST + 10, "declared")
    assert stores.log.gaps() == ()
    assert len(curate_and_complete_deaths(stores, now=NOW)) == 3
    assert stores.log.cause_of_death(victim) == "silence"
    assert [p.kind for p in phases_of(stores)[victim]] == list(PHASES_OF_DYING)


@pytest.mark.row("INH-2")
def test_a_silent_golem_with_a_running_writer_is_not_declared_dead(
    gone_silent: tuple[Path, str, list[bytes]], tmp_path: Path
) -> None:
    root, victim, never = gone_silent
    home = copy_home(root, tmp_path / "home")
    with EventWriter.open(Home.open(home), victim, clock=lambda: NOW, drain="nobody") as writer:
        stores = DerivationContext.open(home)
        (result,) = declare_silent_golems(stores, now=NOW + 25 * HOUR, clock="wall")
        assert result.outcome == "held"
        assert "is held by writer" in result.why
        writer.append(never[0])
    assert stores.log.death_of(victim) is None
    (result,) = declare_silent_golems(stores, now=NOW + 25 * HOUR, clock="wall")
    assert (result.tick, result.outcome) == (LAST + 1, "declared")


@pytest.mark.row("INH-2", "P-3")
def test_a_golem_whose_records_wait_in_the_spool_is_not_declared_dead(
    gone_silent: tuple[Path, str, list[bytes]], tmp_path: Path
) -> None:
    root, victim, never = gone_silent
    home = copy_home(root, tmp_path / "home")
    stores = DerivationContext.open(home)
    for name in ("late.jsonl", ".taking/late.jsonl"):  # the second was left by a killed ingestion
        path = home / "spool" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"\n".join(never) + b"\n")
        for dry_run in (True, False):
            (result,) = declare_silent_golems(stores, now=NOW + HOUR, silence=HOUR / 2, dry_run=dry_run)
            assert (result.golem_id, result.outcome) == (victim, "held")
            assert result.why == f"records of golem {victim} wait in the spool, in late.jsonl"
        assert "its records wait in the spool" in bardo("golem", "observe", "--silence", "0.5", home=home)
        path.unlink()
    (home / "spool" / "other.jsonl").write_bytes(b'{"golem_id":"' + victim.encode() + b'-2"}\n')
    (result,) = declare_silent_golems(stores, now=NOW + HOUR, silence=HOUR / 2)
    assert result.outcome == "declared", "a file about another golem holds nothing"


@pytest.mark.row("INH-2", "P-3")
def test_a_golem_that_was_recorded_lately_is_not_silent(
    gone_silent: tuple[Path, str, list[bytes]], tmp_path: Path
) -> None:
    root, _, _ = gone_silent
    stores = DerivationContext.open(copy_home(root, tmp_path / "home"))
    assert declare_silent_golems(stores, now=NOW + HOUR / 2, silence=HOUR / 2, dry_run=True) != []
    assert declare_silent_golems(stores, now=NOW + HOUR / 2 - timedelta(seconds=1), silence=HOUR / 2) == []
    birth = next(e for e in to_models(stores.life("GolemBorn").drop_columns("recorded_at"), LifeEvent) if e.born)
    stores.log.record([life_event("g-history", birth.observed_at - 99 * HOUR, birth.payload)], NOW + 9 * HOUR)
    silent = declare_silent_golems(stores, now=NOW + 9.5 * HOUR, dry_run=True)
    assert "g-history" not in {result.golem_id for result in silent}, "its runtime had no time to write its history"
    silent = declare_silent_golems(stores, now=NOW + 10 * HOUR, dry_run=True)
    assert "g-history" in {result.golem_id for result in silent}


@pytest.mark.full
@pytest.mark.row("INH-2")
def test_a_golem_without_ticks_is_declared_dead(tmp_path: Path, brief_home: Path) -> None:
    home = Home.create(tmp_path / "home", Policy(), NOW)
    births = to_models(DerivationContext.open(brief_home).life("GolemBorn").drop_columns("recorded_at"), LifeEvent)
    stores = DerivationContext.open(home.root)
    stores.log.record([e for e in births if e.born is not None and e.born.generation == 0][:1], NOW)
    (result,) = declare_silent_golems(stores, now=NOW + 25 * HOUR, clock="wall")
    assert (result.tick, result.outcome) == (0, "declared")
    assert len(curate_and_complete_deaths(stores, now=NOW)) == 1
    (phases,) = phases_of(stores).values()
    assert [p.kind for p in phases] == list(PHASES_OF_DYING)
    assert phases[1].payload["position_count"] == 0
