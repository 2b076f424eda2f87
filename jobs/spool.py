"""The spool job: ingests the files of the spool; refused records go to quarantine."""

from __future__ import annotations

import dagster as dg

from assets.quarantine import QUARANTINE

spool_job = dg.define_asset_job(
    "spool_job",
    selection=dg.AssetSelection.assets(QUARANTINE),
    executor_def=dg.in_process_executor,
    description="Ingest every waiting file of the spool exactly once and count its new, repeated and refused records. "
    "A second run finds nothing to do. `bardo spool take` does the same.",
)
