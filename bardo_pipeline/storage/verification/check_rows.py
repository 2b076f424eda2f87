"""Verify every row against its digest and every link against the content that it covers.

Files are read one after the other to bound memory. Slices that span several files are assembled at the end.
Source: X-9; events/custody/hash_chain.py defines the hashed bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.errors import BardoError, RecordError, SignatureError
from bardo_pipeline.events.custody.hash_chain import KeyRing, Signature, content_of, link_of, slice_contents
from bardo_pipeline.events.record.arrow_columns import upcast
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.events.record.row_digest import digest_column, row_digests
from bardo_pipeline.storage.delta.parquet_io import portions
from bardo_pipeline.storage.home import bucket_of
from bardo_pipeline.storage.intake.json_reader import read_lines
from bardo_pipeline.storage.intake.line_buffer import Lines
from bardo_pipeline.storage.log.protocol import CYCLES_SCHEMA
from bardo_pipeline.storage.verification.check_delta_files import Described, check_bounds, check_count
from bardo_pipeline.storage.verification.report import Findings

_ROWS = 65_536
"""Largest number of rows in memory: of a file, or of slices that span files. One slice may be longer."""


class Link(NamedTuple):
    """A link as stored in its rows."""

    golem_id: str
    number: int
    previous: bytes
    hash: bytes
    signature: Signature | None


@dataclass
class Rows:
    """Inputs and results of the check of rows.

    Parameters
    ----------
    rings : key rings by golem
    struck : (golem_id, tick) of struck records
    readable : result; the readable files
    pieces : result; row count by file of each slice that spans files
    """

    findings: Findings
    bucket_count: int
    rings: Mapping[str, KeyRing]
    struck: frozenset[tuple[str, int]]
    readable: list[Described] = field(default_factory=list)
    pieces: dict[tuple[str, int], dict[str, int]] = field(default_factory=dict)


def check_rows(files: Sequence[Described], rows: Rows) -> None:
    """Check every row and link of these files; a thread reads the next file meanwhile."""
    with ThreadPoolExecutor(1) as reading, ThreadPoolExecutor(1) as hashing:
        for described, chunks in _read_ahead(files, reading):
            count = 0
            try:
                for chunk in chunks.result():
                    count += len(chunk)
                    _check_chunk(chunk, described, rows, hashing)
            except (pa.ArrowException, OSError, ValueError, BardoError) as error:
                rows.findings.unreadable(described.place, error)
                continue
            check_count(described, count, rows.findings)
            rows.readable.append(described)
            rows.findings.facts["records"] += count
    _check_pieces(rows)


def _read_ahead(
    files: Sequence[Described], reading: ThreadPoolExecutor
) -> Iterator[tuple[Described, Future[Iterator[pa.Table]]]]:
    following: Future[Iterator[pa.Table]] | None = None
    for i, described in enumerate(files):
        current = following or reading.submit(_chunks_of, described)
        following = reading.submit(_chunks_of, files[i + 1]) if i + 1 < len(files) else None
        yield described, current


def _chunks_of(described: Described) -> Iterator[pa.Table]:
    """Return the rows of a file: already read if it is small, else batch by batch."""
    with pq.ParquetFile(described.path, page_checksum_verification=True) as file:
        if file.metadata.num_rows <= _ROWS:
            return iter([_upcast(file.read())])
    return _batches_of(described)


def _batches_of(described: Described) -> Iterator[pa.Table]:
    with pq.ParquetFile(described.path, page_checksum_verification=True) as file:
        for batch in file.iter_batches(_ROWS):
            yield _upcast(pa.Table.from_batches([batch]))


def _upcast(table: pa.Table) -> pa.Table:
    """Return the rows in the current schema, validated, with one chunk per column."""
    table = upcast(table, CYCLES_SCHEMA).combine_chunks()
    table.validate(full=True)
    for column in CYCLES_SCHEMA:
        if not column.nullable and table.column(column.name).null_count:
            raise RecordError(f"column {column.name} lacks values")
    return table


def _check_chunk(chunk: pa.Table, described: Described, rows: Rows, hashing: ThreadPoolExecutor) -> None:
    place = described.place
    digests = hashing.submit(row_digests, chunk, RECORD_SCHEMA.names)
    link = chunk.column("link").combine_chunks()
    linked, by_json = np.asarray(link.is_valid()), np.asarray(chunk.column("payload").combine_chunks().is_valid())
    if (linked & by_json).any():
        _check_payloads(_picked(chunk, linked & by_json), place, rows)
    if (linked & ~by_json).any():
        _check_slices(_picked(chunk, linked & ~by_json), place, rows)
    _check_columns(chunk, linked, described, rows)
    check_bounds(described, chunk, rows.findings)
    wrong = pc.not_equal(chunk.column("content_hash"), digest_column(digests.result()))
    _name(wrong, chunk, place, rows, "digest", "its content_hash is not that of its columns")


def _picked(chunk: pa.Table, mask: BoolArray) -> pa.Table:
    return chunk if mask.all() else chunk.take(pa.array(np.flatnonzero(mask))).combine_chunks()


def _check_columns(chunk: pa.Table, linked: BoolArray, described: Described, rows: Rows) -> None:
    """Check the columns that the log added (bucket, version), and that only rows of version 1 lack a link."""
    place = described.place
    golems = chunk.column("golem_id").combine_chunks().dictionary_encode()
    buckets = pa.array([bucket_of(name, rows.bucket_count) for name in golems.dictionary.to_pylist()], pa.int32())
    wrong = pc.not_equal(chunk.column("bucket"), buckets.take(golems.indices))
    _name(wrong, chunk, place, rows, "bucket", "its bucket is not that of its golem")
    version = chunk.column("version")
    if described.version is not None:
        wrong = pc.fill_null(pc.not_equal(version, described.version), False)
        _name(wrong, chunk, place, rows, "version", f"commit {described.version} added it, its version differs")
    lacks_version = linked & np.asarray(pc.is_null(version))
    _name(pa.array(lacks_version), chunk, place, rows, "version", "it names no version")
    lacks_link = ~linked & np.asarray(pc.greater(chunk.column("schema_version"), 1))
    _name(pa.array(lacks_link), chunk, place, rows, "link", "it has no link, and is not of schema version 1")
    rows.findings.facts["records without a link"] += int((~linked).sum())


def _name(wrong: pa.Array | pa.ChunkedArray, chunk: pa.Table, place: str, rows: Rows, kind: str, fact: str) -> None:
    """Record a break for the first of the marked rows and count them all."""
    if not pc.any(wrong).as_py():
        return
    indices = np.flatnonzero(np.asarray(pc.fill_null(wrong, True))).tolist()
    row = chunk.select(["golem_id", "tick", "link"]).slice(indices[0], 1).to_pylist()[0]
    number = row["link"] and row["link"]["number"]
    rows.findings.broken(
        kind, fact, count=len(indices), file=place, golem_id=row["golem_id"], tick=row["tick"], number=number
    )


# records that came as JSON


def _check_payloads(chunk: pa.Table, place: str, rows: Rows) -> None:
    """Check that the sender's bytes match the link and the columns."""
    payloads = chunk.column("payload").to_pylist()
    _name(_unlike(chunk, payloads), chunk, place, rows, "payload", "its columns differ from its payload")
    links = _links_of(chunk.column("golem_id"), chunk.column("link"))
    for link, tick, payload in zip(links, chunk.column("tick").to_pylist(), payloads, strict=True):
        ends = None if (link.golem_id, tick) in rows.struck else (tick, tick)
        _check_link(link, content_of(payload), ends, place, rows)


