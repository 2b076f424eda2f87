"""Digests of logical rows: the same content has the same digest, whatever file, chunk or order it lay in. Pure.

A row's digest is 128 bits, mixed column by column (no cryptography: it finds differences, not forgers).
A fingerprint is SHA-256 over the digests of the rows in key order.
Source: architecture ("Fingerprints hash logical rows in key order").
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.record.arrow_columns import is_number, one, present, slots
from bardo_pipeline.events.record.upcast import ADDED_LATER

U64 = np.uint64
_GOLDEN, _M1, _M2 = U64(0x9E3779B97F4A7C15), U64(0xBF58476D1CE4E5B9), U64(0x94D049BB133111EB)
_BLOCK = 131_072  # small enough for the cache, and few enough calls for two threads to get on
_FEW = 2_048  # up to so many rows the calls cost more than the values: columns are mixed together
_NULL = np.array([0x6E756C6C6E756C6C, 0x6C6C756E6C6C756E], dtype=np.uint64)


def mix64(values: np.ndarray) -> np.ndarray:
    """splitmix64's finalizer over an array of uint64, elementwise; sums and products wrap around."""
    return _mix(np.array(values, dtype=np.uint64, order="C"))


def _mix(lanes: np.ndarray) -> np.ndarray:
    """`mix64` in place. In blocks that stay in the cache, in half the time."""
    assert lanes.flags.c_contiguous, "mixing a copy would change nothing"
    flat = lanes.reshape(-1)
    shifted = np.empty(min(_BLOCK, len(flat)), dtype=np.uint64)
    for start in range(0, len(flat), _BLOCK):
        z = flat[start : start + _BLOCK]
        t = shifted[: len(z)]
        np.add(z, _GOLDEN, out=z)
        for shift, factor in ((U64(30), _M1), (U64(27), _M2)):
            np.right_shift(z, shift, out=t)
            np.bitwise_xor(z, t, out=z)
            np.multiply(z, factor, out=z)
        np.right_shift(z, U64(31), out=t)
        np.bitwise_xor(z, t, out=z)
    return lanes


def row_digests(table: pa.Table, columns: Sequence[str] | None = None) -> np.ndarray:
    """Digest of each row over the named columns (all by default), whatever their order.

    A column that a later schema brought counts only where it is not null: an old record keeps its digest.
    Returns uint64 [rows, 2].
    """
    names = columns if columns is not None else table.column_names
    if table.num_rows > _FEW:
        return folded((column_lanes(name, one(table.column(name))) for name in names), table.num_rows)
    arrays = {name: one(table.column(name)) for name in names}
    whole = {n: a for n, a in arrays.items() if n not in ADDED_LATER or not a.null_count}
    others = (column_lanes(name, array) for name, array in arrays.items() if name not in whole)
    return folded([_together(whole, table.num_rows), *others], table.num_rows)


def column_lanes(name: str, values: pa.Array) -> np.ndarray | None:
    """What one column, encoded or not, adds to the digests of its rows: uint64 [2, rows], or None for nothing."""
    if name not in ADDED_LATER or not values.null_count:
        return _salted(values, name)
    if values.null_count == len(values):
        return None
    return np.where(np.asarray(values.is_null()), np.uint64(0), _salted(values, name))


def folded(lanes: Iterable[np.ndarray | None], rows: int) -> np.ndarray:
    """The digests of rows (uint64 [rows, 2]) from what each of their columns adds."""
    total = np.zeros((2, rows), dtype=np.uint64)
    for added in lanes:
        if added is not None:
            total += added
    return np.ascontiguousarray(_mix(total).T)


def _salted(array: pa.Array, name: str) -> np.ndarray:
    """The digests of a column under its name: two lanes, uint64 [2, len], that nobody else holds."""
    if _is_text(array.type):
        words, which = _word_digests(array)
        words += _salt(name)
        return np.take(_mix(words), which, axis=1)
    lanes = _digests(array)
    lanes += _salt(name)
    return _mix(lanes)


def _together(arrays: Mapping[str, pa.Array], rows: int) -> np.ndarray:
    """The sum of `_salted` over few rows of several columns: all are mixed by one call."""
    held: list[tuple[np.ndarray, np.ndarray | None]] = []
    for name, array in arrays.items():
        lanes, which = _word_digests(array) if _is_text(array.type) else (_digests(array), None)
        lanes += _salt(name)
        held.append((lanes, which))
    total = np.zeros((2, rows), dtype=np.uint64)
    mixed = _mix(np.concatenate([lanes for lanes, _ in held], axis=1)) if held else total
    start = 0
    for lanes, which in held:
        stop = start + lanes.shape[1]
        total += mixed[:, start:stop] if which is None else np.take(mixed[:, start:stop], which, axis=1)
        start = stop
    return total


