"""The maintenance job: the log compacted, old ticks moved to the cold tier, and all that grows held to its quota."""

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
_PAGE = 500  # runs asked for at a time


@dg.op(out=dg.Out(dg.Nothing))
def look_after_the_home(context: dg.OpExecutionContext, home: dg.ResourceParam[LazyStores]) -> None:
    """Compact, move, trim and prune. Raises CustodyError where a file of the log is not what was recorded."""
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
        raise CustodyError(f"{len(report.damaged)} files were left alone; {first}: {why}")


@dg.op(ins={"after": dg.In(dg.Nothing)}, out=dg.Out(dg.Nothing))
def forget_old_runs(context: dg.OpExecutionContext, home: dg.ResourceParam[LazyStores]) -> None:
    """Let Dagster forget its oldest finished runs beyond the policy's number, with their events and logs."""
    kept, forgotten = home.stores.policy.care.dagster_runs_max, 0
    for run_id in reversed(list(_runs_beyond(context.instance, kept))):
        context.instance.delete_run(run_id)
        context.instance.compute_log_manager.delete_logs(prefix=[run_id])
        _take_database(context.instance, run_id)
        forgotten += 1
    context.add_output_metadata({"runs_forgotten": forgotten, "runs_kept_max": kept})


def _take_database(instance: dg.DagsterInstance, run_id: str) -> None:
    """Take away the file in which Dagster kept a run's events: it empties that and leaves it."""
    for file in (Path(instance.root_directory) / "history" / "runs").glob(f"{run_id}.db*"):
        file.unlink()


def _runs_beyond(instance: dg.DagsterInstance, kept: int) -> Iterator[str]:
    """Ids of finished runs behind the newest so many, newest first."""
    cursor, seen = None, 0
    while page := instance.get_runs(dg.RunsFilter(statuses=_FINISHED), cursor=cursor, limit=_PAGE):
        for run in page:
            seen += 1
            if seen > kept:
                yield run.run_id
        cursor = page[-1].run_id


@dg.job(
    executor_def=dg.in_process_executor,
    description="Look after everything that grows: rewrite the log's files clustered by golem and tick, move ticks "
    "past the lookback to the cold tier, trim Delta's log, hold to its quota what can be made again, and let Dagster "
    "forget old runs. Changes no row; run again, it finds nothing to do. `bardo maintain` does the same by hand.",
)
def maintenance_job() -> None:
    """Two steps: the home, then Dagster's own memory of runs."""
    forget_old_runs(after=look_after_the_home())