def _unlike(chunk: pa.Table, payloads: list[bytes]) -> pa.Array:
    """Return a mask of the rows that differ from their parsed payload."""
    columns = chunk.select(RECORD_SCHEMA.names)
    parsed = read_lines(Lines.of(payloads))
    wrong = np.ones(len(chunk), dtype=np.bool_)
    wrong[parsed.lines] = False
    same = columns if not wrong.any() else _picked(columns, ~wrong)
    if not same.equals(parsed.records):
        unequal = [not same.slice(i, 1).equals(parsed.records.slice(i, 1)) for i in range(len(same))]
        wrong[parsed.lines[np.flatnonzero(unequal)]] = True
    return pa.array(wrong)


def _links_of(golem_ids: pa.ChunkedArray, links: pa.ChunkedArray) -> Iterator[Link]:
    parts = (pc.struct_field(links, name).to_pylist() for name in ("number", "previous", "hash", "key_id", "signature"))
    for golem_id, number, previous, own, key_id, value in zip(golem_ids.to_pylist(), *parts, strict=True):
        signed = None if value is None and key_id is None else Signature(key_id or "", value or b"")
        yield Link(golem_id, number, previous, own, signed)


# records that came as Arrow


class Slice(NamedTuple):
    """Rows of one golem and link number, by tick. alike: whether all carry the same link."""

    link: Link
    content: bytes
    alike: bool
    ticks: Int64Array

    @property
    def key(self) -> tuple[str, int]:
        """Golem and link number."""
        return self.link.golem_id, self.link.number

    @property
    def fits(self) -> bool:
        """Whether the link matches the content."""
        return self.alike and self.link.hash == _expected(self.link, self.content)


def _check_slices(chunk: pa.Table, place: str, rows: Rows) -> None:
    """Check each slice against its link. A mismatch may span several files, so it is checked again at the end."""
    for piece in _slices(chunk):
        if piece.key in rows.pieces or not piece.fits:
            counts = rows.pieces.setdefault(piece.key, {})
            counts[place] = counts.get(place, 0) + len(piece.ticks)
        else:
            _check_link(piece.link, piece.content, _ends(piece, rows), place, rows)


def _slices(chunk: pa.Table) -> Iterator[Slice]:
    chunk, edges = _by_slice(chunk)
    contents = slice_contents(chunk.select(RECORD_SCHEMA.names), edges)
    heads = pa.array(edges[:-1])
    links = _links_of(chunk.column("golem_id").take(heads), chunk.column("link").take(heads))
    alike = _alike(chunk.column("link").combine_chunks(), edges).tolist()
    ticks = np.split(chunk.column("tick").to_numpy(), edges[1:-1])
    yield from map(Slice, links, contents, alike, ticks)


