"""Notices of failed runs to the webhook. A notice that was not taken is due until a later post succeeds.

Dagster shows each failed run to a run-failure sensor once, also if the sensor fails. A tag of the run keeps the state.
"""

from collections.abc import Sequence

import dagster as dg

from bardo_pipeline.derivation.death.owner_notices import post_json
from bardo_pipeline.policy import Policy
from bardo_pipeline.visible_text import visible
from jobs.run_requests import WHY_TAG

_TAG, _WAITS, _TAKEN = "bardo/notice", "waits", "taken"


def post_run(instance: dg.DagsterInstance, run: dg.DagsterRun, url: str) -> None:
    """Post a failed run as JSON. Raises OSError if the webhook does not take it; the notice then waits."""
    failures = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.RUN_FAILURE)
    error = next((entry.get_dagster_event().message for entry in reversed(failures)), None)
    notice = {
        "job": _name_of(run),
        "run_id": run.run_id,
        "error": visible(error or ""),
        "why": run.tags.get(WHY_TAG),
    }
    try:
        post_json(url, notice, Policy().dying.notice_seconds_max)
    except OSError:
        instance.add_run_tags(run.run_id, {_TAG: _WAITS})
        raise
    if _TAG in run.tags:
        instance.add_run_tags(run.run_id, {_TAG: _TAKEN})


def _name_of(run: dg.DagsterRun) -> str:
    """Return the job of a run, or its assets if an automation condition requested it."""
    keys = sorted(key.to_user_string() for key in run.asset_selection or ())
    return ", ".join(keys) if run.job_name.startswith("__") else run.job_name


def unposted_runs(instance: dg.DagsterInstance) -> Sequence[dg.DagsterRun]:
    """Return the failed runs whose notices wait, oldest first."""
    return instance.get_runs(dg.RunsFilter(tags={_TAG: _WAITS}), ascending=True)
