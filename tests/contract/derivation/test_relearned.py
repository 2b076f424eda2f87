"""A lesson that a golem inherited, lost and learned again is one grimoire entry, under an id of its own."""

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
def test_a_relearned_entry_replaces_the_inherited_entry(small_home: Path, tmp_path: Path) -> None:
    stores = DerivationContext.open(copy_home(small_home, tmp_path / "home"))
    before = stores.projections.read("grimoire")
    golem_id = before["golem_id"][0].as_py()
    golem_rows = before.filter(pc.equal(before["golem_id"], golem_id))
    structure, entry_id = golem_rows["structure"][0].as_py(), golem_rows["entry_id"][0].as_py()
    restored = load_state(stores, [golem_id], stores.left_out())
    (row,) = restored.state.find_keys(golem_rows["golem_id"].slice(0, 1), golem_rows["structure"].slice(0, 1))
    restored.state["origin"][row] = restored.state.golem_code("g-ancestor")
    decisions = stores.projections.read("curation")
    decisions = decisions.filter(
        pc.and_(pc.equal(decisions["golem_id"], golem_id), pc.equal(decisions["structure"], structure))
    ).slice(0, 1)
    empty = Curation(*(stores.projections.read(name).slice(0, 0) for name in ("curation", "cycles", "playbooks")))
    restored._add(replace(empty, decisions=decisions), {golem_id: restored.done[golem_id] + 1})
    written = commit_curation(stores, restored)
    after = stores.projections.read("grimoire")
    assert (written[-1].table, written[-1].rows_written, after.num_rows) == ("grimoire", 1, before.num_rows)
    (relearned,) = after.filter(
        pc.and_(pc.equal(after["golem_id"], golem_id), pc.equal(after["structure"], structure))
    ).to_pylist()
    assert (relearned["origin_golem_id"], relearned["entry_id"] == entry_id) == ("g-ancestor", False)
