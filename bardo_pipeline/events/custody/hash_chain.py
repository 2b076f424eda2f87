"""Chain of custody: what is hashed, how links follow each other, who may sign. Pure.

Each golem's records form a chain of links. What a link covers (its content) depends on how the records came:

- as JSON (a single record, a line of a spool file): SHA-256 of the sender's bytes, without the newline.
- as Arrow: SHA-256 of the golem's canonical slice, its rows of the batch in tick order, see `slice_contents`.

    link = SHA-256("bardo/link/1" 00 golem_id 00 number[8, big-endian] previous[32] content[32])
    signed message = "bardo/signed/1" 00 golem_id 00 content[32]           (Ed25519)
    rotation message = "bardo/rotate/1" 00 golem_id 00 key_id 00 public_key[32] tick_from[8, big-endian]

Numbers count from 1; the first link names 32 zero bytes. The hash is hashlib's, the signatures are cryptography's.
Source: architecture ("Chain of custody"); X-9.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from bardo_pipeline.errors import RecordError, SignatureError
from bardo_pipeline.events.life.events import KeyRegistered, KeyRevoked, KeyRotated, LifeEvent
from bardo_pipeline.events.record.arrow_columns import is_number, one, present, slots, text_offsets
from bardo_pipeline.events.record.upcast import ADDED_LATER

_BITE_BYTES = 2_047
"""hashlib gives the interpreter's lock away for more, and among many threads that costs far more than the hashing."""

GENESIS = bytes(32)
"""What the first link of a chain names as the one before."""


class Signature(NamedTuple):
    """Whose key signed a content, and the 64 bytes of the signature."""

    key_id: str
    value: bytes


class Tip(NamedTuple):
    """The newest link of a golem's chain: its number and hash; (0, GENESIS) before the first."""

    number: int = 0
    hash: bytes = GENESIS


def content_of(line: bytes | memoryview) -> bytes:
    """The content (32 bytes) of a record that came as JSON: SHA-256 of the sender's bytes."""
    hasher = hashlib.sha256(line[:_BITE_BYTES])
    for at in range(_BITE_BYTES, len(line), _BITE_BYTES):
        hasher.update(line[at : at + _BITE_BYTES])
    return hasher.digest()


@dataclass(frozen=True)
class Payloads:
    """The senders' bytes of records that came as JSON (binary, none of them null), and the content of each."""

    lines: pa.Array
    contents: Sequence[bytes]

    @classmethod
    def of(cls, lines: pa.Array) -> Payloads:
        """These, hashed; no line is copied."""
        view, bounds = memoryview(lines.buffers()[2] or b""), text_offsets(lines).tolist()
        return cls(lines, [content_of(view[start:stop]) for start, stop in pairwise(bounds)])

    def take(self, rows: np.ndarray) -> Payloads:
        """Some of them."""
        return Payloads(self.lines.take(pa.array(rows)), [self.contents[row] for row in rows.tolist()])


def link_of(golem_id: str, number: int, previous: bytes, content: bytes) -> bytes:
    """The link (32 bytes) that follows `previous` and covers this content."""
    head = b"bardo/link/1\0" + golem_id.encode() + b"\0"
    return hashlib.sha256(head + number.to_bytes(8, "big") + previous + content).digest()


def signed_message(golem_id: str, content: bytes) -> bytes:
    """What a golem's key signs."""
    return b"bardo/signed/1\0" + golem_id.encode() + b"\0" + content


def rotation_message(golem_id: str, key_id: str, public_key: str, tick_from: int) -> bytes:
    """What the previous key signs when another takes its place."""
    head = b"bardo/rotate/1\0" + golem_id.encode() + b"\0" + key_id.encode() + b"\0"
    return head + bytes.fromhex(public_key) + tick_from.to_bytes(8, "big")


