"""The newest row of each golem: a cached result that is updated equals a full read; and writers that meet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bardo_pipeline.grimoire.entry_columns import newest_per_golem
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta import append_only_table
from bardo_pipeline.storage.delta.table_digest import Digest
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


@pytest.mark.row("P-2")
def test_writers_that_meet_count_the_rows_of_both_in_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process commits after a writer has written its rows and before it commits them."""
    table, another = table_in(tmp_path), table_in(tmp_path)
    table.append(pa.concat_tables([versions("g-2", 1), versions("g-1", 1, 2)]), {"g-1": 2, "g-2": 1})
    honest = append_only_table.write_parquet

    def meet(write: Callable[[], object]) -> None:
        def late(*args: Any, **more: Any) -> Path:
            monkeypatch.setattr(append_only_table, "write_parquet", honest)
            write()
            return honest(*args, **more)

        monkeypatch.setattr(append_only_table, "write_parquet", late)

    def repair(by: GrowingTable, golem_id: str, *numbers: int) -> None:
        standing = by.read(golems=[golem_id], hidden=True)
        by.repair(standing, versions(golem_id, *numbers), pa.array(["a strike"] * standing.num_rows))

    def agree(*wanted: tuple[str, int]) -> None:
        for reader in (table, another, table_in(tmp_path)):
            newest = reader.newest("version", ["version", "cycle"]).sort_by("golem_id")
            assert list(zip(newest["golem_id"].to_pylist(), newest["version"].to_pylist(), strict=True)) == [*wanted]
            assert reader.digest() == Digest.of(reader.read())

    meet(lambda: another.append(versions("g-2", 2), {"g-2": 2}))
    table.append(versions("g-1", 3), {"g-1": 3})
    agree(("g-1", 3), ("g-2", 2))
    meet(lambda: (repair(another, "g-2", 1), another.newest("version", ["version", "cycle"])))
    repair(table, "g-1", 1)
    agree(("g-1", 1), ("g-2", 1))
    meet(lambda: repair(another, "g-2", 1, 2))
    table.append(versions("g-1", 4), {"g-1": 4})
    agree(("g-1", 4), ("g-2", 2))
