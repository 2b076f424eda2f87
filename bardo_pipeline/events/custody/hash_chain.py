"""The hash chain of a golem's records: hashed content, links, signatures and keys. Pure.

The content that a link covers depends on the format of the records:

- JSON (a single record, a line of a spool file): SHA-256 of the sender's bytes without the newline.
- Arrow: SHA-256 of the golem's canonical slice, its rows of the batch in tick order (`slice_contents`).

    link = SHA-256("bardo/link/1" 00 golem_id 00 number[8, big-endian] previous[32] content[32])
    signed message = "bardo/signed/1" 00 golem_id 00 content[32]           (Ed25519)
    rotation message = "bardo/rotate/1" 00 golem_id 00 key_id 00 public_key[32] tick_from[8, big-endian]

Numbers start at 1; the previous hash of the first link is 32 zero bytes.
Source: architecture ("Chain of custody"); X-9.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from numpy.typing import NDArray

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.errors import RecordError, SignatureError
from bardo_pipeline.events.life.events import KeyRegistered, KeyRevoked, KeyRotated, LifeEvent
from bardo_pipeline.events.record.arrow_columns import ADDED_LATER, contiguous, is_number, present, slots, text_offsets
from bardo_pipeline.signing import signed_message

_GIL_BYTES = 2_047
"""hashlib releases the GIL for longer buffers, which costs more than the hash when many threads run."""
_SHA256 = hashlib.sha256()

GENESIS = bytes(32)
"""Previous hash of the first link of a chain."""


class Signature(NamedTuple):
    """Id of the signing key and the signature (64 bytes)."""

    key_id: str
    value: bytes


class Tip(NamedTuple):
    """Number and hash of the newest link of a golem's chain; (0, GENESIS) before the first."""

    number: int = 0
    hash: bytes = GENESIS


def content_of(line: bytes | memoryview) -> bytes:
    """Return the content hash (32 bytes) of a JSON record: SHA-256 of the sender's bytes."""
    hasher, view = _SHA256.copy(), memoryview(line)  # OpenSSL looks an algorithm up at each construction
    for at in range(0, len(line), _GIL_BYTES):
        hasher.update(view[at : at + _GIL_BYTES])
    return hasher.digest()


@dataclass(frozen=True)
class Payloads:
    """The sender's bytes of JSON records (binary without nulls) and the content hash of each."""

    lines: pa.Array
    contents: Sequence[bytes]

    @classmethod
    def of(cls, lines: pa.Array) -> Payloads:
        """Hash the lines without copying them."""
        view, bounds = memoryview(lines.buffers()[2] or b""), text_offsets(lines).tolist()
        return cls(lines, [content_of(view[start:stop]) for start, stop in pairwise(bounds)])

    def take(self, rows: Int64Array) -> Payloads:
        """Return the payloads of these rows."""
        return Payloads(self.lines.take(pa.array(rows)), [self.contents[row] for row in rows.tolist()])


def link_of(golem_id: str, number: int, previous: bytes, content: bytes) -> bytes:
    """Return the link (32 bytes) after `previous` for this content."""
    head = b"bardo/link/1\0" + golem_id.encode() + b"\0"
    return hashlib.sha256(head + number.to_bytes(8, "big") + previous + content).digest()


def rotation_message(golem_id: str, key_id: str, public_key: str, tick_from: int) -> bytes:
    """Return the bytes that the previous key signs at a rotation."""
    head = b"bardo/rotate/1\0" + golem_id.encode() + b"\0" + key_id.encode() + b"\0"
    return head + bytes.fromhex(public_key) + tick_from.to_bytes(8, "big")


