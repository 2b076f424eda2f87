"""The dream job: replays recorded cycles, derives counterfactuals and tests hypotheses against later outcomes."""

from __future__ import annotations

import dagster as dg

from assets.log import LOG

dream_job = dg.define_asset_job(
    "dream_job",
    selection=dg.AssetSelection.assets(*LOG) | dg.AssetSelection.groups("memory", "curation", "dreams"),
    executor_def=dg.in_process_executor,
    description="Derive episodes and decisions of closed cycles, then every dream that is due at the close of an idle "
    "cycle: replay, REM, counterfactuals, and hypotheses that are staged, confirmed or expired. A second run finds "
    "nothing to do.",
)
