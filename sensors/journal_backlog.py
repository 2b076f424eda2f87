"""Lag: writers that outrun the drainer fail this sensor's tick, in red, until the journals are drained."""

from __future__ import annotations

import dagster as dg

from assets.health_checks import evaluations
from assets.resources import LazyStores
from bardo_pipeline.derivation.reports.home_health import health_of, overrun
from bardo_pipeline.errors import BackpressureError, NoHomeError


@dg.sensor(
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Measures the home and tells the health checks of the log and of what is derived from it when one "
    "changes. Fails while a journal is fuller, or what it holds is older, than the policy bears: writers outrun the "
    "drainer, or nobody drains. Asks for no run.",
)
def writers_outrun_the_drainer(
    context: dg.SensorEvaluationContext, home: dg.ResourceParam[LazyStores]
) -> dg.SkipReason:
    """One measurement. Raises BackpressureError, with what stands where, while a journal is overrun."""
    try:
        stores = home.stores
    except NoHomeError as error:
        return dg.SkipReason(str(error))
    health = health_of(stores, home.now())
    for result in evaluations(health, stores.policy):
        _tell(context.instance, result)
    found = list(overrun(health.journals, stores.policy))
    if found:
        raise BackpressureError("; ".join(fault.says for fault in found))
    depth = sum(journal.depth.bytes for journal in health.journals)
    return dg.SkipReason(f"{len(health.journals)} journals hold {depth:,} bytes that are not in the log yet")


def _tell(instance: dg.DagsterInstance, result: dg.AssetCheckResult) -> None:
    """Report the check's result where it is news, so that a home in order fills no event log."""
    assert result.asset_key is not None, "a health check names its asset"
    assert result.check_name is not None, "a health check has a name"
    key = dg.AssetCheckKey(result.asset_key, result.check_name)
    known = instance.get_latest_asset_check_evaluation_record(key)
    evaluation = known.evaluation if known is not None else None
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
