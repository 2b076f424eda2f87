"""Conversations between an owner and a golem, stored outside the log, and their tail for the workspace.

Each message names its predecessor, so messages form a tree. A branch is a name for one leaf; one branch is active. A
view shows a summary in place of the messages that it covers; `compact` moves those to an archive. If a golem seals its
private parts, each line is sealed.
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
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.protocol import utc

ROLES = ("owner", "golem", "system", "tool")
DEFAULT_SESSION = "session"
"""HB S1: conversations/session.jsonl."""

CONTENT_MAX = 65_536
_CHARACTERS_A_TOKEN = 4


@dataclass(frozen=True)
class Message:
    """A message, or a summary of `covers` messages (0 for a message)."""

    message_id: str
    parent_id: str | None
    role: str
    content: str
    at: datetime
    covers: int = 0


class Conversations:
    """The conversations of a home; the log names the golems that seal."""

    def __init__(self, home: Home, log: EventLog) -> None:
        self._home, self._log = home, log

    def append(
        self, golem_id: str, role: str, content: str, at: datetime, *, session: str = DEFAULT_SESSION
    ) -> Message:
        """Append a message to the active branch, durably.

        Raises
        ------
        RecordError : the role, a name or the content is invalid
        SealError : the golem seals and has no key
        StoreError : the session cannot be read or written
        """
        if role not in ROLES:
            raise RecordError(f"golem {golem_id}: the role of a message is {', '.join(ROLES)}, not {role!r}")
        _check_content(golem_id, content)
        with self._writing(golem_id, session, at) as (path, stored):
            line = _new_line(stored, "message", at)
            line |= {"parent_id": stored.heads[stored.active], "branch": stored.active, "role": role}
            append_lines(path, [line | self._content(stored, line["id"], content)])
        return Message(line["id"], line["parent_id"], role, content, at)

    def branch(
        self, golem_id: str, name: str, at: datetime, *, behind: str | None = None, session: str = DEFAULT_SESSION
    ) -> None:
        """Activate an existing branch, or create one after a message.

        Parameters
        ----------
        behind : id of the message, or a prefix of it; None for an existing branch

        Raises
        ------
        QueryError : the branch or message does not exist, or the name of a new branch is taken
        """
        checked_name(name, "a branch")
        with self._writing(golem_id, session, at) as (path, stored):
            head = stored.heads.get(name)
            if behind is not None:
                if name in stored.heads:
                    raise QueryError(f"golem {golem_id}: session {session} has a branch {name}: take another name")
                read_archives(path, stored)
                head = _message_id(stored, behind)
            elif name not in stored.heads:
                raise QueryError(f"golem {golem_id}: session {session} has no branch {name}: give --behind MESSAGE")
            append_lines(path, [{"kind": "branch", "name": name, "head": head, "at": at.isoformat()}])

    def compact(
        self, golem_id: str, summary: str, at: datetime, *, keep: int = 10, session: str = DEFAULT_SESSION
    ) -> int:
        """Summarise all but the last `keep` messages of the active branch; return the number of covered messages.

        The covered messages are written to an archive first; then the file is rewritten without them. Plain messages of
        a golem that seals by now are sealed. Raises QueryError if there is nothing new to cover.
        """
        _check_content(golem_id, summary)
        with self._writing(golem_id, session, at) as (path, stored):
            read_archives(path, stored)
            branch = stored.path_to(stored.heads[stored.active])
            covered = branch[: max(len(branch) - keep, 0)]
            if all(line.get("archived") for line in covered):
                raise QueryError(
                    f"golem {golem_id}: session {session} has nothing to compact but the {keep} newest messages"
                )
            line = _new_line(stored, "summary", at)
            line |= {"first": covered[0]["id"], "last": covered[-1]["id"], "covers": len(covered), "role": "system"}
            stored.take(line | self._content(stored, line["id"], summary))
            self._rewrite(path, stored, {message["id"] for message in covered}, at)
            return len(covered)

    def session(self, golem_id: str, session: str = DEFAULT_SESSION) -> Session:
        """Return a session with its archives. Raises QueryError if it does not exist."""
        path = session_file(self._home, golem_id, session)
        stored = read_session(path)
        if stored is None:
            raise QueryError(f"golem {golem_id} has no session {session}: `bardo conversation append` begins it")
        read_archives(path, stored)
        return stored

    def view(
        self, golem_id: str, session: str = DEFAULT_SESSION, *, branch: str | None = None, whole: bool = False
    ) -> list[Message]:
        """Return the messages of a branch (default: the active one) from its beginning.

        Parameters
        ----------
        whole : return covered messages instead of summaries

        Raises
        ------
        QueryError : the session or branch does not exist
        SealError : lines are sealed and the key is missing
        """
        stored = self.session(golem_id, session)
        name = branch or stored.active
        if name not in stored.heads:
            raise QueryError(f"golem {golem_id}: session {session} has no branch {name}, but {', '.join(stored.heads)}")
        return _decrypted(self._home, stored, stored.path_to(stored.heads[name]) if whole else stored.view_of(name))

    def sessions(self) -> list[Session]:
        """Return all sessions of the home, without archives, by golem and name."""
        paths = [path for path in self._home.conversations.glob("*/*.jsonl") if ".archive-" not in path.name]
        sessions = [session for path in paths if (session := read_session(path)) is not None]
        return sorted(sessions, key=lambda session: (session.golem_id, session.name))

    def _content(self, stored: Session, line_id: str, content: str) -> Line:
        if stored.golem_id not in sealing_golems(self._log):
            return {"content": content}
        key = SealKeys(self._home).in_force(self._log, stored.golem_id)
        return {"sealed": key.seal(stored.golem_id, _associated_data(stored, line_id), content.encode()).model_dump()}

    def _rewrite(self, path: Path, stored: Session, covered: set[str], at: datetime) -> None:
        """Move the covered messages to an archive, and rewrite the file without them."""
        current = [line for line in stored.lines.values() if not line.get("archived")]
        number = stored.archives + 1
        for older in range(1, number):
            replace_file(archive_file(path, older), packed(self._resealed(stored, archived_lines(path, older))))
        moved = [line for line in current if line["id"] in covered]
        replace_file(archive_file(path, number), packed(self._resealed(stored, moved)))
        heads = sorted(
            stored.heads.items(), key=lambda head: head[0] == stored.active
        )  # the last named branch is active
        branches = [{"kind": "branch", "name": name, "head": head, "at": at.isoformat()} for name, head in heads]
        kept = [line for line in current if line["id"] not in covered]
        lines = [*self._resealed(stored, [*kept, *stored.summaries]), *branches]
        header = header_of(stored.golem_id, stored.name, at, count=stored.count, archives=number, lines=len(lines))
        replace_file(path, packed([header, *lines]))

    def _resealed(self, stored: Session, lines: Iterable[Line]) -> list[Line]:
        """Return the lines with plain content sealed if the golem seals by now."""
        return [
            {name: value for name, value in line.items() if name != "content"}
            | self._content(stored, line["id"], line["content"])
            if "content" in line
            else line
            for line in lines
        ]

    @contextmanager
    def _writing(self, golem_id: str, session: str, at: datetime) -> Iterator[tuple[Path, Session]]:
        """Lock and read a session, created if missing, and truncate a torn last line."""
        utc(at, "the time of a message")
        path = session_file(self._home, golem_id, session)
        with self._home.lock(f"conversation-{path.parent.name}-{session}"):
            stored = read_session(path)
            if stored is None:
                make_folder(self._home.conversations)
                self._home.conversations.chmod(0o700)
                make_folder(path.parent)
                replace_file(path, packed([header_of(golem_id, session, at)]))
                stored = Session(golem_id, session)
            elif stored.torn:
                os.truncate(path, stored.whole_bytes)
            yield path, stored


def conversation_tail(home: Home, golem_id: str, n: int, *, session: str | None = None) -> tuple[Message, ...]:
    """Return the last n messages of the active branch of a session (default: the newest), for the workspace (HB S1).

    Empty without a session. Raises SealError if the messages are sealed and the key is missing.
    """
    path = _newest(home, golem_id) if session is None else session_file(home, golem_id, session)
    stored = None if path is None else read_session(path)
    if path is None or stored is None or n < 1:
        return ()
    if stored.lacks(stored.active):
        read_archives(path, stored)
    return tuple(_decrypted(home, stored, stored.view_of(stored.active)[-n:]))


def conversation_category(messages: Sequence[Message]) -> ContextCategory:
    """Return the context category of a tail: number of messages and estimated tokens."""
    tokens = sum(-(-len(message.content) // _CHARACTERS_A_TOKEN) for message in messages)
    return ContextCategory(category="conversation", items=len(messages), tokens=tokens)


def _newest(home: Home, golem_id: str) -> Path | None:
    folder = session_file(home, golem_id, DEFAULT_SESSION).parent
    dated = [
        (session.last_at, path)
        for path in sorted(folder.glob("*.jsonl"))
        if ".archive-" not in path.name and (session := read_session(path)) is not None and session.last_at is not None
    ]
    return max(dated)[1] if dated else None


def _decrypted(home: Home, stored: Session, lines: Sequence[Line]) -> list[Message]:
    key = SealKeys(home).key(stored.golem_id) if any("sealed" in line for line in lines) else None
    messages = []
    for line in lines:
        content = line.get("content")
        if content is None:
            sealed = Sealed.model_construct(**line["sealed"])
            if key is None:
                raise SealError(
                    f"golem {stored.golem_id}: session {stored.name} is sealed with {sealed.key_id}, which is lost: "
                    "`bardo seal list` shows whether it was destroyed"
                )
            content = key.open(stored.golem_id, _associated_data(stored, line["id"]), sealed).decode()
        at = datetime.fromisoformat(line["at"])
        messages.append(Message(line["id"], line.get("parent_id"), line["role"], content, at, line.get("covers", 0)))
    return messages


def _new_line(stored: Session, kind: str, at: datetime) -> Line:
    """Return a new line. Its id does not depend on the content, which may later be destroyed."""
    number = stored.count + 1
    identity = orjson.dumps([stored.golem_id, stored.name, number, at.isoformat()])
    return {"kind": kind, "id": hashlib.sha256(identity).hexdigest()[:16], "number": number, "at": at.isoformat()}


def _associated_data(stored: Session, line_id: str) -> bytes:
    return b"conversation\0" + stored.name.encode() + b"\0" + line_id.encode()


def _message_id(stored: Session, beginning: str) -> str:
    ids = [line_id for line_id in stored.lines if line_id.startswith(beginning)]
    if len(ids) != 1:
        count = "no message" if not ids else f"{len(ids)} messages"
        raise QueryError(
            f"golem {stored.golem_id}: session {stored.name} has {count} {beginning}: `bardo conversation show` has all"
        )
    return ids[0]


def _check_content(golem_id: str, content: str) -> None:
    if not content or len(content) > CONTENT_MAX:
        raise RecordError(f"golem {golem_id}: a message has 1 to {CONTENT_MAX:,} characters, not {len(content):,}")
    try:
        content.encode()
    except UnicodeEncodeError:
        raise RecordError(f"golem {golem_id}: the message cannot be written as UTF-8: remove its surrogates") from None
