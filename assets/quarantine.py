"""Asset of the quarantine: ingests the files of the spool; refused lines, rows and files are its table."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

import dagster as dg

from assets.metadata import markdown_table, of_schema
from assets.resources import LazyStores
from bardo_pipeline.storage.intake.quarantine import ITEMS_SCHEMA
from bardo_pipeline.storage.intake.spool_folder import Spool

QUARANTINE = dg.AssetKey(["log", "quarantine"])


@dg.asset(key=QUARANTINE, **of_schema("log", ITEMS_SCHEMA, ["item_id"]))
def quarantine(home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """One row per refused line, row or file of the spool: its position, claimed golem, reason and bytes.

    Materializing ingests every waiting file: valid records go to log/cycles and log/life_events. Key item_id, the hash
    of position and bytes. Append-only: `bardo quarantine` lists, retries and drops open items.
    """
    stores = home.stores
    spool, started = Spool(stores.home, stores.log, stores.policy), home.now()
    taken = list(spool.take(started))
    seconds = (home.now() - started).total_seconds()
    size = sum(file.size for file in taken)
    files = [{k: v for k, v in asdict(file).items() if k != "errors"} for file in taken]
    return dg.MaterializeResult(
        metadata={
            "files": len(taken),
            "bytes": size,
            "records": sum(file.records for file in taken),
            "written": sum(file.written for file in taken),
            "repeated": sum(file.repeated for file in taken),
            "quarantined": sum(file.quarantined for file in taken),
            "errors": dg.MetadataValue.json(dict(sum((file.errors for file in taken), Counter()))),
            "mb_per_s": size / 1e6 / seconds if seconds > 0 else 0.0,
            "taken": markdown_table(files),
            "open": spool.quarantine.open([]).num_rows,
            "log_version": stores.log.version,
            "life_version": stores.log.life_version,
        }
    )
