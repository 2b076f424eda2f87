"""The run launcher of a home's Dagster instance: Dagster's own, which also notices that a run's process has gone.

Dagster's launcher starts each run in a process of the code server and does not look at it again. After a reboot, or
when the code server was killed, such a run would stay "started" for ever. With `run_monitoring` in dagster.yaml the
daemon asks this launcher about each started run, and marks a lost one as failed.
"""

import json

from dagster import DagsterRun, DefaultRunLauncher
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.launcher.base import CheckRunHealthResult, WorkerStatus
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._grpc.client import DagsterGrpcClient
from dagster._grpc.types import GetCurrentRunsResult
from dagster._serdes import deserialize_value


class MonitoredRunLauncher(DefaultRunLauncher):
    """Launches runs as DefaultRunLauncher does, and answers whether a run's code server still has it."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Tell the daemon to ask about started runs."""
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Ask the code server that started a run for its current runs."""
        address = json.loads(run.tags.get(GRPC_INFO_TAG, "{}"))
        if not address:
            return CheckRunHealthResult(WorkerStatus.UNKNOWN, "the run names no code server")
        client = DagsterGrpcClient(port=address.get("port"), socket=address.get("socket"), host=address["host"])
        try:
            current = deserialize_value(client.get_current_runs(), GetCurrentRunsResult).current_runs
        except DagsterUserCodeUnreachableError:
            return CheckRunHealthResult(WorkerStatus.NOT_FOUND, "its code server has ended")
        if run.run_id in current:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.NOT_FOUND, "its code server does not have it")