def verified(public_key: str, signature: bytes, message: bytes) -> bool:
    """Whether the Ed25519 key (hex) signed this message."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(signature, message)
    except InvalidSignature:
        return False
    return True


# the canonical slice


def slice_contents(table: pa.Table, bounds: Sequence[int] | np.ndarray, order: np.ndarray | None = None) -> list[bytes]:
    """The content (32 bytes) of each run of rows: SHA-256 of its canonical slice.

    table: RECORD_SCHEMA. order: its rows, one golem's standing together in tick order; None where they do so in the
    table. bounds: where in that order runs begin, and the end.

    The slice holds "bardo/slice/1" 00, the number of rows as 8 bytes, then each column in schema order: its name, 00,
    then its levels from the outside in, as in the body of an Arrow IPC message but without padding. A level is a
    validity byte a slot where the schema allows null; then a list's lengths (int32) and its elements' level, a text's
    lengths (int32) and bytes, a boolean's bytes, an integer's, a moment's (microseconds) or a float's 8 bytes, all
    little-endian; a null's length and value are 0, and what lies in a null struct is null. A column of a later schema
    (ADDED_LATER) that is null in the whole run is left out, name and all.
    """
    edges = np.asarray(bounds, dtype=np.int64)
    hashers = [hashlib.sha256(b"bardo/slice/1\0" + int(n).to_bytes(8, "little")) for n in np.diff(edges)]
    for column in table.schema:
        array = one(table.column(column.name))
        concerned: Iterable[int] = range(len(hashers))
        if column.name in ADDED_LATER:
            if array.null_count == len(array):
                continue
            held = np.concatenate([[0], np.cumsum(_picked(present(array), order))])
            concerned = np.flatnonzero(np.diff(held[edges])).tolist()
        name = column.name.encode() + b"\0"
        for k in concerned:
            hashers[k].update(name)
        for view, ends in _levels(array, column.nullable, edges, order):
            for k in concerned:
                hashers[k].update(view[ends[k] : ends[k + 1]])
    return [hasher.digest() for hasher in hashers]


def _levels(
    array: pa.Array, nullable: bool, edges: np.ndarray, order: np.ndarray | None
) -> Iterator[tuple[memoryview, list[int]]]:
    """The bytes of each level, and where each run's share of them begins and ends. order: the slots that count."""
    if nullable:
        yield _bytes(_picked(present(array), order), edges)
    kind = array.type
    if pa.types.is_struct(kind):
        for child, values in zip(kind, array.flatten(), strict=True):
            yield from _levels(values, child.nullable, edges, order)
    elif pa.types.is_list(kind):
        offsets = array.offsets.to_numpy().astype(np.int64)
        starts, lengths = _picked(offsets[:-1], order), _picked(np.diff(offsets), order)
        if array.null_count:
            lengths = np.where(_picked(present(array), order), lengths, 0)
        yield _bytes(lengths.astype("<i4"), edges)
        reached = np.concatenate([[0], np.cumsum(lengths)])
        elements, below = array.values, None
        if order is None and int(offsets[-1] - offsets[0]) == int(reached[-1]):
            elements = elements.slice(int(offsets[0]), int(reached[-1]))
        else:
            below = np.repeat(starts - reached[:-1], lengths) + np.arange(reached[-1])
        yield from _levels(elements, kind.value_field.nullable, reached[edges], below)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        yield from _text_levels(array if order is None else array.take(pa.array(order)), edges)
    else:
        yield _bytes(_picked(_filled(array), order), edges)


def _filled(array: pa.Array) -> np.ndarray:
    """Numbers, moments (microseconds) or truths, 0 for a null."""
    if is_number(array.type):
        values = slots(array)
        return np.where(present(array), values, values.dtype.type(0)) if array.null_count else values
    filled = pc.fill_null(array, False) if array.null_count else array
    truths: np.ndarray = filled.to_numpy(zero_copy_only=False)
    return truths


def _text_levels(array: pa.Array, edges: np.ndarray) -> Iterator[tuple[memoryview, list[int]]]:
    offsets = text_offsets(array)
    if array.null_count and np.diff(offsets)[~present(array)].any():
        array = pc.fill_null(array, "" if pa.types.is_string(array.type) else b"")
        offsets = text_offsets(array)
    yield _bytes(np.diff(offsets).astype("<i4"), edges)
    data = array.buffers()[2]
    yield memoryview(data if data is not None else b""), offsets[edges].tolist()


def _picked(values: np.ndarray, order: np.ndarray | None) -> np.ndarray:
    return values if order is None else values[order]


def _bytes(values: np.ndarray, edges: np.ndarray) -> tuple[memoryview, list[int]]:
    flat = np.ascontiguousarray(values)
    return flat.view(np.uint8).reshape(-1).data, (edges * flat.dtype.itemsize).tolist()


# keys


@dataclass(frozen=True)
class Key:
    """A signing key: from which tick on it counts, and from which tick on no more (None: it still does)."""

    key_id: str
    public_key: str
    tick_from: int
    revoked_from: int | None = None


