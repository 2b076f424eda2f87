"""Assets of the event log: source assets, and the quarantine. Runtimes write the log; only the quarantine adds to it.

An observation records the version of each log table that the downstream assets of the run read.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.compute as pc
from deltalake import DeltaTable

from assets.metadata import markdown_table, of_schema
from assets.resources import INTAKE, LazyStores
from assets.retries import retried
from bardo_pipeline.derivation.reports.home_health import Health, health_of
from bardo_pipeline.storage.delta.table_digest import Digest
from bardo_pipeline.storage.intake.quarantine import ITEMS_SCHEMA
from bardo_pipeline.storage.intake.spool_folder import Spool
from bardo_pipeline.storage.log.protocol import CYCLES_SCHEMA, LIFE_LOG_SCHEMA, VECTORS_SCHEMA

CYCLES, LIFE_EVENTS, VECTORS = (dg.AssetKey(["log", n]) for n in ("cycles", "life_events", "vectors"))
LOG = (CYCLES, LIFE_EVENTS, VECTORS)

_SPECS = [
    dg.AssetSpec(
        CYCLES,
        description="One DecisionCycleRecord per golem and tick: observation, mood, deliberation, actions, outcomes. "
        "Key (golem_id, tick). Append-only. Money in micro-dollars, times in UTC; `observed_at` is event time, "
        "`recorded_at` the time of acceptance.",
        **of_schema("log", CYCLES_SCHEMA, ["golem_id", "tick"], table="log/cycles"),
    ),
    dg.AssetSpec(
        LIFE_EVENTS,
        description="One row per life event: birth, death, verdict, publication, received knowledge, owner override, "
        "accepted gap. Key event_id, the hash of its content. Append-only; only the payload column of the event's kind "
        "is filled.",
        **of_schema("log", LIFE_LOG_SCHEMA, ["event_id"], table="log/life_events"),
    ),
    dg.AssetSpec(
        VECTORS,
        description="One row per embedder and text: the L2-normalised vector and the identity of the model that made "
        "it. Key (embedder, text_hash). Append-only: a rebuild reads it instead of embedding again.",
        **of_schema("log", VECTORS_SCHEMA, ["embedder", "text_hash"], "deltalake", "onnx", table="vectors"),
    ),
]


@retried
def _observe(home: dg.ResourceParam[LazyStores]) -> Iterator[dg.ObserveResult]:
    """Observe the current version and size of the log tables."""
    stores = home.stores
    heads, version, life_version = stores.log.heads(), stores.log.version, stores.log.life_version
    missing = [{"golem": g.golem_id, "from": g.tick_from, "to": g.tick_to} for g in stores.log.gaps()]
    yield dg.ObserveResult(
        asset_key=CYCLES, data_version=dg.DataVersion(f"{version}/{Digest.of(heads).fingerprint}"),
        metadata={
            **_facts(DeltaTable(stores.home.cycles, version=version), stores.home.cycles),
            "golem_count": heads.num_rows,
            "tick_max": pc.max(heads["highest"]).as_py() or 0,
            "missing_tick_count": pc.sum(heads["missing_count"]).as_py() or 0,
            "gaps": dg.MetadataValue.json(missing[:100]),
            **standing(health_of(stores, home.now())),
        },
    )  # fmt: skip
    for key, folder, at in ((LIFE_EVENTS, stores.home.life, life_version), (VECTORS, stores.home.vectors, None)):
        table = DeltaTable(folder, version=at)
        yield dg.ObserveResult(
            asset_key=key, data_version=dg.DataVersion(str(table.version())),
            metadata=_facts(table, folder),
        )  # fmt: skip


def standing(health: Health) -> dict[str, Any]:
    """Return intake rate, derivation lag and backlog of the home as metadata."""
    oldest = [j.depth.oldest_seconds for j in health.journals if j.depth.oldest_seconds is not None]
    facts = {
        "records_in_a_minute": health.intake.minute,
        "records_in_an_hour": health.intake.hour,
        "lag_ticks": health.curation.ticks,
        "lag_cycles": health.curation.cycles,
        "journal_bytes": sum(j.depth.bytes for j in health.journals),
        "journal_segments": sum(j.depth.files for j in health.journals),
        "journal_oldest_seconds": max(oldest, default=0.0),
        "spool_files": health.spool.files,
        "quarantine_open": health.quarantine.open,
        "quarantine_day_share": health.quarantine.day_share,
        "stale_lease_count": health.leases.stale,
    }
    if health.intake.recorded_at is None:
        return facts
    return facts | {"dagster/last_updated_timestamp": dg.MetadataValue.timestamp(health.intake.recorded_at)}


def _facts(table: DeltaTable, folder: Path) -> dict[str, Any]:
    path = dg.MetadataValue.path(folder)
    return {"dagster/row_count": table.count(), "table_version": table.version(), "path": path}


with warnings.catch_warnings():
    warnings.simplefilter("ignore", dg.BetaWarning)  # an external asset that a job can observe; the version is locked
    log = dg.multi_observable_source_asset(specs=_SPECS, name="log")(_observe)
"""Every job observes these assets first."""


QUARANTINE = dg.AssetKey(["log", "quarantine"])


@dg.asset(key=QUARANTINE, pool=INTAKE, **of_schema("log", ITEMS_SCHEMA, ["item_id"], table="quarantine"))
@retried
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
