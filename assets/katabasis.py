"""Assets of katabasis: failures, scars, bloodstains, anonymous votes, their private causes, and the consensus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

import dagster as dg
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from assets.log import CYCLES, LIFE_EVENTS
from assets.metadata import CODE_VERSION, Seen, markdown_table, materialized, of_schema, of_table, projected, projection
from assets.resources import DERIVE, LazyStores
from assets.retries import retried
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.katabasis.bloodstains import bloodstains as bloodstains_of
from bardo_pipeline.derivation.katabasis.derive_consensus import derive_consensus
from bardo_pipeline.derivation.katabasis.derive_votes import derive_votes
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


@projection("failures", "katabasis", deps=[CYCLES, LIFE_EVENTS, "curation"], by_golem=True)
def failures(home: LazyStores) -> Iterable[Written]:
    """One row per confirmed failure of a golem: action, effect, cause and confidence.

    Key (golem_id, seq); seq numbers a golem's failures in order of confirmation. Effects in ppm of the position,
    confidence in parts per million; cause_ticks lists the action and its check. Appends the failures of newly curated
    cycles and deaths.
    """
    return derive_failures(home.stores)


def _surest(stores: DerivationContext) -> dict[str, dg.MarkdownMetadataValue]:
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
    pool=DERIVE,
    deps=["scars", "votes", "vote_causes", "testaments", "bundles", LIFE_EVENTS],
    code_version=CODE_VERSION,
    **of_schema("legacy", BLOODSTAIN_SCHEMA, ["bloodstain_id"]),
)
@retried
def bloodstains(home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """One row per death: the bloodstain artefact with scars, death votes, testament, bundle and market conditions.

    Key bloodstain_id, the SHA-256 of the artefact, which `bardo bloodstain GOLEM` shows. Private to the owner's clade
    (L1); echo is the public part (L2). Computed from tables and log on demand, never stored.
    """
    stores = home.stores
    seen = Seen.before(stores, ["scars", "votes", "vote_causes", "testaments", "candidates"])
    artefacts = bloodstains_of(stores)
    rows = [
        artefact
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


_SPECS = [
    dg.AssetSpec(
        "votes",
        deps=["curation", "grimoire", LIFE_EVENTS],
        description="One row per anonymous vote on a proposition. Key vote_id. Confidence in parts per million, weight "
        "in tenths: the vote of a living golem weighs 1.0, of a dying one 2.5. Appends the votes of newly curated "
        "cycles.",
        **of_table("votes", "katabasis"),
    ),
    dg.AssetSpec(
        "vote_causes",
        deps=["curation", "grimoire", LIFE_EVENTS],
        description="One row per vote: the golem and owner that cast it, the cycle and the entry. Key vote_id. Private "
        "to the owner: the table never leaves this home, because it would identify the voters. Appends.",
        **of_table("vote_causes", "katabasis"),
    ),
]


@dg.multi_asset(specs=_SPECS, name="vote", pool=DERIVE)
@retried
def vote(home: dg.ResourceParam[LazyStores]) -> Iterator[dg.MaterializeResult]:
    """Derive the votes of newly curated cycles and the death votes of newly dead golems."""
    stores = home.stores
    seen = Seen.before(stores, ["curation", "grimoire"])
    written = derive_votes(stores)
    for spec in _SPECS:
        yield projected(stores, spec.key.to_user_string(), seen, written)


@projection("consensus", "katabasis", deps=["votes", "vote_causes", LIFE_EVENTS])
def consensus(home: LazyStores) -> Iterable[Written]:
    """One row per proposition with a valid vote: the weighted belief of its voters.

    Key proposition_id. Means in parts per million, variance in (1e-6)^2, weights in tenths; votes_hash identifies the
    counted votes. Recounts the propositions with new votes; the result depends on the set of votes, not on their order.
    """
    return derive_consensus(home.stores)
