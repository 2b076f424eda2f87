"""Verify the chains: every row against its digest, its payload or its slice, every link against the one before.

Two passes, both bounded in memory: rows file by file (what a link covers), then links bucket by bucket (how they
follow each other). Source: issue "Chain of custody"; events/custody.py says which bytes are hashed.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.json as pj
import pyarrow.parquet as pq

from bardo_pipeline.errors import SignatureError
from bardo_pipeline.events.custody import (
    GENESIS,
    KeyRing,
    Signature,
    Tip,
    content_of,
    link_of,
    slice_contents,
)
from bardo_pipeline.events.digest import digest_column, row_digests
from bardo_pipeline.events.schema import RECORD_SCHEMA
from bardo_pipeline.events.upcast import upcast
from bardo_pipeline.storage.findings import Findings
from bardo_pipeline.storage.home import bucket_of
from bardo_pipeline.storage.protocols import CYCLES_SCHEMA
from bardo_pipeline.storage.verify_tables import Added, check_file

_CHUNK_BYTES = 256 * 2**20
"""Files that are larger than this, uncompressed, are read in pieces."""
_CHUNK_ROWS = 65_536
_GROUP_ROWS = 2_000_000
"""Rows of which the links are held at once."""
_KEYS = ["golem_id", "tick", "bucket", "version", "link"]


@dataclass
class Rows:
    """What the first pass leaves: the links as columns where they fit, slices that lie in several pieces, files."""

    rings: Mapping[str, KeyRing]
    bucket_count: int
    findings: Findings
    struck: frozenset[tuple[str, int]]
    open: dict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))
    readable: list[Added] = field(default_factory=list)


def check_contents(files: Sequence[Added], rows: Rows) -> None:
    """The first pass: every row of every file says what its digest, its payload and its slice say."""
    for added in files:
        place, count = f"log/{added.name}", 0
        try:
            for chunk in _chunks(added):
                count += len(chunk)
                _check_chunk(chunk, added, rows)
            keys = pq.read_table(added.path, columns=["golem_id", "tick"])
        except (pa.ArrowException, OSError, ValueError) as error:
            rows.findings.broken("file", f"it cannot be read: {str(error).splitlines()[0]}", file=place)
            continue
        rows.readable.append(added)
        check_file(added, count, keys, rows.findings)
    rows.findings.facts["records"] += sum(int(added.stats["numRecords"]) for added in rows.readable)
    _check_open(rows, {added.name: added for added in rows.readable})


def _chunks(added: Added) -> Iterator[pa.Table]:
    with pq.ParquetFile(added.path, page_checksum_verification=True) as file:
        size = sum(file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups))
        if size <= _CHUNK_BYTES:
            yield _today(file.read())
            return
        for batch in file.iter_batches(_CHUNK_ROWS):
            yield _today(pa.Table.from_batches([batch]))


def _today(table: pa.Table) -> pa.Table:
    """The rows under today's schema, bytes checked."""
    table = upcast(table, CYCLES_SCHEMA)
    table.validate(full=True)
    return table.combine_chunks()


def _check_chunk(chunk: pa.Table, added: Added, rows: Rows) -> None:
    place = f"log/{added.name}"
    records = chunk.select(RECORD_SCHEMA.names)
    _check_each(chunk, records, place, rows)
    link = chunk.column("link").combine_chunks()
    linked = np.asarray(link.is_valid())
    by_json = linked & np.asarray(chunk.column("payload").combine_chunks().is_valid())
    if by_json.any():
        where = np.flatnonzero(by_json)
        _check_payloads(chunk if by_json.all() else chunk.take(pa.array(where)), place, rows)
    sliced = linked & ~by_json
    if sliced.any():
        _check_slices(chunk if sliced.all() else chunk.take(pa.array(np.flatnonzero(sliced))), place, rows, added.name)


def _check_each(chunk: pa.Table, records: pa.Table, place: str, rows: Rows) -> None:
    """The digest and the bucket of each row; a row without a link comes from version 1."""
    digests = digest_column(row_digests(records))
    wrong = pc.not_equal(chunk.column("content_hash"), digests)
    _first(wrong, chunk, place, rows, "digest", "its content_hash is not that of its columns")
    golems = chunk.column("golem_id").combine_chunks().dictionary_encode()
    buckets = pa.array([bucket_of(name, rows.bucket_count) for name in golems.dictionary.to_pylist()], pa.int32())
    wrong = pc.not_equal(chunk.column("bucket"), buckets.take(golems.indices))
    _first(wrong, chunk, place, rows, "bucket", "it stands in another bucket than its golem's")
    unlinked = pc.is_null(chunk.column("link"))
    later = pc.or_(pc.is_valid(chunk.column("version")), pc.greater(chunk.column("schema_version"), 1))
    _first(pc.and_(unlinked, later), chunk, place, rows, "link", "it has no link, and is not of the first version")
    rows.findings.facts["records without a link"] += pc.sum(unlinked).as_py() or 0


