"""Sealing: what is private in a record, encrypted under its golem's key; without the key nobody reads it again. Pure.

Private are `deliberation.reasoning_summary` and `observation.positions`; and each line of a conversation, whole.

    encryption key = HKDF-SHA256(secret, info "bardo/seal/1/encrypt")        nonce key the same, "bardo/seal/1/nonce"
    key id         = "seal-" and 16 hex digits of SHA-256("bardo/seal-id/1" 00 secret)
    about          = "bardo/seal/1" 00, then length[4, big-endian] and bytes of each: key id, golem id, place
    nonce          = the first 12 bytes of HMAC-SHA256(nonce key, about SHA-256(plaintext))
    ciphertext     = AES-256-GCM(encryption key, nonce, plaintext, about)

The place of a record is "tick" 00 and its tick in decimal, its plaintext {"positions": [...], "reasoning_summary":
"..."} as JSON with sorted keys. A nonce follows from what it encrypts: the same record sealed twice is the same bytes
(a repeat, not a fork), two contents share one with the odds of a 96-bit hash, and no state is kept to lose.

Nothing is derived from private parts but what a golem imagines in its dreams, which needs its positions: one that seals
them dreams without. What is sealed is sealed before it is recorded, so no projection changes when a key is destroyed.
Source: X-7; canon 20.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from bardo_pipeline.errors import SealError
from bardo_pipeline.events.record.model import DecisionCycleRecord, Part, PositionObservation, Sealed

PRIVATE = ("deliberation.reasoning_summary", "observation.positions")
"""The private parts of a record; emptied where it is sealed."""

SECRET_BYTES = 32
SCHEMA_SINCE = 2
"""The version of the record's schema that brought seals."""
CIPHERTEXT_MAX = 2**20
"""Characters of base64 that a record can hold (`Sealed.ciphertext`)."""


class PrivateParts(Part):
    """What a sealed record keeps to itself."""

    reasoning_summary: str
    positions: tuple[PositionObservation, ...]


