"""Requests of runs for work that is due, whatever became of earlier requests.

A sensor asks the home what is due at each look. Work that is still due after its run failed, was killed or was
cancelled is requested again, after a pause that doubles with each attempt. No cursor can lose work.
"""

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta

import dagster as dg
from dagster._core.storage.tags import RETRY_NUMBER_TAG

from assets.resources import ALL_BUCKETS

DUE_TAG, WHY_TAG = "bardo/due", "bardo/why"
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=30), timedelta(hours=1)

ACTIVE = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
PARTITIONED_JOBS = ("curator_job", "death_job", "dream_job")
_RUNS_READ = 32  # at least the attempts after which the pause has its maximum, with two retries each


def request_due(
    instance: dg.DagsterInstance, job_name: str, due: Sequence[str], why: str, now: datetime
) -> dg.RunRequest | dg.SkipReason:
    """Request a run for due work, unless a run of the job is active or an attempt has just ended.

    An attempt is a run without success, or a run for the same work, which is due all the same. Dagster's own retries
    of a run belong to its attempt. The run key is a hash of the due work with the number of earlier runs for it, so
    that a repeated look requests no second run.

    Parameters
    ----------
    due : time of the home's creation, and names of the due work; the same names mean the same work
    why : reason for people, a tag of the run
    """
    if is_active(instance, job_name):
        return dg.SkipReason(f"{why}; a run of {job_name} is active")
    key = hashlib.sha256("\n".join(due).encode()).hexdigest()[:32]
    attempts, ended_at = _attempts(instance, job_name, key)
    if ended_at is not None:
        pause = min(FIRST_PAUSE * 2 ** (attempts - 1), LONGEST_PAUSE)
        if now < ended_at + pause:
            again = (ended_at + pause).strftime("%H:%M:%S")
            return dg.SkipReason(f"{why}; attempt {attempts} ended without it, and the next one follows at {again} UTC")
    earlier = instance.get_runs_count(dg.RunsFilter(tags={DUE_TAG: key}))
    return dg.RunRequest(run_key=f"{key}-{earlier + 1}", tags={DUE_TAG: key} | tags_of(job_name, why))


def tags_of(job_name: str, why: str) -> dict[str, str]:
    """Return the tags of a requested run: its reason, and all partitions if the job's assets by golem have some."""
    return {WHY_TAG: why} | (ALL_BUCKETS if job_name in PARTITIONED_JOBS else {})


def is_active(instance: dg.DagsterInstance, job_name: str) -> bool:
    """Whether a run of the job is queued, starting, running or being cancelled."""
    return instance.get_runs_count(dg.RunsFilter(job_name=job_name, statuses=ACTIVE)) > 0


def _attempts(instance: dg.DagsterInstance, job_name: str, key: str) -> tuple[int, datetime | None]:
    """Return the number of attempts since the last run that did its work, and when the newest one ended."""
    records = instance.get_run_records(dg.RunsFilter(job_name=job_name), limit=_RUNS_READ)
    attempts = 0
    for record in records:
        run = record.dagster_run
        if run.status == dg.DagsterRunStatus.SUCCESS and run.tags.get(DUE_TAG) != key:
            break
        attempts += RETRY_NUMBER_TAG not in run.tags
    return attempts, records[0].update_timestamp if attempts else None
