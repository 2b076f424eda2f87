"""The death job: what the dead leave is judged, and what passes may be inherited."""

from __future__ import annotations

import dagster as dg

from assets.log import LOG

death_job = dg.define_asset_job(
    "death_job",
    selection=dg.AssetSelection.assets(*LOG)
    | dg.AssetSelection.groups("memory", "curation", "katabasis", "legacy", "library", "marts"),
    executor_def=dg.in_process_executor,
    description="All that follows a death: its last cycle is curated, its last votes are cast, its testament and "
    "bundle are made, one Great Expectations run judges every candidate, what passes is published, and the marts are "
    "built if all that is published passed. Run again, it finds nothing new.",
)
