"""The curator's job: what golems lived through becomes what they know, and what analysts see."""

from __future__ import annotations

import dagster as dg

from assets.checks import only_passed_bundles_are_published
from assets.log import LOG
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.checkpoints import checkpoint_of
from bardo_pipeline.derivation.incremental.record_queries import closed_through, curated_through
from bardo_pipeline.derivation.incremental.retraction_tracking import pending_retraction_count

curator_job = dg.define_asset_job(
    "curator_job",
    selection=dg.AssetSelection.assets(*LOG)
    | dg.AssetSelection.groups("memory", "curation", "katabasis", "library", "marts")
    | dg.AssetSelection.checks(only_passed_bundles_are_published),
    executor_def=dg.in_process_executor,
    description="Derive what closed cycles add: episodes, decisions, grimoires, playbooks, facts, votes, consensus; "
    "then build the marts, unless a published bundle is not what it should be. Run again, it finds nothing new.",
)


def what_is_new(stores: DerivationContext) -> str | None:
    """What a run of the curator would find, in a few words; None if it would find nothing."""
    curation, episodes = stores.projections.growing("curation"), stores.projections.growing("episodes")
    cycles = golems = 0
    for golem_id, closed in closed_through(stores).items():
        waiting = closed - min(curated_through(stores, golem_id) or 0, episodes.done(golem_id) or 0)
        cycles, golems = cycles + max(waiting, 0), golems + (waiting > 0)
    if cycles:
        return f"{cycles} closed cycles of {golems} golems"
    if struck := pending_retraction_count(stores):
        return f"{struck} strikes, reorgs or withdrawals to heed"
    if curation.table.version > (checkpoint_of(stores, "votes").version or 0):
        return "decisions without their votes"
    return None
