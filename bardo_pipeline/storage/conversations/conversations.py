"""Conversations: what an owner and a golem say to each other, beside the log, and their tail for the workspace.

A message names the one before it, so that messages form a tree; a branch is a name for one of its ends, and one branch
is active. A summary stands in a reader's view for the messages that it covers; `compact` moves those to an archive.
Where a golem seals its private parts, what is said is sealed, line by line.
Source: EV-9; HB S1 ("Conversation Is Preserved for the Minority Case").
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import orjson

from bardo_pipeline.errors import QueryError, RecordError, SealError
from bardo_pipeline.events.record.model import ContextCategory, Sealed
from bardo_pipeline.storage.conversations.session_files import (
    Line,
    Session,
    append_lines,
    archive_file,
    archived_lines,
    checked_name,
    header_of,
    packed,
    read_archives,
    read_session,
    session_file,
)
from bardo_pipeline.storage.home import Home, make_folder, replace_file
from bardo_pipeline.storage.keys.golem_seal_keys import SealKeys, sealing_golems
from bardo_pipeline.storage.log.protocol import Log, utc

ROLES = ("owner", "golem", "system", "tool")
DEFAULT_SESSION = "session"
"""HB S1: conversations/session.jsonl."""

CONTENT_MAX = 65_536
_CHARACTERS_A_TOKEN = 4


@dataclass(frozen=True)
class Message:
    """One message, or a summary in the place of several (covers: how many; 0 for a message)."""

    message_id: str
    parent_id: str | None
    role: str
    content: str
    at: datetime
    covers: int = 0


class Conversations:
    """The conversations of a home. log: on record there is which golems seal."""

    def __init__(self, home: Home, log: Log) -> None:
        self._home, self._log = home, log

    def append(
        self, golem_id: str, role: str, content: str, at: datetime, *, session: str = DEFAULT_SESSION
    ) -> Message:
        """Add a message to the active branch; it is on the disk when this returns.

        Raises RecordError for a role, a name or a content that cannot be, SealError for a golem that seals and has no
        key, StoreError for a session that cannot be read or written.
        """
        if role not in ROLES:
            raise RecordError(f"golem {golem_id}: a message is of {', '.join(ROLES)}, not of {role!r}")
        _check_content(golem_id, content)
        with self._writing(golem_id, session, at) as (path, found):
            line = _begun(found, "message", at)
            line |= {"parent_id": found.heads[found.active], "branch": found.active, "role": role}
            append_lines(path, [line | self._content(found, line["id"], content)])
        return Message(line["id"], line["parent_id"], role, content, at)

    def branch(
        self, golem_id: str, name: str, at: datetime, *, behind: str | None = None, session: str = DEFAULT_SESSION
    ) -> None:
        """Make a branch active: a new one that begins behind a message, or one that is there.

        behind: the message's id, or its beginning. Raises QueryError for a branch or message that is not there, and for
        a new branch under a name that is taken.
        """
        checked_name(name, "a branch")
        with self._writing(golem_id, session, at) as (path, found):
            head = found.heads.get(name)
            if behind is not None:
                if name in found.heads:
                    raise QueryError(f"golem {golem_id}: session {session} has a branch {name}: take another name")
                read_archives(path, found)
                head = _message_id(found, behind)
            elif name not in found.heads:
                raise QueryError(f"golem {golem_id}: session {session} has no branch {name}: say behind which message")
            append_lines(path, [{"kind": "branch", "name": name, "head": head, "at": at.isoformat()}])

    def compact(
        self, golem_id: str, summary: str, at: datetime, *, keep: int = 10, session: str = DEFAULT_SESSION
    ) -> int:
        """Put a summary in the place of all but the last messages of the active branch; returns how many it covers.

        What it covers goes to an archive beside (first), and the file is written anew without it (then). What was
        written before the golem sealed is sealed with this. Raises QueryError when there is nothing new to cover.
        """
        _check_content(golem_id, summary)
        with self._writing(golem_id, session, at) as (path, found):
            read_archives(path, found)
            branch = found.path_to(found.heads[found.active])
            covered = branch[: max(len(branch) - keep, 0)]
            if all(line.get("archived") for line in covered):
                raise QueryError(
                    f"golem {golem_id}: of session {session} nothing is left to compact but the {keep} newest messages"
                )
            line = _begun(found, "summary", at)
            line |= {"first": covered[0]["id"], "last": covered[-1]["id"], "covers": len(covered), "role": "system"}
            found.take(line | self._content(found, line["id"], summary))
            self._rewrite(path, found, {message["id"] for message in covered}, at)
            return len(covered)

    def session(self, golem_id: str, session: str = DEFAULT_SESSION) -> Session:
        """A session with its archives. Raises QueryError where there is none."""
        path = session_file(self._home, golem_id, session)
        found = read_session(path)
        if found is None:
            raise QueryError(f"golem {golem_id} has no session {session}: `bardo conversation append` begins it")
        read_archives(path, found)
        return found

    def view(
        self, golem_id: str, session: str = DEFAULT_SESSION, *, branch: str | None = None, whole: bool = False
    ) -> list[Message]:
        """What a branch (the active one) says from its beginning.

        whole: every message, rather than summaries in the place of what they cover. Raises QueryError for a session or
        branch that is not there, SealError for sealed lines without their key.
        """
        found = self.session(golem_id, session)
        name = branch or found.active
        if name not in found.heads:
            raise QueryError(f"golem {golem_id}: session {session} has no branch {name}: {', '.join(found.heads)}")
        return _opened(self._home, found, found.path_to(found.heads[name]) if whole else found.view_of(name))

    def sessions(self) -> list[Session]:
        """Every session of the home, without archives, by golem and name."""
        paths = [path for path in self._home.conversations.glob("*/*.jsonl") if ".archive-" not in path.name]
        found = [session for path in paths if (session := read_session(path)) is not None]
        return sorted(found, key=lambda session: (session.golem_id, session.name))

    def _content(self, found: Session, line_id: str, content: str) -> Line:
        """The content as a line carries it: sealed where the golem seals."""
        if found.golem_id not in sealing_golems(self._log):
            return {"content": content}
        key = SealKeys(self._home).in_force(self._log, found.golem_id)
        return {"sealed": key.seal(found.golem_id, _place(found, line_id), content.encode()).model_dump()}

    def _rewrite(self, path: Path, found: Session, covered: set[str], at: datetime) -> None:
        """Move what is covered to an archive, and write the file anew without it."""
        here = [line for line in found.lines.values() if not line.get("archived")]
        number = found.archives + 1
        for older in range(1, number):
            replace_file(archive_file(path, older), packed(self._resealed(found, archived_lines(path, older))))
        moved = [line for line in here if line["id"] in covered]
        replace_file(archive_file(path, number), packed(self._resealed(found, moved)))
        heads = sorted(found.heads.items(), key=lambda head: head[0] == found.active)  # the last one named is active
        branches = [{"kind": "branch", "name": name, "head": head, "at": at.isoformat()} for name, head in heads]
        kept = [line for line in here if line["id"] not in covered]
        header = header_of(found.golem_id, found.name, at, count=found.count, archives=number)
        lines = [header, *self._resealed(found, [*kept, *found.summaries]), *branches]
        replace_file(path, packed(lines))

    def _resealed(self, found: Session, lines: Iterable[Line]) -> list[Line]:
        """The lines, with what is said in plain text as it would be written now."""
        return [
            {name: value for name, value in line.items() if name != "content"}
            | self._content(found, line["id"], line["content"])
            if "content" in line
            else line
            for line in lines
        ]

    @contextmanager
    def _writing(self, golem_id: str, session: str, at: datetime) -> Iterator[tuple[Path, Session]]:
        """The session's file and what it tells, under its lock, with a torn end cut off; made where there is none."""
        utc(at, "a message's moment")
        path = session_file(self._home, golem_id, session)
        with self._home.lock(f"conversation-{path.parent.name}-{session}"):
            found = read_session(path)
            if found is None:
                make_folder(self._home.conversations)
                self._home.conversations.chmod(0o700)
                make_folder(path.parent)
                replace_file(path, packed([header_of(golem_id, session, at)]))
                found = Session(golem_id, session)
            elif found.torn:
                os.truncate(path, found.whole_bytes)
            yield path, found