class SealKey:
    """A golem's key for its private parts: 32 random bytes, and the id that they give it."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != SECRET_BYTES:
            raise SealError(f"a seal key has {SECRET_BYTES} bytes, not {len(secret)}")
        self.secret = secret
        self._cipher = AESGCM(_derived(secret, b"bardo/seal/1/encrypt"))
        self._nonce_key = _derived(secret, b"bardo/seal/1/nonce")

    def __repr__(self) -> str:
        return f"SealKey({self.key_id})"

    @property
    def key_id(self) -> str:
        """What the log calls it; it tells nothing of the secret."""
        return "seal-" + hashlib.sha256(b"bardo/seal-id/1\0" + self.secret).hexdigest()[:16]

    def seal(self, golem_id: str, place: bytes, plaintext: bytes) -> Sealed:
        """The plaintext encrypted, bound to this golem and this place."""
        about = self._about(golem_id, place)
        nonce = hmac.digest(self._nonce_key, about + hashlib.sha256(plaintext).digest(), "sha256")[:12]
        text = base64.b64encode(self._cipher.encrypt(nonce, plaintext, about)).decode()
        return Sealed.model_construct(key_id=self.key_id, nonce=nonce.hex(), ciphertext=text)

    def open(self, golem_id: str, place: bytes, sealed: Sealed) -> bytes:
        """The plaintext. Raises SealError for another key, and for what was altered or moved from its place."""
        where = f"golem {golem_id}: {place.replace(bytes(1), b' ').decode()}"
        if sealed.key_id != self.key_id:
            raise SealError(f"{where} is sealed under {sealed.key_id}, not under {self.key_id}: give that key")
        try:
            text = base64.b64decode(sealed.ciphertext, validate=True)
            return self._cipher.decrypt(bytes.fromhex(sealed.nonce), text, self._about(golem_id, place))
        except (InvalidTag, binascii.Error, ValueError):
            raise SealError(
                f"{where}: its seal was altered, or belongs elsewhere; `bardo verify` tells which"
            ) from None

    def _about(self, golem_id: str, place: bytes) -> bytes:
        parts = (self.key_id.encode(), golem_id.encode(), place)
        return b"bardo/seal/1\0" + b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return HKDF(SHA256(), SECRET_BYTES, salt=None, info=purpose).derive(secret)


def _place(tick: int) -> bytes:
    return b"tick\0" + str(tick).encode()


# single records


def has_private_parts(record: DecisionCycleRecord) -> bool:
    """Whether a record carries private parts in plain text."""
    return bool(record.observation.positions) or bool(record.deliberation and record.deliberation.reasoning_summary)


def seal_record(record: DecisionCycleRecord, key: SealKey) -> DecisionCycleRecord:
    """The record with its private parts sealed; the record itself where it has none.

    Raises SealError for one that has a seal and private parts in plain text, or more of them than a seal holds.
    """
    if not has_private_parts(record):
        return record
    if record.sealed is not None:
        raise _twice(record.golem_id, record.tick)
    thought = record.deliberation.reasoning_summary if record.deliberation is not None else ""
    positions = [position.model_dump() for position in record.observation.positions]
    observation = record.observation.model_copy(update={"positions": ()})
    deliberation = record.deliberation and record.deliberation.model_copy(update={"reasoning_summary": ""})
    return record.model_copy(
        update={
            "schema_version": max(record.schema_version, SCHEMA_SINCE),
            "observation": observation,
            "deliberation": deliberation,
            "sealed": _sealed(key, record.golem_id, record.tick, thought, positions),
        }
    )


def open_parts(sealed: Sealed, golem_id: str, tick: int, key: SealKey) -> PrivateParts:
    """What is under a record's seal. Raises SealError for another key, an altered seal, or another record's."""
    return PrivateParts.model_validate_json(key.open(golem_id, _place(tick), sealed))


def _sealed(key: SealKey, golem_id: str, tick: int, thought: str, positions: list[dict[str, Any]]) -> Sealed:
    parts = {"positions": positions, "reasoning_summary": thought}
    sealed = key.seal(golem_id, _place(tick), orjson.dumps(parts, option=orjson.OPT_SORT_KEYS))
    if len(sealed.ciphertext) > CIPHERTEXT_MAX:
        raise SealError(
            f"golem {golem_id}: tick {tick} has {len(positions)} positions and {len(thought)} characters of reasoning, "
            f"more than a seal of {CIPHERTEXT_MAX} characters holds: shorten them"
        )
    return sealed


def _twice(golem_id: str, tick: int) -> SealError:
    return SealError(f"golem {golem_id}: tick {tick} has a seal and private parts in plain text: send one of the two")


# batches


def is_plain(records: pa.Table) -> np.ndarray:
    """Which rows (RECORD_SCHEMA) carry private parts in plain text: bool [rows]."""
    observation, deliberation = (_one(records.column(name)) for name in ("observation", "deliberation"))
    held = pc.greater(pc.list_value_length(pc.struct_field(observation, "positions")), 0)
    thought = pc.greater(pc.binary_length(pc.struct_field(deliberation, "reasoning_summary")), 0)
    found = pc.or_(pc.fill_null(held, False), pc.fill_null(thought, False))
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.bool_)


def must_be_sealed(records: pa.Table, sealing: Collection[str]) -> np.ndarray:
    """Which rows carry private parts in plain text though their golem seals them: bool [rows].

    sealing: golems with a `SealKeyMade` on record, their key destroyed since or not.
    """
    if not sealing or not len(records):
        return np.zeros(len(records), dtype=np.bool_)
    theirs = pc.is_in(_one(records.column("golem_id")), value_set=pa.array(sorted(sealing), pa.string()))
    return np.asarray(theirs.to_numpy(zero_copy_only=False), dtype=np.bool_) & is_plain(records)


def unsealed(golem_id: str, tick: int) -> SealError:
    """What is wrong with a record that `must_be_sealed` finds."""
    return SealError(
        f"golem {golem_id}: tick {tick} has private parts in plain text, but the golem seals them: write it through "
        "EventWriter, seal it yourself (docs/events.md), or leave them out"
    )


def seal_table(records: pa.Table, keys: Mapping[str, SealKey]) -> pa.Table:
    """The batch (RECORD_SCHEMA) with the private parts of these golems (id to key) sealed, as `seal_record` does.

    Each record has its own encryption, so this loops over the rows that have something to seal; no other is touched.
    """
    bare = must_be_sealed(records, keys)
    if not bare.any():
        return records
    where = np.flatnonzero(bare)
    columns = {name: _one(records.column(name)) for name in records.column_names}
    sealed = columns["sealed"]
    again = np.flatnonzero(bare & np.asarray(sealed.is_valid()))
    ids, ticks = columns["golem_id"], columns["tick"]
    if len(again):
        raise _twice(ids[int(again[0])].as_py(), ticks[int(again[0])].as_py())
    rows, thoughts = pa.array(where), pc.struct_field(columns["deliberation"], "reasoning_summary")
    made = [
        _sealed(keys[golem_id], golem_id, tick, thought or "", positions).model_dump()
        for golem_id, tick, thought, positions in zip(
            ids.take(rows).to_pylist(),
            ticks.take(rows).to_pylist(),
            thoughts.take(rows).to_pylist(),
            pc.struct_field(columns["observation"], "positions").take(rows).to_pylist(),
            strict=True,
        )
    ]
    mask = pa.array(bare)
    sources = np.arange(len(records))
    sources[where] = len(records) + np.arange(len(made))
    columns["sealed"] = pa.concat_arrays([sealed, pa.array(made, sealed.type)]).take(pa.array(sources))
    versions = columns["schema_version"]
    columns["schema_version"] = pc.if_else(mask, pc.max_element_wise(versions, SCHEMA_SINCE), versions)
    columns["observation"] = _with(columns["observation"], "positions", _emptied(mask))
    columns["deliberation"] = _with(columns["deliberation"], "reasoning_summary", lambda t: pc.if_else(mask, "", t))
    return pa.table(columns, schema=records.schema)


def withheld(line: bytes, sealing: Collection[str]) -> bool:
    """Whether the raw bytes of a refused line may hold private parts of a golem that seals them.

    So they may unless they say, as JSON that can be read, that they are another golem's.
    """
    if not sealing:
        return False
    try:
        said = orjson.loads(line)
    except orjson.JSONDecodeError:
        return True
    golem_id = said.get("golem_id") if isinstance(said, dict) else None
    return not isinstance(golem_id, str) or golem_id in sealing


def _one(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        return pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    return array


def _with(struct: pa.StructArray, name: str, change: Any) -> pa.Array:
    """The struct with one child changed; what lies under a null struct stays there."""
    fields = list(struct.type)
    children = [change(struct.field(f.name)) if f.name == name else struct.field(f.name) for f in fields]
    return pa.StructArray.from_arrays(children, fields=fields, mask=struct.is_null() if struct.null_count else None)


def _emptied(mask: pa.Array) -> Any:
    def emptied(lists: pa.ListArray) -> pa.Array:
        lengths = np.where(mask, 0, pc.fill_null(pc.list_value_length(lists), 0))
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        kept = lists.filter(pc.invert(mask)).flatten()
        return pa.ListArray.from_arrays(offsets, kept, type=lists.type)

    return emptied
