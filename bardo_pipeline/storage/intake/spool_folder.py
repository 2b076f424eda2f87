"""The spool: a folder into which a runtime in any language puts files of records; each file is ingested exactly once.

A runtime writes a file elsewhere (or under a name with a leading dot) and renames it into spool/, or into
spool/<golem id>/, which accepts only records of that golem. Ingestion renames the file into spool/.taking/, commits it
block by block and deletes it. A block is one transaction of the writer "spool/<SHA-256 of the first MiB>", and records
that are already in the log are only counted, so ingestion can be repeated after a crash. docs/writing.md describes the
protocol for runtimes.
Source: EV-4.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from mmap import ACCESS_READ, mmap
from pathlib import Path
from stat import S_ISDIR
from urllib.parse import unquote

import orjson
import pyarrow as pa

from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home, all_below, children, make_folder, statuses
from bardo_pipeline.storage.intake.quarantine import Kept, Quarantine
from bardo_pipeline.storage.intake.spool_ingest import FileIngest, IngestReport
from bardo_pipeline.storage.log.event_log import EventLog

LIFE, REPORTS, LINES, ARROW, SIGNATURES = ".life.jsonl", ".experience.jsonl", ".jsonl", ".arrow", ".sig"
_LOCK = "spool"
TAKING = ".taking"
_NAMED_BY_BYTES = 2**20


class Spool:
    """The spool of one home."""

    def __init__(self, home: Home, log: EventLog, policy: Policy | None = None) -> None:
        self._home, self._log, self._policy = home, log, policy or Policy()
        self.quarantine = Quarantine(home, self._policy)
        # One pool for all files, because each new thread would retain memory of its allocations.
        self._ahead = ThreadPoolExecutor(2)
        self._taking = home.spool / TAKING

    def take(self, taken_at: datetime) -> Iterator[IngestReport]:
        """Ingest the waiting files one after the other.

        Raises StoreError if the log or the quarantine cannot be written; the next call ingests the file.
        """
        for name in waiting(self._home):
            with self._home.lock(_LOCK):
                path = self._claimed(name)
                taken = None if path is None else self._take(path, name, taken_at)
            if taken is not None:
                yield taken

    def _claimed(self, name: Path) -> Path | None:
        """Move a file and its signatures into .taking/; None if another process took it."""
        source, target = self._home.spool / name, self._taking / name
        if target.exists():
            return target  # left by a crash; a new file of this name is ingested after it
        make_folder(target.parent)
        try:
            if _signatures(source).exists():
                _signatures(source).replace(_signatures(target))
            return source.replace(target)
        except FileNotFoundError:
            return None

    def _take(self, path: Path, name: Path, taken_at: datetime) -> IngestReport:
        with path.open("rb") as file:
            beginning = hashlib.sha256(file.read(_NAMED_BY_BYTES)).hexdigest()
            file.seek(0)
            ingest = FileIngest(
                self._log, self.quarantine, self._policy.writer, report=IngestReport(shown(name), path.stat().st_size),
                owner=owner_of(shown(name)), writer=f"spool/{beginning}", taken_at=taken_at,
            )  # fmt: skip
            signatures = _signatures(path)
            if path.name.endswith(LIFE):
                ingest.life(file, signatures)
            elif path.name.endswith(LINES):
                ingest.lines(file, signatures, self._ahead, are_reports=path.name.endswith(REPORTS))
            else:
                broken = ingest.arrow(pa.PythonFile(file), signatures)
                if broken is not None:
                    sealing = bool(self._log.sealing())  # the file may contain private parts, which are not kept
                    kept = Kept("", ingest.report.size) if sealing else self.quarantine.keep_file(path, signatures)
                    ingest.whole(kept, broken)
        # Delete the signatures first; else a crash would leave them to the next file of this name.
        signatures.unlink(missing_ok=True)
        path.unlink()  # if a power cut restores it, its content is already in the log or in quarantine
        return ingest.report


def waiting(home: Home) -> list[Path]:
    """Return the waiting files as paths below the spool: files left by a crash, life events, records; each by name."""
    interrupted, fresh = _files(home.spool / TAKING), _files(home.spool)
    return interrupted + [name for name in fresh if name not in interrupted]


def waiting_files(home: Home, golems: Iterable[str]) -> dict[str, Path]:
    """Return the golems that a waiting file names, each with a file. Arrow files are not searched: they name all."""
    quoted = {golem: orjson.dumps(golem) for golem in golems}
    named: dict[str, Path] = {}
    for name in waiting(home) if quoted else ():
        for path in (home.spool / TAKING / name, home.spool / name):
            with suppress(FileNotFoundError):  # it lies in one of them, until it is taken
                for golem in quoted if name.name.endswith(ARROW) else _found(path, quoted):
                    named.setdefault(golem, name)
    return named


def _found(path: Path, words: Mapping[str, bytes]) -> list[str]:
    """Return the keys of the words that a file contains."""
    if not path.stat().st_size:  # an empty file cannot be mapped
        return []
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        return [key for key, word in words.items() if content.find(word) >= 0]


def never_taken(home: Home) -> list[Path]:
    """Return what lies in the spool and no ingestion takes: other names, links, deeper folders, lone signatures."""
    taken = {folder / name for name in waiting(home) for folder in (home.spool, home.spool / TAKING)}
    taken |= {_signatures(path) for path in taken}
    files = [path for path, status in statuses(all_below(home.spool)) if not S_ISDIR(status.st_mode)]
    return [path for path in files if path not in taken]


def _files(folder: Path) -> list[Path]:
    top = children(folder)
    paths = [*top, *(path for golem in top for path in children(golem))]
    plain = (path.relative_to(folder) for path in paths if _is_plain(path))
    return sorted(filter(_is_offered, plain), key=lambda name: (not name.name.endswith(LIFE), name))


def _is_plain(path: Path) -> bool:
    """Whether a file and its signatures, if it has any, are plain: a pipe has no end, and a link names other files."""
    files = [path, *filter(os.path.lexists, [_signatures(path)])]
    return all(file.is_file() and not file.is_symlink() for file in files)


def _is_offered(name: Path) -> bool:
    return name.name.endswith((LINES, ARROW)) and not any(part.startswith(".") for part in name.parts)


def owner_of(file: str) -> str | None:
    """Return the golem of a file's folder, percent-decoded; None for a file directly in the spool."""
    folder, _, _ = file.rpartition("/")
    return unquote(folder) or None


def shown(name: Path) -> str:
    """Return a file's name as valid UTF-8; a name on disk may have any bytes."""
    return name.as_posix().encode("utf-8", "backslashreplace").decode()


def _signatures(path: Path) -> Path:
    return path.with_name(path.name + SIGNATURES)
