"""Assets of one owner (BARDO_OWNER): each shows that owner's rows of a table or mart. None of them derives anything."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pyarrow as pa

from assets.marts import SPECS
from assets.metadata import OWNERS, markdown_table, of_table
from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.storage.delta.table_digest import Digest
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.warehouse.owner_database import query_of_owner

_BULKY = {"vector"}
"""Columns that are not shown."""


def _of_projection(table: str) -> dg.AssetsDefinition:
    @dg.asset(name=table, description=f"The owner's rows of {table}.", **of_table(table, "owner"))
    def view(home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
        rows = home.stores.projections.read(table)
        names = [name for name in rows.column_names if name not in _BULKY]
        return _shown(rows.num_rows, rows.select(names).slice(0, 50).to_pylist(), Digest.of(rows).fingerprint)

    return view


def _of_mart(mart: str) -> dg.AssetsDefinition:
    description = f"The owner's rows of {mart}."

    @dg.asset(name=mart, group_name="marts", owners=OWNERS, kinds={"duckdb"}, description=description)
    def view(home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
        propositions = home.stores.projections.read("consensus")["proposition_id"].to_pylist()
        names, rows = query_of_owner(home.stores.home, _owner(home.stores), propositions, f"from {mart}")
        records = [dict(zip(names, row, strict=True)) for row in rows]
        return _shown(len(rows), records[:50], Digest.of(pa.table({"row": [repr(row) for row in rows]})).fingerprint)

    return view


def _owner(stores: DerivationContext) -> str:
    assert stores.owner is not None, "these assets are defined for a named owner only"
    return stores.owner


def _shown(count: int, rows: list[dict[str, Any]], fingerprint: str) -> dg.MaterializeResult:
    facts: dict[str, Any] = {"dagster/row_count": count, "rows": markdown_table(rows)}
    return dg.MaterializeResult(metadata=facts, data_version=dg.DataVersion(fingerprint))


VIEWS = [*map(_of_projection, TABLES), *(_of_mart(spec.key.to_user_string()) for spec in SPECS)]
"""One asset per projection and mart."""

show_job = dg.define_asset_job("show_job", VIEWS, description="Show the owner's rows of every table and mart.")
