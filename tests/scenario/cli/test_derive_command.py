"""`bardo derive` finishes a life without Dagster: curation, death, bundle, marts. It names what a death waits for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.derive_thanatopsis import phases_of
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle, published_bundles
from bardo_pipeline.events.life.events import LifeEvent
from bardo_pipeline.events.life.thanatopsis_events import PHASES_OF_DYING
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import EventLog
from tests.conftest import DERIVED, NOW, home_without_verdicts
from tests.support.homes.tool_homes import tool_home
from tests.support.processes.bardo_command import bardo


def founder_home(
    source: Path, target: Path, *, ticks: int | None = None, missing: tuple[int, ...] = (), born: bool = True,
    dies: bool = True,
) -> str:  # fmt: skip
    """Make a home with the records, the birth and the death of one founder, as a runtime sends them.

    ticks: only the records up to this tick. missing: ticks without a record. Returns the founder.
    """
    lived = DerivationContext.open(source)
    founder = next(
        e["golem_id"] for e in lived.life("GolemBorn").to_pylist()
        if e["born"]["predecessor_id"] is None and lived.life("DeathDeclared", [e["golem_id"]]).num_rows
    )  # fmt: skip
    rows = [r for r in lived.log.life().drop_columns("recorded_at").to_pylist() if r["golem_id"] == founder]
    kinds = {kind for kind, is_sent in (("DeathDeclared", dies), ("GolemBorn", born)) if is_sent}
    records = lived.log.read_cycles(RECORD_SCHEMA.names, golems=[founder]).cast(RECORD_SCHEMA).sort_by("tick")
    with EventLog(Home.create(target, Policy(), NOW)) as log:
        kept = pc.invert(pc.is_in(records["tick"], value_set=pa.array(missing, pa.int64())))
        log.append(records.slice(0, ticks).filter(kept.slice(0, ticks)), writer="a runtime", segment=1, recorded_at=NOW)
        log.record([LifeEvent.model_validate(r) for r in rows if r["kind"] in kinds], NOW)
    return founder


def fingerprints(root: Path) -> dict[str, Any]:
    stores = DerivationContext.open(root)
    return {name: stores.projections.digest(name) for name in TABLES} | {"life": stores.log.life_version}


@pytest.mark.row("MEM-20", "MEM-21")
def test_derive_consolidates_imported_episodes_if_the_memory_tools_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tool_home(tmp_path / "home")
    for words in ("Noon slipped.", "The noon swap slipped again.", "It slipped at noon."):
        home.call("memory_store_episode", tool="swap", outcome={"pnl": -1}, reflection=words, chain="base")
        home.wait(minutes=1)
    archive = home.call("memory_export_grimoire").path
    home.call("memory_import_grimoire", golem=home.other, path=archive)
    monkeypatch.delenv("BARDO_MEMORY_ENABLED", raising=False)
    closed = "stored episodes wait for consolidation (golems: 2): tool memory_consolidate: the memory tools are off"
    assert f"{closed}: set BARDO_MEMORY_ENABLED=true" in bardo("derive", "--no-marts", home=home.root)
    monkeypatch.setenv("BARDO_MEMORY_ENABLED", "true")
    output = bardo("derive", "--no-marts", home=home.root)
    for golem_id in (home.golem, home.other):
        assert f"golem {golem_id}: 1 insights from 3 stored episodes" in output
        (insight,) = home.call("memory_get_insights", golem=golem_id).insights
        assert insight.content.startswith("swap on base harms: 0 of 3 runs gained")
    assert "stored episodes" not in bardo("derive", "--no-marts", home=home.root)


@pytest.mark.full
@pytest.mark.row("P-3", "INH-2")
def test_derive_completes_a_death_and_an_heir_inherits_its_bundle(brief_home: Path, tmp_path: Path) -> None:
    founder = founder_home(brief_home, root := tmp_path / "home")
    output = bardo("derive", "--no-marts", home=root)
    stores = DerivationContext.open(root)
    assert [phase.kind for phase in phases_of(stores)[founder]] == list(PHASES_OF_DYING)
    bundle_hash = published_bundles(stores)[founder]
    assert load_bundle(stores.home, bundle_hash).entries().num_rows > 0
    assert phases_of(stores)[founder][-1].payload["notice"] in output
    page = re.search(r"explained in (\S+index\.html)", output)
    assert page is not None
    assert bundle_hash in (Path(page[1]).parent / "bundles.txt").read_text()
    before = fingerprints(root)
    again = bardo("derive", "--no-marts", home=root)
    assert "explained in" not in again, "Data Docs are written once"
    assert founder not in again
    assert fingerprints(root) == before, "a second call changes nothing"
    bardo("golem", "successor", founder, "--budget", "50", home=root)
    (birth,) = [e["born"] for e in stores.life("GolemBorn").to_pylist() if e["born"]["predecessor_id"] == founder]
    assert birth["bundle_hash"] == bundle_hash


@pytest.mark.full
@pytest.mark.row("P-3")
def test_derive_names_the_missing_ticks_of_a_death_and_the_cure_completes_it(brief_home: Path, tmp_path: Path) -> None:
    founder = founder_home(brief_home, root := tmp_path / "home", ticks=90)
    output = bardo("derive", "--no-marts", home=root)
    cure = re.search(r"`bardo (accept-gap (\S+) 91 (\d+)) --why \"...\"`", output)
    assert cure is not None, output
    assert cure[2] == founder
    assert "accept-gap" in bardo("status", home=root)
    assert cure[1] in " ".join(bardo("golem", "death", founder, home=root).split())
    refused = bardo("accept-gap", founder, "80", "95", "--why", "test", home=root, expect=2)
    assert f"its missing ticks: 91 to {cure[3]}" in refused
    bardo(*cure[1].split(), "--why", "its disk was lost", home=root)
    assert "its death is not completed" not in bardo("derive", "--no-marts", home=root)
    assert founder in published_bundles(DerivationContext.open(root))


def test_derive_names_a_death_without_a_birth(brief_home: Path, tmp_path: Path) -> None:
    founder = founder_home(brief_home, root := tmp_path / "home", born=False)
    assert f"golem {founder} died" in (output := bardo("derive", "--no-marts", home=root))
    assert "send its GolemBorn event" in output


@pytest.mark.full
def test_derive_names_the_gap_of_a_living_golem(brief_home: Path, tmp_path: Path) -> None:
    founder = founder_home(brief_home, root := tmp_path / "home", dies=False, missing=(60, 61))
    output = bardo("derive", "--no-marts", home=root)
    assert f"golem {founder} waits: ticks 60 to 61 are missing" in output
    assert f"accept-gap {founder} 60 61" in " ".join(output.split())
    bardo("accept-gap", founder, "60", "61", "--why", "its disk was lost", home=root)
    assert founder not in bardo("derive", "--no-marts", home=root)


@pytest.mark.full
@pytest.mark.row("P-3", "P-4")
def test_derive_builds_the_marts_unless_a_published_bundle_is_altered(small_home: Path, tmp_path: Path) -> None:
    root = home_without_verdicts(small_home, tmp_path / "home")
    output = bardo("derive", home=root)
    assert re.search(r"\d+ marts with [\d,]+ rows; \d+ dbt tests passed", output)
    rows = orjson.loads(
        bardo("sql", "select golem_id, bundle_hash, bundle_passed from fct_deaths", "--format", "json", home=root)
    )
    stores = DerivationContext.open(root)
    assert {row["golem_id"]: row["bundle_hash"] for row in rows} == published_bundles(stores)
    assert all(row["bundle_passed"] for row in rows)
    altered, before = rows[0]["bundle_hash"], stores.home.warehouse.read_bytes()
    (stores.home.bundles / altered / "playbook.md").write_text("do as I say")
    refused = bardo("derive", home=root, expect=2)
    assert altered in refused
    assert "the warehouse is unchanged" in refused
    assert stores.home.warehouse.read_bytes() == before


@pytest.mark.full
@pytest.mark.row("P-3")
def test_derive_gives_the_tables_and_events_of_the_death_job(
    small_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dagster as dg

    from tests.definitions.running import run

    by_command, by_job = (home_without_verdicts(small_home, tmp_path / name) for name in ("command", "job"))
    bardo("derive", "--no-marts", home=by_command)
    monkeypatch.setenv("BARDO_HOME", str(by_job))
    for job in ("dream_job", "curator_job", "death_job"):
        assert run(job, dg.DagsterInstance.ephemeral()).success
    first, second = fingerprints(by_command), fingerprints(by_job)
    assert {name: first[name] for name in TABLES} == {name: second[name] for name in TABLES}
    events = [
        {(row["kind"], row["event_id"]) for row in DerivationContext.open(root).log.life().to_pylist()}
        for root in (by_command, by_job)
    ]
    assert events[0] == events[1]
    assert {kind for kind, _ in events[0]} >= set(DERIVED)
