"""Sensor of the journal backlog: its tick fails while writers outrun the drainer."""

from __future__ import annotations

import dagster as dg

from assets.health_checks import evaluations
from assets.resources import LazyStores
from bardo_pipeline.derivation.reports.home_health import health_of, overrun
from bardo_pipeline.errors import BackpressureError, NoHomeError


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
