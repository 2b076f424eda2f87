"""Assets of the home's upkeep: maintenance, verification and drift. Dagster plots their figures over time.

Each has a freshness policy, because it is due by the calendar, also in a home where nothing happens.
"""

from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg

from assets.log import LOG, VECTORS
from assets.metadata import OWNERS, markdown_table
from assets.resources import DERIVE, READ, LazyStores
from assets.retries import retried
from bardo_pipeline.derivation.home_maintenance import tend
from bardo_pipeline.derivation.memory.embed_texts import check_drift, suspect_count
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.operations.retention import disk_bytes
from bardo_pipeline.storage.verification.verify import verify
from bardo_pipeline.visible_text import visible

_FINISHED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_GROUP: dict[str, Any] = {"key_prefix": "upkeep", "group_name": "upkeep", "owners": OWNERS}

_LOG_GREW = (dg.AutomationCondition.missing() | dg.AutomationCondition.any_deps_updated()).since(
    dg.AutomationCondition.newly_updated()
)
"""True from a new data version of the log until a maintenance succeeds, so a failed run is requested again."""

_HOUR, _NIGHT = (dg.AutomationCondition.cron_tick_passed(cron) for cron in ("25 * * * *", "25 3 * * *"))

_MAINTENANCE_DUE = ((_HOUR & _LOG_GREW) | _NIGHT) & ~dg.AutomationCondition.in_progress()


def _fresh(**period: int) -> dg.FreshnessPolicy:
    """Return the policy of an asset that is due once in this period: a warning after it, a failure after two."""
    due = timedelta(hours=2, **period)
    return dg.FreshnessPolicy.time_window(fail_window=2 * due, warn_window=due)


@dg.asset(
    **_GROUP, deps=LOG, kinds={"deltalake"}, pool=DERIVE, automation_condition=_MAINTENANCE_DUE,
    freshness_policy=_fresh(days=1),
)  # fmt: skip
@retried
def maintenance(context: dg.AssetExecutionContext, home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """Compact the log's files, clustered by golem and tick; move ticks past the lookback to the cold tier; trim Delta's
    log; prune rebuildable files to their quota; delete old Dagster runs.

    Changes no row. Runs every hour if a run saw the log grow, and every night. A second run finds nothing to do. Fails
    if a file of the log differs from its recorded hash. `bardo maintain` does the same.
    """
    stores = home.stores
    before = disk_bytes(stores.home.root)
    report = tend(stores.home, stores.log, stores.policy, now=home.now())
    metadata: dict[str, Any] = {
        "done": markdown_table([asdict(step) for step in report.steps]),
        "rows_rewritten": sum(step.rows for step in report.steps),
        "files_before": sum(step.files_before for step in report.steps),
        "files_after": sum(step.files_after for step in report.steps),
        "disk_bytes_before": before,
        "disk_bytes_after": disk_bytes(stores.home.root),
    }
    if report.damaged:
        first, why = next(iter(report.damaged.items()))
        damage = f"{len(report.damaged)} damaged files were skipped; {first}: {why}"
        raise dg.Failure(f"{damage}: run `bardo verify`, and restore them from a backup", metadata=metadata)
    deleted = delete_old_runs(context.instance, stores.policy.care.dagster_runs_max)
    return dg.MaterializeResult(metadata=metadata | {"runs_deleted": deleted})


def delete_old_runs(instance: dg.DagsterInstance, runs_max: int) -> int:
    """Delete Dagster's oldest finished runs beyond `runs_max`, with their events and logs; return their count."""
    old = instance.get_run_ids(dg.RunsFilter(statuses=_FINISHED))[runs_max:]
    for run_id in reversed(old):
        instance.delete_run(run_id)
        instance.compute_log_manager.delete_logs(prefix=[run_id])
        # Dagster empties the SQLite file of a run's events, but keeps it.
        for file in (Path(instance.root_directory) / "history" / "runs").glob(f"{run_id}.db*"):
            file.unlink()
    return len(old)


@dg.asset(**_GROUP, deps=LOG, kinds={"deltalake"}, pool=READ, freshness_policy=_fresh(days=1))
@retried
def verification(home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """Verify chains, signatures, commits, files, journals and bundles on disk; fail and name the damage.

    Runs every night. `bardo verify` does the same.
    """
    report = verify(Home.open(home.root))
    breaks = [
        {"kind": broken.kind, "count": report.counts[broken.kind], "first": broken.sentence()}
        for broken in report.breaks
    ]
    metadata: dict[str, Any] = {
        "digest": report.digest,
        **{name.replace(" ", "_"): value for name, value in report.facts.items()},
        "breaks": markdown_table(breaks),
        "files": list(report.files),
        "gaps": markdown_table([gap._asdict() for gap in report.gaps]),
    }
    if not report.clean:
        cure = "run `bardo verify`, and restore the altered files from a backup"
        why = visible(f"the log differs from what was recorded: {breaks[0]['first']}: {cure}")
        raise dg.Failure(why, metadata=metadata)
    return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(report.digest))


@dg.asset(**_GROUP, deps=[VECTORS], kinds={"onnx"}, pool=READ, freshness_policy=_fresh(days=7))
@retried
def drift(home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """Embed the twenty reference texts and compare the vectors with the recorded ones: distance, neighbours, lengths.

    Records the verdict and fails if it is critical; no vectors are made until the model is restored. Runs every week.
    `bardo drift --check` does the same.
    """
    stores = home.stores
    measured = check_drift(stores, now=home.now()).drift
    metadata: dict[str, Any] = asdict(measured) | {
        "says": "; ".join(measured.says) or "as on record",
        "embedder": str(stores.embedder.identity),
    }
    if measured.verdict == "critical":
        cure = "restore the model and run this job again, or run `bardo reembed`"
        why = f"{metadata['says']}; {suspect_count(stores):,} vectors were made since the last passed check: {cure}"
        raise dg.Failure(f"the model has drifted: {why}", metadata=metadata)
    return dg.MaterializeResult(metadata=metadata)
