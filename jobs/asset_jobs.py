"""Jobs over assets: curator, death, dream and spool job. A second run of any of them finds nothing to do."""

from __future__ import annotations

import dagster as dg

from assets.checks import only_passed_bundles_are_published
from assets.log import LOG, QUARANTINE
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.checkpoints import checkpoint_of
from bardo_pipeline.derivation.incremental.record_queries import closed_through, curated_through
from bardo_pipeline.derivation.incremental.retraction_tracking import pending_retraction_count

_LOG = dg.AssetSelection.assets(*LOG)

curator_job = dg.define_asset_job(
    "curator_job",
    selection=_LOG
    | dg.AssetSelection.groups("memory", "curation", "katabasis", "library", "marts")
    | dg.AssetSelection.checks(only_passed_bundles_are_published),
    description="Derive what newly closed cycles add: episodes, decisions, grimoires, playbooks, facts, votes, "
    "consensus; then build the marts, unless a published bundle fails its check. A second run finds nothing to do.",
)

death_job = dg.define_asset_job(
    "death_job",
    selection=_LOG | dg.AssetSelection.groups("memory", "curation", "katabasis", "legacy", "library", "marts"),
    description="Derive everything that follows a death: curate the last cycle, derive the death votes, the testament "
    "and the candidate bundle, judge every candidate in one Great Expectations run, publish those that passed, and "
    "build the marts if every published bundle passed. A second run finds nothing to do.",
)

dream_job = dg.define_asset_job(
    "dream_job",
    selection=_LOG | dg.AssetSelection.groups("memory", "curation", "dreams"),
    description="Derive episodes and decisions of closed cycles, then every dream that is due at the close of an idle "
    "cycle: replay, REM, counterfactuals, and hypotheses that are staged, confirmed or expired. A second run finds "
    "nothing to do.",
)

spool_job = dg.define_asset_job(
    "spool_job",
    selection=dg.AssetSelection.assets(QUARANTINE),
    description="Ingest every waiting file of the spool exactly once and count its new, repeated and refused records. "
    "A second run finds nothing to do. `bardo spool take` does the same.",
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
