"""Sensors that look at a home: closed cycles, queued dreams, deaths, silent golems, due successions, spool, journals.

Each asks at every look what is due. A run request carries its reason as a tag."""

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import dagster as dg
from dagster._core.storage.asset_check_execution_record import (
    COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES,
    AssetCheckExecutionRecordStatus,
)

from assets.checks import evaluations
from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.owner_notices import WEBHOOK, waiting_notices, webhook_of
from bardo_pipeline.derivation.death.silence import declare_silent_golems
from bardo_pipeline.derivation.death.unfinished_deaths import dead_with_retractions, unfinished_deaths
from bardo_pipeline.derivation.dreams.derive_dreams import early_dreams
from bardo_pipeline.derivation.reports.home_health import health_of, overrun
from bardo_pipeline.derivation.reports.marts_lag import unbuilt_change
from bardo_pipeline.derivation.succession.succeed import due_successions
from bardo_pipeline.errors import BackpressureError, NoHomeError
from bardo_pipeline.storage.home import Home, statuses
from bardo_pipeline.storage.intake.spool_folder import TAKING, shown, waiting
from jobs.home_jobs import (
    curator_job,
    death_job,
    dream_job,
    marts_job,
    notices_job,
    observe_job,
    pending_work,
    spool_job,
    succession_job,
)
from jobs.run_notices import post_run, unposted_runs
from jobs.run_requests import is_active, request_due

FEW = 5


class Due(NamedTuple):
    """Work that is due in a home. names: of its parts; the same names mean the same work. why: reason for people."""

    names: Sequence[str]
    why: str


Look = Callable[[LazyStores], Due | str]
"""Returns the work that is due, or the reason why none is."""


def home_sensor(
    job: Any, seconds: int, text: str, *, running: bool = True, doers: Sequence[Any] = ()
) -> Callable[[Look], dg.SensorDefinition]:
    """Decorate a function that looks at a home; the sensor takes its name and requests due work (`request_due`).

    It skips without a home.

    Parameters
    ----------
    job : asset job or op job that the sensor requests
    seconds : minimum interval between two looks
    running : start with Dagster (True) or only after an operator switches the sensor on
    doers : other jobs that do the work too; the sensor waits while a run of them is active
    """
    status = dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED
    suffix = " Starts with Dagster; switch it off on its page." if running else ""

    def decorate(look: Look) -> dg.SensorDefinition:

        def evaluate(
            context: dg.SensorEvaluationContext, home: dg.ResourceParam[LazyStores]
        ) -> dg.RunRequest | dg.SkipReason:
            try:
                created_at, due = Home.open(home.root).created_at.isoformat(), look(home)
            except NoHomeError as error:
                return dg.SkipReason(str(error))
            if isinstance(due, str):
                return dg.SkipReason(due)
            for doer in doers:
                if is_active(context.instance, doer.name):
                    return dg.SkipReason(f"{due.why}; a run of {doer.name} is active and does this")
            return request_due(context.instance, job.name, [created_at, *due.names], due.why, home.now())

        sensor = dg.sensor(
            name=look.__name__,
            job=job,
            minimum_interval_seconds=seconds,
            default_status=status,
            description=text + suffix,
        )
        return sensor(evaluate)

    return decorate


def versions_of(stores: DerivationContext) -> list[str]:
    """Name the versions of the log and of the decisions, which grow with each curated cycle."""
    log, curated = stores.log, stores.projections.growing("curation").version
    return [f"log {log.version}, life {log.life_version}, curation {curated}"]


def few(items: Sequence[str], between: str = ", ") -> str:
    """Join the first FEW items and the count of the rest."""
    more = f" and {len(items) - FEW} more" if len(items) > FEW else ""
    return f"{between.join(items[:FEW])}{more}"