def _first(wrong: pa.ChunkedArray | pa.Array, chunk: pa.Table, place: str, rows: Rows, kind: str, fact: str) -> None:
    for row in np.flatnonzero(np.asarray(pc.fill_null(wrong, True))).tolist():
        number = chunk.column("link")[row].as_py()
        rows.findings.broken(
            kind,
            fact,
            file=place,
            golem_id=chunk.column("golem_id")[row].as_py(),
            tick=chunk.column("tick")[row].as_py(),
            number=number["number"] if number else None,
        )


# records that came as JSON


def _check_payloads(chunk: pa.Table, place: str, rows: Rows) -> None:
    """The sender's bytes hash to the link, and say what the columns say."""
    _first(_unlike(chunk), chunk, place, rows, "payload", "its columns are not what its payload says")
    columns = (chunk.column(name).to_pylist() for name in ("golem_id", "tick", "payload", "link"))
    for golem_id, tick, payload, link in zip(*columns, strict=True):
        _check_link(golem_id, link, content_of(payload), (tick, tick), place, rows)


def _unlike(chunk: pa.Table) -> pa.Array:
    """Which rows differ from their payload parsed again."""
    parsed = parse_lines(chunk.column("payload").to_pylist())
    loose = chunk.select(RECORD_SCHEMA.names).cast(LOOSE_SCHEMA).combine_chunks()
    if parsed is not None and parsed.equals(loose):
        return pa.repeat(False, len(chunk))
    alone = [parse_lines([payload]) for payload in chunk.column("payload").to_pylist()]
    return pa.array([one is None or not one.equals(loose.slice(i, 1)) for i, one in enumerate(alone)])


def _loose(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(child.name, _loose(child.type)) for child in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _loose(kind.value_type)))
    return kind


LOOSE_SCHEMA = pa.schema([pa.field(column.name, _loose(column.type)) for column in RECORD_SCHEMA])
"""RECORD_SCHEMA with everything nullable: the JSON reader refuses a null struct with fields that may not be null."""


