"""The dream job: what golems lived through is replayed, imagined otherwise, and held against what came after."""

from __future__ import annotations

import dagster as dg

from assets.log import LOG

dream_job = dg.define_asset_job(
    "dream_job",
    selection=dg.AssetSelection.assets(*LOG) | dg.AssetSelection.groups("memory", "curation", "dreams"),
    executor_def=dg.in_process_executor,
    description="What a dream needs and the dreams: closed cycles are remembered and curated, then every dream that is "
    "due at the close of an idle cycle is dreamt: replay, REM, counterfactuals, hypotheses staged, confirmed or gone. "
    "Run again, it finds nothing new.",
)