@cache
def _salt(name: str) -> np.ndarray:
    return np.frombuffer(hashlib.blake2b(name.encode(), digest_size=16).digest(), dtype=np.uint64).reshape(2, 1)


def _digests(array: pa.Array) -> np.ndarray:
    """Two lanes, uint64 [2, len], of one column, nulls included."""
    kind = array.type
    if array.null_count == len(array):
        return np.repeat(_NULL[:, None], len(array), axis=1)
    if pa.types.is_struct(kind):
        children = dict(zip((field.name for field in kind), array.flatten(), strict=True))
        if len(array) <= _FEW:
            lanes = _together(children, len(array))
        else:
            lanes = np.zeros((2, len(array)), dtype=np.uint64)
            for name, child in children.items():
                lanes += _salted(child, name)
    elif pa.types.is_list(kind):
        lanes = _list_digests(array)
    elif _is_text(kind):
        words, which = _word_digests(array)
        return np.take(words, which, axis=1)
    else:
        lanes = _fixed_digests(array)
    if array.null_count:
        absent = ~present(array)
        for lane, null in zip(lanes, _NULL, strict=True):
            np.putmask(lane, absent, null)
    return lanes


def _fixed_digests(array: pa.Array) -> np.ndarray:
    """The values' own bits, told apart in the second lane: whoever holds them mixes, under a name or a position."""
    if is_number(array.type):
        values = slots(array)
    else:
        filled = pc.fill_null(array, False if pa.types.is_boolean(array.type) else 0) if array.null_count else array
        values = filled.to_numpy(zero_copy_only=False)
    lanes = np.empty((2, len(values)), dtype=np.uint64)
    if values.dtype.kind == "f":
        np.add(values, 0.0, out=lanes[0].view(np.float64))  # makes one zero of the two
    else:
        lanes[0].view(np.int64)[:] = values
    np.bitwise_xor(lanes[0], _M1, out=lanes[1])
    return lanes


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind)


def _word_digests(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Digests of the distinct words of a column, the last of them for null, and which of them each row holds."""
    encoded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    told = encoded.dictionary
    words = told.view(pa.large_binary() if pa.types.is_large_string(told.type) else pa.binary()).to_pylist()
    few = len(words) <= _FEW and max(map(len, words), default=0) <= _SHORT
    packed = b"".join(map(_known_word_digest if few else _word_digest, words))
    known = np.frombuffer(packed, dtype=np.uint64).reshape(-1, 2).T
    which = slots(encoded.indices)
    if encoded.null_count:
        which = np.where(present(encoded.indices), which, len(words))
    return np.ascontiguousarray(np.concatenate([known, _NULL[:, None]], axis=1)), which


def _word_digest(word: bytes) -> bytes:
    return hashlib.blake2b(word, digest_size=16).digest()


_SHORT = 128  # bytes of a word that is kept: of all of them no more than 20 MB
_known_word_digest = lru_cache(65_536)(_word_digest)
"""Small tables are told again and again, and most of their ids and texts with them."""


def _list_digests(array: pa.ListArray) -> np.ndarray:
    offsets = array.offsets.to_numpy().astype(np.int64)
    start, stop = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    lengths = np.diff(offsets)
    position = np.arange(stop - start, dtype=np.int64) - np.repeat(offsets[:-1] - start, lengths)
    child = _digests(array.values.slice(start, stop - start))
    child += _mix(position.view(np.uint64))
    sums = np.zeros((2, child.shape[1] + 1), dtype=np.uint64)
    np.cumsum(_mix(child), axis=1, out=sums[:, 1:])
    bounds = offsets - start
    lanes = np.take(sums, bounds[1:], axis=1) - np.take(sums, bounds[:-1], axis=1)
    lanes += _mix(lengths.astype(np.uint64))
    return _mix(lanes)


def digest_column(digests: np.ndarray) -> pa.Array:
    """Row digests as a binary Arrow column of 16 bytes a row."""
    packed = np.ascontiguousarray(digests)
    return pa.Array.from_buffers(pa.binary(16), len(packed), [None, pa.py_buffer(packed)]).cast(pa.binary())


def fingerprint(table: pa.Table, key: Sequence[str]) -> str:
    """SHA-256 (64 hex characters) over the rows' digests in the order of the key columns."""
    ordered = table.take(pc.sort_indices(table, sort_keys=[(k, "ascending") for k in key])) if table.num_rows else table
    return hashlib.sha256(np.ascontiguousarray(row_digests(ordered)).tobytes()).hexdigest()
