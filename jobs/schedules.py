"""Schedules: when the curator, dreams, maintenance and verification run by the clock."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import dagster as dg

from assets.resources import LazyStores
from bardo_pipeline.derivation.curation.request_proposals import living_golems
from bardo_pipeline.derivation.dreams import derive_dreams
from bardo_pipeline.errors import NoHomeError
from bardo_pipeline.gateway.model_settings import MODEL, ModelSettings
from bardo_pipeline.storage.home import Home
from jobs.curator import curator_job, what_is_new
from jobs.dream import dream_job
from jobs.drift import drift_job
from jobs.maintenance import maintenance_job
from jobs.proposals import proposal_job
from jobs.verification import verification_job

Turn = dg.RunRequest | dg.SkipReason


def scheduled(
    job: Any, cron: str, says: str, *, running: bool = True
) -> Callable[[Callable[[LazyStores], Turn]], dg.ScheduleDefinition]:
    """A schedule called as the function is that says, of a home, whether to run; where there is none nothing runs.

    job: as Dagster made it, of assets or of ops. running: as soon as Dagster does, or once somebody switched it on.
    """
    status = dg.DefaultScheduleStatus.RUNNING if running else dg.DefaultScheduleStatus.STOPPED
    more = " Runs as soon as Dagster does; switch it off on its page." if running else ""

    def made(decide: Callable[[LazyStores], Turn]) -> dg.ScheduleDefinition:
        """The schedule of this decision."""

        def evaluated(context: dg.ScheduleEvaluationContext, home: dg.ResourceParam[LazyStores]) -> Turn:
            try:
                return decide(home)
            except NoHomeError as error:
                return dg.SkipReason(str(error))

        named = dg.schedule(
            name=decide.__name__, job=job, cron_schedule=cron, default_status=status, description=says + more
        )
        return named(evaluated)

    return made


@scheduled(curator_job, "*/10 * * * *", "Every ten minutes, if a cycle closed since.")
def every_ten_minutes(home: LazyStores) -> Turn:
    """Run the curator where something is new, and say why not where nothing is."""
    new = what_is_new(home.stores)
    return dg.SkipReason("no cycle closed since the last run") if new is None else _because(new)


@scheduled(maintenance_job, "25 * * * *", "Every hour, between two turns of the curator.")
def every_hour(home: LazyStores) -> Turn:
    """Look after the home, if there is one."""
    return _because(f"the log is at version {home.stores.log.version}")


@scheduled(
    dream_job,
    "5 */4 * * *",
    "Every four hours, if a cycle closed since the last dreams. Who dreams when follows from event time alone, so that "
    "a later run dreams the same.",
)
def every_four_hours(home: LazyStores) -> Turn:
    """Let golems dream where something is new, and say why not where nothing is."""
    new = derive_dreams.pending_dream_work(home.stores)
    return dg.SkipReason("no cycle closed since the last dreams") if new is None else _because(new)


@scheduled(verification_job, "45 3 * * *", "Every night.")
def every_night(home: LazyStores) -> Turn:
    """Verify the home, if there is one."""
    Home.open(home.root)
    return dg.RunRequest()


@scheduled(
    proposal_job,
    "35 */4 * * *",
    "Every four hours (TOOLS), where BARDO_MODEL names a language model. It costs money: switch it on.",
    running=False,
)
def every_fourth_hour(home: LazyStores) -> Turn:
    """Ask the model about the golems that live, if there is a model and anybody lives or has testaments phrased."""
    if ModelSettings.of(os.environ) is None:
        return dg.SkipReason(f"no language model is configured: {MODEL} is not set")
    living = living_golems(home.stores)
    if not living and not home.stores.policy.gateway.phrases_testaments:
        return dg.SkipReason("nobody lives")
    return _because(f"{len(living)} golems live")


@scheduled(drift_job, "15 4 * * 0", "Every Sunday, if there are vectors.")
def every_week(home: LazyStores) -> Turn:
    """Check the model, where it has made vectors."""
    return dg.RunRequest() if any(home.stores.log.identities()) else dg.SkipReason("no text was embedded yet")


def _because(why: str) -> dg.RunRequest:
    return dg.RunRequest(tags={"bardo/why": why})
