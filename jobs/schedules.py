"""Schedules of the curator, dream, consolidation, verification, proposal and drift jobs."""

import os
from collections.abc import Callable
from typing import Any

import dagster as dg

from assets.resources import LazyStores
from bardo_pipeline.derivation.curation.request_proposals import living_golems
from bardo_pipeline.derivation.dreams import derive_dreams
from bardo_pipeline.errors import NoHomeError
from bardo_pipeline.gateway.model_request import MODEL, ModelSettings
from bardo_pipeline.storage.home import Home
from bardo_pipeline.tools.due_consolidations import due_consolidations
from bardo_pipeline.tools.memory_gate import ENABLED, MemoryGate
from jobs import home_jobs
from jobs.run_requests import is_active, tags_of

Decision = dg.RunRequest | dg.SkipReason


def scheduled(
    job: Any, cron: str, text: str, *, running: bool = True
) -> Callable[[Callable[[LazyStores], Decision]], dg.ScheduleDefinition]:
    """Decorate a function that decides for a home whether to run; the schedule takes its name.

    It skips without a home, and while a run of the job is active.

    Parameters
    ----------
    job : asset job or op job
    cron : cron expression, UTC
    running : start with Dagster (True) or only after an operator switches the schedule on
    """
    status = dg.DefaultScheduleStatus.RUNNING if running else dg.DefaultScheduleStatus.STOPPED
    suffix = " Starts with Dagster; switch it off on its page." if running else ""

    def decorate(decide: Callable[[LazyStores], Decision]) -> dg.ScheduleDefinition:

        def evaluate(context: dg.ScheduleEvaluationContext, home: dg.ResourceParam[LazyStores]) -> Decision:
            if is_active(context.instance, job.name):
                return dg.SkipReason(f"a run of {job.name} is active")
            try:
                return decide(home)
            except NoHomeError as error:
                return dg.SkipReason(str(error))

        schedule = dg.schedule(
            name=decide.__name__, job=job, cron_schedule=cron, default_status=status, description=text + suffix
        )
        return schedule(evaluate)

    return decorate


@scheduled(home_jobs.curator_job, "*/10 * * * *", "Every ten minutes, if a cycle closed since the last run.")
def every_ten_minutes(home: LazyStores) -> Decision:
    """Run the curator if there is pending work."""
    pending = home_jobs.pending_work(home.stores)
    return (
        dg.SkipReason("no cycle closed since the last run") if pending is None else _run(home_jobs.curator_job, pending)
    )


@scheduled(
    home_jobs.dream_job,
    "5 */4 * * *",
    "Every four hours, if a cycle closed since the last dreams. Dreams depend on event time alone, so a later run "
    "derives the same dreams.",
)
def dreams_every_four_hours(home: LazyStores) -> Decision:
    """Run the dream job if there is pending work."""
    pending = derive_dreams.pending_dream_work(home.stores)
    return (
        dg.SkipReason("no cycle closed since the last dreams")
        if pending is None
        else _run(home_jobs.dream_job, pending)
    )


@scheduled(home_jobs.verification_job, "45 3 * * *", "Every night.")
def every_night(home: LazyStores) -> Decision:
    """Verify the home."""
    Home.open(home.root)
    return dg.RunRequest()


@scheduled(
    home_jobs.proposal_job,
    "35 */4 * * *",
    "Every four hours (TOOLS), if BARDO_MODEL names a language model. Requests cost money, so an operator switches "
    "the schedule on.",
    running=False,
)
def proposals_every_four_hours(home: LazyStores) -> Decision:
    """Request proposals if a model is configured and there are living golems or testaments to phrase."""
    if ModelSettings.of(os.environ) is None:
        return dg.SkipReason(f"no language model is configured: {MODEL} is not set")
    living = living_golems(home.stores)
    if not living and not home.stores.policy.gateway.phrases_testaments:
        return dg.SkipReason("no golem is alive")
    return _run(home_jobs.proposal_job, f"{len(living)} living golems")


@scheduled(
    home_jobs.consolidation_job,
    "*/15 * * * *",
    "Every quarter of an hour, if a consolidation of episodes is due: after four hours (TOOLS), or for imported and "
    "tagged episodes.",
)
def every_quarter_hour(home: LazyStores) -> Decision:
    """Consolidate if the memory tools are open and a golem's consolidation is due."""
    if not MemoryGate.of(os.environ).is_open:
        return dg.SkipReason(f"the memory tools are closed: {ENABLED} is not true, or the learning profile is inactive")
    due = due_consolidations(home.stores, home.now())
    if not due:
        return dg.SkipReason("no consolidation is due")
    return _run(home_jobs.consolidation_job, f"{due[0].golem_id}: {due[0].why}")


@scheduled(home_jobs.drift_job, "15 4 * * 0", "Every Sunday, if there are vectors.")
def every_week(home: LazyStores) -> Decision:
    """Check the embedding model if the home has vectors."""
    return dg.RunRequest() if any(home.stores.log.identities()) else dg.SkipReason("no text was embedded yet")


def _run(job: Any, why: str) -> dg.RunRequest:
    return dg.RunRequest(tags=tags_of(job.name, why))
