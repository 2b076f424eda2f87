"""The spool job: files that runtimes dropped go to the log, what does not fit to quarantine."""

from __future__ import annotations

import dagster as dg

from assets.quarantine import QUARANTINE

spool_job = dg.define_asset_job(
    "spool_job",
    selection=dg.AssetSelection.assets(QUARANTINE),
    executor_def=dg.in_process_executor,
    description="Take every file that waits in the spool, each exactly once, and say how many records were new, on "
    "record already, or refused. Run again, it finds nothing. `bardo spool take` does the same by hand.",
)
