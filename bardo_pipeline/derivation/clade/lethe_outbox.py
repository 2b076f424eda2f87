"""Posts that wait in a home for a relay's signature or for their moment.

Each home asks once in each window of time, at its own moment, for a fixed number of signatures, which unused blinded
numbers fill. So a request says nothing about the posts of its author. A post leaves in a later window, and not in an
exchange that asks. The file of signatures saves work only. Source: KAT-4, KAT-6; ADR 0115.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol

import orjson

from bardo_pipeline.client.lethe_client import TicketRequest
from bardo_pipeline.derivation.clade.lethe_posts import DuePosts
from bardo_pipeline.errors import SealError, ServerError
from bardo_pipeline.events.custody.blind_signature import PURPOSES, BlindKey, Purpose
from bardo_pipeline.events.custody.clade_secret import CladeSecret
from bardo_pipeline.katabasis.public_posts import Belief, Post, release_moment
from bardo_pipeline.policy.inheritance import CladePolicy
from bardo_pipeline.storage.home import make_folder, replace_file


class _File(NamedTuple):
    """Content of the file of signatures.

    signed : post id -> its signature, and the window in which it was signed
    asked, seen : windows of the last request and of the last exchange; before the first, so that it asks
    """

    signed: dict[str, tuple[int, int]]
    asked: int = -3
    seen: int = -2


class Writable(Protocol):
    """The part of a board that signs and takes posts (`client.lethe_client.LetheClient`)."""

    def sign(self, request: TicketRequest) -> list[int]:
        """Return the relay's signatures of blinded digests, in order."""

    def post(self, post_id: str, purpose: str, content: str, signature: int, days: int) -> int:
        """Put a post on the board for so many days; return its number."""


class LetheOutbox:
    """The posts of one owner that wait.

    Parameters
    ----------
    folder : of the file of signatures
    keys : the relay's keys by purpose
    """

    def __init__(
        self, folder: Path, secret: CladeSecret, board: Writable, keys: Mapping[Purpose, BlindKey], rules: CladePolicy
    ) -> None:
        self._secret, self._board, self._keys, self._rules = secret, board, keys, rules
        make_folder(folder)
        self._path = folder / "tickets"

    def send(self, due: DuePosts, now: datetime) -> int:
        """Ask for signatures if it is time, else send the posts whose moment has come; return their number."""
        before, (clock, part) = (
            _read(self._path),
            divmod(now.timestamp() / (self._rules.lethe_window_minutes * 60.0), 1),
        )
        window = int(clock)
        signed = {n: s for n, s in before.signed.items() if n in due.posts and self._is_signed(due.posts[n], s[0])}
        if due.at_once - signed.keys() or self._asks(before, window, part):
            for purpose in PURPOSES:
                new = self._ask(purpose, self._next(purpose, due, signed), window)
                signed |= {name: (number, window) for name, number in new.items()}
            _write(self._path, _File(signed, window, window))
            return 0
        _write(self._path, before._replace(signed=signed, seen=window))
        ready = [
            due.posts[name]
            for name, (_, since) in signed.items()
            if name in due.at_once or (since < window and self._leaves(due.posts[name], window, part))
        ]
        for post in sorted(ready, key=lambda post: self._rank(post.post_id)):
            content, signature = post.content.decode(), signed[post.post_id][0]
            self._board.post(post.post_id, post.purpose, content, signature, self._rules.lethe_kept_days)
        return len(ready)

    def _asks(self, before: _File, window: int, part: float) -> bool:
        """Whether an exchange asks: once in each window at a moment of chance, and never in all exchanges."""
        moment = release_moment(self._secret.lethe_key, "ask", window, 1.0)
        is_time = moment is not None and moment <= part
        is_late = before.asked < window - 1 and before.asked < before.seen  # an exchange that posted lies between
        return before.asked < window and (is_late or (before.seen == window and is_time))

    def _is_signed(self, post: Post, signature: int) -> bool:
        return self._keys[post.purpose].verifies(post.content, signature)

    def _leaves(self, post: Post, window: int, part: float) -> bool:
        rules = self._rules
        share = rules.lethe_release_share if isinstance(post.facts, Belief) else rules.pheromone_release_share
        moment = release_moment(self._secret.lethe_key, post.post_id, window, share)
        return moment is not None and moment <= part

    def _next(self, purpose: Purpose, due: DuePosts, signed: Collection[str]) -> list[Post]:
        """Return the posts to ask for, critical ones first, up to the size of a request."""
        unsigned = [post for name, post in due.posts.items() if name not in signed and post.purpose == purpose]
        unsigned.sort(key=lambda post: (post.post_id not in due.at_once, self._rank(post.post_id)))
        return unsigned[: self._rules.lethe_tickets]

    def _ask(self, purpose: Purpose, posts: Sequence[Post], window: int) -> dict[str, int]:
        """Return the signatures of posts; the request is filled to its fixed size."""
        key, blinding, author = self._keys[purpose], self._secret.lethe_key, self._secret.identity
        unused = [f"unused {window} {number}".encode() for number in range(self._rules.lethe_tickets - len(posts))]
        blinded = [key.blind(content, blinding) for content in (*(post.content for post in posts), *unused)]
        request = TicketRequest(self._secret.identity_name, purpose, tuple(sorted(blinded)))
        signed = self._board.sign(request._replace(signature=author.sign(request.signed_bytes).hex()))
        answer = dict(zip(request.blinded, signed, strict=True))
        try:
            return {
                post.post_id: key.unblind(post.content, blinding, answer[number])
                for post, number in zip(posts, blinded, strict=False)
            }
        except SealError as error:
            raise ServerError(502, "RelayError", str(error), "use another relay") from None

    def _rank(self, name: str) -> bytes:
        """Return the place of a name in an order that only the owner can compute."""
        return hmac.digest(self._secret.lethe_key, f"order\0{name}".encode(), hashlib.sha256)


def _read(path: Path) -> _File:
    """Return the content of the file; that of a new one if it is unreadable."""
    try:
        stored = orjson.loads(path.read_bytes())
        signed = {str(name): (int(number, 16), int(window)) for name, (number, window) in stored["signed"].items()}
        return _File(signed, int(stored["asked"]), int(stored["seen"]))
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return _File({})


def _write(path: Path, content: _File) -> None:
    signed = {name: (f"{number:x}", window) for name, (number, window) in content.signed.items()}
    replace_file(path, orjson.dumps({**content._asdict(), "signed": signed}))
