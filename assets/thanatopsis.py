"""Asset of Thanatopsis: the four recorded phases of each golem's death."""

import os
from collections.abc import Callable
from typing import Any

import dagster as dg
import pyarrow as pa

from assets.log import LIFE_EVENTS
from assets.metadata import CODE_VERSION, Seen, markdown_table, materialized, of_schema
from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.derive_thanatopsis import phases_of, record_phases
from bardo_pipeline.derivation.death.owner_notices import post_notices, waiting_notices, webhook_of
from bardo_pipeline.errors import NoticeError
from bardo_pipeline.events.record.arrow_columns import all_required
from bardo_pipeline.storage.delta.table_digest import Digest

DYING_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "golem_id", "phase", "event_id"),
        *all_required(pa.int64(), "tick", "reserve_micros", "cost_micros", "spent_micros"),
    ]
)


@dg.asset(
    deps=["bundles", "testaments", "grimoire", LIFE_EVENTS],
    code_version=CODE_VERSION,
    **of_schema("legacy", DYING_SCHEMA, ["golem_id", "phase"]),
)
def thanatopsis(context: dg.AssetExecutionContext, home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """One row (an event of the log) per dead golem and phase of its death, with the cost and the reserve that paid it.

    Key (golem_id, phase). Money in micro-dollars; spent is the sum of the phases so far, at most the reserve. Records
    every due phase; the first record of a phase counts. Notices go to BARDO_WEBHOOK if it is set.
    """
    stores = home.stores
    seen = Seen.before(stores, ["testaments", "candidates", "grimoire"])
    fresh = record_phases(stores, now=home.now())
    notices = [{"notice": e.bequeathed.notice} for e in fresh if e.bequeathed is not None]
    more = {"notices": markdown_table(notices), **posted(stores, context.log.warning)}
    return materialized(
        stores, "thanatopsis", seen, Digest.of(standing_phases(stores)),
        rows_written=len(fresh), version=stores.log.life_version, more=more,
    )  # fmt: skip


def posted(stores: DerivationContext, warn: Callable[[str], None]) -> dict[str, Any]:
    """Post waiting notices and return the counts. A failed post is a warning; its notices stay queued."""
    url = webhook_of(os.environ)
    if url is None:
        return {"posted": 0, "waiting": len(waiting_notices(stores))}
    try:
        sent = len(post_notices(stores, url))
    except NoticeError as error:
        warn(str(error))
        return {"posted": 0, "waiting": len(waiting_notices(stores)), "why": str(error)}
    return {"posted": sent, "waiting": 0}


def standing_phases(stores: DerivationContext) -> pa.Table:
    """Return every recorded phase of death (DYING_SCHEMA), ordered by golem and phase."""
    rows = [
        {"golem_id": golem_id, "phase": phase.kind, "event_id": phase.event_id}
        | {name: phase.said[name] for name in ("tick", "reserve_micros", "cost_micros", "spent_micros")}
        for golem_id, phases in sorted(phases_of(stores).items())
        for phase in phases
    ]
    return pa.Table.from_pylist(rows, schema=DYING_SCHEMA)