def conversation_tail(home: Home, golem_id: str, n: int, *, session: str | None = None) -> tuple[Message, ...]:
    """The last n messages of the active branch of a golem's newest session: one category of its workspace (HB S1).

    Empty where nobody talked with it. session: this one instead. Raises SealError where what was said is sealed and the
    key is gone.
    """
    path = _newest(home, golem_id) if session is None else session_file(home, golem_id, session)
    found = None if path is None else read_session(path)
    if path is None or found is None or n < 1:
        return ()
    if found.lacks(found.active):
        read_archives(path, found)
    return tuple(_opened(home, found, found.view_of(found.active)[-n:]))


def conversation_category(messages: Sequence[Message]) -> ContextCategory:
    """What a record's context summary says of a conversation's tail: how many messages, about how many tokens."""
    tokens = sum(-(-len(message.content) // _CHARACTERS_A_TOKEN) for message in messages)
    return ContextCategory(category="conversation", items=len(messages), tokens=tokens)


def _newest(home: Home, golem_id: str) -> Path | None:
    """The session of a golem in which something was said last."""
    folder = session_file(home, golem_id, DEFAULT_SESSION).parent
    found = [
        (session.last_at, path)
        for path in sorted(folder.glob("*.jsonl"))
        if ".archive-" not in path.name and (session := read_session(path)) is not None and session.last_at is not None
    ]
    return max(found)[1] if found else None


def _opened(home: Home, found: Session, lines: Sequence[Line]) -> list[Message]:
    key = SealKeys(home).key(found.golem_id) if any("sealed" in line for line in lines) else None
    messages = []
    for line in lines:
        content = line.get("content")
        if content is None:
            sealed = Sealed.model_construct(**line["sealed"])
            if key is None:
                raise SealError(
                    f"golem {found.golem_id}: session {found.name} is sealed under {sealed.key_id}, which is not here: "
                    "`bardo seal list` tells whether it was destroyed"
                )
            content = key.open(found.golem_id, _place(found, line["id"]), sealed).decode()
        at = datetime.fromisoformat(line["at"])
        messages.append(Message(line["id"], line.get("parent_id"), line["role"], content, at, line.get("covers", 0)))
    return messages


def _begun(found: Session, kind: str, at: datetime) -> Line:
    """A line with its id, which is not of its content: that may have to become unreadable."""
    number = found.count + 1
    named = orjson.dumps([found.golem_id, found.name, number, at.isoformat()])
    return {"kind": kind, "id": hashlib.sha256(named).hexdigest()[:16], "number": number, "at": at.isoformat()}


def _place(found: Session, line_id: str) -> bytes:
    return b"conversation\0" + found.name.encode() + b"\0" + line_id.encode()


def _message_id(found: Session, beginning: str) -> str:
    ids = [line_id for line_id in found.lines if line_id.startswith(beginning)]
    if len(ids) != 1:
        count = "no message" if not ids else f"{len(ids)} messages"
        raise QueryError(
            f"golem {found.golem_id}: session {found.name} has {count} {beginning}: `show` lists their ids"
        )
    return ids[0]


def _check_content(golem_id: str, content: str) -> None:
    if not content or len(content) > CONTENT_MAX:
        raise RecordError(f"golem {golem_id}: a message has 1 to {CONTENT_MAX:,} characters, not {len(content):,}")
    try:
        content.encode()
    except UnicodeEncodeError:
        raise RecordError(
            f"golem {golem_id}: a message that cannot be written as UTF-8: leave the surrogates out"
        ) from None
