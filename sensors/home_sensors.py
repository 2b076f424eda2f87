"""Sensors that look at a home: closed cycles, queued dreams, deaths, silent golems, due successions, spool, journals.

A cursor holds the log versions of the last look; a run request carries its reason as a tag."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from assets.checks import evaluations
from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.silence import declare_silent_golems
from bardo_pipeline.derivation.dreams.derive_dreams import early_dreams
from bardo_pipeline.derivation.reports.home_health import health_of, overrun
from bardo_pipeline.derivation.succession.succeed import due_successions
from bardo_pipeline.errors import BackpressureError, NoHomeError
from bardo_pipeline.events.life.retractions import WITHDRAWALS
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.spool_folder import shown, waiting
from jobs.home_jobs import curator_job, death_job, dream_job, observe_job, pending_work, spool_job, succession_job

FEW = 5

Decision = dg.RunRequest | dg.SensorResult | dg.SkipReason
Look = Callable[[dg.SensorEvaluationContext, LazyStores], Decision]


def home_sensor(job: Any, seconds: int, text: str, *, running: bool = True) -> Callable[[Look], dg.SensorDefinition]:
    """Decorate a function that looks at a home; the sensor takes its name. Skips without a home.

    Parameters
    ----------
    job : asset job or op job that the sensor requests
    seconds : minimum interval between two looks
    running : start with Dagster (True) or only after an operator switches the sensor on
    """
    status = dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED
    suffix = " Starts with Dagster; switch it off on its page." if running else ""

    def decorate(look: Look) -> dg.SensorDefinition:

        def evaluate(context: dg.SensorEvaluationContext, home: dg.ResourceParam[LazyStores]) -> Decision:
            try:
                return look(context, home)
            except NoHomeError as error:
                return dg.SkipReason(str(error))

        sensor = dg.sensor(
            name=look.__name__,
            job=job,
            minimum_interval_seconds=seconds,
            default_status=status,
            description=text + suffix,
        )
        return sensor(evaluate)

    return decorate


@dataclass(frozen=True)
class Cursor:
    """Log versions read last, None before the first look. `home` is the creation time of the home."""

    home: str
    log_version: int | None
    life_version: int | None

    @classmethod
    def of(cls, stores: DerivationContext) -> Self:
        """Return a cursor at the current log versions."""
        return cls(stores.home.created_at.isoformat(), stores.log.version, stores.log.life_version)

    @classmethod
    def read(cls, text: str | None, *, home: str) -> Self:
        """Parse a stored cursor. Missing, unreadable or another home's: a cursor before the first look."""
        try:
            stored = cls(**json.loads(text or "{}"))
        except (TypeError, json.JSONDecodeError):
            stored = cls("", None, None)
        return stored if stored.home == home else cls(home, None, None)

    @property
    def text(self) -> str:
        """Serialise the cursor for Dagster's storage."""
        return json.dumps(asdict(self))

    @property
    def run_key(self) -> str:
        """Return a run key that repeats only while log and life events are unchanged."""
        return f"{self.home}/log-{self.log_version}-life-{self.life_version}"


def request(why: str, run_key: str | None = None) -> dg.RunRequest:
    """Return a run request that is tagged with its reason."""
    return dg.RunRequest(run_key=run_key, tags={"bardo/why": why})


def advance(result: dg.RunRequest | str, cursor: Cursor) -> dg.SensorResult:
    """Return a run request, or the reason to skip, and store the cursor."""
    if isinstance(result, str):
        return dg.SensorResult(skip_reason=dg.SkipReason(result), cursor=cursor.text)
    return dg.SensorResult(run_requests=[result], cursor=cursor.text)


def request_for(stores: DerivationContext, waiting: Sequence[str], why: str) -> dg.RunRequest:
    """Return one run request for all waiting items; its run key lists them, so that no run repeats."""
    return request(why, f"{stores.home.created_at.isoformat()}/{', '.join(waiting)}")


def few(items: Sequence[str], between: str = ", ") -> str:
    """Join the first FEW items and the count of the rest."""
    more = f" and {len(items) - FEW} more" if len(items) > FEW else ""
    return f"{between.join(items[:FEW])}{more}"


@home_sensor(
    curator_job,
    60,
    "Requests the curator job for cycles that closed since the last look. Off by default, because the schedule does "
    "the same every ten minutes; switch it on for a shorter delay.",
    running=False,
)
def cycles_closed(context: dg.SensorEvaluationContext, home: LazyStores) -> dg.SensorResult | dg.SkipReason:
    """Request one run if cycles closed. Compares two log versions if nothing was recorded since the last look."""
    now = Cursor.of(home.stores)
    if Cursor.read(context.cursor, home=now.home) == now:
        return dg.SkipReason("nothing was recorded since the last look")
    pending = pending_work(home.stores)
    return advance("no cycle closed since the last look" if pending is None else request(pending, now.run_key), now)


