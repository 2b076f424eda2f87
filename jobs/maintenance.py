"""The maintenance job: compacts the log, moves old ticks to the cold tier, and enforces quotas."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import dagster as dg

from assets.metadata import markdown_table
from assets.resources import LazyStores
from bardo_pipeline.derivation.home_maintenance import tend
from bardo_pipeline.errors import CustodyError
from bardo_pipeline.storage.operations.retention import disk_bytes

_FINISHED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_PAGE = 500  # runs in one query of Dagster's storage


@dg.op(out=dg.Out(dg.Nothing))
def maintain_home(context: dg.OpExecutionContext, home: dg.ResourceParam[LazyStores]) -> None:
    """Compact, move, trim and prune. Raises CustodyError if a file of the log differs from its recorded hash."""
    stores = home.stores
    before = disk_bytes(stores.home.root)
    report = tend(stores.home, stores.log, stores.policy, now=home.now())
    context.add_output_metadata(
        {
            "done": markdown_table([asdict(step) for step in report.steps]),
            "rows_rewritten": sum(step.rows for step in report.steps),
            "files_before": sum(step.files_before for step in report.steps),
            "files_after": sum(step.files_after for step in report.steps),
            "disk_bytes_before": before,
            "disk_bytes_after": disk_bytes(stores.home.root),
        }
    )
    if report.damaged:
        first, why = next(iter(report.damaged.items()))
        raise CustodyError(f"{len(report.damaged)} damaged files were skipped; {first}: {why}")


@dg.op(ins={"after": dg.In(dg.Nothing)}, out=dg.Out(dg.Nothing))
def delete_old_runs(context: dg.OpExecutionContext, home: dg.ResourceParam[LazyStores]) -> None:
    """Delete Dagster's oldest finished runs beyond the policy's maximum, with their events and logs."""
    runs_max, deleted = home.stores.policy.care.dagster_runs_max, 0
    for run_id in reversed(list(_runs_beyond(context.instance, runs_max))):
        context.instance.delete_run(run_id)
        context.instance.compute_log_manager.delete_logs(prefix=[run_id])
        _delete_event_file(context.instance, run_id)
        deleted += 1
    context.add_output_metadata({"runs_forgotten": deleted, "runs_kept_max": runs_max})


def _delete_event_file(instance: dg.DagsterInstance, run_id: str) -> None:
    """Delete the SQLite file of a run's events, which Dagster empties but keeps."""
    for file in (Path(instance.root_directory) / "history" / "runs").glob(f"{run_id}.db*"):
        file.unlink()


def _runs_beyond(instance: dg.DagsterInstance, runs_max: int) -> Iterator[str]:
    """Yield the ids of finished runs older than the newest `runs_max`, newest first."""
    cursor, seen = None, 0
    while page := instance.get_runs(dg.RunsFilter(statuses=_FINISHED), cursor=cursor, limit=_PAGE):
        for run in page:
            seen += 1
            if seen > runs_max:
                yield run.run_id
        cursor = page[-1].run_id


@dg.job(
    executor_def=dg.in_process_executor,
    description="Compact the log's files, clustered by golem and tick; move ticks past the lookback to the cold tier; "
    "trim Delta's log; prune rebuildable files to their quota; delete old Dagster runs. Changes no row. A second run "
    "finds nothing to do. `bardo maintain` does the same.",
)
def maintenance_job() -> None:
    """Maintain the home, then Dagster's run storage."""
    delete_old_runs(after=maintain_home())
