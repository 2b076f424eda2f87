"""Health: how a home stands, by measures that cost little: listings, footers and the newest commits.

Nothing here waits, writes, or takes part in anything. Source: X-11.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.record.arrow_schema import MOMENT
from bardo_pipeline.policy import WriterPolicy
from bardo_pipeline.storage import locks
from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.quarantine import Quarantine
from bardo_pipeline.storage.intake.spool_folder import TAKING, waiting
from bardo_pipeline.storage.journal.leases import stale
from bardo_pipeline.storage.journal.segment_files import depth_of, journal_folders, limits_of
from bardo_pipeline.storage.log.event_log import EventLog

_FIRST_LOOK = 8  # commits; a look that finds too little goes four times as far back


@dataclass(frozen=True)
class Backlog:
    """Files that wait: how many, their bytes, and how long the oldest has waited (None without one)."""

    files: int
    bytes: int
    oldest_seconds: float | None


@dataclass(frozen=True)
class Journal:
    """One writer's journal: what it holds of what was acknowledged, whether its writer lives, and its limits."""

    writer: str
    alive: bool
    depth: Backlog
    bytes_max: int
    flush_seconds: float


@dataclass(frozen=True)
class Intake:
    """What the log took lately.

    recorded_at: when it took its newest record; event_at: the newest event time of those it took last. Both None for an
    empty log. minute, hour, day: records that it took in the last 60 s, hour and day.
    """

    recorded_at: datetime | None
    event_at: datetime | None
    minute: int
    hour: int
    day: int


@dataclass(frozen=True)
class Quarantined:
    """What is in quarantine and nobody ruled on: all, what came within a day, and that as a share of a day's intake."""

    open: int
    day: int
    day_share: float


@dataclass(frozen=True)
class Leases:
    """Golems that a writer holds, and those whose writer died and left the lease behind."""

    held: int
    stale: int


def journals(home: Home, now: datetime, policy: WriterPolicy) -> list[Journal]:
    """Every writer's journal, by name. policy: for those whose writers do not say which limits they keep."""
    found = []
    for folder in journal_folders(home):
        limits = limits_of(folder, policy)
        alive, depth = _is_locked(folder / "lock"), _held(folder, now)
        found.append(Journal(folder.name, alive, depth, limits.journal_bytes_max, limits.flush_seconds))
    return found


def _held(folder: Path, now: datetime) -> Backlog:
    depth = depth_of(folder)
    age = None if depth.oldest_at is None else max(0.0, (now - depth.oldest_at).total_seconds())
    return Backlog(depth.segments, depth.bytes, age)


def spool(home: Home, now: datetime) -> Backlog:
    """Files that lie in the spool, whether somebody began to take them or not."""
    names = waiting(home)
    return backlog([folder / name for name in names for folder in (home.spool, home.spool / TAKING)], now)


def backlog(paths: Iterable[Path], now: datetime) -> Backlog:
    """Files among these paths that are there still when they are looked at."""
    found = []
    for path in paths:
        try:
            status = path.stat()
        except FileNotFoundError:  # taken meanwhile
            continue
        if path.is_file():
            found.append((status.st_size, status.st_mtime))
    oldest = min((changed for _, changed in found), default=None)
    age = None if oldest is None else max(0.0, (now - datetime.fromtimestamp(oldest, UTC)).total_seconds())
    return Backlog(len(found), sum(size for size, _ in found), age)


def intake(log: EventLog, now: datetime) -> Intake:
    """What the log took lately; costs in proportion to what it took in the last day."""
    recorded, observed = _taken_since(log, now - timedelta(days=1))

    def since(age: timedelta) -> int:
        return int(pc.sum(pc.greater(recorded, pa.scalar(now - age, MOMENT))).as_py() or 0)

    return Intake(
        recorded_at=pc.max(recorded).as_py(),
        event_at=pc.max(observed).as_py(),
        minute=since(timedelta(minutes=1)),
        hour=since(timedelta(hours=1)),
        day=since(timedelta(days=1)),
    )


def _taken_since(log: EventLog, moment: datetime) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """When the log took its newest records, and their event times: all since a moment, and one older if there is."""
    newest, back = log.version, _FIRST_LOOK
    while True:
        since = newest - back
        rows = log.read_cycles(["recorded_at", "observed_at"], since if since > 0 else None)
        oldest = pc.min(rows["recorded_at"]).as_py()
        if since <= 0 or (oldest is not None and oldest < moment):
            return rows["recorded_at"], rows["observed_at"]
        back *= 4


def committed_at(table: AppendOnlyTable) -> datetime | None:
    """When the table's newest commit was made, as the commit itself says; None where the table only was created."""
    version = table.version
    if version == 0:
        return None
    lines = (table.path / "_delta_log" / f"{version:020}.json").read_bytes().splitlines()
    made = next(info["timestamp"] for line in lines if (info := orjson.loads(line).get("commitInfo")))
    return datetime.fromtimestamp(made / 1_000, UTC)


def quarantined(home: Home, taken_in_a_day: int, now: datetime) -> Quarantined:
    """What waits for a ruling."""
    if not (home.quarantine / "items").exists():
        return Quarantined(0, 0, 0.0)
    moments = Quarantine(home).open(["taken_at"])["taken_at"]
    day = int(pc.sum(pc.greater(moments, pa.scalar(now - timedelta(days=1), MOMENT))).as_py() or 0)
    return Quarantined(len(moments), day, day / (day + taken_in_a_day) if day else 0.0)


def leases(home: Home) -> Leases:
    """Who holds a lease, and which were left behind."""
    left = len(stale(home))
    return Leases(sum(1 for path in _entries(home.leases) if path.suffix == ".lease") - left, left)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def _is_locked(path: Path) -> bool:
    try:
        return locks.is_held(path)
    except FileNotFoundError:
        return False
