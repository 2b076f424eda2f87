"""Sums: the SHA-256 of every file of the log that must never change, written down as soon as it is committed.

One append-only text a table, `log/sums/<table>`, a line a file:

    sha256  path below log/  bytes  check

The check is the beginning of the SHA-256 of the check before and of the rest of the line, so the list cannot be thinned
out or edited in its middle. It is evidence, not truth: no reader of the log needs it, `bardo verify` does. A process
that is killed between its commit and the line leaves that one file without; the next append writes what is missing.

Source: X-9: an altered bit in any byte of the log is found and its file named.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import orjson

from bardo_pipeline.storage import locks
from bardo_pipeline.storage.home import Home, sync_folder

_START = "0" * 16
_TAIL_BYTES = 64 * 1024
_LINE = re.compile(r"([0-9a-f]{64})  (\S+)  ([0-9]+)  ([0-9a-f]{16})")
COMMIT = re.compile(r"([0-9]{20})\.json")
CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint\.parquet")


class Sum(NamedTuple):
    """What a file was when it was committed: SHA-256 in hex, and its length in bytes."""

    hash: str
    size: int


@dataclass
class SumList:
    """What a list says: each file's sum by its path below log/, and what is wrong with the list itself."""

    sums: dict[str, Sum] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


class Sums:
    """The list of one table. table: its folder, below log/."""

    def __init__(self, home: Home, table: Path) -> None:
        self._root, self._table = home.cycles.parent, table
        self.prefix = table.relative_to(self._root).as_posix()
        self.path = self._root / "sums" / self.prefix.replace("/", "-")
        self._length, self._check = 0, _START
        self._commit = self._checkpoint = -1  # the newest of each that has a line

    def follow(self, version: int) -> int:
        """Write the lines of all commits up to this version that have none; returns how many lines that were.

        Where they cannot be written (a full disk), they are left to the next call: the commits stand without them.
        """
        try:
            with self._held() as handle:
                self._learn(handle)
                return self._write(handle, self._due(version))
        except OSError:
            return 0

    def catch_up(self) -> int:
        """Write the lines of all commits and checkpoints of the table that have none, durably; returns how many."""
        with self._held() as handle:
            self._learn(handle)
            known = read_sums(self.path).sums
            log = self._table / "_delta_log"
            found = sorted(name for name in os.listdir(log) if COMMIT.fullmatch(name) or CHECKPOINT.fullmatch(name))
            missing = [name for name in found if f"{self.prefix}/_delta_log/{name}" not in known]
            due = (path for name in missing for path in self._of(log / name) if self._name(path) not in known)
            written = self._write(handle, due)
            os.fsync(handle)
            sync_folder(self.path.parent)
            return written

    def _due(self, until: int) -> Iterator[Path]:
        # A checkpoint is made when its version is the newest, and so after that commit's line.
        log = self._table / "_delta_log"
        for version in range(max(self._commit, 0), until + 1):
            if version > self._commit:
                yield from self._of(log / f"{version:020}.json")
            if version > self._checkpoint:
                yield from self._of(log / f"{version:020}.checkpoint.parquet")

    def _of(self, path: Path) -> Iterator[Path]:
        """A commit's data files, if they are as long as it says, and then itself; a checkpoint alone."""
        if not path.exists():
            return
        if path.suffix == ".json":
            for add in adds_of(path.read_bytes()):
                data = self._table / unquote(add["path"])
                if data.exists() and data.stat().st_size == add["size"]:
                    yield data
        yield path

    def _write(self, handle: int, due: Iterable[Path]) -> int:
        lines, check = [], self._check
        named: list[str] = []
        for path in due:
            said = f"{hash_file(path)}  {self._name(path)}  {path.stat().st_size}"
            check = _next(check, said)
            lines.append(f"{said}  {check}\n")
            named.append(path.name)
        content = "".join(lines).encode()
        if content and os.pwrite(handle, content, self._length) < len(content):
            raise OSError(f"{self.path}: a line was cut short")
        self._length, self._check = self._length + len(content), check
        self._note(named)
        return len(lines)

    def _note(self, names: Iterable[str]) -> None:
        for name in names:
            if found := COMMIT.search(name):
                self._commit = max(self._commit, int(found.group(1)))
            elif found := CHECKPOINT.search(name):
                self._checkpoint = max(self._checkpoint, int(found.group(1)))

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    def _learn(self, handle: int) -> None:
        """Take in what others wrote since; a torn end, which only a lost machine leaves, goes."""
        end = os.fstat(handle).st_size
        if end == self._length:
            return
        if end < self._length:
            self._length, self._commit, self._checkpoint = 0, -1, -1
        start = self._length or max(0, end - _TAIL_BYTES)
        lines = _parsed(os.pread(handle, end - start, start))
        if start and not any(COMMIT.search(line.group(2)) for line, _ in lines):
            start, lines = 0, _parsed(os.pread(handle, end, 0))
        self._length = start + lines[-1][1] if lines else 0
        self._check = lines[-1][0].group(4) if lines else _START
        self._note(line.group(2) for line, _ in lines)
        os.ftruncate(handle, self._length)

    @contextmanager
    def _held(self) -> Iterator[int]:
        self.path.parent.mkdir(exist_ok=True)
        with locks.held(self.path) as handle:
            yield handle


def _parsed(content: bytes) -> list[tuple[re.Match[str], int]]:
    """The whole lines of a piece of a list, and where each ends in it."""
    found = []
    end = 0
    for line in content.splitlines(keepends=True):
        end += len(line)
        match = _LINE.fullmatch(line.decode("ascii", "replace").removesuffix("\n"))
        if match and line.endswith(b"\n"):
            found.append((match, end))
    return found


def read_sums(path: Path, length: int | None = None) -> SumList:
    """A list, or so many bytes of it. What is wrong with it is named, line by line; nothing is raised for that."""
    found = SumList()
    try:
        content = path.read_bytes()[:length]
    except FileNotFoundError:
        return found
    check = _START
    for number, line in enumerate(content.splitlines(keepends=True), 1):
        match = _LINE.fullmatch(line.decode("ascii", "replace").removesuffix("\n"))
        if match is None or not line.endswith(b"\n"):
            found.faults.append(f"line {number} is torn or altered")
            continue
        said, given = match.group(0)[:-18], match.group(4)
        if _next(check, said) != given:
            found.faults.append(f"line {number}, of {match.group(2)}, does not follow the line before")
        check, name, known = given, match.group(2), Sum(match.group(1), int(match.group(3)))
        if found.sums.setdefault(name, known) != known:
            found.faults.append(f"line {number} gives {name} another sum than a line before")
    return found


def adds_of(commit: bytes) -> list[dict]:
    """The files that a commit adds, as its JSON describes them; raises orjson.JSONDecodeError for none."""
    actions = [orjson.loads(line) for line in commit.splitlines()]
    return [action["add"] for action in actions if action.get("add")]


def hash_file(path: Path) -> str:
    """SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _next(check: str, said: str) -> str:
    return hashlib.sha256(f"{check}  {said}".encode()).hexdigest()[:16]