@home_sensor(
    dream_job,
    60,
    "Requests the dream job for episodes tagged for a dream and for golems born with a bundle, once their cycles are "
    "curated.",
)
def dreams_queued(context: dg.SensorEvaluationContext, home: LazyStores) -> dg.SensorResult:
    """Request one run if a dream is queued. The run key contains the versions of log and curation."""
    now, why = Cursor.of(home.stores), early_dreams(home.stores)
    if why is None:
        return advance("no dream is queued before its time", now)
    curated = home.stores.projections.growing("curation").table.version
    return advance(request(why, f"{now.run_key}-curation-{curated}"), now)


@home_sensor(
    death_job,
    30,
    "Requests the death job once for all deaths recorded since the last look and for retractions in the lives of dead "
    "golems.",
)
def deaths_recorded(context: dg.SensorEvaluationContext, home: LazyStores) -> dg.SensorResult:
    """Request one run if there are deaths or bundles to derive again. The cursor holds the last life event version."""
    stores, now = home.stores, Cursor.of(home.stores)
    news = stores.log.life(since_version=Cursor.read(context.cursor, home=now.home).life_version)
    dead = sorted(set(news.filter(pc.equal(news["kind"], "DeathDeclared"))["golem_id"].to_pylist()))
    retracted = set(news.filter(pc.is_in(news["kind"], value_set=pa.array(WITHDRAWALS)))["golem_id"].to_pylist())
    long_dead = set(stores.life("DeathDeclared")["golem_id"].to_pylist()) - set(dead) if retracted else set()
    remade = sorted(retracted & long_dead)
    causes = [(dead, "died"), (remade, "left bundles with retracted records")]
    why = "; ".join(f"{few(names)} {text}" for names, text in causes if names)
    return advance(request(why, f"{now.home}/life-{now.life_version}") if why else "no death since the last look", now)


_ACTIVE = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING,
              dg.DagsterRunStatus.STARTED]  # fmt: skip


@home_sensor(
    observe_job,
    300,
    "Requests the observe job once for all living golems without a tick for longer than the policy allows. Golems with "
    "a running writer are skipped until the writer has ended.",
)
def golems_silent(context: dg.SensorEvaluationContext, home: LazyStores) -> dg.RunRequest | dg.SkipReason:
    """Request one run for all silent golems. The run key lists golems and last ticks."""
    golems = declare_silent_golems(home.stores, now=home.now(), dry_run=True)
    silent = [golem for golem in golems if golem.outcome == "silent"]
    if not silent:
        return dg.SkipReason("no living golem is silent")
    why = f"{few([golem.golem_id for golem in silent])} fell silent"
    return request_for(home.stores, [f"{golem.golem_id}@{golem.tick}" for golem in silent], why)


@home_sensor(
    succession_job,
    30,
    "Requests the succession job for due steps; a failed step's event contains the time of its retry. Without "
    "`auto = true` under [succession] only successions begun by hand have due steps.",
)
def successions_due(context: dg.SensorEvaluationContext, home: LazyStores) -> dg.RunRequest | dg.SkipReason:
    """Request one run for all due steps. The run key lists golems and attempts."""
    steps = due_successions(home.stores, home.now())
    if not steps:
        return dg.SkipReason("no succession step is due")
    why = few([f"{step.golem_id}: {step.why}" for step in steps], "; ")
    return request_for(home.stores, [f"{step.golem_id}@{step.tried}" for step in steps], why)


@home_sensor(
    spool_job,
    10,
    "Requests the spool job once for all files that wait in the spool. Requests none while a run is active; the files "
    "of a failed run still wait and are requested again.",
)
def files_dropped(context: dg.SensorEvaluationContext, home: LazyStores) -> dg.RunRequest | dg.SkipReason:
    """Request one run for all waiting files. Needs no cursor, because ingested files leave the spool."""
    names = waiting(Home.open(home.root))
    if not names:
        return dg.SkipReason("the spool is empty")
    if context.instance.get_runs_count(dg.RunsFilter(job_name=spool_job.name, statuses=_ACTIVE)):
        return dg.SkipReason(f"{len(names)} files wait, and a run of the spool job is active")
    return request(f"{few([shown(name) for name in names])} dropped")


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


def _report_change(instance: dg.DagsterInstance, result: dg.AssetCheckResult) -> None:
    """Report a check result only if it changed, so that a healthy home adds no events."""
    assert result.asset_key is not None, "a health check names its asset"
    assert result.check_name is not None, "a health check has a name"
    key = dg.AssetCheckKey(result.asset_key, result.check_name)
    latest = instance.get_latest_asset_check_evaluation_record(key)
    evaluation = latest.evaluation if latest is not None else None
    if evaluation is not None and evaluation.passed == result.passed:
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
