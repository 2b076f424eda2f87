"""Conversation files: how a session's lines are kept, read and written; conversations.py says what they mean.

    conversations/<hash of the golem's id>/<session>.jsonl                a header, then messages, branches, summaries
    conversations/<hash of the golem's id>/<session>.archive-0001.jsonl   messages that a summary covers, moved there

Lines are only appended, and on the disk when `append_lines` returns. A last line that was never finished is left out
and told (torn), and cut off by the next append. Source: EV-9; HB S1.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from bardo_pipeline.errors import RecordError, SchemaVersionError, StoreError
from bardo_pipeline.storage.home import Home

Line = dict[str, Any]

MAIN = "main"
"""The branch that a session begins with."""

VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass
class Session:
    """A session as its lines tell it.

    lines: messages by id; those of archives say so. summaries: the newest last. heads: each branch's last message.
    count: messages and summaries there ever were. whole_bytes: up to where the file can be read. torn: what is behind.
    """

    golem_id: str
    name: str
    lines: dict[str, Line] = field(default_factory=dict)
    summaries: list[Line] = field(default_factory=list)
    heads: dict[str, str | None] = field(default_factory=lambda: {MAIN: None})
    active: str = MAIN
    count: int = 0
    archives: int = 0
    whole_bytes: int = 0
    torn: bytes = b""
    last_at: datetime | None = None

    def take(self, line: Line) -> None:
        """Take in the next line."""
        kind, at = line["kind"], datetime.fromisoformat(line["at"])
        self.last_at = at if self.last_at is None else max(at, self.last_at)
        if kind == "session":
            self.count, self.archives = line["count"], line["archives"]
        elif kind == "message":
            self.lines[line["id"]] = line
            self.heads[line["branch"]] = line["id"]
            self.count = max(self.count, line["number"])
        elif kind == "branch":
            self.heads[line["name"]], self.active = line["head"], line["name"]
        elif kind == "summary":
            self.summaries.append(line)
            self.count = max(self.count, line["number"])
        else:
            raise ValueError(f"a line of kind {kind!r}")

    def path_to(self, head: str | None) -> list[Line]:
        """The messages that lead to one, from the first that is at hand."""
        path: list[Line] = []
        at = head
        while at is not None and at in self.lines:
            path.append(self.lines[at])
            at = self.lines[at]["parent_id"]
        return path[::-1]

    def view_of(self, branch: str) -> list[Line]:
        """A branch from its beginning, the newest summary that concerns it in the place of what it covers."""
        path = self.path_to(self.heads[branch])
        ids = [line["id"] for line in path]
        before = path[0]["parent_id"] if path else self.heads[branch]
        for summary in reversed(self.summaries):
            if summary["last"] in ids:
                return [summary, *path[ids.index(summary["last"]) + 1 :]]
            if before is not None and summary["last"] == before:
                return [summary, *path]
        return path

    def lacks(self, branch: str) -> bool:
        """Whether a branch's view begins in an archive that was not read."""
        view = self.view_of(branch)
        first = view[0] if view else None
        if first is None:
            return self.heads[branch] is not None
        return first["kind"] == "message" and first["parent_id"] is not None


def session_file(home: Home, golem_id: str, session: str) -> Path:
    """Where a session lies: any golem's id makes a folder, the session's name is checked."""
    checked_name(session, "a session")
    try:
        named = hashlib.sha256(golem_id.encode()).hexdigest()[:40]
    except UnicodeEncodeError:
        raise RecordError(f"{golem_id!r} is no golem's id: it cannot be written as UTF-8") from None
    return home.conversations / named / f"{session}.jsonl"


def archive_file(path: Path, number: int) -> Path:
    """Where the messages lie that a session's compaction of this number moved."""
    return path.with_name(f"{path.stem}.archive-{number:04}.jsonl")


def checked_name(name: str, what: str) -> None:
    """Raise RecordError for a name that is no plain word."""
    if not _NAME.fullmatch(name):
        raise RecordError(
            f"{name!r} cannot name {what}: take up to 64 letters, digits, - and _, a letter or digit first"
        )


def header_of(golem_id: str, session: str, at: datetime, *, count: int = 0, archives: int = 0) -> Line:
    """The first line of a session's file."""
    header = {"kind": "session", "version": VERSION, "golem_id": golem_id, "session": session, "at": at.isoformat()}
    return header | {"count": count, "archives": archives}


def read_session(path: Path) -> Session | None:
    """A session without its archives; None where there is no file.

    Raises StoreError for a line, other than a torn last one, that cannot be read.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    end = raw.rfind(b"\n") + 1
    whole, torn = raw[:end].splitlines(keepends=True), raw[end:]
    found: Session | None = None
    done = 0
    for number, text in enumerate(whole, 1):
        try:
            line = orjson.loads(text)
            if found is None:
                _check_version(path, line["version"])
                found = Session(line["golem_id"], line["session"])
            found.take(line)
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            if number == len(whole) and not torn and found is not None:
                torn = text
                break
            raise StoreError(
                f"{path}: line {number} cannot be read ({error!r}): restore the file from a copy"
            ) from None
        done += len(text)
    if found is None:
        raise StoreError(f"{path} has no header: restore the file from a copy")
    found.whole_bytes, found.torn = done, torn
    return found


def read_archives(path: Path, found: Session) -> None:
    """Add to a session the messages of its archives."""
    for number in range(1, found.archives + 1):
        for line in archived_lines(path, number):
            found.lines.setdefault(line["id"], line | {"archived": number})


def archived_lines(path: Path, number: int) -> list[Line]:
    """The messages of one archive. Raises StoreError for one that is not there or cannot be read."""
    archive = archive_file(path, number)
    try:
        return [orjson.loads(text) for text in archive.read_bytes().splitlines()]
    except (FileNotFoundError, orjson.JSONDecodeError) as error:
        raise StoreError(f"{archive} cannot be read ({error!r}): restore the file from a copy") from None


def append_lines(path: Path, lines: Iterable[Line]) -> None:
    """Append lines; they are on the disk when this returns, or none of them is in the file."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        before = os.fstat(handle).st_size
        rest = memoryview(packed(lines))
        try:
            while rest:
                rest = rest[os.write(handle, rest) :]
            os.fsync(handle)
        except OSError as error:
            os.ftruncate(handle, before)
            raise StoreError(f"{path} took nothing ({error}): make room, then say it again") from error
    finally:
        os.close(handle)


def packed(lines: Iterable[Line]) -> bytes:
    """Lines as bytes."""
    return b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines)


def _check_version(path: Path, version: int) -> None:
    if version > VERSION:
        raise SchemaVersionError(f"{path} was written by version {version}: upgrade bardo-pipeline")
