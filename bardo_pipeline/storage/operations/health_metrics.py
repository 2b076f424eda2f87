"""Cheap health metrics of a home, from directory listings, Parquet footers and the newest commits.

All functions are read-only and take no lock. Source: X-11.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from stat import S_ISREG
from urllib.parse import unquote

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.record.arrow_columns import rows_of_golems
from bardo_pipeline.events.record.arrow_schema import MOMENT
from bardo_pipeline.policy import WriterPolicy
from bardo_pipeline.storage import locks
from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable
from bardo_pipeline.storage.home import Home, statuses
from bardo_pipeline.storage.intake.quarantine import Quarantine
from bardo_pipeline.storage.intake.spool_folder import TAKING, never_taken, shown, waiting
from bardo_pipeline.storage.journal.segment_files import depth_of, journal_folders, read_limits
from bardo_pipeline.storage.leases import lease_path, stale_leases
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.protocol import RUN_WRITER

_COMMITS_FIRST = 8  # commits read at first; the number grows fourfold until they span the period


@dataclass(frozen=True)
class Backlog:
    """Files waiting to be taken: count, bytes, and the age of the oldest (None without files)."""

    files: int
    bytes: int
    oldest_seconds: float | None


@dataclass(frozen=True)
class NeverTaken:
    """Files in the spool that no ingestion takes: their number, the oldest (below the spool) and its age."""

    files: int
    oldest: str | None
    oldest_seconds: float | None


@dataclass(frozen=True)
class Journal:
    """One writer's journal: the acknowledged records not yet in the log, whether its writer lives, and its limits.

    damaged: segments that are shorter than when they were sealed, or than their header.
    """

    writer: str
    alive: bool
    depth: Backlog
    bytes_max: int
    flush_seconds: float
    damaged: int = 0


@dataclass(frozen=True)
class Intake:
    """Figures of the newest records of the log.

    recorded_at: commit time of the newest record. awaited_at: that of the newest record that no run of a past market
    wrote, None without one; a run ends, so nothing is awaited of its golems. event_at: newest event time of recent
    records. An empty log has none of them (None). minute, hour, day: number of records committed in the last 60 s,
    hour and day.
    """

    recorded_at: datetime | None
    awaited_at: datetime | None
    event_at: datetime | None
    minute: int
    hour: int
    day: int


@dataclass(frozen=True)
class Quarantined:
    """Quarantined items without a ruling: all, those of the last day, and the latter as a share of the day's intake."""

    open: int
    day: int
    day_share: float


@dataclass(frozen=True)
class Leases:
    """Number of leases held by live writers, and of leases left behind by dead writers."""

    held: int
    stale: int


def journals(home: Home, now: datetime, policy: WriterPolicy) -> list[Journal]:
    """Return every writer's journal, by name. policy: limits of writers that have not written theirs down."""
    entries = []
    for folder in journal_folders(home):
        limits = read_limits(folder, policy)
        alive, depth = _is_locked(folder / "lock"), depth_of(folder)
        unread = Backlog(depth.segments, depth.bytes, _age(depth.oldest_at, now))
        limit = limits.journal_bytes_max
        entries.append(Journal(folder.name, alive, unread, limit, limits.flush_seconds, depth.damaged))
    return entries


def _age(oldest_at: datetime | None, now: datetime) -> float | None:
    return None if oldest_at is None else max(0.0, (now - oldest_at).total_seconds())


def spool(home: Home, now: datetime, golems: Collection[str] | None = None) -> Backlog:
    """Return the files in the spool, including those being taken in; of all, or in the folders of these golems."""
    names = [name for name in waiting(home) if _is_in_view(name, golems)]
    return backlog([folder / name for name in names for folder in (home.spool, home.spool / TAKING)], now)


