"""A build that keeps rows of the warehouse in force equals a build of every row, in content and order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow.compute as pc
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.derive_home import derive_home
from bardo_pipeline.derivation.strikes_and_reorgs import strike
from bardo_pipeline.events.experience.stored_text import StoredText
from bardo_pipeline.events.life.events import life_event
from bardo_pipeline.policy import DecayPolicy, Policy
from bardo_pipeline.project_files import DBT_PROJECT
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal.event_writer import EventWriter
from bardo_pipeline.storage.warehouse.build import build_warehouse, query
from bardo_pipeline.storage.warehouse.dbt_docs import docs_page
from bardo_pipeline.storage.warehouse.kept_rows import BY_GOLEM
from tests.conftest import NOW, copy_home
from tests.crash.roles import line_of

pytestmark = pytest.mark.full


def built(stores: DerivationContext, policy: Policy | None = None) -> dict[str, str]:
    """Build the warehouse and return the content of each mart in its stored order."""
    rows = build_warehouse(stores.home, stores.derivation_id, policy or stores.policy).rows
    content = "select coalesce(md5(string_agg(mart::varchar, '|' order by mart.rowid)), '') from {} as mart"
    return {name: query(stores.home, content.format(name))[1][0][0] for name in rows}


def built_anew(stores: DerivationContext, beside: Path, policy: Policy | None = None) -> dict[str, str]:
    """Build the warehouse of a copy of the home in which no warehouse is."""
    copied = DerivationContext.open(copy_home(stores.home.root, beside))
    copied.home.warehouse.unlink()
    return built(copied, policy)


def record_ticks(stores: DerivationContext) -> None:
    with EventWriter.open(stores.home, "g-1", clock=lambda: NOW, writer="runtime-1") as writer:
        for tick in range(1, 4):
            writer.append(line_of("g-1", tick))


def store_text(stores: DerivationContext) -> None:
    text = StoredText(sort="episode", text="Gas doubled at noon.")
    stores.log.record([life_event(dead(stores), NOW, text)], NOW)


def strike_tick(stores: DerivationContext) -> None:
    strike(stores, dead(stores), 20, "a wrong observation", now=NOW)
    derive_home(DerivationContext.open(stores.home.root), clock=lambda: NOW, marts=False)


def reword_retrieved_entry(stores: DerivationContext) -> None:
    shown = "select golem_id, entry_id from fct_retrievals where entry_text is not null order by all limit 1"
    ((golem_id, entry_id),) = query(stores.home, shown)[1]
    for name in ("grimoire", "lessons"):
        table = stores.projections.replaceable(name)
        rows = table.read()
        chosen = pc.and_(pc.equal(rows["golem_id"], golem_id), pc.equal(rows["entry_id"], entry_id))
        if pc.any(chosen).as_py():
            text = pc.if_else(chosen, "Reworded.", rows["text"])
            rows = rows.set_column(rows.schema.get_field_index("text"), rows.schema.field("text"), text)
            table.replace(rows, table.buckets(rows["golem_id"].to_pylist()))


def dead(stores: DerivationContext) -> str:
    return min(stores.life("LegacyLeft")["golem_id"].to_pylist())


@pytest.mark.row("P-4", "X-1")
def test_kept_rows_equal_rows_made_again_after_each_kind_of_change(brief_home: Path, tmp_path: Path) -> None:
    root = copy_home(brief_home, tmp_path / "home")
    before = built(DerivationContext.open(root))
    assert built(DerivationContext.open(root)) == before, "nothing has changed"
    changes: tuple[Callable[[DerivationContext], None], ...] = (
        record_ticks, store_text, reword_retrieved_entry, strike_tick,
    )  # fmt: skip
    for change in changes:
        change(DerivationContext.open(root))
        stores = DerivationContext.open(root)
        after = built(stores)
        assert after == built_anew(stores, tmp_path / change.__name__), change.__name__
        assert after != before, change.__name__
        before = after
    other = Policy(decay=DecayPolicy(routine_days=1.0))
    changed = built(stores, other)
    assert changed == built_anew(stores, tmp_path / "policy", other)
    assert changed["fct_episodes"] != before["fct_episodes"], "a text is retained for a shorter time"


@pytest.mark.row("P-4")
def test_rows_of_unchanged_golems_are_kept(brief_home: Path, tmp_path: Path) -> None:
    stores = DerivationContext.open(copy_home(brief_home, tmp_path / "home"))
    built(stores)
    described_at = docs_page(stores.home).stat().st_mtime_ns
    ids = sorted(stores.life("GolemBorn")["golem_id"].to_pylist())
    with duckdb.connect(stores.home.warehouse) as connection:
        for mart in BY_GOLEM:
            connection.execute(f"update {mart} set owner_id = 'a mark of the kept file'")
    store_text_of = life_event(ids[0], NOW, StoredText(sort="episode", text="Gas doubled at noon."))
    stores.log.record([store_text_of], NOW)
    built(stores)
    marked = query(stores.home, "select distinct golem_id from fct_ticks where owner_id = 'a mark of the kept file'")[1]
    assert sorted(golem_id for (golem_id,) in marked) == ids[1:]
    assert docs_page(stores.home).stat().st_mtime_ns == described_at, "dbt writes its manifest for a new project only"


@pytest.mark.row("P-4")
def test_a_damaged_warehouse_is_built_anew(brief_home: Path, tmp_path: Path) -> None:
    stores = DerivationContext.open(copy_home(brief_home, tmp_path / "home"))
    sound = built(stores)
    with stores.home.warehouse.open("r+b") as file:
        size = file.seek(0, 2)
        for offset in range(3 * 4096, size, 4096):  # the three headers stay
            file.seek(offset)
            file.write(b"damage")
    assert built(stores) == sound
    stores.home.warehouse.write_bytes(b"not a database")
    assert built(stores) == sound


def test_every_mart_by_golem_calls_the_macro() -> None:
    models = DBT_PROJECT / "models" / "marts"
    assert {path.stem for path in models.glob("*.sql") if "kept_rows()" in path.read_text()} == set(BY_GOLEM)


def test_a_home_without_records_is_built_twice(tmp_path: Path) -> None:
    home = Home.create(tmp_path / "home", Policy(), NOW)
    (home.derivations / "none").mkdir()
    for _ in range(2):
        assert not any(build_warehouse(home, "none").rows.values())