@home_sensor(
    curator_job,
    60,
    "Requests the curator job for closed cycles without decisions. Off by default, because the schedule does "
    "the same every ten minutes; switch it on for a shorter delay.",
    running=False,
)
def cycles_closed(home: LazyStores) -> Due | str:
    """Request one run if closed cycles wait for the curator."""
    why = pending_work(home.stores)
    return "no closed cycle waits for the curator" if why is None else Due(versions_of(home.stores), why)


@home_sensor(
    dream_job,
    60,
    "Requests the dream job for episodes tagged for a dream and for golems born with a bundle, once their cycles are "
    "curated.",
)
def dreams_queued(home: LazyStores) -> Due | str:
    """Request one run if a dream is queued."""
    why = early_dreams(home.stores)
    return "no dream is queued before its time" if why is None else Due(versions_of(home.stores), why)


@home_sensor(
    death_job,
    30,
    "Requests the death job once for all recorded deaths that can be completed, and for retractions in the lives of "
    "dead golems. A death whose records are not complete waits for them.",
)
def deaths_recorded(home: LazyStores) -> Due | str:
    """Request one run if there are deaths to complete or bundles to derive again."""
    stores = home.stores
    dead = [death.golem_id for death in unfinished_deaths(stores) if death.is_ready]
    remade = dead_with_retractions(stores)
    causes = [(dead, "died"), (remade, "left bundles with retracted records")]
    why = "; ".join(f"{few(names)} {text}" for names, text in causes if names)
    return Due([*dead, "retracted", *remade], why) if why else "no death can be completed"


@home_sensor(
    marts_job,
    300,
    "Requests the marts job for changes that the marts lack: of a run that ended before them, of `bardo derive "
    "--no-marts`, of dreams, of a process that derives by itself. Waits for active runs that end with the marts.",
    doers=(curator_job, death_job),
)
def marts_behind(home: LazyStores) -> Due | str:
    """Request one run if a table of the marts changed since the newest build."""
    change = unbuilt_change(home.stores)
    if change is None:
        return "the marts lack nothing"
    return Due([change.isoformat()], f"the marts lack changes up to {change:%Y-%m-%d %H:%M:%S} UTC")


@home_sensor(
    observe_job,
    300,
    "Requests the observe job once for all living golems without a tick for longer than the policy allows. Golems with "
    "a running writer are skipped until the writer has ended, those with records in the spool until these are taken.",
)
def golems_silent(home: LazyStores) -> Due | str:
    """Request one run for all silent golems."""
    golems = declare_silent_golems(home.stores, now=home.now(), dry_run=True)
    silent = [golem for golem in golems if golem.outcome == "silent"]
    if not silent:
        return "no living golem is silent"
    why = f"{few([golem.golem_id for golem in silent])} fell silent"
    return Due([f"{golem.golem_id}@{golem.tick}" for golem in silent], why)


@home_sensor(
    succession_job,
    30,
    "Requests the succession job for due steps; a failed step's event contains the time of its retry. Without "
    "`auto = true` under [succession] only successions begun by hand have due steps.",
)
def successions_due(home: LazyStores) -> Due | str:
    """Request one run for all due steps."""
    steps = due_successions(home.stores, home.now())
    if not steps:
        return "no succession step is due"
    why = few([f"{step.golem_id}: {step.why}" for step in steps], "; ")
    return Due([f"{step.golem_id}@{step.tried}" for step in steps], why)


@home_sensor(
    spool_job,
    10,
    "Requests the spool job once for all files that wait in the spool. Requests none while a run is active; the files "
    "of a failed run still wait and are requested again.",
)
def files_dropped(home: LazyStores) -> Due | str:
    """Request one run for all waiting files; ingested files leave the spool."""
    opened = Home.open(home.root)
    names = waiting(opened)
    if not names:
        return "the spool is empty"
    why = f"{few([shown(name) for name in names])} dropped"
    files = statuses(folder / name for name in names for folder in (opened.spool, opened.spool / TAKING))
    return Due([f"{path}: {status.st_size} bytes, {status.st_mtime_ns}" for path, status in files], why)


