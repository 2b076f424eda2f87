"""The command line: exit codes, hints in errors, and answers traced to ticks."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.storage.delta.table_specs import TABLES
from tests.conftest import copy_home
from tests.support.processes.bardo_command import bardo


@pytest.mark.row("P-4")
def test_sql_answers_as_table_csv_and_json(two_owners_home: Path) -> None:
    question = "select golem_id, owner_id, text from dim_golem order by golem_id"
    listed = json.loads(bardo("sql", question, "--format", "json", home=two_owners_home))
    read = list(csv.DictReader(io.StringIO(bardo("sql", question, "--format", "csv", home=two_owners_home))))
    assert read == listed
    assert sorted(r["text"] for r in listed) == ["coral text", "pearl text"]
    table = bardo("sql", question, home=two_owners_home)
    assert all(r["golem_id"] in table for r in listed)


def test_an_invalid_command_is_refused_with_a_hint(two_owners_home: Path, tmp_path: Path) -> None:
    assert "bardo: " in bardo("sql", "from nowhere", home=two_owners_home, expect=2)
    assert "bardo demo" in bardo("status", home=tmp_path / "none", expect=2)
    assert "LOW-HIGH" in bardo("run", "--lifespan", "long", home=tmp_path / "none", expect=2)
    assert "steer" in bardo("run", "--steer", "hold", home=tmp_path / "none", expect=2)
    assert not (tmp_path / "none").exists(), "a refused command created a home"


@pytest.mark.row("X-2", "INH-19")
def test_lineage_leads_from_an_inherited_entry_to_ticks_of_the_ancestor(asked_home: Path) -> None:
    stores = DerivationContext.open(asked_home)
    predecessors = {e["golem_id"]: e["born"]["predecessor_id"] for e in stores.life("GolemBorn").to_pylist()}
    rows = stores.projections.read("grimoire").to_pylist()
    known = {(r["golem_id"], r["entry_id"]) for r in rows}
    row = next(r for r in rows if (predecessors[r["golem_id"]], r["entry_id"]) in known)
    words = ("lineage", row["entry_id"], "--golem", row["golem_id"], "--format", "json")
    line = json.loads(bardo(*words, home=asked_home))
    ancestor, heir = line[0], line[-1]
    assert heir["golem_id"] == row["golem_id"]
    assert heir["from_golem_id"] == ancestor["golem_id"]
    assert ancestor["bundle_hash"] is None
    assert ancestor["ticks"], "own entries must have ticks"
    recorded = stores.log.read_cycles(["tick"], golems=[ancestor["golem_id"]])["tick"].to_pylist()
    assert {t["tick"] for t in ancestor["ticks"]} <= {*recorded}
    assert ancestor["golem_id"] in bardo("lineage", row["entry_id"][:12], home=asked_home)
    assert "no entry begins with" in bardo("lineage", "zzzz", home=asked_home, expect=2)


@pytest.mark.full
@pytest.mark.row("X-1")
def test_rebuild_equals_the_projections_now_and_as_of_earlier_times(asked_home: Path) -> None:
    assert "DIFFERENT" not in bardo("rebuild", home=asked_home)
    for earlier in (("--as-of", "2026-01-01T05:00"), ("--as-of", "2026-01-01T08:31"), ("--as-of-version", "8")):
        output = bardo("rebuild", *earlier, home=asked_home)
        assert "DIFFERENT" not in output, earlier
        assert output.count("equal") == len(TABLES)


@pytest.mark.full
@pytest.mark.row("X-1")
def test_rebuild_reports_tables_that_were_altered_in_place(asked_home: Path, tmp_path: Path) -> None:
    touched = copy_home(asked_home, tmp_path / "touched")
    stores = DerivationContext.open(touched)
    grimoire = stores.projections.replaceable("grimoire")
    rows = grimoire.read()
    bucket = grimoire.buckets(rows["golem_id"].to_pylist()[:1])
    selected = grimoire.read(bucket)
    grimoire.replace(selected.slice(1), bucket)
    for name in (file.path for file in stores.projections.growing("votes").table.tail()[1]):
        table = pq.read_table(name)
        doubted = pa.array([1] * table.num_rows, pa.int64())
        place = table.schema.get_field_index("confidence_ppm")
        pq.write_table(table.set_column(place, table.schema.field(place), doubted), name)
    output = bardo("rebuild", home=touched, expect=1)
    different = {line.split()[0] for line in output.splitlines() if "DIFFERENT" in line and line.split()[0] in TABLES}
    assert different == {"grimoire", "votes"}, output


def test_status_shows_tables_and_gaps(asked_home: Path) -> None:
    output = bardo("status", home=asked_home)
    assert all(name in output for name in ("curation", "grimoire", "votes", "candidates"))
    assert "Gaps" not in output
    assert "not all missing" in bardo("accept-gap", "g-none", "1", "2", "--why", "lost", home=asked_home, expect=2)


@pytest.mark.row("HB-4")
def test_a_steer_forces_tier_t2_and_is_recorded(tmp_path: Path) -> None:
    home = tmp_path / "steered"
    words = ["run", "--golems", "2", "--generations", "1", "--bars", "200", "--lifespan", "500-600", "--no-marts"]
    steers = ["--steer", "*@70:what now", "--steer", "*@80?look at gas"]
    assert "records" in bardo(*words, *steers, home=home)
    rows = (
        DerivationContext.open(home).log.read_cycles(["tick", "tier", "forced_by", "active_interventions"]).to_pylist()
    )
    by_key = {t: [r for r in rows if r["tick"] == t] for t in (70, 80)}
    assert {r["tier"] for r in by_key[70]} == {"T2"}
    assert {r["forced_by"] for r in by_key[70]} == {"steer"}
    assert [r["active_interventions"][0]["kind"] for r in by_key[80]] == ["follow_up"] * 2
    assert {r["forced_by"] for r in by_key[80]} == {None}
    assert DerivationContext.open(home).log.life("OwnerSteered").num_rows == 4
