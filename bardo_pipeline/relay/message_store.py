"""MessageStore: the messages of a relay by topic, in one SQLite database.

A message is durable when `put` returns, and is kept until the time that its sender asked for. A topic belongs to the
token of its first message. Source: KAT-9, KAT-10; INH S6.3, S6.5.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bardo_pipeline.client.relay_client import RelayMessage
from bardo_pipeline.errors import ConfigError, ServerError
from bardo_pipeline.storage.home import make_folder

_TABLES = """
    create table if not exists topics (topic text primary key, token_hash text not null, newest integer not null);
    create table if not exists messages (
        topic text not null, number integer not null, id text not null, body blob not null, at_us integer not null,
        until_us integer not null, primary key (topic, number), unique (topic, id)
    );
    create index if not exists messages_by_end on messages (until_us);
"""


class MessageStore:
    """The database of a relay. Its calls may come from several threads.

    Parameters
    ----------
    path : file of the database; it is made if it does not exist
    hour_max : most messages of a topic within an hour
    """

    def __init__(self, path: Path, hour_max: int) -> None:
        self._lock, self._hour_max = threading.Lock(), hour_max
        self._database = open_database(path)
        self._database.executescript(_TABLES)

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._database.close()

    def put(
        self,
        topic: str,
        token: str,
        message_id: str,
        body: bytes,
        at_us: int,
        until_us: int,
        *,
        is_bounded: bool = True,
    ) -> tuple[int, bool]:
        """Store a message until a time. Return its number, and whether it is new.

        A repeated message keeps its number, and stays until the later of its times. is_bounded: `hour_max` applies.
        Raises ServerError 403 for another token than the topic's, 409 for another body under a stored id, and 429 for
        more than `hour_max` messages within an hour.
        """
        with self._lock, transaction(self._database) as database:
            newest = self._newest(topic, token)
            known = database.execute(
                "select number, body from messages where topic = ? and id = ?", (topic, message_id)
            ).fetchone()
            if known is not None:
                if known[1] != body:
                    raise ServerError(
                        409,
                        "MessageConflictError",
                        f"message {message_id} has another body",
                        "send it under another id",
                    )
                self._extend(topic, [message_id], until_us)
                return known[0], False
            (recent,) = database.execute(
                "select count(*) from messages where topic = ? and at_us > ?", (topic, at_us - 3_600_000_000)
            ).fetchone()
            if is_bounded and recent >= self._hour_max:
                raise ServerError(
                    429, "TopicFullError", f"the topic has {recent:,} messages of the last hour", "try again later"
                )
            number = (newest or 0) + 1
            if newest is None:
                database.execute("insert into topics values (?, ?, ?)", (topic, _hash(token), number))
            else:
                database.execute("update topics set newest = ? where topic = ?", (number, topic))
            row = topic, number, message_id, body, at_us, until_us
            database.execute("insert into messages values (?, ?, ?, ?, ?, ?)", row)
            return number, True

    def keep(self, topic: str, token: str, message_ids: Sequence[str], until_us: int) -> list[str]:
        """Keep messages until a time, unless they stay longer; return the ids of those that are not stored.

        Raises ServerError 403 for another token than the topic's.
        """
        with self._lock, transaction(self._database):
            self._newest(topic, token)
            return self._extend(topic, message_ids, until_us)

    def after(self, topic: str, token: str, number: int, limit: int) -> tuple[list[RelayMessage], int]:
        """Return up to `limit` messages of a topic behind a number, in order, and the number of its newest one.

        An unknown topic has no messages, and 0 as the newest number. Raises ServerError 403 for another token than the
        topic's.
        """
        with self._lock:
            newest = self._newest(topic, token)
            rows = self._database.execute(
                "select number, id, body from messages where topic = ? and number > ? order by number limit ?",
                (topic, number, limit),
            ).fetchall()
        return [RelayMessage(*row) for row in rows], newest or 0

    def expire(self, now_us: int) -> int:
        """Delete the messages whose time has passed; return their number."""
        with self._lock:
            return self._database.execute("delete from messages where until_us < ?", (now_us,)).rowcount

    def counts(self) -> tuple[int, int]:
        """Return the numbers of topics and of messages."""
        with self._lock:
            topics, messages = self._database.execute(
                "select (select count(*) from topics), (select count(*) from messages)"
            ).fetchone()
        return topics, messages

    def _extend(self, topic: str, message_ids: Sequence[str], until_us: int) -> list[str]:
        """Extend the time of messages; return the ids of those that are not stored."""
        extend = "update messages set until_us = max(until_us, ?) where topic = ? and id = ?"
        return [one for one in message_ids if not self._database.execute(extend, (until_us, topic, one)).rowcount]

    def _newest(self, topic: str, token: str) -> int | None:
        """Return the newest number of a topic, None for an unknown topic. Raises ServerError 403."""
        row = self._database.execute("select token_hash, newest from topics where topic = ?", (topic,)).fetchone()
        if row is None:
            return None
        if row[0] != _hash(token):
            raise ServerError(403, "TopicTokenError", "the topic has another token", "use the secret of its clade")
        return int(row[1])


def open_database(path: Path) -> sqlite3.Connection:
    """Open a database whose commits are durable and which several threads may use; only its owner may read it.

    Raises ConfigError for a file that is no database and cannot become one.
    """
    try:
        make_folder(path.absolute().parent)
        path.touch(mode=0o600)
        database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        database.execute("pragma journal_mode = wal")
        database.execute("pragma synchronous = full")
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"{path} cannot hold the messages of a relay ({error}): name another file") from error
    return database


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Commit what happens inside, or roll it back after an exception."""
    database.execute("begin immediate")
    try:
        yield database
    except BaseException:
        database.execute("rollback")
        raise
    database.execute("commit")


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
