"""Dagster's daemon over a home as real processes, and the end of any of them by SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bardo_pipeline.cli.fleet.fleet_commands import dagster_environment

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 600
"""Seconds for a busy machine; a quiet one needs about 60 for each wait."""


@contextmanager
def daemon(root: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run Dagster's daemon with its code server; both and all runs are killed at the end."""
    process = start_daemon(root, log)
    try:
        yield process
    finally:
        kill_all(process)


def start_daemon(root: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start Dagster's daemon, which starts its code server. Both print into `log`."""
    command = [str(Path(sys.executable).with_name("dagster-daemon")), "run", "-w", "workspace.yaml"]
    with log.open("ab") as out:
        return subprocess.Popen(
            command, cwd=ROOT, env=dagster_environment(root), stdout=out, stderr=out, start_new_session=True
        )


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kill the daemon and every process below it."""
    for pid in [process.pid, *below(process.pid)]:
        kill(pid)
    process.wait()


def below(pid: int) -> list[int]:
    """Return the processes below a process, children before grandchildren."""
    parents = {int(stat.split()[0]): int(stat.rpartition(")")[2].split()[1]) for stat in _stats()}
    found, level = [], [pid]
    while level:
        level = [child for child, parent in parents.items() if parent in level]
        found += level
    return found


def _stats() -> Iterator[str]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            yield (folder / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue


def kill(pid: int) -> None:
    """Send SIGKILL to a process, if it still exists."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def until(condition: Callable[[], bool], what: str, log: Path, patience: float = PATIENCE) -> None:
    """Wait for a condition. Raises AssertionError after `patience` seconds, with the end of the log."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {patience} s; {log.read_text()[-4000:]}"
        time.sleep(0.2)
