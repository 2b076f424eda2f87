"""Declarations of assets, and metadata of materializations: rows written, inputs, derivation id, fingerprint."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import yaml  # type: ignore[import-untyped]
from deltalake import DeltaTable

from assets.resources import BY_GOLEM, DERIVE, LazyStores
from assets.retries import retried
from bardo_pipeline.derivation.active_derivation import derivation_id
from bardo_pipeline.derivation.context import DEFAULT_EMBEDDER, DerivationContext
from bardo_pipeline.events.life.events import KIND_OF
from bardo_pipeline.events.record.model import DecisionCycleRecord
from bardo_pipeline.events.record.record_field_texts import RECORD_FIELDS
from bardo_pipeline.policy import Policy
from bardo_pipeline.project_files import COLUMN_TEXTS
from bardo_pipeline.storage.delta.table_digest import Digest, Written
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.embedding.embedders import embedder_version
from bardo_pipeline.visible_text import visible

OWNERS = ["team:bardo"]
CODE_VERSION = derivation_id(Policy(), embedder_version(DEFAULT_EMBEDDER))
"""Derivation id of the default policy, passes and embedder of this code. A change of any shows in the UI as changed
code; each materialization records the derivation id that it was made under."""


def _column_texts() -> dict[str, str]:
    """Return the description of each column, by `table.column` or `column`: those of models, then columns.yml."""
    texts = {f"log/cycles.{name}": RECORD_FIELDS.get(f"{DecisionCycleRecord.__name__}.{name}") or RECORD_FIELDS[name]
             for name in DecisionCycleRecord.model_fields}  # fmt: skip
    for content, (kind, name) in KIND_OF.items():
        meaning = (inspect.getdoc(content) or kind).splitlines()[0]
        texts[f"log/life_events.{name}"] = f"Content of {kind}. {meaning} NULL in events of another kind."
    return texts | yaml.safe_load(COLUMN_TEXTS.read_text(encoding="utf-8"))


_COLUMN_TEXTS = _column_texts()


def _described(schema: pa.Schema, key: Sequence[str], table: str | None) -> dg.TableSchema:
    """Return the columns of a table with their descriptions; those of the key say so."""
    fields = [(field, _COLUMN_TEXTS.get(f"{table}.{field.name}") or _COLUMN_TEXTS[field.name]) for field in schema]
    return dg.TableSchema(
        [
            dg.TableColumn(
                field.name,
                str(field.type),
                description=f"{text} Key." if field.name in key else text,
                constraints=dg.TableColumnConstraints(nullable=field.nullable),
            )
            for field, text in fields
        ]
    )


def of_schema(
    group: str, schema: pa.Schema, key: Sequence[str], *kinds: str, table: str | None = None
) -> dict[str, Any]:
    """Return the declaration arguments of an asset: group, kinds (default: Delta table), owners, columns, key.

    table: name by which columns.yml describes columns of this table only
    """
    return {
        "group_name": group,
        "kinds": set(kinds or ["deltalake"]),
        "owners": OWNERS,
        "metadata": {"dagster/column_schema": _described(schema, key, table), "key": ", ".join(key)},
    }


def of_table(table: str, group: str, *kinds: str) -> dict[str, Any]:
    """Return the declaration arguments of the asset of a projection, with code version and way of writing."""
    spec = TABLES[table]
    declared = of_schema(group, spec.schema, spec.key, "deltalake", *kinds, table=table)
    declared["metadata"] |= {"written": "appended" if spec.grows else "renewed by bucket"}
    return declared | {"code_version": CODE_VERSION}


@dataclass(frozen=True)
class Seen:
    """Versions and fingerprints of a derivation's inputs when it began.

    tick_max is the highest contiguous tick of any golem; heads_fingerprint covers the heads of all golems. tables maps
    each projection that is read to its version and fingerprint.
    """

    log_version: int
    life_version: int
    golem_count: int
    tick_max: int
    heads_fingerprint: str
    tables: Mapping[str, Mapping[str, Any]]

    @classmethod
    def before(cls, stores: DerivationContext, tables: Iterable[str] = ()) -> Self:
        """Read the versions of the log and of the given projections."""
        version, life_version, heads = stores.log.version, stores.log.life_version, stores.log.heads()
        read = {
            name: {"version": version_of(stores, name), "fingerprint": stores.projections.digest(name).fingerprint}
            for name in tables
        }
        tick_max = pc.max(heads["contiguous"]).as_py() or 0
        return cls(version, life_version, heads.num_rows, tick_max, Digest.of(heads).fingerprint, read)


def version_of(stores: DerivationContext, table: str) -> int:
    """Return the Delta version of a projection."""
    if TABLES[table].grows:
        return stores.projections.growing(table).table.version
    return int(DeltaTable(stores.projections.replaceable(table).path).version())


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
    """Return a materialization whose data version is the fingerprint, so equal content has an equal data version."""
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
    """Return the materialization of a projection, with its present fingerprint also if no row was written."""
    rows, digest = sum(w.rows_written for w in written if w.table == table), stores.projections.digest(table)
    return materialized(
        stores, asset or table, seen, digest, rows_written=rows, version=version_of(stores, table), more=more
    )


def projection(
    table: str,
    group: str,
    *kinds: str,
    deps: Sequence[dg.AssetKey | str],
    more: Callable[[DerivationContext], Mapping[str, Any]] | None = None,
    by_golem: bool = False,
) -> Callable[[Callable[[LazyStores], Iterable[Written]]], dg.AssetsDefinition]:
    """Decorate a function that derives one projection; the asset takes its name and docstring.

    Parameters
    ----------
    deps : upstream assets; a materialization records the versions of the projections among them (strings)
    more : further metadata, computed after the derivation
    by_golem : whether each row depends on one golem
    """

    def decorate(derive: Callable[[LazyStores], Iterable[Written]]) -> dg.AssetsDefinition:

        @dg.asset(
            name=derive.__name__,
            deps=deps,
            description=inspect.getdoc(derive),
            **(BY_GOLEM if by_golem else {"pool": DERIVE}),
            **of_table(table, group, *kinds),
        )
        @retried
        def asset(context: dg.AssetExecutionContext, home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
            stores = home.stores
            seen = Seen.before(stores, [name for name in deps if isinstance(name, str)])
            written = [row for part in home.parts(context) for row in derive(part)]
            facts = more(stores) if more else None
            return projected(stores, table, seen, written, asset=derive.__name__, more=facts)

        return asset

    return decorate


_PLAIN = str.maketrans({"|": "\\|", "\\": "\\\\", "[": "\\[", "<": "\\<", "\n": " "})
"""Escapes, so that a text from a record forges no cell, link, image or tag."""


_ROWS_SHOWN = 50


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> dg.MarkdownMetadataValue:
    """Return the first rows as a Markdown table, and the count of the others."""
    if not rows:
        return dg.MetadataValue.md("none")
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(map(str, row.values()) for row in rows[:_ROWS_SHOWN])]
    cells = [[visible(text).translate(_PLAIN) for text in line] for line in lines]
    rest = f"\n\nand {len(rows) - _ROWS_SHOWN} more" if len(rows) > _ROWS_SHOWN else ""
    return dg.MetadataValue.md("\n".join(f"| {' | '.join(line)} |" for line in cells) + rest)
