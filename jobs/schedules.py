"""Schedules: when the curator, dreams, maintenance and verification run by the clock."""

from __future__ import annotations

import os

import dagster as dg

from assets.stores import LazyStores
from bardo_pipeline.derivation import dreams
from bardo_pipeline.derivation.proposing import living_golems
from bardo_pipeline.errors import NoHomeError
from bardo_pipeline.gateway.settings import MODEL, ModelSettings
from bardo_pipeline.storage.home import Home
from jobs.curator import curator_job, what_is_new
from jobs.dream import dream_job
from jobs.drift import drift_job
from jobs.maintenance import maintenance_job
from jobs.proposals import proposal_job
from jobs.verification import verification_job


@dg.schedule(
    job=curator_job,
    cron_schedule="*/10 * * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Every ten minutes, if a cycle closed since. Runs as soon as Dagster does; switch it off on its page.",
)
def every_ten_minutes(
    context: dg.ScheduleEvaluationContext, home: dg.ResourceParam[LazyStores]
) -> dg.RunRequest | dg.SkipReason:
    """Run the curator where something is new, and say why not where nothing is."""
    try:
        new = what_is_new(home.stores)
    except NoHomeError as error:
        return dg.SkipReason(str(error))
    if new is None:
        return dg.SkipReason("no cycle closed since the last run")
    return dg.RunRequest(tags={"bardo/why": new})


@dg.schedule(
    job=maintenance_job,
    cron_schedule="25 * * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Every hour, between two turns of the curator. Runs as soon as Dagster does; switch it off on its "
    "page.",
)
def every_hour(
    context: dg.ScheduleEvaluationContext, home: dg.ResourceParam[LazyStores]
) -> dg.RunRequest | dg.SkipReason:
    """Look after the home, if there is one."""
    try:
        version = home.stores.log.version
    except NoHomeError as error:
        return dg.SkipReason(str(error))
    return dg.RunRequest(tags={"bardo/why": f"the log is at version {version}"})


@dg.schedule(
    job=dream_job,
    cron_schedule="5 */4 * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Every four hours, if a cycle closed since the last dreams. Who dreams when follows from event time "
    "alone, so that a later run dreams the same. Runs as soon as Dagster does; switch it off on its page.",
)
def every_four_hours(
    context: dg.ScheduleEvaluationContext, home: dg.ResourceParam[LazyStores]
) -> dg.RunRequest | dg.SkipReason:
    """Let golems dream where something is new, and say why not where nothing is."""
    try:
        new = dreams.what_is_new(home.stores)
    except NoHomeError as error:
        return dg.SkipReason(str(error))
    if new is None:
        return dg.SkipReason("no cycle closed since the last dreams")
    return dg.RunRequest(tags={"bardo/why": new})


@dg.schedule(
    job=verification_job,
    cron_schedule="45 3 * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Every night. Runs as soon as Dagster does; switch it off on its page.",
)
def every_night(
    context: dg.ScheduleEvaluationContext, home: dg.ResourceParam[LazyStores]
) -> dg.RunRequest | dg.SkipReason:
    """Verify the home, if there is one."""
    try:
        Home.open(home.root)
    except NoHomeError as error:
        return dg.SkipReason(str(error))
    return dg.RunRequest()


@dg.schedule(
    job=proposal_job,
    cron_schedule="35 */4 * * *",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="Every four hours (TOOLS), where BARDO_MODEL names a language model. It costs money: switch it on.",
)
def every_fourth_hour(
    context: dg.ScheduleEvaluationContext, home: dg.ResourceParam[LazyStores]
) -> dg.RunRequest | dg.SkipReason:
    """Ask the model about the golems that live, if there is a model and anybody lives."""
    if ModelSettings.of(os.environ) is None:
        return dg.SkipReason(f"no language model is configured: {MODEL} is not set")
    try:
        living = living_golems(home.stores)
    except NoHomeError as error:
        return dg.SkipReason(str(error))
    return dg.RunRequest(tags={"bardo/why": f"{len(living)} golems live"}) if living else dg.SkipReason("nobody lives")


@dg.schedule(
    job=drift_job,
    cron_schedule="15 4 * * 0",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Every Sunday, if there are vectors. Runs as soon as Dagster does; switch it off on its page.",
)
def every_week(
    context: dg.ScheduleEvaluationContext, home: dg.ResourceParam[LazyStores]
) -> dg.RunRequest | dg.SkipReason:
    """Check the model, where it has made vectors."""
    try:
        made = any(home.stores.log.identities())
    except NoHomeError as error:
        return dg.SkipReason(str(error))
    return dg.RunRequest() if made else dg.SkipReason("no text was embedded yet")