def verified(public_key: str, signature: bytes, message: bytes) -> bool:
    """Return whether the Ed25519 key (hex) signed this message."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(signature, message)
    except InvalidSignature:
        return False
    return True


# the canonical slice


def slice_contents(table: pa.Table, bounds: Sequence[int] | Int64Array, order: Int64Array | None = None) -> list[bytes]:
    """Return the content hash (32 bytes) of each run of rows: the SHA-256 of its canonical slice.

    The canonical slice is "bardo/slice/1" 00, the number of rows (8 bytes), and each column in schema order: name, 00,
    and its levels from the outside in, as in an Arrow IPC message without padding. A level is one validity byte per
    slot if the schema allows nulls; then the lengths (int32) and the element level of a list, the lengths (int32) and
    bytes of a text, the bytes of a boolean, or the 8 bytes of an integer, timestamp (microseconds) or float. Numbers
    are little-endian. Length and value of a null are 0, and children of a null struct are null. A column of a later
    schema (ADDED_LATER) that is null in the whole run is omitted with its name.

    Parameters
    ----------
    table : RECORD_SCHEMA
    bounds : offsets of the runs in `order`, and the end
    order : row indices with the rows of each golem contiguous and by tick; None for the order of the table
    """
    edges = np.asarray(bounds, dtype=np.int64)
    hashers = [hashlib.sha256(b"bardo/slice/1\0" + int(n).to_bytes(8, "little")) for n in np.diff(edges)]
    for column in table.schema:
        array = contiguous(table.column(column.name))
        concerned: Iterable[int] = range(len(hashers))
        if column.name in ADDED_LATER:
            if array.null_count == len(array):
                continue
            counts = np.concatenate([[0], np.cumsum(_picked(present(array), order))])
            concerned = np.flatnonzero(np.diff(counts[edges])).tolist()
        name = column.name.encode() + b"\0"
        for k in concerned:
            hashers[k].update(name)
        for view, ends in _levels(array, column.nullable, edges, order):
            for k in concerned:
                hashers[k].update(view[ends[k] : ends[k + 1]])
    return [hasher.digest() for hasher in hashers]


def _levels(
    array: pa.Array, nullable: bool, edges: Int64Array, order: Int64Array | None
) -> Iterator[tuple[memoryview, list[int]]]:
    """Yield the bytes of each level and the offsets of the runs in them. order: indices of the used slots."""
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
        ends = np.concatenate([[0], np.cumsum(lengths)])
        elements, below = array.values, None
        if order is None and int(offsets[-1] - offsets[0]) == int(ends[-1]):
            elements = elements.slice(int(offsets[0]), int(ends[-1]))
        else:
            below = np.repeat(starts - ends[:-1], lengths) + np.arange(ends[-1])
        yield from _levels(elements, kind.value_field.nullable, ends[edges], below)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        yield from _text_levels(array if order is None else array.take(pa.array(order)), edges)
    else:
        yield _bytes(_picked(_filled(array), order), edges)


def _filled(array: pa.Array) -> NDArray[Any]:
    """Return numbers, timestamps (microseconds) or booleans, with 0 for null."""
    if is_number(array.type):
        values = slots(array)
        return np.where(present(array), values, values.dtype.type(0)) if array.null_count else values
    filled = pc.fill_null(array, False) if array.null_count else array
    return filled.to_numpy(zero_copy_only=False)


def _text_levels(array: pa.Array, edges: Int64Array) -> Iterator[tuple[memoryview, list[int]]]:
    offsets = text_offsets(array)
    if array.null_count and np.diff(offsets)[~present(array)].any():
        array = pc.fill_null(array, "" if pa.types.is_string(array.type) else b"")
        offsets = text_offsets(array)
    yield _bytes(np.diff(offsets).astype("<i4"), edges)
    data = array.buffers()[2]
    yield memoryview(data if data is not None else b""), offsets[edges].tolist()


def _picked(values: NDArray[Any], order: Int64Array | None) -> NDArray[Any]:
    return values if order is None else values[order]


def _bytes(values: NDArray[Any], edges: Int64Array) -> tuple[memoryview, list[int]]:
    flat = np.ascontiguousarray(values)
    return flat.view(np.uint8).reshape(-1).data, (edges * flat.dtype.itemsize).tolist()


# keys


@dataclass(frozen=True)
class Key:
    """A signing key, valid from tick_from until revoked_from (None: not revoked)."""

    key_id: str
    public_key: str
    tick_from: int
    revoked_from: int | None = None


@dataclass(frozen=True)
class KeyRing:
    """A golem's signing keys, oldest first, folded from its key events."""

    golem_id: str
    keys: tuple[Key, ...] = field(default=())

    def key_at(self, tick: int) -> Key | None:
        """Return the key that must sign this tick; None before the first key."""
        for key in reversed(self.keys):
            if key.tick_from <= tick:
                return key
        return None

    def check(self, tick: int, content: bytes, signature: Signature | None) -> None:
        """Raise SignatureError unless the content of this tick has the required signature."""
        key, subject = self.key_at(tick), f"golem {self.golem_id}: tick {tick}"
        if key is None:
            if signature is not None:
                raise SignatureError(
                    f"{subject} is signed with {signature.key_id}, which is not registered: register it"
                )
            return
        if signature is None:
            raise SignatureError(f"{subject} is not signed, though key {key.key_id} is registered: sign it")
        if signature.key_id != key.key_id:
            raise SignatureError(f"{subject} is signed with {signature.key_id}, but {key.key_id} is valid there")
        if key.revoked_from is not None and tick >= key.revoked_from:
            raise SignatureError(
                f"{subject} is signed with {key.key_id}, which was revoked from tick {key.revoked_from}"
            )
        if not verified(key.public_key, signature.value, signed_message(self.golem_id, content)):
            raise SignatureError(f"{subject} carries a signature that key {key.key_id} did not make")

    def after(self, event: LifeEvent) -> KeyRing:
        """Return the ring after a new key event. Raises RecordError or SignatureError for an invalid event."""
        payload, last = event.payload, self.keys[-1] if self.keys else None
        is_revoked = last is not None and last.revoked_from is not None
        if last is not None and is_revoked and isinstance(payload, KeyRotated) and payload.signature is not None:
            raise SignatureError(f"golem {self.golem_id}: key {last.key_id} was revoked before: it signs nothing")
        return self.learned([event])

    def learned(self, events: Iterable[LifeEvent]) -> KeyRing:
        """Return the ring after recorded key events of this golem in any order.

        `after` validated each event when it was recorded; a key may be revoked long after it signed the rotation to the
        next one. Raises RecordError or SignatureError for events that are invalid in every order.
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
        subject = f"golem {self.golem_id}"
        if not self.keys or self.keys[-1].key_id != payload.previous_key_id:
            raise RecordError(f"{subject}: {payload.previous_key_id} is not its newest key and cannot be rotated")
        if payload.key_id in {key.key_id for key in self.keys}:
            raise RecordError(f"{subject}: key {payload.key_id} was used before: give the new one its own id")
        last = self.keys[-1]
        if payload.tick_from <= last.tick_from:
            raise RecordError(
                f"{subject}: key {last.key_id} is valid from tick {last.tick_from}; the next key needs a later tick"
            )
        message = rotation_message(self.golem_id, payload.key_id, payload.public_key, payload.tick_from)
        if payload.signature is None and last.key_id not in revoked:
            raise SignatureError(f"{subject}: key {last.key_id} is not revoked, so it must sign the rotation")
        if payload.signature is not None and not verified(last.public_key, bytes.fromhex(payload.signature), message):
            raise SignatureError(f"{subject}: key {last.key_id} did not sign this rotation")
        return replace(self, keys=(*self.keys, Key(payload.key_id, payload.public_key, payload.tick_from)))

    def _without(self, payload: KeyRevoked) -> KeyRing:
        own = next((key for key in self.keys if key.key_id == payload.key_id), None)
        if own is None:
            raise RecordError(f"golem {self.golem_id} has no key {payload.key_id} to revoke")
        revoked = replace(own, revoked_from=min(own.revoked_from or payload.tick_from, payload.tick_from))
        return replace(self, keys=tuple(revoked if key is own else key for key in self.keys))


def check_rings(events: Iterable[LifeEvent], rings: Mapping[str, KeyRing]) -> None:
    """Raise RecordError or SignatureError for a key event that is invalid after those of the rings (by golem)."""
    updated = dict(rings)
    for event in events:
        updated[event.golem_id] = updated.get(event.golem_id, KeyRing(event.golem_id)).after(event)


def rings_after(events: Iterable[LifeEvent], rings: Mapping[str, KeyRing]) -> dict[str, KeyRing]:
    """Return the updated rings of the golems of these recorded events."""
    by_golem: dict[str, list[LifeEvent]] = {}
    for event in events:
        by_golem.setdefault(event.golem_id, []).append(event)
    return {golem_id: rings.get(golem_id, KeyRing(golem_id)).learned(own) for golem_id, own in by_golem.items()}
