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
from dagster._grpc.types import CanCancelExecutionRequest, CanCancelExecutionResult
from dagster._serdes import deserialize_value
from grpc import RpcError, StatusCode  # type: ignore[import-untyped]


class MonitoredRunLauncher(DefaultRunLauncher):
    """Launches runs as DefaultRunLauncher does, and answers whether a run's code server still has it."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Tell the daemon to ask about started runs."""
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Ask the code server that started a run whether it could cancel it: it can while the process of the run lives.

        Each server answers this: that of `bardo ui` is a proxy, which does not list current runs.
        """
        address = json.loads(run.tags.get(GRPC_INFO_TAG, "{}"))
        if not address:
            return CheckRunHealthResult(WorkerStatus.UNKNOWN, "the run names no code server")
        client = DagsterGrpcClient(port=address.get("port"), socket=address.get("socket"), host=address["host"])
        try:
            answer = client.can_cancel_execution(CanCancelExecutionRequest(run_id=run.run_id))
        except DagsterUserCodeUnreachableError as error:
            if isinstance(error.__cause__, RpcError) and error.__cause__.code() is StatusCode.DEADLINE_EXCEEDED:
                return CheckRunHealthResult(WorkerStatus.RUNNING, "its code server is too busy to answer")
            return CheckRunHealthResult(WorkerStatus.NOT_FOUND, "its code server has ended")
        if deserialize_value(answer, CanCancelExecutionResult).can_cancel:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.NOT_FOUND, "its code server does not have it")
