"""Where the events of the fabric come from: four append-only tables, each read commit by commit, either way.

A place in the fabric is a mark in each source, so that whoever comes back goes on where they left off.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.errors import QueryError
from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable
from bardo_pipeline.storage.log.event_log import EventLog

SOURCES = ("life", "records", "decisions", "cycles")
"""In the order in which commits of one moment follow each other."""

_POSITION = re.compile(r"[0-9]{1,18}\.[0-9]{1,18}(-[0-9]{1,18}\.[0-9]{1,18}){3}")
_BATCH_ROWS = 2_000  # commits are read together while a reading brings fewer rows than this


class Mark(NamedTuple):
    """A place in one source: behind all commits before this version, and behind so many events of its own."""

    version: int = 0
    events: int = 0


class Place(NamedTuple):
    """A place in the fabric: a mark in each of SOURCES."""

    life: Mark = Mark()
    records: Mark = Mark()
    decisions: Mark = Mark()
    cycles: Mark = Mark()

    def __str__(self) -> str:
        return "-".join(f"{mark.version}.{mark.events}" for mark in self)

    @classmethod
    def parse(cls, text: str) -> Place:
        """The place that a text names. Raises QueryError for a text that names none."""
        if not _POSITION.fullmatch(text):
            raise QueryError(f"{text!r} is no position: give one that an event of `bardo watch` carried")
        return cls(*(Mark(*(int(number) for number in mark.split("."))) for mark in text.split("-")))


@dataclass(frozen=True)
class Commit:
    """A commit of one source with its rows. moment: when it was made, in microseconds. batch: those read with it."""

    source: str
    version: int
    moment: int
    rows: pa.Table
    batch: list[Commit] = field(default_factory=list, repr=False, compare=False)


class Commits(Protocol):
    """A table whose commits can be read."""

    @property
    def version(self) -> int:
        """Its newest version, -1 before the first."""
        ...

    @property
    def oldest(self) -> int:
        """The first version that is still told; all that came before it comes with it."""
        ...

    def read(self, first: int, last: int) -> list[tuple[int, int, pa.Table]]:
        """Version, moment and rows of each commit from one version to another that brought rows, ascending."""
        ...


class TableCommits:
    """The commits of a table that may not have been made yet."""

    def __init__(self, columns: tuple[str, ...], opened: Callable[[], AppendOnlyTable | None]) -> None:
        self._columns, self._opened = columns, opened
        self._table: AppendOnlyTable | None = None

    @property
    def version(self) -> int:
        """Its newest version, -1 before the first."""
        if self._table is None:
            self._table = self._opened()
        return -1 if self._table is None else self._table.version

    @property
    def oldest(self) -> int:
        """The first version that is still told: Delta's log may have been trimmed up to a checkpoint."""
        version = self.version
        while version > 1 and self._commit_file(version - 1).exists():
            version -= 1
        return max(version, 0)

    def read(self, first: int, last: int) -> list[tuple[int, int, pa.Table]]:
        """Version, moment and rows of each commit from one version to another that brought rows, ascending."""
        assert self._table is not None, "who reads has asked for the version"
        found = []
        for version in range(max(first, 1), last + 1):  # version 0 makes the table and brings no row
            alone = version == 1 or self._commit_file(version - 1).exists()
            files = self._table.tail(version - 1 if alone else None, version)[1]
            if files:
                made = _moment(self._commit_file(version).read_bytes())
                found.append((version, made, self._table.load(files, self._columns)))
        return found

    def _commit_file(self, version: int) -> Path:
        assert self._table is not None, "who reads has asked for the version"
        return self._table.path / "_delta_log" / f"{version:020}.json"


class RecordCommits:
    """The commits of the log's cycles: rows say themselves which version brought them, wherever they lie now."""

    def __init__(self, columns: tuple[str, ...], log: EventLog) -> None:
        self._columns, self._log = [*columns, "recorded_at", "version"], log

    @property
    def version(self) -> int:
        """The newest version of the log."""
        return self._log.version

    @property
    def oldest(self) -> int:
        """All versions are told."""
        return 0

    def read(self, first: int, last: int) -> list[tuple[int, int, pa.Table]]:
        """Version, moment and rows of each commit from one version to another that brought rows, ascending."""
        rows = self._log.read_cycles_between(self._columns, max(first - 1, 0), last)
        if rows["version"].null_count and first < last:  # of schema version 1: only a commit's own file tells
            return [commit for version in range(first, last + 1) for commit in self.read(version, version)]
        versions = pc.fill_null(rows["version"], last).to_numpy()  # version 0 makes the table and brings no row
        found = []
        for version in np.unique(versions[(versions >= first) & (versions <= last)]).tolist():
            own = rows.filter(pa.array(versions == version))
            found.append((version, int(pc.max(own["recorded_at"].cast(pa.int64())).as_py()), own))
        return found


class Source:
    """A source of the fabric: its commits forwards from a mark, or backwards from now."""

    def __init__(self, name: str, commits: Commits) -> None:
        self.name, self._commits = name, commits

    @property
    def version(self) -> int:
        """Its newest version, -1 before the first."""
        return self._commits.version

    def check(self, mark: Mark) -> None:
        """Raise QueryError for a mark that lies before what is still told one by one, or beyond what there is."""
        if mark.version > self.version + 1:
            raise QueryError(f"the position lies beyond the {self.name} of this home: start anew, without a position")
        if mark != Mark() and 1 < self._commits.oldest >= mark.version:
            raise QueryError(f"the position lies before the {self.name} that are kept: start anew, without a position")

    def forwards(self, mark: Mark, until: int) -> Iterator[Commit]:
        """Its commits from a mark up to a version; no moment before the one before."""
        first, moment = max(mark.version, self._commits.oldest if until >= 0 else 0), 0
        for low, high in _spans(first, until, 1, self._sizes):
            batch: list[Commit] = []
            for version, made, rows in self._taken(low, high):
                moment = max(moment, made)
                batch.append(Commit(self.name, version, moment, rows, batch))
            yield from batch

    def backwards(self, until: int) -> Iterator[Commit]:
        """Its commits from a version back to the first; no moment after the one before (which is later)."""
        moment = 2**63 - 1
        for low, high in _spans(until, self._commits.oldest if until >= 0 else 0, -1, self._sizes):
            for version, made, rows in reversed(self._taken(low, high)):
                moment = min(moment, made)
                yield Commit(self.name, version, moment, rows)

    def _taken(self, low: int, high: int) -> list[tuple[int, int, pa.Table]]:
        found = self._commits.read(low, high)
        self._rows_last = sum(rows.num_rows for _, _, rows in found)
        return found

    def _sizes(self, span: int) -> int:
        return min(span * 2, 256) if self._rows_last < _BATCH_ROWS else max(span // 2, 1)


def _spans(start: int, end: int, step: int, grown: Callable[[int], int]) -> Iterator[tuple[int, int]]:
    """Runs of versions (low, high) from one to another, upwards or downwards, as long as the last reading allows."""
    at, size = start, 1
    while (end - at) * step >= 0:
        last = at + step * (size - 1)
        last = min(last, end) if step > 0 else max(last, end)
        yield min(at, last), max(at, last)
        at, size = last + step, grown(size)


def _moment(commit: bytes) -> int:
    """When Delta says that a commit was made, in microseconds."""
    for line in commit.splitlines():
        said = orjson.loads(line).get("commitInfo")
        if said:
            return int(said.get("timestamp", 0)) * 1_000
    return 0
