"""Assets of scars: failures of golems, scars shared within a clade, and bloodstains of deaths."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import dagster as dg
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from assets.log import CYCLES, LIFE_EVENTS
from assets.metadata import CODE_VERSION, Seen, markdown_table, materialized, of_schema, projection
from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.katabasis.bloodstains import bloodstains as bloodstains_of
from bardo_pipeline.derivation.katabasis.scars import derive_failures, derive_scars
from bardo_pipeline.events.record.arrow_columns import all_required, required
from bardo_pipeline.grimoire.entries import MOMENT
from bardo_pipeline.storage.delta.table_digest import Digest, Written

BLOODSTAIN_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "bloodstain_id", "golem_id", "owner_id"),
        required("died_at", MOMENT),
        *all_required(pa.int64(), "scar_count", "death_vote_count"),
        pa.field("testament_hash", pa.string()),
        pa.field("bundle_hash", pa.string()),
        required("bundle_published", pa.bool_()),
        required("echo", pa.string()),
    ]
)


@projection("failures", "katabasis", deps=[CYCLES, LIFE_EVENTS, "curation"])
def failures(home: LazyStores) -> Iterable[Written]:
    """One row per confirmed failure of a golem: action, effect, cause and confidence.

    Key (golem_id, seq); seq numbers a golem's failures in order of confirmation. Effects in ppm of the position,
    confidence in parts per million; cause_ticks lists the action and its check. Appends the failures of newly curated
    cycles and deaths.
    """
    return derive_failures(home.stores)


def _surest(stores: DerivationContext) -> dict[str, dg.MarkdownMetadataValue]:
    """List the ten most confident scars, bloodstains first."""
    rows = stores.projections.replaceable("scars").read()
    stained = rows.append_column("stain", pc.cast(rows["is_bloodstain"], pa.int8()))
    ordered = stained.sort_by([("stain", "descending"), ("confidence_ppm", "descending"), ("scar_id", "ascending")])
    names = {"scar_id": "scar", "causal_narrative": "what hurt", "seen_count": "times", "published": "told by"}
    shown = ordered.select(list(names)).rename_columns(list(names.values())).slice(0, 10)
    return {"told": markdown_table(shown.to_pylist())}


@projection("scars", "katabasis", deps=["failures", LIFE_EVENTS], more=_surest)
def scars(home: LazyStores) -> Iterable[Written]:
    """One row per scar: a failure that was new to its owner's golems, with its cause in words.

    Key (owner_id, scar_id). Private to the owner's clade (L1). Published at the close of a cycle, or at death as a
    bloodstain. Half-life 30 days, of a bloodstain 90. Replaces the owners with new failures or deaths; the result
    depends only on the set of their failures.
    """
    return derive_scars(home.stores)


@dg.asset(
    deps=["scars", "votes", "vote_causes", "testaments", "bundles", LIFE_EVENTS],
    code_version=CODE_VERSION,
    **of_schema("legacy", BLOODSTAIN_SCHEMA, ["bloodstain_id"]),
)
def bloodstains(home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """One row per death: the bloodstain artefact with scars, death votes, testament, bundle and market conditions.

    Key bloodstain_id, the SHA-256 of the artefact, which `bardo bloodstain GOLEM` shows. Private to the owner's clade
    (L1); echo is the public part (L2). Computed from tables and log on demand, never stored.
    """
    stores = home.stores
    seen = Seen.before(stores, ["scars", "votes", "vote_causes", "testaments", "candidates"])
    artefacts = bloodstains_of(stores)
    rows = [
        {name: artefact[name] for name in BLOODSTAIN_SCHEMA.names if name in artefact}
        | {"died_at": datetime.fromisoformat(artefact["died_at"]), "scar_count": len(artefact["scars"])}
        | {"death_vote_count": len(artefact["death_votes"]), "echo": orjson.dumps(artefact["echo"]).decode()}
        for artefact in artefacts
    ]
    patterns = sorted({pattern for artefact in artefacts for pattern in artefact["echo"]["failure_patterns"]})
    return materialized(
        stores, "bloodstains", seen, Digest.of(pa.Table.from_pylist(rows, schema=BLOODSTAIN_SCHEMA)),
        rows_written=len(rows), version=stores.log.life_version,
        more={"echoes": markdown_table([{"how it failed": pattern} for pattern in patterns])},
    )  # fmt: skip
