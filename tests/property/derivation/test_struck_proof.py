"""The removal proof names every remaining row, vector, page or mart that depends on a struck record."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.dreams.derive_dreams import DREAM_TABLES
from bardo_pipeline.derivation.legacy.bundle_candidates import candidate_folder
from bardo_pipeline.derivation.memory.derive_episodes import episode_index
from bardo_pipeline.derivation.repair.removal_proof import remains
from bardo_pipeline.derivation.strikes_and_reorgs import strike
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.warehouse.build import build_warehouse
from tests.conftest import NOW
from tests.property.derivation.test_laws import POLICY, stores_at
from tests.support.homes.homes_to_repair import GROWING, RENEWED, births, derive_all_again, inherited_evidence, line


@pytest.fixture(scope="module")
def repaired(
    two_lineages: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, pa.Table], tuple[str, str]]:
    """Return a home with a struck record, derived again; its rows before the strike; the golem and its heir."""
    root = tmp_path_factory.mktemp("proof") / "home"
    shutil.copytree(two_lineages, root)
    stores = stores_at(root, POLICY)
    golem, heir = line(stores)
    before = {name: stores.projections.read(name) for name in TABLES}
    strike(stores, golem, inherited_evidence(stores, golem, heir)[0], "its sensor lied", now=NOW)
    derive_all_again(stores)
    stores.log.close()
    return root, before, (golem, heir)


ELSEWHERE = (*DREAM_TABLES, "lessons", "failures", "scars", "kits")
"""Tables of golems that live for weeks, get hurt or are many: laws of dreams, scars, libraries strike their records."""

UNTOUCHED = {
    "playbooks": {"version": 99},
    "credits": {"entry_id": "f" * 24},
    "links": {"other_id": "f" * 24},
    "shelved_playbooks": {"version": 99},
}
"""Tables that the strike does not change, with a change that makes one of their rows invalid."""


@pytest.fixture
def stores(repaired: tuple[Path, dict[str, pa.Table], tuple[str, str]], tmp_path: Path) -> DerivationContext:
    shutil.copytree(repaired[0], tmp_path / "home")
    return stores_at(tmp_path / "home", POLICY)


def stale_rows(stores: DerivationContext, before: pa.Table, name: str) -> pa.Table:
    """Return the rows from before the strike that are gone now."""
    now = stores.projections.read(name).to_pylist()
    old = [row for row in before.to_pylist() if row not in now]
    if name in UNTOUCHED:  # these rows do not depend on the struck record; a row that no run wrote must be found too
        (struck,) = stores.life("RecordStruck")["golem_id"].to_pylist()
        link = {"entry_id": "a" * 24, "relation": "agrees", "across": "regime", "strength_ppm": 1}
        last = [row for row in now if row["golem_id"] == struck][-1] if now else {"golem_id": struck, **link}
        old = [last | UNTOUCHED[name]]
    assert old, f"the strike changed nothing in {name}"
    return pa.Table.from_pylist(old, schema=TABLES[name].schema)


def plant(stores: DerivationContext, name: str, row: pa.Table) -> None:
    """Insert a row that no run derived."""
    if name in GROWING:
        stores.projections.growing(name).put(row, {"liar": 1})
    else:
        table = stores.projections.replaceable(name)
        buckets = table.buckets(row[TABLES[name].key[0]].to_pylist())
        held = table.read(buckets)
        same = [pc.equal(held[key], row[key][0]) for key in TABLES[name].key]
        others = held.filter(pc.invert(reduce(pc.and_, same)))
        table.replace(pa.concat_tables([others, row]), buckets)


@pytest.mark.row("X-4")
def test_nothing_remains_after_a_repair(stores: DerivationContext) -> None:
    assert remains(stores) == []


@pytest.mark.full
@pytest.mark.row("X-4", "EV-8")
@pytest.mark.parametrize("name", [n for n in (*GROWING, *RENEWED) if n not in ELSEWHERE])
def test_a_stale_row_of_each_table_is_named(
    name: str, stores: DerivationContext, repaired: tuple[Path, dict[str, pa.Table], tuple[str, str]]
) -> None:
    lie = stale_rows(stores, repaired[1][name], name).slice(0, 1)
    plant(stores, name, lie)
    row = lie.to_pylist()[0]
    selected = [remnant for remnant in remains(stores) if remnant.place == name]
    assert selected, name
    if "golem_id" in row:
        assert row["golem_id"] in {remnant.golem_id for remnant in selected}
    result = " ".join(remnant.row for remnant in selected)
    assert all(str(row[key]) in result for key in TABLES[name].key if key != "golem_id" and name != "testaments")


@pytest.mark.row("X-4")
def test_rows_remain_in_every_affected_table_before_a_repair(two_lineages: Path, tmp_path: Path) -> None:
    shutil.copytree(two_lineages, tmp_path / "home")
    stores = stores_at(tmp_path / "home", POLICY)
    golem, heir = line(stores)
    strike(stores, golem, inherited_evidence(stores, golem, heir)[0], "its sensor lied", now=NOW)
    places = {remnant.place for remnant in remains(stores)}
    assert places - {*ELSEWHERE} == {*GROWING, *RENEWED, "index of episodes"} - {*UNTOUCHED, *ELSEWHERE}


@pytest.mark.row("X-4")
def test_a_stale_decision_is_named_with_its_struck_tick(
    stores: DerivationContext, repaired: tuple[Path, dict[str, pa.Table], tuple[str, str]]
) -> None:
    (tick,) = {e["struck"]["tick"] for e in stores.life("RecordStruck").to_pylist()}
    golem, heir = repaired[2]
    old = stale_rows(stores, repaired[1]["curation"], "curation")
    table = old.filter(pc.equal(old["golem_id"], golem))
    (where,) = [i for i, ticks in enumerate(table["cause_ticks"].to_pylist()) if tick in ticks][:1]
    plant(stores, "curation", table.slice(where, 1))
    assert f"names tick {tick}, which is left out" in {
        remnant.says for remnant in remains(stores) if remnant.golem_id == golem
    }
    rows = old.filter(pc.and_(pc.equal(old["golem_id"], heir), pc.equal(old["operation"], "received")))
    stores.projections.growing("curation").put(rows.slice(0, 1), {"another liar": 1})
    bundle = births(stores)[heir]["bundle_hash"]
    assert f"was retracted from bundle {bundle}" in {o.says for o in remains(stores) if o.golem_id == heir}


@pytest.mark.row("X-4")
def test_a_stale_vector_in_the_index_is_named(stores: DerivationContext) -> None:
    (event,) = stores.life("RecordStruck").to_pylist()
    index = episode_index(stores)
    mark = index.watermark()
    assert mark is not None
    opened = index._open(mark.build)
    golem, tick = event["golem_id"], event["struck"]["tick"]
    lie = {"episode_id": f"{golem}:{tick}", "golem_id": golem, "tick": tick, "text": "a lie", "text_hash": "0" * 16}
    opened.episodes.add([{**lie, "version": mark.version}])
    selected = [remnant for remnant in remains(stores) if remnant.place == "index of episodes"]
    assert [(remnant.golem_id, remnant.row) for remnant in selected] == [(golem, f"{golem}:{tick}")]
    vector = [0.5] * index.dimension
    opened.texts.add([{"text_hash": "f" * 16, "text": "a lie", "vector": vector, "version": mark.version}])
    assert f"text {'f' * 16}" in {remnant.row for remnant in remains(stores)}


@pytest.mark.row("X-4")
def test_a_stale_playbook_file_is_named(
    stores: DerivationContext, repaired: tuple[Path, dict[str, Any], tuple[str, str]]
) -> None:
    page = stores.home.playbooks / repaired[2][0] / "PLAYBOOK.md"
    page.write_text(page.read_text() + "- (warning, 99 %) believe the struck record\n")
    assert [(remnant.place, remnant.row) for remnant in remains(stores)] == [("playbook files", str(page))]


@pytest.mark.row("X-4")
def test_a_candidate_without_its_bundle_is_named(
    stores: DerivationContext, repaired: tuple[Path, dict[str, pa.Table], tuple[str, str]]
) -> None:
    golem = repaired[2][0]
    rows = stores.projections.growing("candidates").read(golems=[golem]).to_pylist()
    shutil.rmtree(candidate_folder(stores) / rows[0]["bundle_hash"])
    assert [remnant.place for remnant in remains(stores)] == ["candidates"]
    assert "there is no bundle" in remains(stores)[0].says


@pytest.mark.full
@pytest.mark.row("X-4", "EV-8")
def test_a_stale_row_of_a_mart_is_named(stores: DerivationContext, tmp_path: Path) -> None:
    build_warehouse(stores.home, stores.derivation_id, stores.policy)
    assert remains(stores) == []
    (event,) = stores.life("RecordStruck").to_pylist()
    golem, tick = event["golem_id"], event["struck"]["tick"]
    lies: dict[str, Callable[[duckdb.DuckDBPyConnection], object]] = {
        "fct_ticks": lambda c: c.execute(
            f"insert into fct_ticks select * replace ({tick}::bigint as tick) from fct_ticks "
            f"where golem_id = '{golem}' limit 1"
        ),
        "fct_knowledge": lambda c: c.execute(
            "insert into fct_knowledge select * replace ('e-lie' as entry_id) from fct_knowledge "
            f"where golem_id = '{golem}' limit 1"
        ),
        "fct_consensus": lambda c: c.execute("update fct_consensus set votes_hash = 'of other votes'"),
    }
    for mart, lie in lies.items():
        honest = stores.home.warehouse.read_bytes()
        with duckdb.connect(stores.home.warehouse) as connection:
            lie(connection)
        assert {remnant.place for remnant in remains(stores)} == {mart}
        stores.home.warehouse.write_bytes(honest)
