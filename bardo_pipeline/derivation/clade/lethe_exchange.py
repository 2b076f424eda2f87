"""Exchanges public posts between a home and a relay's board: posts what is due, and receives.

The file of the cursor saves work only. Source: KAT (Lethe, Write Paths); KAT-4, KAT-6, KAT-11; ADR 0115.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bardo_pipeline.derivation.clade.clade_exchange import clade_folder
from bardo_pipeline.derivation.clade.lethe_outbox import LetheOutbox, Writable
from bardo_pipeline.derivation.clade.lethe_posts import due_posts, lethe_golems, record_posts
from bardo_pipeline.derivation.clade.styx_budget import able_to_pay
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.incremental.received_posts import posts_received
from bardo_pipeline.errors import BundleError, NoServerError, ServerError
from bardo_pipeline.events.custody.blind_signature import PURPOSES, BlindKey, Purpose
from bardo_pipeline.events.custody.clade_secret import CladeSecret
from bardo_pipeline.katabasis.public_posts import Post, read_post
from bardo_pipeline.storage.home import replace_file

if TYPE_CHECKING:  # the client imports httpx, which a derivation does not need
    from bardo_pipeline.client.lethe_client import BoardPost


class Board(Writable, Protocol):
    """The public board of a relay (`client.lethe_client.LetheClient`)."""

    def keys(self) -> dict[str, int]:
        """Return the moduli of the relay's keys by purpose."""

    def after(self, number: int) -> tuple[list[BoardPost], int]:
        """Return the next posts behind a number, and the number of the newest one."""


@dataclass(frozen=True)
class LetheExchange:
    """The result of one exchange with a board.

    Parameters
    ----------
    members : golems of the owner here that take part
    sent_posts, waiting_posts : posts that left, and that wait for their window
    received_posts : new here, the own ones included
    refused : (place on the board, reason) of each post that is not one
    refusal : reason for which the relay refused own posts, None if it did not; reading stays open
    """

    members: tuple[str, ...]
    sent_posts: int
    waiting_posts: int
    received_posts: int
    refused: tuple[tuple[int, str], ...]
    refusal: str | None = None


def exchange_posts(
    context: DerivationContext, owner_id: str, secret: CladeSecret, board: Board, *, now: datetime
) -> LetheExchange:
    """Post what is due and released, and record the posts of a relay's board for an owner's golems.

    Without a golem that opens Lethe nothing is asked, and nothing is received if no golem can pay. Raises
    NoServerError and ServerError of the relay.
    """
    context = context.whole
    with context.home.lock("clade"):
        golems = lethe_golems(context, owner_id)
        members = tuple(golem_id for golem_id, lives in golems.items() if lives)
        if not golems:
            return LetheExchange((), 0, 0, 0, ())
        keys = _keys(board)
        derive_curation(context)
        outbox = LetheOutbox(clade_folder(context.home, owner_id), secret, board, keys, context.policy.clade)
        heard = {post.post_id: post for one in posts_received(context, owner_id) for post in one.posts}
        due, refusal = due_posts(context, owner_id, golems, secret.lethe_key, heard.values()), None
        try:
            sent = outbox.send(due, now)
        except NoServerError:
            raise
        except ServerError as error:
            sent, refusal = 0, str(error)
        payers = able_to_pay(context, members, context.policy.clade.query_micros)
        inbox = _Inbox(context, owner_id, payers, heard.keys(), now)
        received, refused = inbox.receive(board, keys) if payers else (0, ())
    return LetheExchange(members, sent, len(due.posts) - sent, received, refused, refusal)


def _keys(board: Board) -> dict[Purpose, BlindKey]:
    """Return the relay's keys. Raises ServerError without one for each purpose."""
    moduli = board.keys()
    if missing := [purpose for purpose in PURPOSES if moduli.get(purpose, 0) <= 1]:
        raise ServerError(502, "RelayError", f"the relay has no key for {missing[0]} posts", "use another relay")
    return {purpose: BlindKey(purpose, moduli[purpose]) for purpose in PURPOSES}


class _Inbox:
    """The posts of a board that an owner's golems receive, each once.

    Parameters
    ----------
    payers : golems that hear the posts and pay for the query
    known : ids of the posts that the owner received before
    """

    def __init__(
        self, context: DerivationContext, owner_id: str, payers: Sequence[str], known: Collection[str], now: datetime
    ) -> None:
        self._context, self._owner_id, self._payers, self._now = context, owner_id, payers, now
        self._known = set(known)

    def receive(self, board: Board, keys: Mapping[Purpose, BlindKey]) -> tuple[int, tuple[tuple[int, str], ...]]:
        """Record the posts behind the cursor; return the number of new ones, and each refused one with its reason."""
        relay_key = hashlib.sha256("".join(f"{keys[p].modulus:x}" for p in PURPOSES).encode()).hexdigest()[:16]
        path = clade_folder(self._context.home, self._owner_id) / f"board-{relay_key}"
        cursor, before, refused = _cursor(path), len(self._known), []
        page, newest = board.after(cursor)
        if cursor > newest:  # the relay lost its posts and counts from the beginning
            page, _ = board.after(0)
        while page:
            new: dict[str, Post] = {}
            for found in page:
                try:
                    post = _checked(found, keys)
                except BundleError as error:
                    refused.append((found.number, str(error)))
                else:
                    new |= {post.post_id: post} if post.post_id not in self._known else {}
            if new:
                record_posts(
                    self._context, self._owner_id, list(new.values()), golem_ids=self._payers, relay_key=relay_key,
                    now=self._now,
                )  # fmt: skip
                self._known |= new.keys()
            replace_file(path, str(page[-1].number).encode())
            page, _ = board.after(page[-1].number)
        return len(self._known) - before, tuple(refused)


def _checked(found: BoardPost, keys: Mapping[Purpose, BlindKey]) -> Post:
    """Return a post of the board. Raises BundleError for one that is malformed or not signed by the relay."""
    content = found.content.encode("utf-8", "surrogatepass")
    for purpose in PURPOSES:
        if found.purpose == purpose:
            post = read_post(purpose, content)
            if keys[purpose].verifies(content, found.signature):
                return post
    raise BundleError("a post is not signed by its relay")


def _cursor(path: Path) -> int:
    """Return the number of the newest post that was read; 0 without a readable file, and all are read again."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
