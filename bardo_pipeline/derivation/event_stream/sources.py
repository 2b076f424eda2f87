"""The sources of typed events: six append-only tables, read commit by commit, forwards or backwards.

A cursor in the stream has a mark in each source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.errors import QueryError
from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable
from bardo_pipeline.storage.log.event_log import EventLog

SOURCES = ("life", "records", "decisions", "cycles", "hypotheses", "dreams")
"""The sources, in the order of their commits at equal times."""

_MARK = r"[0-9]{1,18}\.[0-9]{1,18}"
_POSITION = re.compile(f"{_MARK}(-{_MARK}){{3}}((-{_MARK}){{2}})?")
"""Positions of earlier versions have no marks for hypotheses and dreams, and continue with all of theirs."""
_BATCH_ROWS = 2_000  # more commits are read together while a read returns fewer rows


class Mark(NamedTuple):
    """A cursor in one source: all earlier versions and the first `events` events of this version are consumed."""

    version: int = 0
    events: int = 0


class Place(NamedTuple):
    """A cursor in the stream: a mark in each of SOURCES."""

    life: Mark = Mark()
    records: Mark = Mark()
    decisions: Mark = Mark()
    cycles: Mark = Mark()
    hypotheses: Mark = Mark()
    dreams: Mark = Mark()

    def __str__(self) -> str:
        return "-".join(f"{mark.version}.{mark.events}" for mark in self)

    @classmethod
    def parse(cls, text: str) -> Place:
        """Parse a cursor. Raises QueryError for an invalid text."""
        if not _POSITION.fullmatch(text):
            raise QueryError(f"{text!r} is no position: give one that an event of `bardo watch` carried")
        return cls(*(Mark(*(int(number) for number in mark.split("."))) for mark in text.split("-")))


@dataclass(frozen=True)
class Commit:
    """A commit of one source with its rows. moment: commit time, microseconds. batch: commits read with it."""

    source: str
    version: int
    moment: int
    rows: pa.Table
    batch: list[Commit] = field(default_factory=list, repr=False, compare=False)


class TableCommits:
    """The commits of a table that may not exist yet."""

    def __init__(self, columns: tuple[str, ...], open_table: Callable[[], AppendOnlyTable | None]) -> None:
        self._columns, self._open_table = columns, open_table
        self._table: AppendOnlyTable | None = None

    @property
    def version(self) -> int:
        """Newest version, -1 before the first."""
        if self._table is None:
            self._table = self._open_table()
        return -1 if self._table is None else self._table.version

    @property
    def oldest(self) -> int:
        """First version that can be read separately; rows of earlier versions are returned with it.

        Delta deletes commit files older than a checkpoint.
        """
        version = self.version
        while version > 1 and self._commit_file(version - 1).exists():
            version -= 1
        return max(version, 0)

    def read(self, first: int, last: int) -> list[tuple[int, int, pa.Table]]:
        """Return version, time and rows of each commit with rows between two versions, ascending."""
        assert self._table is not None, "`version` opens the table"
        commits = []
        for version in range(max(first, 1), last + 1):  # version 0 creates the table without rows
            alone = version == 1 or self._commit_file(version - 1).exists()
            files = self._table.tail(version - 1 if alone else None, version)[1]
            if files:
                committed_at = _commit_time(self._commit_file(version).read_bytes())
                commits.append((version, committed_at, self._table.load(files, self._columns)))
        return commits

    def _commit_file(self, version: int) -> Path:
        assert self._table is not None, "`version` opens the table"
        return self._table.path / "_delta_log" / f"{version:020}.json"


class RecordCommits:
    """The commits of the log's cycles; rows have a column `version`, so compaction does not matter."""

    def __init__(self, columns: tuple[str, ...], log: EventLog) -> None:
        self._columns, self._log = [*columns, "recorded_at", "version"], log

    @property
    def version(self) -> int:
        """Newest version of the log."""
        return self._log.version

    @property
    def oldest(self) -> int:
        """All versions can be read separately."""
        return 0

    def read(self, first: int, last: int) -> list[tuple[int, int, pa.Table]]:
        """Return version, time and rows of each commit with rows between two versions, ascending."""
        rows = self._log.read_cycles(self._columns, max(first - 1, 0), until_version=last)
        if rows["version"].null_count and first < last:  # rows of schema version 1: read each commit's file
            return [commit for version in range(first, last + 1) for commit in self.read(version, version)]
        versions = pc.fill_null(rows["version"], last).to_numpy()  # version 0 creates the table without rows
        commits = []
        for version in np.unique(versions[(versions >= first) & (versions <= last)]).tolist():
            own = rows.filter(pa.array(versions == version))
            commits.append((version, int(pc.max(own["recorded_at"].cast(pa.int64())).as_py()), own))
        return commits


class Source:
    """A source of events, read forwards from a mark or backwards from now."""

    def __init__(self, name: str, commits: TableCommits | RecordCommits) -> None:
        self.name, self._commits = name, commits

    @property
    def version(self) -> int:
        """Newest version, -1 before the first."""
        return self._commits.version

    def check(self, mark: Mark) -> None:
        """Raise QueryError for a mark before the oldest readable version or after the newest."""
        if mark.version > self.version + 1:
            raise QueryError(f"the position is after the newest {self.name} of this home: start without a position")
        if mark != Mark() and 1 < self._commits.oldest >= mark.version:
            raise QueryError(f"the position is before the oldest readable {self.name}: start without a position")

    def forwards(self, mark: Mark, until: int) -> Iterator[Commit]:
        """Yield commits from a mark up to a version; their times never decrease."""
        first, moment = max(mark.version, self._commits.oldest if until >= 0 else 0), 0
        for low, high in _spans(first, until, 1, self._next_size):
            batch: list[Commit] = []
            for version, committed_at, rows in self._read(low, high):
                moment = max(moment, committed_at)
                batch.append(Commit(self.name, version, moment, rows, batch))
            yield from batch

    def backwards(self, until: int) -> Iterator[Commit]:
        """Yield commits from a version back to the first; their times never increase."""
        moment = 2**63 - 1
        for low, high in _spans(until, self._commits.oldest if until >= 0 else 0, -1, self._next_size):
            for version, committed_at, rows in reversed(self._read(low, high)):
                moment = min(moment, committed_at)
                yield Commit(self.name, version, moment, rows)

    def _read(self, low: int, high: int) -> list[tuple[int, int, pa.Table]]:
        commits = self._commits.read(low, high)
        self._rows_last = sum(rows.num_rows for _, _, rows in commits)
        return commits

    def _next_size(self, span: int) -> int:
        return min(span * 2, 256) if self._rows_last < _BATCH_ROWS else max(span // 2, 1)


def _spans(start: int, end: int, step: int, next_size: Callable[[int], int]) -> Iterator[tuple[int, int]]:
    """Yield runs of versions (low, high), upwards or downwards; `next_size` adapts their length."""
    at, size = start, 1
    while (end - at) * step >= 0:
        last = at + step * (size - 1)
        last = min(last, end) if step > 0 else max(last, end)
        yield min(at, last), max(at, last)
        at, size = last + step, next_size(size)


def _commit_time(commit: bytes) -> int:
    """Return the time of a Delta commit, microseconds."""
    for line in commit.splitlines():
        info = orjson.loads(line).get("commitInfo")
        if info:
            return int(info.get("timestamp", 0)) * 1_000
    return 0
