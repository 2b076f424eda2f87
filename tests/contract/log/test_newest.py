"""The newest row of each golem: a cached result that is updated equals a full read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from bardo_pipeline.grimoire.entry_columns import newest_per_golem
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.projections.projections import GrowingTable
from tests.conftest import NOW

SPEC = TABLES["playbooks"]


def table_in(folder: Path) -> GrowingTable:
    return GrowingTable("playbooks", folder / "playbooks", SPEC, Policy())


def versions(golem_id: str, *numbers: int) -> pa.Table:
    parts = {
        field.name: {regime.name: pa.scalar(1).cast(regime.type).as_py() for regime in field.type}
        for field in SPEC.schema
        if pa.types.is_struct(field.type)
    }
    row = {"golem_id": golem_id, "at": NOW, **parts, "cause_entries": [], "staged_entries": [],
           "markdown": "x"}  # fmt: skip
    return pa.Table.from_pylist([row | {"version": n, "cycle": n} for n in numbers], schema=SPEC.schema)


@pytest.mark.row("MEM-6")
def test_the_cache_includes_rows_of_other_writers_and_drops_retracted_rows(tmp_path: Path) -> None:
    table, another = table_in(tmp_path), table_in(tmp_path)

    def newest() -> list[tuple[str, int]]:
        kept = table.newest("version", ["version", "cycle"]).sort_by("golem_id")
        assert kept.equals(newest_per_golem(table.read(["golem_id", "version", "cycle"]), "version"))
        return list(zip(kept["golem_id"].to_pylist(), kept["version"].to_pylist(), strict=True))

    assert newest() == []
    table.append(pa.concat_tables([versions("g-2", 1), versions("g-1", 1, 2)]), {"g-1": 2, "g-2": 1})
    assert newest() == [("g-1", 2), ("g-2", 1)]
    another.append(versions("g-2", 2, 3), {"g-2": 3})
    assert newest() == newest() == [("g-1", 2), ("g-2", 3)]
    standing = another.read(golems=["g-2"], hidden=True)
    another.repair(standing, versions("g-2", 1, 2), pa.array(["a strike"] * standing.num_rows))
    assert newest() == [("g-1", 2), ("g-2", 2)]
    table.append(versions("g-1", 3), {"g-1": 3})
    assert newest() == [("g-1", 3), ("g-2", 2)]
