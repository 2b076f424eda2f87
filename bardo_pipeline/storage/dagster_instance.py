"""The folder of a home in which its Dagster instance keeps runs, schedule ticks and logs."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from bardo_pipeline.storage.home import Home

SETTINGS = """\
# Settings of this home's Dagster instance. Written once; what you change here, stays.

telemetry:
  enabled: false

# One process at a time derives into a home; a second run would only wait for the first one's lock.
concurrency:
  runs:
    max_concurrent_runs: 1

# A schedule or sensor that finds nothing says so at every look: those notes go after a few days.
retention:
  schedule:
    purge_after_days: {skipped: 7, failure: 30, success: -1}
  sensor:
    purge_after_days: {skipped: 2, failure: 30, success: -1}
"""


def prepare_dagster_home(home: Home) -> Path:
    """Return the folder for DAGSTER_HOME; write its dagster.yaml if it is missing."""
    folder = home.dagster
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "dagster.yaml"
    if not settings.exists():
        handle, draft = tempfile.mkstemp(dir=folder, prefix=".dagster.yaml.")
        with os.fdopen(handle, "w") as out:
            out.write(SETTINGS)
        os.replace(draft, settings)
    return folder
