"""The spool: a folder into which a runtime in any language drops files of records; each is taken exactly once.

A file is written elsewhere (or under a name with a dot before it), then renamed into spool/, or into spool/<golem id>/,
where only that golem's records go. It is renamed into spool/.taking/, taken block by block, and removed. A block is one
transaction of the writer "spool/<SHA-256 of the file's first MiB>", and a record that is on record already is only
counted: a crash at any point and another taking change nothing. docs/writing.md is the protocol for those who write.
Source: EV-4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa

from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home, make_folder
from bardo_pipeline.storage.intake.quarantine import Kept, Quarantine
from bardo_pipeline.storage.intake.spool_ingest import Taken, Taking
from bardo_pipeline.storage.log.event_log import EventLog

LIFE, LINES, ARROW, SIGNATURES = ".life.jsonl", ".jsonl", ".arrow", ".sig"
_LOCK = "spool"
TAKING = ".taking"
_NAMED_BY_BYTES = 2**20


class Spool:
    """The spool of one home."""

    def __init__(self, home: Home, log: EventLog, policy: Policy | None = None) -> None:
        self._home, self._log, self._policy = home, log, policy or Policy()
        self.quarantine = Quarantine(home, self._policy)
        # These threads for all files: each new one would keep its own share of the memory that was used.
        self._ahead = ThreadPoolExecutor(2)
        self._taking = home.spool / TAKING

    def take(self, taken_at: datetime) -> Iterator[Taken]:
        """Take the files that wait now, one after the other.

        Raises StoreError where the log or the quarantine cannot be written; the file is taken the next time.
        """
        for name in waiting(self._home):
            with self._home.lock(_LOCK):
                path = self._claimed(name)
                taken = None if path is None else self._take(path, name, taken_at)
            if taken is not None:
                yield taken

    def _claimed(self, name: Path) -> Path | None:
        """The file where nobody else looks, its signatures with it; None if another one took it meanwhile."""
        source, target = self._home.spool / name, self._taking / name
        if target.exists():
            return target  # what a crash left; a new file of that name comes after it
        make_folder(target.parent)
        try:
            if _signatures(source).exists():
                _signatures(source).replace(_signatures(target))
            return source.replace(target)
        except FileNotFoundError:
            return None

    def _take(self, path: Path, name: Path, taken_at: datetime) -> Taken:
        with path.open("rb") as file:
            beginning = hashlib.sha256(file.read(_NAMED_BY_BYTES)).hexdigest()
            file.seek(0)
            taking = Taking(
                self._log,
                self.quarantine,
                self._policy.writer,
                taken=Taken(shown(name), path.stat().st_size),
                owner=owner_of(name.as_posix()),
                writer=f"spool/{beginning}",
                taken_at=taken_at,
            )
            signatures = _signatures(path)
            if path.name.endswith(LIFE):
                taking.life(file)
            elif path.name.endswith(LINES):
                taking.lines(file, signatures, self._ahead)
            else:
                broken = taking.arrow(pa.PythonFile(file), signatures)
                if broken is not None:
                    sealing = bool(self._log.sealing())  # then the file may hold what nobody may keep
                    kept = Kept("", taking.taken.size) if sealing else self.quarantine.keep_file(path, signatures)
                    taking.whole(kept, broken)
        # Signatures first: left alone, they would wait for the next file of that name.
        signatures.unlink(missing_ok=True)
        path.unlink()  # if a power cut brings it back, all that is in it is on record, or in quarantine
        return taking.taken


def waiting(home: Home) -> list[Path]:
    """Files that wait, as paths within the spool: what a crash left, then life events, then records, each by name."""
    left, fresh = _files(home.spool / TAKING), _files(home.spool)
    return left + [name for name in fresh if name not in left]


def _files(folder: Path) -> list[Path]:
    found = [path for pattern in ("*", "*/*") for path in folder.glob(pattern)]
    plain = (path.relative_to(folder) for path in found if path.is_file() and not path.is_symlink())
    return sorted(filter(_is_offered, plain), key=lambda name: (not name.name.endswith(LIFE), name))


def _is_offered(name: Path) -> bool:
    return name.name.endswith((LINES, ARROW)) and not any(part.startswith(".") for part in name.parts)


def owner_of(file: str) -> str | None:
    """The golem whose folder a file came in: the folder's name, where %XX stands for what a name cannot hold."""
    folder, _, _ = file.rpartition("/")
    return unquote(folder) or None


def shown(name: Path) -> str:
    """A file's name as text that every table takes: a name on disk is only bytes."""
    return name.as_posix().encode("utf-8", "backslashreplace").decode()


def _signatures(path: Path) -> Path:
    return path.with_name(path.name + SIGNATURES)