@dg.run_failure_sensor(
    default_status=dg.DefaultSensorStatus.RUNNING,
    description=f"Posts each failed run to {WEBHOOK}, if it is set: job, run, error and reason of the request.",
)
def runs_failed(context: dg.RunFailureSensorContext) -> dg.SkipReason | None:
    """Post a failed run as JSON. An OSError of the webhook fails the sensor's tick; the notice then waits."""
    url = webhook_of(os.environ)
    if url is None:
        return dg.SkipReason(f"{WEBHOOK} is not set")
    post_run(context.instance, context.dagster_run, url)
    return None


@dg.sensor(
    job=notices_job,
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description=f"Requests the notices job for notices of deaths, successions and failed runs that {WEBHOOK} did not "
    "take. Waits for active runs that post notices themselves.",
)
def notices_waiting(
    context: dg.SensorEvaluationContext, home: dg.ResourceParam[LazyStores]
) -> dg.RunRequest | dg.SkipReason:
    """Request one run for all waiting notices, if there is a webhook."""
    if webhook_of(os.environ) is None:
        return dg.SkipReason(f"{WEBHOOK} is not set")
    if any(is_active(context.instance, job.name) for job in (death_job, succession_job)):
        return dg.SkipReason("a run that posts notices is active")
    try:
        due = [notice.event_id for notice in waiting_notices(home.stores)]
    except NoHomeError as error:
        return dg.SkipReason(str(error))
    due += [run.run_id for run in unposted_runs(context.instance)]
    if not due:
        return dg.SkipReason("no notice waits")
    return request_due(context.instance, notices_job.name, due, f"{len(due)} notices wait", home.now())


@dg.sensor(
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Measures the home and reports health checks whose result changed. Fails while a journal exceeds the "
    "policy's size or age, because writers outrun the drainer or no drainer runs. Requests no run.",
)
def writers_outrun_the_drainer(
    context: dg.SensorEvaluationContext, home: dg.ResourceParam[LazyStores]
) -> dg.SkipReason:
    """Measure once. Raises BackpressureError, with size and age, while a journal is overrun."""
    try:
        stores = home.stores
    except NoHomeError as error:
        return dg.SkipReason(str(error))
    health = health_of(stores, home.now())
    for result in evaluations(health, stores.policy):
        _report_change(context.instance, result)
    overruns = list(overrun(health.journals, stores.policy))
    if overruns:
        raise BackpressureError("; ".join(fault.says for fault in overruns))
    depth = sum(journal.depth.bytes for journal in health.journals)
    return dg.SkipReason(f"{len(health.journals)} journals hold {depth:,} bytes that are not in the log yet")


# Dagster's own use of an option, each time it copies the sensor; the version is locked.
warnings.filterwarnings("ignore", "Parameter `owners` of initializer `SensorDefinition", dg.BetaWarning)

upkeep_due = dg.AutomationConditionSensorDefinition(
    "upkeep_due",
    target=dg.AssetSelection.groups("upkeep"),
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Requests the maintenance every hour if a run saw the log grow since the last one, and each night. "
    "A maintenance that failed is requested again an hour later.",
)


def _report_change(instance: dg.DagsterInstance, result: dg.AssetCheckResult) -> None:
    """Report a check result only if it changed, so that a healthy home adds no events."""
    assert result.asset_key is not None, "a health check names its asset"
    assert result.check_name is not None, "a health check has a name"
    key = dg.AssetCheckKey(result.asset_key, result.check_name)
    # The newest record may be that of a run that is queued, works or was killed, and holds no result.
    latest = instance.event_log_storage.get_asset_check_execution_history(
        key, limit=1, status=COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES
    )
    if latest and latest[0].status is (
        AssetCheckExecutionRecordStatus.SUCCEEDED if result.passed else AssetCheckExecutionRecordStatus.FAILED
    ):
        return
    instance.report_runless_asset_event(
        dg.AssetCheckEvaluation(
            asset_key=key.asset_key,
            check_name=key.name,
            passed=result.passed,
            metadata=result.metadata,
            severity=result.severity,
            description=result.description,
        )
    )
