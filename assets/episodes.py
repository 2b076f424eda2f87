"""Memory: what a golem remembers of its days, and the facts it has settled on."""

from __future__ import annotations

import dagster as dg

from assets.log import CYCLES, LIFE_EVENTS, VECTORS
from assets.metadata import CODE_VERSION, OWNERS, Seen, columns_of, materialized, of_table, projected, version_of
from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.grimoire_views import derive_grimoire_views
from bardo_pipeline.derivation.memory.derive_episodes import derive_episodes, refresh_index
from bardo_pipeline.derivation.memory.derive_episodes import episode_index as index_of
from bardo_pipeline.storage.index.ivf_tuning import PPM
from bardo_pipeline.storage.index.nearest_episodes import MATCH_SCHEMA


@dg.asset(deps=[CYCLES, LIFE_EVENTS, VECTORS], **of_table("episodes", "memory", "onnx"))
def episodes(home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """One row per episode: a tick worth remembering, with a text and its vector.

    Key episode_id, "golem:tick", which names its cause. Importance and curiosity in [0, 1], mood in [-1, 1], money in
    micro-dollars; the vector is the text's, of L2 norm 1. Reads records of closed cycles past each golem's watermark;
    appends.
    """
    stores = home.stores
    seen = Seen.before(stores)
    written = derive_episodes(stores, now=home.now())
    return projected(stores, "episodes", seen, written)


@dg.asset(
    deps=["episodes"],
    group_name="memory",
    kinds={"lancedb"},
    owners=OWNERS,
    code_version=CODE_VERSION,
    metadata=columns_of(MATCH_SCHEMA, ("episode_id",)),
)
def episode_index(home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """One row per episode in LanceDB, to be found by meaning and by words. Deleted, it is made again.

    Key episode_id; the columns are what a search answers, distance being a cosine's in [0, 2]. Merged by id from what
    the episodes table gained; the data version is that of the episodes that it holds.
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
    """How a search of the index goes: through how many lists, and how many of the nearest it finds so."""
    mark = index_of(stores).watermark()
    if mark is None or mark.approximate is None:
        return {}
    return {"lists_looked_at": mark.approximate.looked_at, "recall": mark.approximate.recall_ppm / PPM}


@dg.asset(deps=["grimoire", "lessons"], **of_table("facts", "memory"))
def facts(home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """One row per golem and known level: what gas, volume or slippage is like at a protocol.

    Key (golem_id, entry_id). mean, low and high in the unit that the row names (low and high bound the mean),
    confidence in parts per million, last_reinforced_at in event time. Renews the buckets whose grimoire changed.
    """
    stores = home.stores
    seen = Seen.before(stores, ["grimoire", "lessons"])
    written = derive_grimoire_views(stores, "facts")
    return projected(stores, "facts", seen, written)


@dg.asset(deps=["grimoire", "lessons"], **of_table("links", "memory"))
def links(home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """One row per pair of a golem's entries that bear on each other: agree or differ across a respect, or cause.

    Key (golem_id, entry_id, other_id). strength in parts per million, the lesser of the two confidences. Renews the
    buckets whose grimoire changed.
    """
    stores = home.stores
    seen = Seen.before(stores, ["grimoire", "lessons"])
    return projected(stores, "links", seen, derive_grimoire_views(stores, "links"))


@dg.asset(deps=["grimoire", "lessons"], **of_table("crossings", "memory"))
def crossings(home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """One row per entry that its golem has evidence of: whether it may cross to others, by which gate, and why not.

    Key (golem_id, entry_id). The admission gate's five parts and their mean in parts per million. Renews the buckets
    whose grimoire or lessons changed, or where a golem came near the end of its lifespan, from when on it pushes more.
    """
    stores = home.stores
    seen = Seen.before(stores, ["grimoire", "lessons"])
    return projected(stores, "crossings", seen, derive_grimoire_views(stores, "crossings"))
