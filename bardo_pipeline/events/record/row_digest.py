"""Digests of logical rows, independent of file, chunk and order. Pure.

A row digest has 128 bits, mixed column by column. It is not cryptographic: it detects differences, not forgery. A
fingerprint is the SHA-256 over the row digests in key order.
Source: architecture ("Fingerprints hash logical rows in key order").
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import IntegerArray, UInt64Array
from bardo_pipeline.events.record.arrow_columns import ADDED_LATER, contiguous, is_number, present, slots

U64 = np.uint64
_GOLDEN, _M1, _M2 = U64(0x9E3779B97F4A7C15), U64(0xBF58476D1CE4E5B9), U64(0x94D049BB133111EB)
_BLOCK = 131_072  # fits into the CPU cache and is long enough to release the GIL usefully
_FEW = 2_048  # up to this many rows, call overhead dominates, so columns are mixed in one call
_NULL = np.array([0x6E756C6C6E756C6C, 0x6C6C756E6C6C756E], dtype=np.uint64)


def mix64(values: UInt64Array) -> UInt64Array:
    """Apply the finalizer of splitmix64 to each element, modulo 2**64."""
    return _mix(np.array(values, dtype=np.uint64, order="C"))


def _mix(lanes: UInt64Array) -> UInt64Array:
    """Apply `mix64` in place, block by block, which halves the time."""
    assert lanes.flags.c_contiguous, "an in-place change needs a contiguous array"
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


def row_digests(table: pa.Table, columns: Sequence[str] | None = None) -> UInt64Array:
    """Return the digest of each row over these columns (default: all) in any order, [rows, 2].

    A null in a column of a later schema (ADDED_LATER) does not count, so an old record keeps its digest.
    """
    names = columns if columns is not None else table.column_names
    if table.num_rows > _FEW:
        return folded((column_lanes(name, contiguous(table.column(name))) for name in names), table.num_rows)
    arrays = {name: contiguous(table.column(name)) for name in names}
    whole = {n: a for n, a in arrays.items() if n not in ADDED_LATER or not a.null_count}
    others = (column_lanes(name, array) for name, array in arrays.items() if name not in whole)
    return folded([_together(whole, table.num_rows), *others], table.num_rows)


def column_lanes(name: str, values: pa.Array) -> UInt64Array | None:
    """Return the contribution of a column, encoded or not, to the row digests, [2, rows]; None for none."""
    if name not in ADDED_LATER or not values.null_count:
        return _salted(values, name)
    if values.null_count == len(values):
        return None
    return np.where(np.asarray(values.is_null()), np.uint64(0), _salted(values, name))


def folded(lanes: Iterable[UInt64Array | None], rows: int) -> UInt64Array:
    """Combine the contributions of all columns to row digests, [rows, 2]."""
    total = np.zeros((2, rows), dtype=np.uint64)
    for added in lanes:
        if added is not None:
            total += added
    return np.ascontiguousarray(_mix(total).T)


def _salted(array: pa.Array, name: str) -> UInt64Array:
    """Return the digests of a column, salted with its name, in a new array [2, len]."""
    if _is_text(array.type):
        words, which = _word_digests(array)
        words += _salt(name)
        return np.take(_mix(words), which, axis=1)
    lanes = _digests(array)
    lanes += _salt(name)
    return _mix(lanes)


def _together(arrays: Mapping[str, pa.Array], rows: int) -> UInt64Array:
    """Return the sum of `_salted` over several columns of few rows, with one call of the mixer."""
    column_lanes: list[tuple[UInt64Array, IntegerArray | None]] = []
    for name, array in arrays.items():
        lanes, which = _word_digests(array) if _is_text(array.type) else (_digests(array), None)
        lanes += _salt(name)
        column_lanes.append((lanes, which))
    total = np.zeros((2, rows), dtype=np.uint64)
    mixed = _mix(np.concatenate([lanes for lanes, _ in column_lanes], axis=1)) if column_lanes else total
    start = 0
    for lanes, which in column_lanes:
        stop = start + lanes.shape[1]
        total += mixed[:, start:stop] if which is None else np.take(mixed[:, start:stop], which, axis=1)
        start = stop
    return total


@cache
def _salt(name: str) -> UInt64Array:
    return np.frombuffer(hashlib.blake2b(name.encode(), digest_size=16).digest(), dtype=np.uint64).reshape(2, 1)


def _digests(array: pa.Array) -> UInt64Array:
    """Return the unsalted digests of a column, nulls included, [2, len]."""
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
    elif pa.types.is_list(kind) or pa.types.is_map(kind):
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


def _fixed_digests(array: pa.Array) -> UInt64Array:
    """Return the bits of the values in two lanes; the caller salts and mixes them."""
    if is_number(array.type):
        values = slots(array)
    else:
        filled = pc.fill_null(array, False if pa.types.is_boolean(array.type) else 0) if array.null_count else array
        values = filled.to_numpy(zero_copy_only=False)
    lanes = np.empty((2, len(values)), dtype=np.uint64)
    if values.dtype.kind == "f":
        np.add(values, 0.0, out=lanes[0].view(np.float64))  # maps -0.0 to 0.0
    else:
        lanes[0].view(np.int64)[:] = values
    np.bitwise_xor(lanes[0], _M1, out=lanes[1])
    return lanes


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind)


def _word_digests(array: pa.Array) -> tuple[UInt64Array, IntegerArray]:
    """Return the digests of the distinct words of a column (the last for null) and the index of each row's word."""
    encoded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    distinct = encoded.dictionary
    words = distinct.view(pa.large_binary() if pa.types.is_large_string(distinct.type) else pa.binary()).to_pylist()
    few = len(words) <= _FEW and max(map(len, words), default=0) <= _SHORT
    packed = b"".join(map(_cached_word_digest if few else _word_digest, words))
    digests = np.frombuffer(packed, dtype=np.uint64).reshape(-1, 2).T
    which = slots(encoded.indices)
    if encoded.null_count:
        which = np.where(present(encoded.indices), which, len(words))
    return np.ascontiguousarray(np.concatenate([digests, _NULL[:, None]], axis=1)), which


def _word_digest(word: bytes) -> bytes:
    return hashlib.blake2b(word, digest_size=16).digest()


_SHORT = 128  # longest word in the cache, in bytes, which limits the cache to 20 MB
_cached_word_digest = lru_cache(65_536)(_word_digest)
"""Small tables are digested repeatedly, with mostly the same ids and texts."""


def _list_digests(array: pa.Array) -> UInt64Array:
    """Return the digests of lists, or of maps as lists of pairs in their order."""
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


def digest_column(digests: UInt64Array) -> pa.Array:
    """Return row digests as a binary Arrow column of 16 bytes per row."""
    packed = np.ascontiguousarray(digests)
    return pa.Array.from_buffers(pa.binary(16), len(packed), [None, pa.py_buffer(packed)]).cast(pa.binary())


def fingerprint(table: pa.Table, key: Sequence[str]) -> str:
    """Return the SHA-256 (hex) over the row digests in the order of the key columns."""
    ordered = table.take(pc.sort_indices(table, sort_keys=[(k, "ascending") for k in key])) if table.num_rows else table
    return hashlib.sha256(np.ascontiguousarray(row_digests(ordered)).tobytes()).hexdigest()
