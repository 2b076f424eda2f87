"""Hashed and signed bytes follow their documentation, compared with an encoder that takes one value at a time."""

from __future__ import annotations

import hashlib
import itertools
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from bardo_pipeline.events.custody.hash_chain import (
    GENESIS,
    Payloads,
    content_of,
    link_of,
    rotation_message,
    slice_contents,
    verified,
)
from bardo_pipeline.events.record.arrow_columns import ADDED_LATER
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.signing import signed_message
from tests.support.example_count import times
from tests.support.records.drawn_records import records


def encoded(values: list[Any], kind: pa.DataType, nullable: bool) -> Iterator[bytes]:
    """Return the documented levels of a column, outermost first."""
    if nullable:
        yield bytes(value is not None for value in values)
    if pa.types.is_struct(kind):
        for child in kind:
            below = [None if value is None else value[child.name] for value in values]
            yield from encoded(below, child.type, child.nullable)
    elif pa.types.is_list(kind):
        yield b"".join(struct.pack("<i", len(value or [])) for value in values)
        elements = [element for value in values for element in value or []]
        yield from encoded(elements, kind.value_type, kind.value_field.nullable)
    elif pa.types.is_string(kind):
        texts = [(value or "").encode() for value in values]
        yield b"".join(struct.pack("<i", len(text)) for text in texts)
        yield b"".join(texts)
    elif pa.types.is_boolean(kind):
        yield bytes(bool(value) for value in values)
    elif pa.types.is_floating(kind):
        yield b"".join(struct.pack("<d", value or 0.0) for value in values)
    elif pa.types.is_timestamp(kind):
        yield b"".join(struct.pack("<q", pa.scalar(value, kind).value or 0) for value in values)
    else:
        assert pa.types.is_int64(kind)
        yield b"".join(struct.pack("<q", value or 0) for value in values)


def by_value(table: pa.Table) -> bytes:
    """Return the content of a slice, computed value by value."""
    out = b"bardo/slice/1\0" + struct.pack("<q", len(table))
    for column in table.schema:
        values = table[column.name].to_pylist()
        if column.name in ADDED_LATER and not any(value is not None for value in values):
            continue
        out += column.name.encode() + b"\0" + b"".join(encoded(values, column.type, column.nullable))
    return hashlib.sha256(out).digest()


def content(table: pa.Table) -> bytes:
    return slice_contents(table, [0, len(table)])[0]


@pytest.mark.row("EV-3")
@pytest.mark.parametrize("dense", [True, False])
def test_the_hash_of_a_slice_follows_its_documentation(dense: bool) -> None:
    for count in (0, 1, 7, 40):
        table = records(count, golems=1, dense=dense, seed=count)
        assert content(table) == by_value(table)


@pytest.mark.row("EV-3")
def test_a_column_of_a_later_schema_is_hashed_only_if_it_has_values() -> None:
    table = records(6, golems=1)
    for name in sorted(ADDED_LATER):
        at = table.schema.get_field_index(name)
        without = table.set_column(at, table.schema.field(at), pa.nulls(6, table.schema.field(at).type))
        assert content(without) == by_value(without)
        assert content(without) != content(records(6, golems=1, dense=True))


@pytest.mark.row("EV-3")
@settings(max_examples=times(15), deadline=None)
@given(st.integers(0, 2**31), st.lists(st.integers(0, 30), max_size=4), st.integers(0, 9), st.booleans())
def test_the_hash_of_a_slice_does_not_depend_on_its_memory_layout(
    seed: int, cuts: list[int], skip: int, dense: bool
) -> None:
    table = records(40, golems=1, seed=seed, dense=dense).slice(skip, 30)
    wanted = by_value(table)
    edges = [0, *sorted(cuts), 30]
    chunks = pa.concat_tables(table.slice(a, b - a) for a, b in itertools.pairwise(edges))
    order = np.random.default_rng(seed).permutation(30)
    shuffled = table.take(pa.array(order))
    assert content(table) == wanted
    assert content(chunks) == wanted
    assert content(pa.Table.from_pylist(table.to_pylist(), schema=RECORD_SCHEMA)) == wanted
    assert slice_contents(shuffled, [0, 30], np.argsort(order)) == [wanted]
    runs = [table.slice(a, b - a) for a, b in itertools.pairwise(edges)]
    assert slice_contents(table, edges) == [by_value(run) for run in runs]
    assert slice_contents(shuffled, edges, np.argsort(order)) == [by_value(run) for run in runs]


@pytest.mark.row("EV-3")
def test_a_slice_read_from_parquet_has_the_same_hash(tmp_path: Path) -> None:
    for dense in (True, False):
        table = records(50, golems=1, dense=dense)
        pq.write_table(table, tmp_path / "rows.parquet", compression="zstd", row_group_size=7)
        assert content(pq.read_table(tmp_path / "rows.parquet")) == content(table)


