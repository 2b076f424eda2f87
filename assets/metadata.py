"""What every materialization says: what was written, from what, by which derivation, with which fingerprint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from bardo_pipeline.derivation.context import DEFAULT_EMBEDDER, DerivationContext
from bardo_pipeline.derivation.derivation_id import derivation_id
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta.table_digest import Digest, Written
from bardo_pipeline.storage.embedding.embedders import embedder_version
from bardo_pipeline.storage.projections.table_specs import TABLES

OWNERS = ["team:bardo"]
CODE_VERSION = derivation_id(Policy(), embedder_version(DEFAULT_EMBEDDER))
"""The derivation that this code makes of a home that adopted none; what a home made, its materializations say. Another
policy, pass or embedder shows in the UI as changed code."""


def columns_of(schema: pa.Schema, key: Sequence[str]) -> dict[str, Any]:
    """A table's columns with their types, as the UI shows them; the key is marked."""
    columns = [
        dg.TableColumn(
            field.name,
            str(field.type),
            description="key" if field.name in key else None,
            constraints=dg.TableColumnConstraints(nullable=field.nullable),
        )
        for field in schema
    ]
    return {"dagster/column_schema": dg.TableSchema(columns), "key": ", ".join(key)}


def of_table(table: str, group: str, *kinds: str) -> dict[str, Any]:
    """What the asset of a projection says of itself before it is made, as arguments of its declaration."""
    spec = TABLES[table]
    return {
        "group_name": group,
        "kinds": {"deltalake", *kinds},
        "owners": OWNERS,
        "code_version": CODE_VERSION,
        "metadata": columns_of(spec.schema, spec.key) | {"written": "appended" if spec.grows else "renewed by bucket"},
    }


@dataclass(frozen=True)
class Seen:
    """What a derivation had before it when it began.

    golem_count, tick_max, heads_fingerprint: how many golems the log knows, the highest tick up to which one of them is
    complete, and the fingerprint of how far each has come. tables: the projections that are read, with version and
    fingerprint.
    """

    log_version: int
    life_version: int
    golem_count: int
    tick_max: int
    heads_fingerprint: str
    tables: Mapping[str, Mapping[str, Any]]

    @classmethod
    def before(cls, stores: DerivationContext, tables: Iterable[str] = ()) -> Seen:
        """Look at the log and at the tables that will be read."""
        version, life_version, heads = stores.log.version, stores.log.life_version, stores.log.heads()
        read = {
            name: {"version": version_of(stores, name), "fingerprint": stores.projections.digest(name).fingerprint}
            for name in tables
        }
        tick_max = pc.max(heads["contiguous"]).as_py() or 0
        return cls(version, life_version, heads.num_rows, tick_max, Digest.of(heads).fingerprint, read)


def version_of(stores: DerivationContext, table: str) -> int:
    """The Delta version of a projection."""
    if TABLES[table].grows:
        return stores.projections.growing(table).table.version
    return int(DeltaTable(stores.projections.renewed(table).path).version())


def materialized(
    stores: DerivationContext,
    asset: str,
    seen: Seen,
    digest: Digest,
    *,
    rows_written: int,
    version: int,
    more: Mapping[str, Any] | None = None,
) -> dg.MaterializeResult:
    """A materialization under its fingerprint: the same content has the same data version, whoever wrote it when."""
    metadata = {
        "dagster/row_count": digest.rows,
        "rows_written": rows_written,
        "table_version": version,
        "fingerprint": digest.fingerprint,
        "derivation_id": stores.derivation_id,
        "policy_hash": stores.policy.hash,
        "log_version": seen.log_version,
        "life_version": seen.life_version,
        "golem_count": seen.golem_count,
        "tick_max": seen.tick_max,
        "heads_fingerprint": seen.heads_fingerprint,
        "inputs": dg.MetadataValue.json(dict(seen.tables)),
        **(more or {}),
    }
    return dg.MaterializeResult(asset_key=asset, metadata=metadata, data_version=dg.DataVersion(digest.fingerprint))


def projected(
    stores: DerivationContext,
    table: str,
    seen: Seen,
    written: Iterable[Written],
    *,
    asset: str | None = None,
    more: Mapping[str, Any] | None = None,
) -> dg.MaterializeResult:
    """A projection's materialization. Where nothing was new, no row was written and the standing fingerprint counts."""
    rows, digest = sum(w.rows_written for w in written if w.table == table), stores.projections.digest(table)
    return materialized(
        stores, asset or table, seen, digest, rows_written=rows, version=version_of(stores, table), more=more
    )


def markdown_table(rows: Sequence[Mapping[str, Any]], *, rows_max: int = 50) -> dg.MarkdownMetadataValue:
    """Rows as a table for the UI, the first of them if there are many."""
    if not rows:
        return dg.MetadataValue.md("none")
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(map(str, row.values()) for row in rows[:rows_max])]
    cells = [[text.replace("|", "\\|").replace("\n", " ") for text in line] for line in lines]
    rest = f"\n\nand {len(rows) - rows_max} more" if len(rows) > rows_max else ""
    return dg.MetadataValue.md("\n".join(f"| {' | '.join(line)} |" for line in cells) + rest)
