"""The folder of a home's Dagster instance, and the settings in it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from bardo_pipeline.storage.home import Home, replace_file

DAGSTER_SETTINGS = """\
# Settings of this home's Dagster instance. Written once; your changes are kept.

telemetry:
  enabled: false

# No dialog invites to Dagster's mailing list.
nux:
  enabled: false

# One run at a time derives into a home, and one takes events in; others, as a verification, run beside them.
concurrency:
  runs:
    max_concurrent_runs: 4
  pools:
    granularity: run
    default_limit: 1

# A run whose process has gone, as after a reboot, is marked as failed within a minute and started again.
run_launcher:
  module: jobs.run_launcher
  class: MonitoredRunLauncher
run_monitoring:
  enabled: true
  poll_interval_seconds: 20
  start_timeout_seconds: 180
  cancel_timeout_seconds: 180
  max_resume_run_attempts: 0
# A run that failed for another reason is not: sensors and schedules request again what is due.
run_retries:
  enabled: true
  max_retries: 2
  retry_on_asset_or_op_failure: false

# A schedule or sensor that finds nothing records that at every look; these records are deleted after some days.
retention:
  schedule:
    purge_after_days: {skipped: 7, failure: 30, success: -1}
  sensor:
    purge_after_days: {skipped: 2, failure: 30, success: -1}
"""

_EARLIER_SETTINGS = (
    "8998737d792b85b8169c39e98724ab8b0d4ab66771120586fc33b87f4c661a80",
    "26a23799c15ed283d15f7c80b2a7058e955322eeb77b9fa24527ae486ddf02f0",
    "c5494a7e86647cb0e4d49af74bd42bc0e2037333b8e628cc1002b36221e2f73a",
)
"""Hashes of the settings that earlier versions wrote; a file that was not changed is replaced."""


def prepare_dagster_home(home: Home, owner: str | None = None) -> Path:
    """Return the folder for DAGSTER_HOME, one for each owner's views; write its dagster.yaml if it is missing."""
    name = "" if owner is None else f"owners/{hashlib.sha256(owner.encode()).hexdigest()[:40]}"
    folder = home.dagster / name
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "dagster.yaml"
    if not settings.exists() or hashlib.sha256(settings.read_bytes()).hexdigest() in _EARLIER_SETTINGS:
        replace_file(settings, DAGSTER_SETTINGS.encode())
    return folder