def untaken(home: Home, now: datetime, golems: Collection[str] | None = None) -> NeverTaken:
    """Return the files in the spool that no ingestion takes; of all, or in the folders of these golems."""
    paths = [path for path in never_taken(home) if _is_in_view(path.relative_to(home.spool), golems)]
    aged = [(_age(datetime.fromtimestamp(s.st_mtime, UTC), now), path) for path, s in statuses(paths)]
    seconds, oldest = max(aged, default=(None, None))
    return NeverTaken(len(aged), None if oldest is None else shown(oldest.relative_to(home.spool)), seconds)


def _is_in_view(name: Path, golems: Collection[str] | None) -> bool:
    """Return whether a file of the spool is in the folder of one of these golems. Any file is in view of None."""
    return golems is None or (len(name.parts) > 1 and unquote(name.parts[0]) in golems)


def backlog(paths: Iterable[Path], now: datetime) -> Backlog:
    """Sum up those of these paths that are existing files."""
    files = [
        (status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))
        for _, status in statuses(paths)
        if S_ISREG(status.st_mode)
    ]
    oldest_at = min((modified_at for _, modified_at in files), default=None)
    return Backlog(len(files), sum(size for size, _ in files), _age(oldest_at, now))


def intake(log: EventLog, now: datetime) -> Intake:
    """Count the log's recent records; costs time in proportion to the last day's records."""
    rows = _taken_since(log, now - timedelta(days=1))
    recorded, awaited = rows["recorded_at"], pc.invert(pc.starts_with(rows["writer"], RUN_WRITER))

    def since(age: timedelta) -> int:
        return int(pc.sum(pc.greater(recorded, pa.scalar(now - age, MOMENT))).as_py() or 0)

    return Intake(
        recorded_at=pc.max(recorded).as_py(),
        awaited_at=pc.max(recorded.filter(awaited)).as_py(),
        event_at=pc.max(rows["observed_at"]).as_py(),
        minute=since(timedelta(minutes=1)),
        hour=since(timedelta(hours=1)),
        day=since(timedelta(days=1)),
    )


def _taken_since(log: EventLog, moment: datetime) -> pa.Table:
    """Return writers, commit times and event times of all records since a time, and of an older record if any."""
    newest, back = log.version, _COMMITS_FIRST
    while True:
        since = newest - back
        rows = log.read_cycles(["writer", "recorded_at", "observed_at"], since if since > 0 else None)
        oldest = pc.min(rows["recorded_at"]).as_py()
        if since <= 0 or (oldest is not None and oldest < moment):
            return rows
        back *= 4


def committed_at(table: AppendOnlyTable) -> datetime | None:
    """Return the time in the table's newest commit; None if the table has no commit after its creation."""
    version = table.version
    if version == 0:
        return None
    lines = (table.path / "_delta_log" / f"{version:020}.json").read_bytes().splitlines()
    milliseconds = next(info["timestamp"] for line in lines if (info := orjson.loads(line).get("commitInfo")))
    return datetime.fromtimestamp(milliseconds / 1_000, UTC)


def quarantined(home: Home, taken_in_a_day: int, now: datetime, golems: Collection[str] | None = None) -> Quarantined:
    """Count the quarantined items without a ruling, of all senders or those that name one of these golems."""
    if not (home.quarantine / "items").exists():
        return Quarantined(0, 0, 0.0)
    items = Quarantine(home).open(["taken_at", "golem_id"])
    if golems is not None:
        items = rows_of_golems(items, golems)
    moments = items["taken_at"]
    day = int(pc.sum(pc.greater(moments, pa.scalar(now - timedelta(days=1), MOMENT))).as_py() or 0)
    return Quarantined(len(moments), day, day / (day + taken_in_a_day) if day else 0.0)


def leases(home: Home, golems: Collection[str] | None = None) -> Leases:
    """Count the leases of live and of dead writers, of all golems or of these."""
    named = set(home.leases.glob("*.lease"))
    if golems is not None:
        named &= {lease_path(home, golem_id) for golem_id in golems}
    stale_count = len(named.intersection(stale_leases(home)))
    return Leases(len(named) - stale_count, stale_count)


def _is_locked(path: Path) -> bool:
    try:
        return locks.is_held(path)
    except FileNotFoundError:
        return False