@dataclass(frozen=True)
class KeyRing:
    """A golem's signing keys, oldest first: the fold of its key events."""

    golem_id: str
    keys: tuple[Key, ...] = field(default=())

    def key_at(self, tick: int) -> Key | None:
        """The key that must sign this tick; None where none is registered for it yet."""
        for key in reversed(self.keys):
            if key.tick_from <= tick:
                return key
        return None

    def check(self, tick: int, content: bytes, signature: Signature | None) -> None:
        """Raise SignatureError unless the content of this tick is signed as this ring asks."""
        key, who = self.key_at(tick), f"golem {self.golem_id}: tick {tick}"
        if key is None:
            if signature is not None:
                raise SignatureError(f"{who} is signed with {signature.key_id}, which is not registered: register it")
            return
        if signature is None:
            raise SignatureError(f"{who} is not signed, though key {key.key_id} is registered: sign it")
        if signature.key_id != key.key_id:
            raise SignatureError(f"{who} is signed with {signature.key_id}, but {key.key_id} counts there")
        if key.revoked_from is not None and tick >= key.revoked_from:
            raise SignatureError(f"{who} is signed with {key.key_id}, which was revoked from tick {key.revoked_from}")
        if not verified(key.public_key, signature.value, signed_message(self.golem_id, content)):
            raise SignatureError(f"{who} carries a signature that key {key.key_id} did not make")

    def after(self, event: LifeEvent) -> KeyRing:
        """The ring after a new key event. Raises RecordError or SignatureError for one that may not follow."""
        payload, last = event.payload, self.keys[-1] if self.keys else None
        if isinstance(payload, KeyRegistered):
            return self._registered(payload)
        if isinstance(payload, KeyRotated):
            if last is not None and last.revoked_from is not None and payload.signature is not None:
                raise SignatureError(f"golem {self.golem_id}: key {last.key_id} was revoked before: it signs nothing")
            return self._rotated(payload, {key.key_id for key in self.keys if key.revoked_from is not None})
        if isinstance(payload, KeyRevoked):
            return self._without(payload)
        return self

    def learned(self, events: Iterable[LifeEvent]) -> KeyRing:
        """The ring with key events of this golem that are on record, in whatever order they are met.

        Each was judged by what was on record when it came (`after`); a key may be revoked long after it signed for the
        next. Raises RecordError or SignatureError for events that cannot have been taken in any order.
        """
        payloads, ring = [event.payload for event in events], self
        for payload in payloads:
            if isinstance(payload, KeyRegistered):
                ring = ring._registered(payload)
        revoked = {key.key_id for key in self.keys if key.revoked_from is not None}
        revoked |= {payload.key_id for payload in payloads if isinstance(payload, KeyRevoked)}
        for payload in sorted((p for p in payloads if isinstance(p, KeyRotated)), key=lambda p: p.tick_from):
            ring = ring._rotated(payload, revoked)
        for payload in payloads:
            if isinstance(payload, KeyRevoked):
                ring = ring._without(payload)
        return ring

    def _registered(self, payload: KeyRegistered) -> KeyRing:
        if self.keys:
            raise RecordError(f"golem {self.golem_id} has key {self.keys[-1].key_id} already: rotate it")
        return replace(self, keys=(Key(payload.key_id, payload.public_key, payload.tick_from),))

    def _rotated(self, payload: KeyRotated, revoked: Collection[str]) -> KeyRing:
        who = f"golem {self.golem_id}"
        if not self.keys or self.keys[-1].key_id != payload.previous_key_id:
            raise RecordError(f"{who}: {payload.previous_key_id} is not its newest key and cannot be rotated")
        if payload.key_id in {key.key_id for key in self.keys}:
            raise RecordError(f"{who}: key {payload.key_id} was used before: give the new one its own id")
        last = self.keys[-1]
        if payload.tick_from <= last.tick_from:
            raise RecordError(f"{who}: key {last.key_id} counts from tick {last.tick_from}, the next one later only")
        message = rotation_message(self.golem_id, payload.key_id, payload.public_key, payload.tick_from)
        if payload.signature is None and last.key_id not in revoked:
            raise SignatureError(f"{who}: a rotation is signed by {last.key_id}, unless that was revoked before")
        if payload.signature is not None and not verified(last.public_key, bytes.fromhex(payload.signature), message):
            raise SignatureError(f"{who}: key {last.key_id} did not sign this rotation")
        return replace(self, keys=(*self.keys, Key(payload.key_id, payload.public_key, payload.tick_from)))

    def _without(self, payload: KeyRevoked) -> KeyRing:
        if payload.key_id not in {key.key_id for key in self.keys}:
            raise RecordError(f"golem {self.golem_id} has no key {payload.key_id} to revoke")
        return replace(self, keys=tuple(_revoked(k, payload) if k.key_id == payload.key_id else k for k in self.keys))


def check_rings(events: Iterable[LifeEvent], rings: Mapping[str, KeyRing]) -> None:
    """Raise RecordError or SignatureError for a key event that may not follow those on record (golem to ring)."""
    known = dict(rings)
    for event in events:
        known[event.golem_id] = known.get(event.golem_id, KeyRing(event.golem_id)).after(event)


def rings_after(events: Iterable[LifeEvent], rings: Mapping[str, KeyRing]) -> dict[str, KeyRing]:
    """The rings of those golems that these events, which are on record, are of."""
    of: dict[str, list[LifeEvent]] = {}
    for event in events:
        of.setdefault(event.golem_id, []).append(event)
    return {golem_id: rings.get(golem_id, KeyRing(golem_id)).learned(own) for golem_id, own in of.items()}


def _revoked(key: Key, payload: KeyRevoked) -> Key:
    earliest = payload.tick_from if key.revoked_from is None else min(key.revoked_from, payload.tick_from)
    return replace(key, revoked_from=earliest)
