"""Maintenance: which files it rewrites and deletes, what it refuses, and that no other code deletes table files."""

from __future__ import annotations

import ast
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.home_maintenance import tend
from bardo_pipeline.errors import StoreError
from bardo_pipeline.events.record.row_digest import fingerprint
from bardo_pipeline.policy import CarePolicy, Policy
from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable
from bardo_pipeline.storage.delta.compaction import Compaction
from bardo_pipeline.storage.delta.durable_commits import commit_path
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.protocol import CYCLES_SCHEMA
from bardo_pipeline.storage.operations.maintenance import MaintenanceReport, maintain, merge_life_files
from bardo_pipeline.storage.verification.verify import verify
from bardo_pipeline.storage.warehouse.dbt_plugin import _files
from tests.conftest import NOW, copy_home
from tests.support.processes.bardo_command import bardo
from tests.support.records.drawn_records import records
from tests.support.records.handmade_births import birth_of

ROOT = Path(__file__).resolve().parents[3]
HOUR = timedelta(hours=1)
BRIEF = Policy().model_copy(update={"care": CarePolicy(lookback_ticks=20, rewrite_rows_max=400, log_commits_kept=5)})
KEY = ("golem_id", "tick")


Grown = Callable[..., EventLog]


def added(home: Home, commits: int, *, first: int = 1) -> EventLog:
    """Append commits with ten ticks of four golems each."""
    log, drawn = EventLog(home, BRIEF, durable=False), records(40 * commits, golems=4, tick=10 * first - 9, seed=first)
    for number in range(commits):
        batch = drawn.take(pa.array(range(40 * number, 40 * number + 40)))
        log.append(batch, writer="w", segment=first + number, recorded_at=NOW)
    return log


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Return a function that builds a home with this many commits, each built once. Copy before writing."""

    @cache
    def made(commits: int) -> Path:
        home = Home.create(tmp_path_factory.mktemp("grown") / "home", Policy(), NOW)
        added(home, commits).close()
        return home.root

    return made


@pytest.fixture
def grown(home: Home, known: Callable[[int], Path]) -> Grown:
    """Return a function that gives the home this many commits and opens its log."""

    def copied(commits: int = 8) -> EventLog:
        shutil.copytree(known(commits), home.root, copy_function=shutil.copy, dirs_exist_ok=True)
        return EventLog(home, BRIEF, durable=False)

    return copied


def tended(home: Home, log: EventLog, hours: float = 0, policy: Policy = BRIEF) -> MaintenanceReport:
    return maintain(home, log, policy, now=datetime.now(UTC) + hours * HOUR, in_force=[])


def parquet(home: Home) -> set[str]:
    files = home.cycles.rglob("*.parquet*")
    return {p.relative_to(home.cycles).as_posix() for p in files if "_delta_log" not in p.parts}


def cycles_table(home: Home) -> AppendOnlyTable:
    return AppendOnlyTable(home.cycles, CYCLES_SCHEMA, ["golem_id", "tick"], by_version=True)


# effects of a run


@pytest.mark.row("EV-6")
def test_ticks_past_the_lookback_move_to_the_cold_tier_and_read_the_same(home: Home, grown: Grown) -> None:
    log = grown()
    before = log.read_cycles()
    tended(home, log)
    files = cycles_table(home).stored()
    cold = {f.path: f for f in files if f.path.startswith("cold/")}
    rows = {path: cycles_table(home).load([f for f in log_files(home) if f.path.endswith(path)]) for path in cold}
    assert {tick for table in rows.values() for tick in table["tick"].to_pylist()} == set(range(1, 51))
    assert fingerprint(log.read_cycles(), KEY) == fingerprint(before, KEY)
    assert log.read_cycles(golems=["golem-0002"]).num_rows == 80
    assert not any("/" not in f.path for f in files), "a fresh file stayed"


def log_files(home: Home) -> list:
    return cycles_table(home).tail()[1]


@pytest.mark.row("EV-6", "X-13")
def test_replaced_files_are_deleted_only_after_the_grace_period(home: Home, grown: Grown) -> None:
    log = grown()
    fresh = parquet(home)
    tended(home, log)
    assert fresh < parquet(home)
    tended(home, log, 0.9)
    assert fresh < parquet(home)
    tended(home, log, 1.1)
    assert parquet(home) == {f.path for f in cycles_table(home).stored()}


@pytest.mark.row("EV-6", "X-13")
def test_many_small_files_of_life_events_are_merged_and_read_the_same(home: Home) -> None:
    policy = BRIEF.model_copy(update={"care": CarePolicy(life_files_max=4)})
    log, reader = EventLog(home, durable=False), EventLog(home, durable=False)
    for number in range(6):
        assert merge_life_files(home, policy, now=NOW) == (5 if number == 5 else 0), f"after {number} commits"
        log.record([birth_of(f"golem-{number}")], NOW)
        assert reader.life("GolemBorn").num_rows == number + 1
    after, ids = EventLog(home, durable=False), {f"golem-{number}" for number in range(6)}
    paths = {Path(file.path).parent.name for file in after._life.tail()[1]}
    assert paths == {"warm", "life"}, "five files became one, and a sixth was appended"
    for one in (log, reader, after):
        assert set(one.life("GolemBorn")["golem_id"].to_pylist()) == ids
    assert merge_life_files(home, policy, now=NOW) == 0
    assert verify(home).clean


@pytest.mark.row("X-13")
def test_files_of_killed_writers_are_deleted_after_the_grace_period(home: Home, grown: Grown) -> None:
    log = grown()
    draft, cold = home.cycles / "part-0.zstd.parquet#1", home.cycles / "cold" / "part-1.zstd.parquet"
    commit = home.cycles / "_delta_log" / "_commit_1.json.tmp"
    half = home.cycles / ".checkpoint-abc" / "_delta_log"
    cold.parent.mkdir()
    half.mkdir(parents=True)
    leftovers = [draft, cold, commit, half / "1.json"]
    for path in leftovers:
        path.write_bytes(b"half")
    tended(home, log)
    assert all(path.exists() for path in leftovers)
    tended(home, log, 1.1)
    assert not any(path.exists() for path in leftovers)
    assert not half.parent.exists()


@pytest.mark.full
@pytest.mark.row("X-13")
def test_commits_before_a_checkpoint_are_trimmed_and_a_stale_reader_continues(home: Home, grown: Grown) -> None:
    log = grown()
    sleeper = EventLog(home, BRIEF)
    assert sleeper.version == log.version == 8
    tended(home, log)
    added(home, 24, first=9)
    for hours in (2, 4):
        tended(home, log, hours)
    assert not commit_path(home.cycles, 8).exists()
    remaining = list((home.cycles / "_delta_log").glob("*.json"))
    assert 5 <= len(remaining) <= 5 + 2 * 20
    assert sleeper.version == log.version
    assert sleeper.heads().equals(log.heads())
    assert sleeper.read_cycles(["tick"], since_version=8).num_rows == 960
    sleeper.append(
        records(4, golems=4, tick=321, seed=9), writer="sleeper", segment=1, recorded_at=NOW
    )  # new commits follow the trimmed ones and do not overwrite them
    assert log.read_cycles(["tick"]).num_rows == 1_284
    stale_reader = EventLog(home, BRIEF)
    assert (stale_reader.last_segment("w"), stale_reader.last_segment("sleeper")) == (32, 1)


@pytest.mark.full
@pytest.mark.row("X-13")
def test_an_interrupted_trim_leaves_a_complete_log(
    home: Home, grown: Grown, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    brief, long = (BRIEF.model_copy(update={"care": CarePolicy(log_commits_kept=n)}) for n in (1, 10**6))
    tended(home, grown(24), policy=long)
    before = added(home, 3, first=25).version - 3
    unlink = Path.unlink
    for done in (1, 2, 3, 9):
        shutil.copytree(home.root, tmp_path / f"{done}")
        cut, gone = Home.open(tmp_path / f"{done}"), []

        def some(path: Path, missing_ok: bool = False, *, done: int = done, gone: list[Path] = gone) -> None:
            if path.parent.name == "_delta_log" and path.suffix in (".json", ".parquet"):
                if len(gone) == done:
                    raise KeyboardInterrupt
                gone.append(path)
            unlink(path, missing_ok)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", some)
            with pytest.raises(KeyboardInterrupt):
                tended(cut, EventLog(cut, BRIEF), policy=brief)
        assert [path.suffix for path in gone] == [".parquet", *[".json"] * (done - 1)]
        reopened = EventLog(cut, BRIEF)
        assert reopened.read_cycles(["tick"]).num_rows == 27 * 40, done
        assert reopened.read_cycles(["tick"], since_version=before).num_rows == 3 * 40, done
        assert verify(cut).clean, done


@pytest.mark.row("EV-6")
def test_maintenance_adds_versions_to_rows_of_schema_version_1(tmp_path: Path) -> None:
    root = tmp_path / "home"
    shutil.copytree(ROOT / "tests" / "golden" / "event_logs" / "v1", root)
    home = Home.open(root)
    log = EventLog(home, BRIEF)
    plain = log.read_cycles()
    assert plain["version"].null_count == plain.num_rows > 0
    brought = {v: log.read_cycles(list(KEY), since_version=v).num_rows for v in range(log.version + 1)}
    for hours in (0, 2):
        tended(home, log, hours)
    after = log.read_cycles()
    assert after["version"].null_count == 0
    assert fingerprint(after.drop_columns("version"), KEY) == fingerprint(plain.drop_columns("version"), KEY)
    assert {v: log.read_cycles(list(KEY), since_version=v).num_rows for v in brought} == brought
    assert verify(home).clean


@pytest.mark.row("EV-6", "X-13")
def test_a_maintained_log_passes_verification(home: Home, grown: Grown) -> None:
    log = grown(24)
    assert verify(home).clean
    for hours in (0, 2, 4):
        tended(home, log, hours)
        report = verify(home)
        assert report.clean, [b.sentence() for b in report.breaks]
        assert report.facts["golems"] == 4


@pytest.mark.row("EV-6")
def test_duckdb_views_contain_every_row_once(home: Home, grown: Grown) -> None:
    log = grown()
    for hours in (0, 2):
        tended(home, log, hours)
        files = _files(home.cycles)
        (counts,) = duckdb.sql(
            f"select count(*), count(distinct (golem_id, tick)) from read_parquet({files}, union_by_name = true, "
            "hive_partitioning = false)"
        ).fetchall()
        assert counts == (320, 320)


# refusals


def test_files_with_other_rows_never_replace_files(home: Home, grown: Grown) -> None:
    grown()
    table = cycles_table(home)
    files = table.stored()
    rows = table.load(log_files(home)[:1])
    for wrong in (
        rows.slice(0, 39).take(pa.array(range(39))),
        rows.take(pa.array([*range(39), 0])),
        rows.set_column(0, rows.schema.field(0), pa.array([1] * 40)),
    ):
        added = [table.write(wrong)]
        with pytest.raises(StoreError, match="cannot replace"):
            table.replace([files[0].path], added, at=NOW, lock=nullcontext())
        table.discard(added)
    right = [table.write(rows)]
    first = Path(log_files(home)[0].path).name
    table.replace([first], right, at=NOW, lock=nullcontext())
    with pytest.raises(StoreError, match="no longer in the table"):
        table.replace([first], right, at=NOW, lock=nullcontext())


@pytest.mark.full
@pytest.mark.row("EV-6")
def test_a_failed_run_leaves_the_log_unchanged(home: Home, grown: Grown, monkeypatch: pytest.MonkeyPatch) -> None:
    log = grown()
    before, files = fingerprint(log.read_cycles(), KEY), parquet(home)

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for owner, method in ((AppendOnlyTable, "replace"), (AppendOnlyTable, "described"), (Compaction, "_put")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, method, fail)
            with pytest.raises(OSError, match="No space"):
                tended(home, log)
        assert fingerprint(log.read_cycles(), KEY) == before, method
    tended(home, log)
    tended(home, log, 1.1)
    assert fingerprint(log.read_cycles(), KEY) == before
    assert not files & parquet(home)


@pytest.mark.row("X-13")
def test_an_altered_file_is_reported_and_kept_and_no_commit_is_trimmed(home: Home, grown: Grown) -> None:
    log = grown(24)
    footless, part = sorted(home.cycles.glob("part-*.parquet"))[2:4]
    footless.write_bytes(footless.read_bytes()[:-9])
    rows = cycles_table(home).load([f for f in log_files(home) if f.path.endswith(part.name)])
    shifted = rows.set_column(
        rows.schema.get_field_index("cycle_seen"), "cycle_seen", pa.array([7] * rows.num_rows)
    ).cast(CYCLES_SCHEMA)
    pa.parquet.write_table(shifted, part)
    report = tended(home, log)
    assert sorted(report.damaged) == [f"log/cycles/{footless.name}", f"log/cycles/{part.name}"]
    assert "its checksum does not match" in report.damaged[f"log/cycles/{part.name}"]
    assert {f.path for f in cycles_table(home).stored() if "/" not in f.path} == {footless.name, part.name}
    assert commit_path(home.cycles, 1).exists()
    tended(home, log, 2)
    assert part.exists()


# caches and derived tables


@pytest.mark.full
@pytest.mark.row("X-13")
def test_idle_retired_derivations_and_abandoned_rebuilds_are_deleted(small_home: Path, tmp_path: Path) -> None:
    home = Home.open(copy_home(small_home, tmp_path / "home"))
    stores = DerivationContext.open(home.root)
    in_force = stores.derivation_id
    for name in ("0ld", "n3w", "0ld.rebuild", "n3w.rebuild"):
        shutil.copytree(home.derivation(in_force), home.derivation(name))
        (home.index / "episodes" / name).mkdir(parents=True)
    for folder, days in (("0ld", 31), ("n3w", 29), ("0ld.rebuild", 2), (in_force, 400)):
        moment = (datetime.now(UTC) - timedelta(days=days)).timestamp()
        for path in [home.derivation(folder), *home.derivation(folder).rglob("*")]:
            os.utime(path, (moment, moment))
    dry = tend(home, stores.log, Policy(), now=datetime.now(UTC), dry_run=True)
    assert any(step.name == "derivations 0ld, 0ld.rebuild" for step in dry.steps)
    assert home.derivation("0ld").exists()
    tend(home, stores.log, Policy(), now=datetime.now(UTC))
    assert {path.name for path in home.derivations.iterdir()} == {in_force, "n3w", "n3w.rebuild"}
    assert {path.name for path in (home.index / "episodes").iterdir()} == {"n3w", "n3w.rebuild"}


@pytest.mark.full
@pytest.mark.row("X-13")
def test_old_versions_of_projections_are_deleted_and_fingerprints_stay(small_home: Path, tmp_path: Path) -> None:
    home = Home.open(copy_home(small_home, tmp_path / "home"))
    stores = DerivationContext.open(home.root)
    folder = home.derivation(stores.derivation_id)
    prints = {n: stores.projections.digest(n).fingerprint for n in ("grimoire", "curation", "cycles", "playbooks")}
    rows = {n: stores.projections.read(n) for n in prints}
    weight = sum(p.stat().st_size for p in folder.rglob("*.parquet"))
    brief = Policy().model_copy(update={"care": CarePolicy(projection_commits_kept=1)})
    for hours in (0, 2):
        tend(home, stores.log, brief, now=datetime.now(UTC) + hours * HOUR)
    reopened = DerivationContext.open(home.root)
    for name, wanted in prints.items():
        assert reopened.projections.digest(name).fingerprint == wanted, name
        assert reopened.projections.read(name).equals(rows[name]), name
    assert sum(p.stat().st_size for p in folder.rglob("*.parquet")) < weight * 0.8
    assert len(DeltaTable(folder / "grimoire").file_uris()) == len(list((folder / "grimoire").glob("*.parquet")))


@pytest.mark.full
@pytest.mark.row("X-13")
def test_a_projection_without_a_first_commit_does_not_stop_maintenance(small_home: Path, tmp_path: Path) -> None:
    home = Home.open(copy_home(small_home, tmp_path / "home"))
    stores = DerivationContext.open(home.root)
    folder, wanted = home.derivation(stores.derivation_id), stores.projections.digest("grimoire")
    assert not (folder / "facts").exists()
    (folder / "facts" / "_delta_log").mkdir(parents=True)
    brief = Policy().model_copy(update={"care": CarePolicy(projection_commits_kept=1)})
    report = maintain(home, stores.log, brief, now=datetime.now(UTC) + 2 * HOUR, in_force=[folder.name])
    assert not report.damaged
    reopened = DerivationContext.open(home.root)
    assert reopened.projections.read("facts").num_rows == 0
    assert reopened.projections.digest("grimoire") == wanted


@pytest.mark.row("X-13")
def test_abandoned_drafts_are_deleted(home: Home, grown: Grown) -> None:
    log = grown()
    reader = home.derivations / "d1" / "readers" / "curation"
    reader.mkdir(parents=True)
    (reader / "place.json").write_bytes(b'{"version": 3, "waiting": "waiting-3.arrow"}')
    kept = [reader / "place.json", reader / "waiting-3.arrow"]
    abandoned = [
        reader / "waiting-2.arrow",
        reader / ".place.json",
        home.root / "warehouse.draft-1" / "warehouse.duckdb",
        home.index / ".heads.1.2",
        home.bundles / ".draft-1" / "manifest.json",
        home.derivations / "d1" / "bundles" / ".draft-2" / "manifest.json",
    ]
    for path in [*kept[1:], *abandoned]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    moment = (datetime.now(UTC) - timedelta(days=2)).timestamp()
    for path in [*kept, *abandoned, home.root / "warehouse.draft-1", *(path.parent for path in abandoned[-2:])]:
        os.utime(path, (moment, moment))
    maintain(home, log, BRIEF, now=datetime.now(UTC), in_force=["d1"])
    assert all(path.exists() for path in kept)
    assert not any(path.exists() for path in abandoned)


# the command


@pytest.mark.full
@pytest.mark.row("EV-6", "X-13")
def test_the_maintain_command_prints_planned_and_performed_steps(home: Home, grown: Grown) -> None:
    grown().close()
    before = parquet(home)
    dry = bardo("maintain", "--dry-run", home=home.root)
    assert "rewrote (fresh)" in dry
    assert "320" in dry
    assert parquet(home) == before
    assert "log/cycles" in bardo("maintain", home=home.root)
    assert not before & {f.path for f in cycles_table(home).stored()}
    assert "nothing to do" in bardo("maintain", home=home.root)


# no other code deletes table files

FORBIDDEN = {"vacuum", "restore", "optimize", "delete", "cleanup_metadata"}
HARMLESS = {f"bardo_pipeline.storage.operations.retention.{name}" for name in ("Gone", "disk_bytes")}
ALLOWED = {
    ("bardo_pipeline/storage/index/lance_tables.py", "delete"),
    ("bardo_pipeline/storage/index/lance_tables.py", "optimize"),
    ("bardo_pipeline/storage/operations/retention.py", "optimize"),
}
"""Allowed calls: they act on LanceDB tables, which are caches rebuilt from Delta."""


@pytest.mark.row("X-13")
def test_only_maintenance_deletes_table_files_and_no_code_vacuums_or_restores() -> None:
    result, importers = set(), set()
    for path in sorted(p for d in ("bardo_pipeline", "assets", "jobs", "sensors") for p in (ROOT / d).rglob("*.py")):
        name, text = path.relative_to(ROOT).as_posix(), path.read_text()
        assert '"delta.appendOnly": "false"' not in text
        if not any(word in text for word in (*FORBIDDEN, "retention")):
            continue
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                of_numpy = isinstance(node.func.value, ast.Name) and node.func.value.id == "np"
                result |= {(name, node.func.attr)} if node.func.attr in FORBIDDEN and not of_numpy else set()
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bardo_pipeline.storage"):
                taken = {f"{node.module}.{n.name}" for n in node.names}
                importers |= {name} if any("storage.operations.retention" in n for n in taken - HARMLESS) else set()
    assert result <= ALLOWED
    assert importers == {"bardo_pipeline/storage/operations/maintenance.py"}
