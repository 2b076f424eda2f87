"""Run Dagster's command on this project's workspace for one home."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bardo_pipeline.errors import ConfigError, DerivationError
from bardo_pipeline.project_files import checkout
from bardo_pipeline.storage.dagster_instance import prepare_dagster_home
from bardo_pipeline.storage.home import Home


def project_root() -> Path:
    """Return the folder with definitions.py and workspace.yaml. Raises ConfigError outside a checkout."""
    root = checkout()
    if root is None:
        raise ConfigError("Dagster's code location is not part of the wheel: use a checkout (`make venv`) or the image")
    return root


def environment(root: Path) -> dict[str, str]:
    """Return the environment of Dagster's command: the home, its instance, this Python's scripts first on PATH."""
    folder = prepare_dagster_home(Home.open(root))
    tools = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "BARDO_HOME": str(root),
        "DAGSTER_HOME": str(folder),
        "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', '')}",
        "DAGSTER_DISABLE_TELEMETRY": "yes",
    }


def _dagster() -> str:
    return str(Path(sys.executable).parent / "dagster")


def execute_job(root: Path, job: str) -> None:
    """Run a job and wait for it. Raises DerivationError with the last 25 log lines if it fails."""
    command = [_dagster(), "job", "execute", "-f", "definitions.py", "-j", job]
    job_run = subprocess.run(
        command, cwd=project_root(), env=environment(root), capture_output=True, text=True, check=False
    )
    if job_run.returncode:
        tail = "\n".join((job_run.stdout + job_run.stderr).splitlines()[-25:])
        raise DerivationError(f"Dagster's {job} failed; its last log lines:\n{tail}")


def serve(root: Path, host: str, port: int) -> int:
    """Serve Dagster's UI until Ctrl-C; return its exit code."""
    command = [_dagster(), "dev", "-w", "workspace.yaml", "-h", host, "-p", str(port)]
    try:
        return subprocess.run(command, cwd=project_root(), env=environment(root), check=False).returncode
    except KeyboardInterrupt:
        return 0
