"""Dagster's own command, called on this project's workspace and on one home."""

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
    """Environment for Dagster's command: this home, its instance, and the tools beside this Python on PATH."""
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
    """Run a job to its end. Raises DerivationError with the end of its log if it fails."""
    command = [_dagster(), "job", "execute", "-f", "definitions.py", "-j", job]
    done = subprocess.run(
        command, cwd=project_root(), env=environment(root), capture_output=True, text=True, check=False
    )
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-25:])
        raise DerivationError(f"Dagster's {job} failed; the end of its log:\n{tail}")


def serve(root: Path, host: str, port: int) -> int:
    """Serve Dagster's page until it is stopped. Returns its exit code."""
    command = [_dagster(), "dev", "-w", "workspace.yaml", "-h", host, "-p", str(port)]
    try:
        return subprocess.run(command, cwd=project_root(), env=environment(root), check=False).returncode
    except KeyboardInterrupt:
        return 0
