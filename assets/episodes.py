"""Assets of memory: episodes, their search index, facts, links and crossings."""

from __future__ import annotations

from collections.abc import Iterable

import dagster as dg

from assets.log import CYCLES, LIFE_EVENTS, VECTORS
from assets.metadata import CODE_VERSION, Seen, materialized, of_schema, projection, version_of
from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.grimoire_views import derive_grimoire_views
from bardo_pipeline.derivation.memory.derive_episodes import derive_episodes, refresh_index
from bardo_pipeline.derivation.memory.derive_episodes import episode_index as index_of
from bardo_pipeline.storage.delta.table_digest import Written
from bardo_pipeline.storage.index.ivf_tuning import PPM
from bardo_pipeline.storage.index.nearest_episodes import MATCH_SCHEMA


@projection("episodes", "memory", "onnx", deps=[CYCLES, LIFE_EVENTS, VECTORS])
def episodes(home: LazyStores) -> Iterable[Written]:
    """One row per episode: a notable tick with its text and vector.

    Key episode_id, "golem:tick" of its record. Importance and curiosity in [0, 1], mood in [-1, 1], money in
    micro-dollars; the vector has L2 norm 1. Reads the closed cycles past each golem's watermark; appends.
    """
    return derive_episodes(home.stores, now=home.now())


@dg.asset(deps=["episodes"], code_version=CODE_VERSION, **of_schema("memory", MATCH_SCHEMA, ["episode_id"], "lancedb"))
def episode_index(home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """One row per episode in LanceDB, for vector and text search. A deleted index is built again.

    Key episode_id; the columns are those of a search result, with cosine distance in [0, 2]. New rows of the episodes
    table are merged by id; the data version is that of the indexed episodes.
    """
    stores = home.stores
    seen = Seen.before(stores, ["episodes"])
    digest = stores.projections.digest("episodes")
    grown = refresh_index(stores)
    version = version_of(stores, "episodes")
    return materialized(
        stores, "episode_index", seen, digest, rows_written=grown, version=version, more=_searched(stores)
    )


def _searched(stores: DerivationContext) -> dict[str, float | int]:
    """Return the number of IVF lists that a search probes and its measured recall."""
    mark = index_of(stores).watermark()
    if mark is None or mark.approximate is None:
        return {}
    return {"lists_looked_at": mark.approximate.looked_at, "recall": mark.approximate.recall_ppm / PPM}


@projection("facts", "memory", deps=["grimoire", "lessons"])
def facts(home: LazyStores) -> Iterable[Written]:
    """One row per golem and level: usual gas price, volume or slippage at a protocol.

    Key (golem_id, entry_id). mean, low and high in the unit of the row (low and high bound the mean), confidence in
    parts per million, last_reinforced_at in event time. Replaces the buckets whose grimoire changed.
    """
    return derive_grimoire_views(home.stores, "facts")


@projection("links", "memory", deps=["grimoire", "lessons"])
def links(home: LazyStores) -> Iterable[Written]:
    """One row per related pair of a golem's entries: agreeing, differing in one condition, or causal.

    Key (golem_id, entry_id, other_id). strength is the lower of the two confidences in parts per million. Replaces the
    buckets whose grimoire changed.
    """
    return derive_grimoire_views(home.stores, "links")


@projection("crossings", "memory", deps=["grimoire", "lessons"])
def crossings(home: LazyStores) -> Iterable[Written]:
    """One row per entry with own evidence: whether it may cross to other golems, by which gate, or why not.

    Key (golem_id, entry_id). The five parts of the admission gate and their mean in parts per million. Replaces the
    buckets whose grimoire or lessons changed, or whose golem neared the end of its lifespan (canon 12).
    """
    return derive_grimoire_views(home.stores, "crossings")
