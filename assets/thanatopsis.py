"""Dying: the four phases of Thanatopsis, recorded of every golem whose death is on record."""

import os
from collections.abc import Callable
from typing import Any

import dagster as dg
import pyarrow as pa

from assets.log import LIFE_EVENTS
from assets.metadata import CODE_VERSION, OWNERS, Seen, columns_of, markdown_table, materialized
from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.derive_thanatopsis import phases_of, record_phases
from bardo_pipeline.derivation.death.owner_notices import (
    post_notices,
    waiting_notices,
    webhook_of,
)
from bardo_pipeline.errors import NoticeError
from bardo_pipeline.storage.delta.table_digest import Digest

DYING_SCHEMA = pa.schema(
    [
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("phase", pa.string(), nullable=False),
        pa.field("event_id", pa.string(), nullable=False),
        pa.field("tick", pa.int64(), nullable=False),
        pa.field("reserve_micros", pa.int64(), nullable=False),
        pa.field("cost_micros", pa.int64(), nullable=False),
        pa.field("spent_micros", pa.int64(), nullable=False),
    ]
)


@dg.asset(
    deps=["bundles", "testaments", "grimoire", LIFE_EVENTS],
    kinds={"deltalake"},
    metadata=columns_of(DYING_SCHEMA, ("golem_id", "phase")),
    group_name="legacy",
    owners=OWNERS,
    code_version=CODE_VERSION,
)
def thanatopsis(context: dg.AssetExecutionContext, home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """One row (an event of the log) per dead golem and phase of its dying: what it cost, of which reserve.

    Key (golem_id, phase). Money in micro-dollars; spent is the sum of the phases so far, never more than the reserve.
    Records every phase that is due; of a phase the first on record stands. Notices go to BARDO_WEBHOOK where it is set.
    """
    stores = home.stores
    seen = Seen.before(stores, ["testaments", "candidates", "grimoire"])
    fresh = record_phases(stores, now=home.now())
    told = [{"notice": e.bequeathed.notice} for e in fresh if e.bequeathed is not None]
    more = {"notices": markdown_table(told), **posted(stores, context.log.warning)}
    return materialized(
        stores, "thanatopsis", seen, Digest.of(standing_phases(stores)),
        rows_written=len(fresh), version=stores.log.life_version, more=more,
    )  # fmt: skip


def posted(stores: DerivationContext, warn: Callable[[str], None]) -> dict[str, Any]:
    """How many notices were posted; what was not taken waits for the next time, and fails nothing else."""
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
    """Every phase of dying on record (DYING_SCHEMA), by golem and in their order."""
    rows = [
        {"golem_id": golem_id, "phase": phase.kind, "event_id": phase.event_id}
        | {name: phase.said[name] for name in ("tick", "reserve_micros", "cost_micros", "spent_micros")}
        for golem_id, phases in sorted(phases_of(stores).items())
        for phase in phases
    ]
    return pa.Table.from_pylist(rows, schema=DYING_SCHEMA)
