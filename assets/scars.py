"""Scars: what hurt golems, what their clades are told of it, and all that each death left."""

from __future__ import annotations

from datetime import datetime

import dagster as dg
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from assets.log import CYCLES, LIFE_EVENTS
from assets.metadata import (
    CODE_VERSION,
    OWNERS,
    Seen,
    columns_of,
    markdown_table,
    materialized,
    of_table,
    projected,
)
from assets.resources import LazyStores
from bardo_pipeline.derivation.katabasis.bloodstains import bloodstains as bloodstains_of
from bardo_pipeline.derivation.katabasis.scars import derive_failures, derive_scars
from bardo_pipeline.grimoire.entries import MOMENT
from bardo_pipeline.storage.delta.table_digest import Digest

BLOODSTAIN_SCHEMA = pa.schema(
    [
        pa.field("bloodstain_id", pa.string(), nullable=False),
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("owner_id", pa.string(), nullable=False),
        pa.field("died_at", MOMENT, nullable=False),
        pa.field("scar_count", pa.int64(), nullable=False),
        pa.field("death_vote_count", pa.int64(), nullable=False),
        pa.field("testament_hash", pa.string()),
        pa.field("bundle_hash", pa.string()),
        pa.field("bundle_published", pa.bool_(), nullable=False),
        pa.field("echo", pa.string(), nullable=False),
    ]
)


@dg.asset(deps=[CYCLES, LIFE_EVENTS, "curation"], **of_table("failures", "katabasis"))
def failures(home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """One row per confirmed failure of a golem: what it did, what came of it, why, and how sure that is.

    Key (golem_id, seq); seq numbers a golem's failures as they were confirmed. Effects in ppm of the position,
    confidence in parts per million; cause_ticks names the act and its check. Appends what curated cycles and deaths
    confirmed since.
    """
    stores = home.stores
    seen = Seen.before(stores, ["curation"])
    written = derive_failures(stores)
    return projected(stores, "failures", seen, written)


@dg.asset(deps=["failures", LIFE_EVENTS], **of_table("scars", "katabasis"))
def scars(home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """One row per scar: a failure that its owner's golems did not know yet, with its cause told in words.

    Key (owner_id, scar_id). Private to the owner's clade (L1). Told at the close of a cycle, or by death, and then it
    is a bloodstain; fades by half in 30 days, a bloodstain in 90. Renews the owners whose failures changed, or of whom
    somebody died: a function of the set of their failures.
    """
    stores = home.stores
    seen = Seen.before(stores, ["failures"])
    written = derive_scars(stores)
    return projected(stores, "scars", seen, written, more={"told": _told(stores.projections.renewed("scars").read())})


def _told(rows: pa.Table) -> dg.MarkdownMetadataValue:
    """The surest scars, bloodstains first."""
    stained = rows.append_column("stain", pc.cast(rows["is_bloodstain"], pa.int8()))
    ordered = stained.sort_by([("stain", "descending"), ("confidence_ppm", "descending"), ("scar_id", "ascending")])
    names = {"scar_id": "scar", "causal_narrative": "what hurt", "seen_count": "times", "published": "told by"}
    return markdown_table(ordered.select(list(names)).rename_columns(list(names.values())).slice(0, 10).to_pylist())


@dg.asset(
    deps=["scars", "votes", "vote_causes", "testaments", "bundles", LIFE_EVENTS],
    kinds={"deltalake"},
    metadata=columns_of(BLOODSTAIN_SCHEMA, ("bloodstain_id",)),
    group_name="legacy",
    owners=OWNERS,
    code_version=CODE_VERSION,
)
def bloodstains(home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """One row per death: the artefact of what it left, by content: scars, last words, testament, bundle, conditions.

    Key bloodstain_id, the SHA-256 of the whole, which `bardo bloodstain GOLEM` shows. Private to the owner's clade
    (L1); echo is what may go to anybody (L2). Put together anew from the tables and the log; nothing of it is stored.
    """
    stores = home.stores
    seen = Seen.before(stores, ["scars", "votes", "vote_causes", "testaments", "candidates"])
    found = bloodstains_of(stores)
    rows = [
        {name: one[name] for name in BLOODSTAIN_SCHEMA.names if name in one}
        | {"died_at": datetime.fromisoformat(one["died_at"]), "scar_count": len(one["scars"])}
        | {"death_vote_count": len(one["death_votes"]), "echo": orjson.dumps(one["echo"]).decode()}
        for one in found
    ]
    patterns = sorted({pattern for one in found for pattern in one["echo"]["failure_patterns"]})
    return materialized(
        stores, "bloodstains", seen, Digest.of(pa.Table.from_pylist(rows, schema=BLOODSTAIN_SCHEMA)),
        rows_written=len(rows), version=stores.log.life_version,
        more={"echoes": markdown_table([{"how it failed": pattern} for pattern in patterns])},
    )  # fmt: skip