def with_garbage(array: pa.Array) -> pa.Array:
    """Return the same values with garbage bytes below nulls."""
    valid = np.asarray(array.is_valid())
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    if pa.types.is_string(array.type):
        full = pa.array([value if value is not None else "garbage" for value in array.to_pylist()])
    else:
        full = pa.array([value if value is not None else 77 for value in array.to_pylist()], array.type)
    _, *rest = full.buffers()
    return pa.Array.from_buffers(array.type, len(array), [bitmap, *rest])


@pytest.mark.row("EV-3")
def test_bytes_below_a_null_are_not_hashed() -> None:
    table = records(60, golems=1)
    for name in ("derivation_id", "forced_by"):
        at = table.schema.get_field_index(name)
        column = table.column(name).combine_chunks()
        assert column.null_count
        dirty = table.set_column(at, table.schema.field(at), with_garbage(column))
        assert dirty.equals(table)
        assert content(dirty) == by_value(table)
    seen = table.column("observation").combine_chunks()
    children = [
        with_garbage(c) if f.name == "block_number" else c for f, c in zip(seen.type, seen.flatten(), strict=True)
    ]
    at = table.schema.get_field_index("observation")
    dirty = table.set_column(at, table.schema.field(at), pa.StructArray.from_arrays(children, fields=list(seen.type)))
    assert dirty.equals(table)
    assert content(dirty) == by_value(table)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict):
        for key, below in value.items():
            yield from leaves(below, (*path, key))
    elif isinstance(value, list):
        for key, below in enumerate(value):
            yield from leaves(below, (*path, key))
    else:
        yield path, value


@pytest.mark.full
@pytest.mark.row("EV-3")
def test_a_change_of_any_leaf_changes_the_hash() -> None:
    table = records(2, golems=1, dense=True)
    fields = {content(table)}
    changes: dict[type, Callable[[Any], Any]] = {
        bool: lambda v: not v,
        int: lambda v: v + 1,
        float: lambda v: np.nextafter(v, 9e9),
        str: lambda v: v + "x",
    }
    paths = list(leaves(table.to_pylist()[1]))
    for path, value in paths:
        rows = table.to_pylist()
        place = rows[1]
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = changes[type(value)](value) if type(value) in changes else value.replace(microsecond=9)
        fields.add(content(pa.Table.from_pylist(rows, schema=RECORD_SCHEMA)))
    assert len(fields) == len(paths) + 1


@pytest.mark.row("EV-3")
def test_the_hash_of_a_link_follows_its_documentation() -> None:
    first = content_of(b'{"tick": 1}')
    for line in (b'{"tick": 1}', *(random.Random(n).randbytes(n) for n in (2_047, 2_048, 4_094, 10_000))):
        assert content_of(line) == hashlib.sha256(line).digest(), len(line)
    lines = [b'{"tick": 1}', b"", random.Random(0).randbytes(5_000), b"{}"]
    assert Payloads.of(pa.array(lines, pa.binary())).contents == [content_of(line) for line in lines]
    assert Payloads.of(pa.array(lines, pa.binary()).slice(2)).contents == [content_of(line) for line in lines[2:]]
    assert Payloads.of(pa.array([], pa.binary())).contents == []
    link = link_of("golem-é", 1, GENESIS, first)
    assert link == hashlib.sha256("bardo/link/1\0golem-é\0".encode() + b"\0" * 7 + b"\x01" + bytes(32) + first).digest()
    others = [
        link_of("golem-e", 1, GENESIS, first),
        link_of("golem-é", 2, GENESIS, first),
        link_of("golem-é", 1, link, first),
        link_of("golem-é", 1, GENESIS, content_of(b'{"tick": 2}')),
    ]
    assert len({link, *others}) == 5


@pytest.mark.row("X-9")
def test_a_signature_is_valid_for_one_golem_one_content_and_one_key() -> None:
    key, other = (Ed25519PrivateKey.from_private_bytes(bytes([k]) * 32) for k in (1, 2))
    public = key.public_key().public_bytes_raw().hex()
    what = content_of(b"{}")
    message = b"bardo/signed/1\0golem\0" + what
    assert signed_message("golem", what) == message
    assert verified(public, key.sign(message), message)
    assert not verified(public, other.sign(message), message)
    assert not verified(public, key.sign(message), signed_message("other", what))
    assert not verified(public, key.sign(message), signed_message("golem", content_of(b"{} ")))
    assert not verified(public, bytes(64), message)
    assert rotation_message("golem", "k2", public, 7) == (
        b"bardo/rotate/1\0golem\0k2\0" + bytes.fromhex(public) + b"\0" * 7 + b"\x07"
    )