def _by_slice(chunk: pa.Table) -> tuple[pa.Table, Int64Array]:
    """Return the rows sorted by slice and tick, and the offsets of the slices."""
    codes = chunk.column("golem_id").combine_chunks().dictionary_encode().indices.to_numpy()
    numbers = pc.struct_field(chunk.column("link").combine_chunks(), "number").to_numpy()
    order = np.lexsort((chunk.column("tick").to_numpy(), numbers, codes))
    if not bool((np.diff(order) == 1).all()):
        chunk, codes, numbers = chunk.take(pa.array(order)).combine_chunks(), codes[order], numbers[order]
    begins = np.flatnonzero(np.r_[True, (np.diff(codes) != 0) | (np.diff(numbers) != 0)])
    return chunk, np.r_[begins, len(chunk)].astype(np.int64)


def _alike(links: pa.StructArray, edges: Int64Array) -> BoolArray:
    """Return for each slice whether all its rows carry the same link."""
    same = np.ones(len(links), dtype=np.bool_)
    heads = pa.array(np.repeat(edges[:-1], np.diff(edges)))
    for column in links.flatten():
        head = column.take(heads)
        equal = pc.equal(column, head)
        if column.null_count:
            equal = pc.if_else(pc.is_null(column), pc.is_null(head), pc.fill_null(equal, False))
        same &= np.asarray(equal)
    return np.logical_and.reduceat(same, edges[:-1])


def _ends(piece: Slice, rows: Rows) -> tuple[int, int] | None:
    """Return the first and last tick of a slice that is not struck; None if all are."""
    ticks = piece.ticks
    if rows.struck:
        golem_id = piece.link.golem_id
        ticks = np.array([tick for tick in ticks.tolist() if (golem_id, tick) not in rows.struck], dtype=np.int64)
    return (int(ticks[0]), int(ticks[-1])) if len(ticks) else None


def _check_pieces(rows: Rows) -> None:
    """Check the slices that span files, in groups of at most _ROWS rows."""
    files = {described.place: described for described in rows.readable}
    for keys in portions(sorted(rows.pieces), lambda key: sum(rows.pieces[key].values()), _ROWS):
        _check_group(keys, files, rows)


def _check_group(keys: list[tuple[str, int]], files: Mapping[str, Described], rows: Rows) -> None:
    golem_ids, numbers = (pa.array(sorted(set(part))) for part in zip(*keys, strict=True))
    condition = ds.field("golem_id").isin(golem_ids) & ds.field("link", "number").isin(numbers)
    places = sorted({place for key in keys for place in rows.pieces[key]} & files.keys())
    parts = [ds.dataset(str(files[place].path), format="parquet").to_table(filter=condition) for place in places]
    table = pa.concat_tables([upcast(part, CYCLES_SCHEMA) for part in parts] or [CYCLES_SCHEMA.empty_table()])
    key_set, number = set(keys), pc.struct_field(table.column("link"), "number").to_pylist()
    is_key = [key in key_set for key in zip(table.column("golem_id").to_pylist(), number, strict=True)]
    table = _picked(table, np.array(is_key, dtype=np.bool_) & np.asarray(pc.is_null(table.column("payload"))))
    for piece in _slices(table) if len(table) else ():
        place, link = min(rows.pieces[piece.key]), piece.link
        if piece.alike:
            _check_link(link, piece.content, _ends(piece, rows), place, rows)
        else:
            fact, tick = "the rows of its slice carry different links", int(piece.ticks[0])
            rows.findings.broken("link", fact, file=place, golem_id=link.golem_id, tick=tick, number=link.number)


# links


def _expected(link: Link, content: bytes) -> bytes:
    """Return the expected hash of a link; empty for an invalid number."""
    return link_of(link.golem_id, link.number, link.previous, content) if link.number > 0 else b""


def _check_link(link: Link, content: bytes, ticks: tuple[int, int] | None, place: str, rows: Rows) -> None:
    """Check hash and signature of a link. ticks: first and last valid tick."""
    rows.findings.facts["links"] += 1
    tick = None if ticks is None else ticks[0]
    if link.hash != _expected(link, content):
        fact = "its hash is not that of its content"
        rows.findings.broken("link", fact, file=place, golem_id=link.golem_id, tick=tick, number=link.number)
        return
    ring = rows.rings.get(link.golem_id)
    if ticks is None or (ring is None and link.signature is None):
        return
    ring = ring or KeyRing(link.golem_id)
    rows.findings.facts["signatures"] += link.signature is not None
    try:
        ring.check(ticks[1], content, link.signature)
        if ring.key_at(ticks[0]) != ring.key_at(ticks[1]):
            ring.check(ticks[0], content, link.signature)
    except SignatureError as error:
        fact = str(error)
        rows.findings.broken("signature", fact, file=place, golem_id=link.golem_id, tick=tick, number=link.number)
