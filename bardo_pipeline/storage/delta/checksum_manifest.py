"""Checksum manifests: the SHA-256 of every immutable file of the log, appended right after its commit.

Each table has an append-only text file, `log/sums/<table>`, with one line per file:

    sha256  path below log/  bytes  check

The check is a prefix of the SHA-256 over the previous check and the rest of the line, so lines cannot be removed or
edited unnoticed. Only `bardo verify` reads the manifest. A process that is killed between a commit and its line leaves
that line to the next append.

Source: X-9: `bardo verify` names the file of any altered bit of the log.
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
_LINE = re.compile(r"([0-9a-f]{64})  (\S+)  ([0-9]+)  ([0-9a-f]{16})\n")
COMMIT = re.compile(r"([0-9]{20})\.json")
CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint\.parquet")


class Sum(NamedTuple):
    """SHA-256 (hex) and size in bytes of a file at its commit."""

    hash: str
    size: int


@dataclass
class SumList:
    """Content of a manifest: checksum by path below log/, and faults of the manifest itself."""

    sums: dict[str, Sum] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


class Sums:
    """The checksum manifest of the table in this folder below log/."""

    def __init__(self, home: Home, table: Path) -> None:
        self._root, self._table = home.cycles.parent, table
        self.prefix = table.relative_to(self._root).as_posix()
        self.path = self._root / "sums" / self.prefix.replace("/", "-")
        self._length, self._check = 0, _START
        self._commit = self._checkpoint = -1  # newest version with a line

    def follow(self, version: int) -> int:
        """Append the missing lines of all commits up to this version; return their number.

        If the disk refuses them, the next call appends them; the commits are valid without them.
        """
        try:
            with self._locked() as handle:
                self._read_tail(handle)
                return self._write(handle, self._missing(version))
        except OSError:
            return 0

    def catch_up(self) -> int:
        """Append and sync the missing lines of all commits and checkpoints of the table; return their number."""
        with self._locked() as handle:
            self._read_tail(handle)
            listed = read_sums(self.path).sums
            log = self._table / "_delta_log"
            names = sorted(name for name in os.listdir(log) if COMMIT.fullmatch(name) or CHECKPOINT.fullmatch(name))
            missing = [name for name in names if f"{self.prefix}/_delta_log/{name}" not in listed]
            paths = (path for name in missing for path in self._files_of(log / name) if self._name(path) not in listed)
            written = self._write(handle, paths)
            os.fsync(handle)
            sync_folder(self.path.parent)
            return written

    def _missing(self, until: int) -> Iterator[Path]:
        # A checkpoint is written when its version is the newest, so after the line of that commit.
        log = self._table / "_delta_log"
        for version in range(max(self._commit, 0), until + 1):
            if version > self._commit:
                yield from self._files_of(log / f"{version:020}.json")
            if version > self._checkpoint:
                yield from self._files_of(log / f"{version:020}.checkpoint.parquet")

    def _files_of(self, path: Path) -> Iterator[Path]:
        """Yield the complete data files of a commit and then the commit; yield only itself for a checkpoint."""
        if not path.exists():
            return
        if path.suffix == ".json":
            for add in adds_of(path.read_bytes()):
                data = self._table / unquote(add["path"])
                if data.exists() and data.stat().st_size == add["size"]:
                    yield data
        yield path

    def _write(self, handle: int, paths: Iterable[Path]) -> int:
        lines, check = [], self._check
        names: list[str] = []
        for path in paths:
            content = f"{hash_file(path)}  {self._name(path)}  {path.stat().st_size}"
            check = _next_check(check, content)
            lines.append(f"{content}  {check}\n")
            names.append(path.name)
        appended = "".join(lines).encode()
        if appended and os.pwrite(handle, appended, self._length) < len(appended):
            raise OSError(f"{self.path}: a line was cut short")
        self._length, self._check = self._length + len(appended), check
        self._note(names)
        return len(lines)

    def _note(self, names: Iterable[str]) -> None:
        for name in names:
            if match := COMMIT.search(name):
                self._commit = max(self._commit, int(match.group(1)))
            elif match := CHECKPOINT.search(name):
                self._checkpoint = max(self._checkpoint, int(match.group(1)))

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    def _read_tail(self, handle: int) -> None:
        """Read the lines that other processes appended, and truncate a torn last line (left by a power cut)."""
        end = os.fstat(handle).st_size
        if end == self._length:
            return
        if end < self._length:
            self._length, self._commit, self._checkpoint = 0, -1, -1
        start = self._length or max(0, end - _TAIL_BYTES)
        lines = _whole_lines(os.pread(handle, end - start, start))
        if start and not any(COMMIT.search(line.group(2)) for line, _ in lines):
            start, lines = 0, _whole_lines(os.pread(handle, end, 0))
        self._length = start + lines[-1][1] if lines else 0
        self._check = lines[-1][0].group(4) if lines else _START
        self._note(line.group(2) for line, _ in lines)
        os.ftruncate(handle, self._length)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        self.path.parent.mkdir(exist_ok=True)
        with locks.held(self.path) as handle:
            yield handle


def _parsed(content: bytes) -> Iterator[tuple[re.Match[str] | None, int]]:
    """Yield each line of a part of a manifest (None if it is torn or altered) and the offset of its end."""
    end = 0
    for line in content.splitlines(keepends=True):
        end += len(line)
        yield _LINE.fullmatch(line.decode("ascii", "replace")), end


def _whole_lines(content: bytes) -> list[tuple[re.Match[str], int]]:
    return [(line, end) for line, end in _parsed(content) if line is not None]


def read_sums(path: Path, length: int | None = None) -> SumList:
    """Read a manifest, or its first `length` bytes. Faulty lines are reported in the result."""
    manifest = SumList()
    try:
        content = path.read_bytes()[:length]
    except FileNotFoundError:
        return manifest
    check = _START
    for number, (match, _) in enumerate(_parsed(content), 1):
        if match is None:
            manifest.faults.append(f"line {number} is torn or altered")
            continue
        if _next_check(check, match.group(0)[:-19]) != match.group(4):
            manifest.faults.append(f"line {number}, of {match.group(2)}, does not follow the line before")
        check, name, listed = match.group(4), match.group(2), Sum(match.group(1), int(match.group(3)))
        if manifest.sums.setdefault(name, listed) != listed:
            manifest.faults.append(f"line {number} gives {name} another sum than a line before")
    return manifest


def adds_of(commit: bytes) -> list[dict]:
    """Return the add actions of a commit. Raises orjson.JSONDecodeError for other content."""
    actions = [orjson.loads(line) for line in commit.splitlines()]
    return [action["add"] for action in actions if action.get("add")]


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _next_check(check: str, content: str) -> str:
    return hashlib.sha256(f"{check}  {content}".encode()).hexdigest()[:16]
