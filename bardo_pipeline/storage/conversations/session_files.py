"""Files of conversation sessions: format, reading and appending. conversations.py defines their meaning.

    conversations/<hash of the golem's id>/<session>.jsonl                a header, then messages, branches, summaries
    conversations/<hash of the golem's id>/<session>.archive-0001.jsonl   messages that a summary covers, moved there

A file is created and rewritten under another name, and renamed when it is durable; its header states how many lines
followed then. `append_lines` appends durably. A torn last line is reported and ignored; the next append truncates it. A
file without a whole header, without a stated line, or without a numbered message is damaged. A file that was cut
exactly between two later appends equals an earlier state of itself: no reader detects that cut.

Source: EV-9; HB S1.
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

from bardo_pipeline.errors import DamagedError, RecordError, SchemaVersionError, StoreError
from bardo_pipeline.storage.checksums import json_with_checksum, matches
from bardo_pipeline.storage.home import Home

Line = dict[str, Any]

MAIN = "main"
"""The first branch of a session."""

VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass
class Session:
    """State of a session, built from its lines.

    Parameters
    ----------
    lines : messages by id, with the key "archived" for those of archives
    summaries : the newest last
    heads : branch -> id of its last message
    count : number of messages and summaries ever written; each has a number up to it
    rewritten : number of lines after the header that were written with it
    whole_bytes, torn : readable size of the file, and the torn bytes after it
    """

    golem_id: str
    name: str
    lines: dict[str, Line] = field(default_factory=dict)
    summaries: list[Line] = field(default_factory=list)
    heads: dict[str, str | None] = field(default_factory=lambda: {MAIN: None})
    active: str = MAIN
    count: int = 0
    archives: int = 0
    rewritten: int = 0
    whole_bytes: int = 0
    torn: bytes = b""
    last_at: datetime | None = None

    def take(self, line: Line) -> None:
        """Apply the next line."""
        kind, at = line["kind"], datetime.fromisoformat(line["at"])
        self.last_at = at if self.last_at is None else max(at, self.last_at)
        if kind == "session":
            self.count, self.archives, self.rewritten = line["count"], line["archives"], line.get("lines", 0)
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
        """Return the messages up to this one, from the first loaded ancestor."""
        path: list[Line] = []
        at = head
        while at is not None and at in self.lines:
            path.append(self.lines[at])
            at = self.lines[at]["parent_id"]
        return path[::-1]

    def view_of(self, branch: str) -> list[Line]:
        """Return a branch from its beginning, with its newest summary in place of the covered messages."""
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
        """Whether the view of a branch begins in an archive that is not loaded."""
        view = self.view_of(branch)
        first = view[0] if view else None
        if first is None:
            return self.heads[branch] is not None
        return first["kind"] == "message" and first["parent_id"] is not None


def session_file(home: Home, golem_id: str, session: str) -> Path:
    """Return the path of a session. The folder is a hash of the golem's id; the session's name is validated."""
    checked_name(session, "a session")
    try:
        folder = hashlib.sha256(golem_id.encode()).hexdigest()[:40]
    except UnicodeEncodeError:
        raise RecordError(f"{golem_id!r} is not a golem's id: it cannot be written as UTF-8") from None
    return home.conversations / folder / f"{session}.jsonl"


def archive_file(path: Path, number: int) -> Path:
    """Return the path of a session's archive."""
    return path.with_name(f"{path.stem}.archive-{number:04}.jsonl")


def checked_name(name: str, subject: str) -> None:
    """Raise RecordError for an invalid name of a session or branch."""
    if not _NAME.fullmatch(name):
        raise RecordError(
            f"{name!r} cannot name {subject}: use up to 64 letters, digits, - and _, a letter or digit first"
        )


def header_of(golem_id: str, session: str, at: datetime, *, count: int = 0, archives: int = 0, lines: int = 0) -> Line:
    """Return the first line of a session's file. lines: number of lines written with it."""
    header = {"kind": "session", "version": VERSION, "golem_id": golem_id, "session": session, "at": at.isoformat()}
    return header | {"count": count, "archives": archives, "lines": lines}


def read_session(path: Path) -> Session | None:
    """Read a session without its archives; None without a file.

    Raises DamagedError for an unreadable line other than a torn last one, and for missing lines.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    end = raw.rfind(b"\n") + 1
    whole, torn = raw[:end].splitlines(keepends=True), raw[end:]
    session: Session | None = None
    done = 0
    for number, text in enumerate(whole, 1):
        try:
            line = _parsed(path, number, text)
            if session is None:
                session = Session(line["golem_id"], line["session"])
            session.take(line)
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
            if number == len(whole) and not torn and session is not None:
                torn = text
                break
            raise DamagedError(path, f"line {number} cannot be read: {error!r}") from None
        done += len(text)
    if session is None:
        raise DamagedError(path, "it has no header")
    if (line_count := raw[:done].count(b"\n") - 1) < session.rewritten:
        raise DamagedError(path, f"it has {line_count} of the {session.rewritten} lines that its header states")
    session.whole_bytes, session.torn = done, torn
    return session


def read_archives(path: Path, session: Session) -> None:
    """Load the archived messages of a session. Raises DamagedError if an archive or a message is missing."""
    for number in range(1, session.archives + 1):
        for line in archived_lines(path, number):
            session.lines.setdefault(line["id"], line | {"archived": number})
    missing = session.count - len({line["number"] for line in [*session.lines.values(), *session.summaries]})
    if missing:
        raise DamagedError(path, f"{missing} of its {session.count} messages are neither in it nor in its archives")


def archived_lines(path: Path, number: int) -> list[Line]:
    """Read the messages of an archive. Raises DamagedError if it is missing, empty or unreadable."""
    archive = archive_file(path, number)
    try:
        lines = [_parsed(archive, number, text) for number, text in enumerate(archive.read_bytes().splitlines(True), 1)]
    except (FileNotFoundError, orjson.JSONDecodeError) as error:
        raise DamagedError(archive, f"it cannot be read: {error!r}") from None
    if not lines:
        raise DamagedError(archive, "it is empty")
    return lines


def append_lines(path: Path, lines: Iterable[Line]) -> None:
    """Append lines durably, or none of them."""
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
            raise StoreError(f"{path} cannot be written ({error}): make room, then try again") from error
    finally:
        os.close(handle)


def packed(lines: Iterable[Line]) -> bytes:
    """Serialise lines, each with its checksum."""
    return b"".join(json_with_checksum(line, orjson.OPT_APPEND_NEWLINE) for line in lines)


def _parsed(path: Path, number: int, text: bytes) -> Line:
    """Parse a line; lines of earlier versions have no checksum.

    Raises SchemaVersionError for a newer version's header, DamagedError for a wrong checksum.
    """
    line: Line = orjson.loads(text)
    if line.get("version", 0) > VERSION:
        raise SchemaVersionError(f"{path} was written by version {line['version']}: upgrade bardo-pipeline")
    if not matches(text):
        raise DamagedError(path, f"the checksum of line {number} does not match")
    line.pop("checksum", None)
    return line
