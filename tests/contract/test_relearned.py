"""What a golem inherited, lost and learned again is one entry of its grimoire, under an id of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pytest

from bardo_pipeline.curator.curate import Curation
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import commit_curation
from bardo_pipeline.derivation.curation.curator_state import load_state
from tests.conftest import copy_home


@pytest.mark.row("MEM-6")
def test_an_entry_learned_again_takes_the_place_of_the_one_that_was_inherited(small_home: Path, tmp_path: Path) -> None:
    stores = DerivationContext.open(copy_home(small_home, tmp_path / "home"))
    before = stores.projections.read("grimoire")
    golem_id = before["golem_id"][0].as_py()
    mine = before.filter(pc.equal(before["golem_id"], golem_id))
    structure, known = mine["structure"][0].as_py(), mine["entry_id"][0].as_py()
    mind = load_state(stores, [golem_id], stores.left_out())
    (row,) = mind.state.find_keys(mine["golem_id"].slice(0, 1), mine["structure"].slice(0, 1))
    mind.state["origin"][row] = mind.state.golem_code("g-ancestor")
    told = stores.projections.read("curation")
    told = told.filter(pc.and_(pc.equal(told["golem_id"], golem_id), pc.equal(told["structure"], structure))).slice(
        0, 1
    )
    empty = Curation(*(stores.projections.read(name).slice(0, 0) for name in ("curation", "cycles", "playbooks")))
    mind._add(replace(empty, decisions=told), {golem_id: mind.done[golem_id] + 1})
    written = commit_curation(stores, mind)
    after = stores.projections.read("grimoire")
    assert (written[-1].table, written[-1].rows_written, after.num_rows) == ("grimoire", 1, before.num_rows)
    (left,) = after.filter(
        pc.and_(pc.equal(after["golem_id"], golem_id), pc.equal(after["structure"], structure))
    ).to_pylist()
    assert (left["origin_golem_id"], left["entry_id"] == known) == ("g-ancestor", False)
