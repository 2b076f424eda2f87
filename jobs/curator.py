"""The curator job: derives everything that newly closed cycles add, then builds the marts."""

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
    description="Derive what newly closed cycles add: episodes, decisions, grimoires, playbooks, facts, votes, "
    "consensus; then build the marts, unless a published bundle fails its check. A second run finds nothing to do.",
)


def pending_work(stores: DerivationContext) -> str | None:
    """Describe the work that a run of the curator would find; None without pending work."""
    curation, episodes = stores.projections.growing("curation"), stores.projections.growing("episodes")
    cycles = golems = 0
    for golem_id, closed in closed_through(stores).items():
        pending = closed - min(curated_through(stores, golem_id) or 0, episodes.done(golem_id) or 0)
        cycles, golems = cycles + max(pending, 0), golems + (pending > 0)
    if cycles:
        return f"{cycles} closed cycles of {golems} golems"
    if retractions := pending_retraction_count(stores):
        return f"{retractions} strikes, reorgs or withdrawals to apply"
    if curation.table.version > (checkpoint_of(stores, "votes").version or 0):
        return "decisions without their votes"
    return None
