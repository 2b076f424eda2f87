"""The death job: derives, judges and publishes the bundles of dead golems."""

from __future__ import annotations

import dagster as dg

from assets.log import LOG

death_job = dg.define_asset_job(
    "death_job",
    selection=dg.AssetSelection.assets(*LOG)
    | dg.AssetSelection.groups("memory", "curation", "katabasis", "legacy", "library", "marts"),
    executor_def=dg.in_process_executor,
    description="Derive everything that follows a death: curate the last cycle, derive the death votes, the testament "
    "and the candidate bundle, judge every candidate in one Great Expectations run, publish those that passed, and "
    "build the marts if every published bundle passed. A second run finds nothing to do.",
)
