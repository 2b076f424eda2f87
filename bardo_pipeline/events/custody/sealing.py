"""Sealing: encryption of the private parts of a record with its golem's key. Pure.

Private parts are `deliberation.reasoning_summary`, `observation.positions` and the lines of conversations.

    encryption key = HKDF-SHA256(secret, info "bardo/seal/1/encrypt")        nonce key the same, "bardo/seal/1/nonce"
    key id         = "seal-" and 16 hex digits of SHA-256("bardo/seal-id/1" 00 secret)
    about          = "bardo/seal/1" 00, then length[4, big-endian] and bytes of each: key id, golem id, place
    nonce          = the first 12 bytes of HMAC-SHA256(nonce key, about SHA-256(plaintext))
    ciphertext     = AES-256-GCM(encryption key, nonce, plaintext, about)

The place of a record is "tick" 00 and its tick in decimal, its plaintext {"positions": [...], "reasoning_summary":
"..."} as JSON with sorted keys. The nonce is computed from the plaintext, so sealing a record twice gives equal bytes
(a repetition, not a fork), no state is needed, and two contents collide with the probability of a 96-bit hash.

Of the derivations, only dreams use private parts (positions); a golem that seals its positions dreams without them.
Parts are sealed before they are recorded, so destroying a key changes no projection.
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

from bardo_pipeline.arrays import BoolArray
from bardo_pipeline.errors import SealError
from bardo_pipeline.events.record.arrow_columns import contiguous
from bardo_pipeline.events.record.model import DecisionCycleRecord, Part, PositionObservation, Sealed

PRIVATE = ("deliberation.reasoning_summary", "observation.positions")
"""The private parts of a record; empty in a sealed record."""

SECRET_BYTES = 32
SCHEMA_SINCE = 2
"""First schema version of records with seals."""
CIPHERTEXT_MAX = 2**20
"""Limit of `Sealed.ciphertext`, in characters of base64."""


class PrivateParts(Part):
    """The private parts of a sealed record."""

    reasoning_summary: str
    positions: tuple[PositionObservation, ...]


class SealKey:
    """A golem's key for its private parts: 32 random bytes and the id computed from them."""

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
        """Id of the key in the log; it does not reveal the secret."""
        return "seal-" + hashlib.sha256(b"bardo/seal-id/1\0" + self.secret).hexdigest()[:16]

    def seal(self, golem_id: str, place: bytes, plaintext: bytes) -> Sealed:
        """Encrypt the plaintext, bound to this golem and place."""
        about = self._about(golem_id, place)
        nonce = hmac.digest(self._nonce_key, about + hashlib.sha256(plaintext).digest(), "sha256")[:12]
        text = base64.b64encode(self._cipher.encrypt(nonce, plaintext, about)).decode()
        return Sealed.model_construct(key_id=self.key_id, nonce=nonce.hex(), ciphertext=text)

    def open(self, golem_id: str, place: bytes, sealed: Sealed) -> bytes:
        """Decrypt. Raises SealError for another key, golem or place, and for altered data."""
        where = f"golem {golem_id}: {place.replace(bytes(1), b' ').decode()}"
        if sealed.key_id != self.key_id:
            raise SealError(f"{where} is sealed under {sealed.key_id}, not under {self.key_id}: give that key")
        try:
            text = base64.b64decode(sealed.ciphertext, validate=True)
            return self._cipher.decrypt(bytes.fromhex(sealed.nonce), text, self._about(golem_id, place))
        except (InvalidTag, binascii.Error, ValueError):
            raise SealError(
                f"{where}: its seal was altered or belongs to another record; `bardo verify` shows which"
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
    """Return whether a record has private parts in plain text."""
    return bool(record.observation.positions) or bool(record.deliberation and record.deliberation.reasoning_summary)


def seal_record(record: DecisionCycleRecord, key: SealKey) -> DecisionCycleRecord:
    """Seal the private parts of a record; return the record unchanged if it has none.

    Raises SealError for a sealed record with private parts in plain text, and for parts above CIPHERTEXT_MAX.
    """
    if not has_private_parts(record):
        return record
    if record.sealed is not None:
        raise _partly_sealed(record.golem_id, record.tick)
    reasoning = record.deliberation.reasoning_summary if record.deliberation is not None else ""
    positions = [position.model_dump() for position in record.observation.positions]
    observation = record.observation.model_copy(update={"positions": ()})
    deliberation = record.deliberation and record.deliberation.model_copy(update={"reasoning_summary": ""})
    return record.model_copy(
        update={
            "schema_version": max(record.schema_version, SCHEMA_SINCE),
            "observation": observation,
            "deliberation": deliberation,
            "sealed": _sealed(key, record.golem_id, record.tick, reasoning, positions),
        }
    )


def open_parts(sealed: Sealed, golem_id: str, tick: int, key: SealKey) -> PrivateParts:
    """Decrypt the private parts of a record. Raises SealError for another key, record or altered data."""
    return PrivateParts.model_validate_json(key.open(golem_id, _place(tick), sealed))


def _sealed(key: SealKey, golem_id: str, tick: int, reasoning: str, positions: list[dict[str, Any]]) -> Sealed:
    parts = {"positions": positions, "reasoning_summary": reasoning}
    sealed = key.seal(golem_id, _place(tick), orjson.dumps(parts, option=orjson.OPT_SORT_KEYS))
    if len(sealed.ciphertext) > CIPHERTEXT_MAX:
        raise SealError(
            f"golem {golem_id}: tick {tick} has {len(positions)} positions and {len(reasoning)} characters of "
            f"reasoning, more than a seal of {CIPHERTEXT_MAX} characters holds: shorten them"
        )
    return sealed


def _partly_sealed(golem_id: str, tick: int) -> SealError:
    return SealError(f"golem {golem_id}: tick {tick} has a seal and private parts in plain text: send one of the two")


# batches


def is_plain(records: pa.Table) -> BoolArray:
    """Return a mask of the rows (RECORD_SCHEMA) with private parts in plain text."""
    observation, deliberation = (contiguous(records.column(name)) for name in ("observation", "deliberation"))
    has_position = pc.greater(pc.list_value_length(pc.struct_field(observation, "positions")), 0)
    has_reasoning = pc.greater(pc.binary_length(pc.struct_field(deliberation, "reasoning_summary")), 0)
    either = pc.or_(pc.fill_null(has_position, False), pc.fill_null(has_reasoning, False))
    return np.asarray(either.to_numpy(zero_copy_only=False), dtype=np.bool_)


def must_be_sealed(records: pa.Table, sealing: Collection[str]) -> BoolArray:
    """Return a mask of the rows with private parts in plain text whose golem seals them.

    sealing: golems with a recorded `SealKeyMade`, even if the key was destroyed.
    """
    if not sealing or not len(records):
        return np.zeros(len(records), dtype=np.bool_)
    seals = pc.is_in(contiguous(records.column("golem_id")), value_set=pa.array(sorted(sealing), pa.string()))
    return np.asarray(seals.to_numpy(zero_copy_only=False), dtype=np.bool_) & is_plain(records)


def unsealed(golem_id: str, tick: int) -> SealError:
    """Return the error of a record in the mask of `must_be_sealed`."""
    return SealError(
        f"golem {golem_id}: tick {tick} has private parts in plain text, but the golem seals them: write it through "
        "EventWriter, seal it yourself (docs/events.md), or leave them out"
    )


def seal_table(records: pa.Table, keys: Mapping[str, SealKey]) -> pa.Table:
    """Seal the private parts of these golems (id -> key) in a batch (RECORD_SCHEMA), as `seal_record` does.

    Each record is encrypted separately, in a loop over the rows with private parts.
    """
    is_plain_row = must_be_sealed(records, keys)
    if not is_plain_row.any():
        return records
    where = np.flatnonzero(is_plain_row)
    columns = {name: contiguous(records.column(name)) for name in records.column_names}
    sealed = columns["sealed"]
    partly = np.flatnonzero(is_plain_row & np.asarray(sealed.is_valid()))
    ids, ticks = columns["golem_id"], columns["tick"]
    if len(partly):
        raise _partly_sealed(ids[int(partly[0])].as_py(), ticks[int(partly[0])].as_py())
    rows, reasonings = pa.array(where), pc.struct_field(columns["deliberation"], "reasoning_summary")
    seals = [
        _sealed(keys[golem_id], golem_id, tick, reasoning or "", positions).model_dump()
        for golem_id, tick, reasoning, positions in zip(
            ids.take(rows).to_pylist(),
            ticks.take(rows).to_pylist(),
            reasonings.take(rows).to_pylist(),
            pc.struct_field(columns["observation"], "positions").take(rows).to_pylist(),
            strict=True,
        )
    ]
    mask = pa.array(is_plain_row)
    sources = np.arange(len(records))
    sources[where] = len(records) + np.arange(len(seals))
    columns["sealed"] = pa.concat_arrays([sealed, pa.array(seals, sealed.type)]).take(pa.array(sources))
    versions = columns["schema_version"]
    columns["schema_version"] = pc.if_else(mask, pc.max_element_wise(versions, SCHEMA_SINCE), versions)
    observation, deliberation = columns["observation"], columns["deliberation"]
    columns["observation"] = _with(observation, "positions", _emptied(observation.field("positions"), mask))
    reasoning = pc.if_else(mask, "", deliberation.field("reasoning_summary"))
    columns["deliberation"] = _with(deliberation, "reasoning_summary", reasoning)
    return pa.table(columns, schema=records.schema)


def withheld(line: bytes, sealing: Collection[str]) -> bool:
    """Return whether a refused line may contain private parts of a sealing golem.

    That is the case unless it is valid JSON of another golem.
    """
    if not sealing:
        return False
    try:
        content = orjson.loads(line)
    except orjson.JSONDecodeError:
        return True
    golem_id = content.get("golem_id") if isinstance(content, dict) else None
    return not isinstance(golem_id, str) or golem_id in sealing


def _with(struct: pa.Array, name: str, child: pa.Array) -> pa.Array:
    """Return the struct with one child changed; children of null structs stay."""
    fields = list(struct.type)
    children = [child if f.name == name else struct.field(f.name) for f in fields]
    return pa.StructArray.from_arrays(children, fields=fields, mask=struct.is_null() if struct.null_count else None)


def _emptied(lists: pa.ListArray, mask: pa.Array) -> pa.Array:
    lengths = np.where(mask, 0, pc.fill_null(pc.list_value_length(lists), 0))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, lists.filter(pc.invert(mask)).flatten(), type=lists.type)
