"""A home whose derivation an earlier edition of the passes made stays readable, and moves on by an adoption.

`homes/edition_15.tar.xz` is a home that version ca958540 wrote: two golems that died, and a derivation in force with
`decay.tactical_days=14`. Its keys, its index and its model were left out.
"""

from __future__ import annotations

import shutil
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bardo_pipeline.curator.choice_rules import NO_CHOICES, Choices
from bardo_pipeline.curator.curate import PASSES_EDITION
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.derive_home import derive_home
from bardo_pipeline.derivation.memory.ask import ask, golem_moment
from bardo_pipeline.derivation.versions.rebuild import rebuild
from bardo_pipeline.derivation.versions.side_derivations import adopt
from bardo_pipeline.derivation.versions.what_if import what_if
from bardo_pipeline.errors import DerivationError, SchemaVersionError
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.market.synthetic import flat_market
from bardo_pipeline.runtime.fleet_run import FleetRun
from bardo_pipeline.runtime.run_settings import Run
from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.operations.maintenance import maintain
from bardo_pipeline.storage.projections.projections import HIDDEN, Projections
from bardo_pipeline.storage.verification.verify import verify

ARCHIVE = Path(__file__).parent / "homes" / "edition_15.tar.xz"
NOW = datetime(2026, 11, 27, tzinfo=UTC)
READ_ONLY = {"curation", "playbooks", "grimoire", "facts", "lessons", "votes"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path / "home", filter="data")
    return tmp_path / "home"


@pytest.fixture
def earlier(root: Path) -> DerivationContext:
    context = DerivationContext.open(root)
    assert context.frozen is not None
    assert f"by edition 15 of the passes, and this version has edition {PASSES_EDITION}" in context.frozen
    return context


def stored(projections: Projections, name: str) -> pa.Table:
    """Read the rows without the columns of this version."""
    table = projections.growing(name) if TABLES[name].grows else projections.replaceable(name)
    return table.read_as_written()


@pytest.mark.row("EV-2", "EV-3")
def test_a_home_of_an_earlier_edition_is_clean_and_every_row_is_verified(root: Path) -> None:
    report = verify(Home.open(root))
    assert report.clean, [broken.sentence() for broken in report.breaks]
    assert report.facts["derived tables"] == len(TABLES)
    assert not [fact for fact in report.facts if "another version" in fact]
    (file,) = (root / "derivations" / "70eec1d276b0" / "grimoire").glob("*.parquet")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert "projection" in verify(Home.open(root)).counts


@pytest.mark.row("EV-2")
def test_rows_of_an_earlier_edition_have_the_columns_of_this_version(earlier: DerivationContext) -> None:
    projections = earlier.projections
    for name, spec in TABLES.items():
        rows = projections.read(name)
        assert rows.schema.equals(spec.schema), name
        rows.validate(full=True)
        assert rows.num_rows == projections.digest(name).rows
        assert projections.recounted(name) == projections.digest(name)
    facts, written = (rows.sort_by("entry_id") for rows in (projections.read("facts"), stored(projections, "facts")))
    assert facts.num_rows == 4
    for column, former in (("median", "mean"), ("p25", "low"), ("p75", "high"), ("day_count", "episode_count")):
        assert facts[column].equals(written[former])
    assert facts["p10"].unique().to_pylist() == facts["p90"].unique().to_pylist() == [0]
    votes = projections.read("votes")
    assert votes.num_rows
    assert votes["question_id"].equals(votes["proposition_id"])
    assert {Choices.of_columns(row) for row in projections.read("playbooks").to_pylist()} == {NO_CHOICES}
    entries = projections.read("grimoire")
    assert pc.all(pc.equal(entries["level_p10"], 0)).as_py()
    assert {name for name in TABLES if stored(projections, name).schema.names != TABLES[name].schema.names} == READ_ONLY


def test_tables_of_an_earlier_edition_refuse_rows_of_this_version(earlier: DerivationContext) -> None:
    projections = earlier.projections
    with pytest.raises(SchemaVersionError, match="`bardo adopt` switches"):
        projections.growing("votes").put(projections.read("votes"), {"app": 1})
    with pytest.raises(SchemaVersionError, match="`bardo whatif` derives"):
        projections.replaceable("facts").replace(projections.read("facts"), set(range(earlier.home.bucket_count)))
    with pytest.raises(DerivationError, match="it can be read, not continued"):
        derive_home(earlier, clock=lambda: NOW, marts=False)


def test_no_golem_is_born_in_a_home_that_cannot_complete_its_death(earlier: DerivationContext) -> None:
    before = earlier.log.life_version, earlier.log.version
    run = Run("late", flat_market(bars=60, start=NOW), golems=1, generations=1, founding=Founding())
    with pytest.raises(DerivationError, match="it can be read, not continued"):
        FleetRun(earlier, run, lambda: NOW).live()
    assert (earlier.log.life_version, earlier.log.version) == before


def test_maintenance_leaves_the_tables_of_an_earlier_edition_readable(earlier: DerivationContext) -> None:
    before = {name: earlier.projections.read(name) for name in TABLES}
    _rewritten_by_its_edition(earlier.projections, "votes")
    maintain(earlier.home, earlier.log, earlier.policy, now=NOW, in_force=[earlier.derivation_id])
    again = DerivationContext.open(earlier.home.root).projections
    assert {name: again.read(name) for name in TABLES} == before
    assert verify(earlier.home).clean


def _rewritten_by_its_edition(projections: Projections, name: str) -> None:
    """Write the table again, as one file that a compaction would merge."""
    rows, spec, path = stored(projections, name), TABLES[name], projections.root / name
    facts = {"digest": orjson.dumps(projections.digest(name).listed).decode()}
    shutil.rmtree(path)
    columns = [*rows.columns, pa.nulls(len(rows), pa.int64()), pa.nulls(len(rows), pa.string())]
    whole = pa.Table.from_arrays(columns, schema=pa.schema([*required_fields(rows.schema), *HIDDEN]))
    AppendOnlyTable(path, whole.schema, list(spec.stats)).append(whole, transactions={"app": 1}, facts=lambda _: facts)


def required_fields(schema: pa.Schema) -> list[pa.Field]:
    return [field.with_nullable(False) for field in schema]


@pytest.mark.full
@pytest.mark.row("EV-2", "X-1")
def test_an_adoption_moves_a_home_to_this_edition(earlier: DerivationContext) -> None:
    answer = ask(earlier, golem_moment(earlier, "g-7fdf6587"), "what does gas cost?", now=NOW)
    assert answer.hits.num_rows, "the knowledge of the earlier edition is in force until an adoption"
    compared = what_if(earlier, earlier.policy, now=NOW)
    assert compared.incomparable is None
    assert {table.table for table in compared.tables if table.only_beside} >= {"curation", "facts"}
    root = earlier.home.root
    adopt(DerivationContext.open(root), compared.name, "a newer edition", now=NOW)
    context = DerivationContext.open(root)
    assert context.frozen is None
    assert context.policy.decay.tactical_days == 14
    derive_home(context, clock=lambda: NOW, marts=False)
    assert [table.table for table in rebuild(context, now=NOW) if not table.equal] == []
    assert context.projections.digest("curation").rows
    assert verify(context.home).clean