def parse_lines(lines: Sequence[bytes]) -> pa.Table | None:
    """Records from the bytes of their senders, LOOSE_SCHEMA; None if not every line is one."""
    content = b"\n".join(lines) + b"\n"
    try:
        found = pj.read_json(
            io.BytesIO(content),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(content) + 1),
            parse_options=pj.ParseOptions(explicit_schema=LOOSE_SCHEMA, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid:
        return None
    return found.combine_chunks() if len(found) == len(lines) else None


# records that came as Arrow


def _check_slices(chunk: pa.Table, place: str, rows: Rows, name: str) -> None:
    """Each golem's slice hashes to its link; one that does not may lie in several pieces, and is left for later."""
    chunk, edges, heads = _by_slice(chunk)
    contents = slice_contents(chunk.select(RECORD_SCHEMA.names), edges)
    links = chunk.column("link").combine_chunks()
    uniform = _uniform(links, edges)
    ticks = chunk.column("tick").to_numpy()
    firsts = links.take(pa.array(edges[:-1])).to_pylist()
    for k, (golem_id, link, content) in enumerate(zip(heads, firsts, contents, strict=True)):
        key = (golem_id, link["number"])
        whole = uniform[k] and link["hash"] == link_of(golem_id, link["number"], link["previous"], content)
        if key in rows.open or not whole:
            rows.open[key].add(name)
        else:
            _check_link(golem_id, link, content, (int(ticks[edges[k]]), int(ticks[edges[k + 1] - 1])), place, rows)


def _by_slice(chunk: pa.Table) -> tuple[pa.Table, np.ndarray, list[str]]:
    """The rows slice by slice in tick order, where each slice begins, and whose it is."""
    golems = chunk.column("golem_id").combine_chunks().dictionary_encode()
    codes = golems.indices.to_numpy()
    numbers = pc.struct_field(chunk.column("link").combine_chunks(), "number").to_numpy()
    order = np.lexsort((chunk.column("tick").to_numpy(), numbers, codes))
    if not bool((np.diff(order) == 1).all()):
        chunk, codes, numbers = chunk.take(pa.array(order)).combine_chunks(), codes[order], numbers[order]
    begins = np.flatnonzero(np.r_[True, (np.diff(codes) != 0) | (np.diff(numbers) != 0)])
    names = golems.dictionary.to_pylist()
    return chunk, np.r_[begins, len(chunk)].astype(np.int64), [names[code] for code in codes[begins].tolist()]


def _uniform(links: pa.StructArray, edges: np.ndarray) -> np.ndarray:
    """Whether all rows of a slice carry the same link."""
    lengths = np.diff(edges)
    same = np.ones(len(links), dtype=np.bool_)
    firsts = pa.array(np.repeat(edges[:-1], lengths))
    for column in links.flatten():
        first = column.take(firsts)
        alike = pc.if_else(pc.is_null(column), pc.is_null(first), pc.equal(column, first))
        same &= np.asarray(pc.fill_null(alike, False))
    return np.logical_and.reduceat(same, edges[:-1])


def _check_open(rows: Rows, files: Mapping[str, Added]) -> None:
    """Slices that lie in several pieces, whole."""
    for (golem_id, number), names in sorted(rows.open.items()):
        everywhere = [added.path for added in files.values() if _may_hold(added, golem_id)]
        mine = (ds.field("golem_id") == golem_id) & (pc.struct_field(ds.field("link"), "number") == number)
        found = [upcast(ds.dataset(path, format="parquet").to_table(filter=mine), CYCLES_SCHEMA) for path in everywhere]
        whole = pa.concat_tables([piece for piece in found if len(piece)]).combine_chunks()
        whole = whole.filter(pc.is_null(whole.column("payload")))
        whole, edges, _ = _by_slice(whole)
        content = slice_contents(whole.select(RECORD_SCHEMA.names), edges)[0]
        links = whole.column("link").combine_chunks()
        link, ticks = links[0].as_py(), whole.column("tick").to_numpy()
        place = f"log/{min(names)}"
        if not _uniform(links, edges).all():
            fact = "the rows of its slice carry different links"
            rows.findings.broken("link", fact, file=place, golem_id=golem_id, tick=int(ticks[0]), number=number)
        else:
            _check_link(golem_id, link, content, (int(ticks[0]), int(ticks[-1])), place, rows)


def _may_hold(added: Added, golem_id: str) -> bool:
    least, most = (added.stats.get(key, {}).get("golem_id") for key in ("minValues", "maxValues"))
    return not (isinstance(least, str) and isinstance(most, str)) or least <= golem_id <= most


def _check_link(
    golem_id: str, link: Mapping[str, Any], content: bytes, ticks: tuple[int, int], place: str, rows: Rows
) -> None:
    """A link's hash covers this content, and whoever had to sign it did."""
    number, about = link["number"], {"file": place, "golem_id": golem_id, "tick": ticks[0], "number": link["number"]}
    rows.findings.facts["links"] += 1
    if number < 1 or link["hash"] != link_of(golem_id, number, link["previous"], content):
        rows.findings.broken("link", "its hash is not that of its content", **about)
        return
    signature = None if link["signature"] is None else Signature(link["key_id"] or "", link["signature"])
    ring = rows.rings.get(golem_id)
    if ring is None and signature is None:
        return
    rows.findings.facts["signatures"] += signature is not None
    try:
        for tick in dict.fromkeys(ticks):
            if (golem_id, tick) not in rows.struck:
                (ring or KeyRing(golem_id)).check(tick, content, signature)
    except SignatureError as error:
        rows.findings.broken("signature", str(error), **about)


# how links follow each other


@dataclass
class Stream:
    """One golem as its rows tell it: the newest link, and its ticks."""

    tip: Tip
    ticks: np.ndarray


def check_chains(rows: Rows) -> Iterator[tuple[str, Stream]]:
    """The second pass: links count from 1 without a hole, each names the one before; each tick stands once.

    Yields every golem with its stream.
    """
    total = sum(int(added.stats["numRecords"]) for added in rows.readable)
    parts = max(1, -(-total // _GROUP_ROWS))
    for part in range(parts):
        lower, upper = (rows.bucket_count * k // parts for k in (part, part + 1))
        only = None if parts == 1 else (ds.field("bucket") >= lower) & (ds.field("bucket") < upper)
        keys = _read_keys(rows.readable, only)
        if len(keys):
            yield from _check_group(keys, rows)


def _read_keys(files: Sequence[Added], only: ds.Expression | None) -> pa.Table:
    schema = pa.schema([CYCLES_SCHEMA.field(name) for name in _KEYS])
    if not files:
        return schema.empty_table()
    found = ds.dataset([str(added.path) for added in files], schema=schema, format="parquet").to_table(filter=only)
    return found.combine_chunks()


def _check_group(keys: pa.Table, rows: Rows) -> Iterator[tuple[str, Stream]]:
    golems = keys.column("golem_id").combine_chunks().dictionary_encode()
    codes, ticks = golems.indices.to_numpy(), keys.column("tick").to_numpy()
    names = golems.dictionary.to_pylist()
    order = np.lexsort((ticks, codes))
    twice = np.flatnonzero((np.diff(codes[order]) == 0) & (np.diff(ticks[order]) == 0))
    for row in order[twice].tolist():
        rows.findings.broken("duplicate", "it is on record twice", golem_id=names[codes[row]], tick=int(ticks[row]))
    tips = _check_links(keys, codes, names, ticks, rows)
    bounds = np.searchsorted(codes[order], np.arange(len(names) + 1))
    for code, name in enumerate(names):
        yield name, Stream(tips.get(name, Tip()), np.unique(ticks[order[bounds[code] : bounds[code + 1]]]))


def _check_links(keys: pa.Table, codes: np.ndarray, names: list[str], ticks: np.ndarray, rows: Rows) -> dict[str, Tip]:
    link = keys.column("link").combine_chunks()
    linked = np.flatnonzero(np.asarray(link.is_valid()))
    if not len(linked):
        return {}
    link = link.take(pa.array(linked))
    number = pc.struct_field(link, "number").to_numpy()
    previous, hashes = (_fixed(pc.struct_field(link, name)) for name in ("previous", "hash"))
    codes, ticks = codes[linked], ticks[linked]
    order = np.lexsort((ticks, number, codes))
    codes, number, ticks, previous, hashes = (column[order] for column in (codes, number, ticks, previous, hashes))
    same = np.r_[False, (np.diff(codes) == 0) & (np.diff(number) == 0)]
    forked = same & np.r_[False, (hashes[1:] != hashes[:-1]).any(axis=1)]
    wrong = [(row, "two links bear this number") for row in np.flatnonzero(forked).tolist()]
    _broken(wrong, names, codes, ticks, number, rows)
    codes, number, ticks, previous, hashes = (column[~same] for column in (codes, number, ticks, previous, hashes))
    begins = np.r_[True, np.diff(codes) != 0]
    wanted = np.where(begins, 1, np.r_[0, number[:-1]] + 1)
    before = np.vstack([_GENESIS_ROW, hashes[:-1]])
    before[begins] = _GENESIS_ROW
    strange = (previous != before).any(axis=1)
    wrong = [(row, f"link {wanted[row]} is missing before it") for row in np.flatnonzero(number != wanted).tolist()]
    wrong += [
        (row, "it does not name the link before it") for row in np.flatnonzero(strange & (number == wanted)).tolist()
    ]
    _broken(sorted(wrong), names, codes, ticks, number, rows)
    lasts = np.flatnonzero(np.r_[begins[1:], True]).tolist()
    return {names[codes[row]]: Tip(int(number[row]), hashes[row].tobytes()) for row in lasts}


def _broken(
    wrong: Sequence[tuple[int, str]],
    names: list[str],
    codes: np.ndarray,
    ticks: np.ndarray,
    numbers: np.ndarray,
    rows: Rows,
) -> None:
    for row, fact in wrong:
        about = {"tick": int(ticks[row]), "number": int(numbers[row])}
        rows.findings.broken("chain", fact, golem_id=names[codes[row]], **about)


_GENESIS_ROW = np.frombuffer(GENESIS, dtype=np.uint8)[None, :]


def _fixed(column: pa.Array) -> np.ndarray:
    """Hashes as rows of 32 bytes; one of another length is as good as none."""
    lengths = pc.binary_length(column).to_numpy(zero_copy_only=False)
    if (lengths != len(GENESIS)).any():
        column = pc.if_else(pc.equal(pc.binary_length(column), len(GENESIS)), column, b"\xff" * len(GENESIS))
    return np.frombuffer(b"".join(column.to_pylist()), dtype=np.uint8).reshape(-1, len(GENESIS))
