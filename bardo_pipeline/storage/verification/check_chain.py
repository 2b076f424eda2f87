"""Verify that links form a chain without gaps and that each tick is recorded once.

Groups of buckets are read one after the other to bound memory. Source: X-9.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from numpy.typing import NDArray

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.events.custody.hash_chain import GENESIS, Tip
from bardo_pipeline.storage.log.protocol import CYCLES_SCHEMA
from bardo_pipeline.storage.verification.check_delta_files import Described
from bardo_pipeline.storage.verification.report import Findings

_GROUP_ROWS = 2_000_000
_COLUMNS = pa.schema([CYCLES_SCHEMA.field(name) for name in ("golem_id", "tick", "bucket", "version", "link")])
_GENESIS = np.frombuffer(GENESIS, dtype=np.uint8)[None, :]


@dataclass(frozen=True)
class Chain:
    """Ticks (ascending, unique) and links (by number) of one golem; versions: commit of each link, -1 if unknown."""

    golem_id: str
    ticks: Int64Array
    numbers: Int64Array
    hashes: NDArray[np.uint8]
    versions: Int64Array

    @property
    def tip(self) -> Tip:
        """Newest link."""
        return self.tip_at(None)

    def tip_at(self, version: int | None) -> Tip:
        """Return the newest link at a version of the log, or of all for None."""
        count = len(self.numbers) if version is None else int(np.count_nonzero(self.versions <= version))
        return Tip(int(self.numbers[count - 1]), self.hashes[count - 1].tobytes()) if count else Tip()

    def link(self, number: int) -> bytes | None:
        """Return the hash of the link with this number."""
        at = int(np.searchsorted(self.numbers, number))
        return self.hashes[at].tobytes() if at < len(self.numbers) and self.numbers[at] == number else None


def check_chains(files: Sequence[Described], bucket_count: int, findings: Findings) -> Iterator[Chain]:
    """Check that link numbers count from 1, that each link names its predecessor, and that ticks are unique.

    Yields the chain of each golem.
    """
    if not files:
        return
    dataset = ds.dataset([str(described.path) for described in files], schema=_COLUMNS, format="parquet")
    total = sum(described.rows for described in files)
    parts = min(bucket_count, max(1, -(-total // _GROUP_ROWS)))
    for part in range(parts):
        lower, upper = (bucket_count * k // parts for k in (part, part + 1))
        only = None if parts == 1 else (ds.field("bucket") >= lower) & (ds.field("bucket") < upper)
        yield from _check_group(dataset.to_table(filter=only).combine_chunks(), findings)


def _check_group(keys: pa.Table, findings: Findings) -> Iterator[Chain]:
    if not len(keys):
        return
    golem_ids, link = (keys.column(name).combine_chunks() for name in ("golem_id", "link"))
    ticks, is_linked = keys.column("tick").to_numpy(), np.asarray(link.is_valid())
    number = pc.fill_null(pc.struct_field(link, "number"), 0).to_numpy(zero_copy_only=False)
    version = pc.fill_null(keys.column("version"), -1).to_numpy()
    previous, own = (_fixed(pc.struct_field(link, name)) for name in ("previous", "hash"))
    encoded = golem_ids.dictionary_encode()
    codes = encoded.indices.to_numpy()
    order = np.lexsort((ticks, codes))
    bounds = np.searchsorted(codes[order], np.arange(len(encoded.dictionary) + 1)).tolist()
    for at, golem_id in enumerate(encoded.dictionary.to_pylist()):
        rows = order[bounds[at] : bounds[at + 1]]
        golem_ticks = ticks[rows]
        for tick in golem_ticks[1:][golem_ticks[1:] == golem_ticks[:-1]].tolist():
            findings.broken("duplicate", "it is on record twice", golem_id=golem_id, tick=tick)
        linked = rows[is_linked[rows]]
        linked = linked[np.argsort(number[linked], kind="stable")]
        links = _Links(ticks[linked], number[linked], version[linked], previous[linked], own[linked])
        links = _check_links(golem_id, links, findings)
        _check_unlinked(golem_id, golem_ticks, version[rows], is_linked[rows], findings)
        yield Chain(golem_id, np.unique(golem_ticks), links.number, links.own, links.version)


class _Links(NamedTuple):
    """Links of one golem by number, as columns."""

    tick: Int64Array
    number: Int64Array
    version: Int64Array
    previous: NDArray[np.uint8]
    own: NDArray[np.uint8]


def _check_links(golem_id: str, links: _Links, findings: Findings) -> _Links:
    """Check the order of links; return each link once, because a slice's link is in each of its rows."""
    if not len(links.number):
        return links

    def report(kind: str, wrong: BoolArray, fact: str) -> None:
        rows = np.flatnonzero(wrong)
        if len(rows):
            tick, number = int(links.tick[rows[0]]), int(links.number[rows[0]])
            findings.broken(kind, fact, count=len(rows), golem_id=golem_id, tick=tick, number=number)

    is_repeated = np.r_[False, np.diff(links.number) == 0]
    unlike = (links.own[1:] != links.own[:-1]).any(axis=1) | (links.version[1:] != links.version[:-1])
    report("chain", is_repeated & np.r_[False, unlike], "two links bear this number")
    links = _Links(*(column[~is_repeated] for column in links))
    follows = links.number == np.r_[1, links.number[:-1] + 1]
    report("chain", ~follows, "the link before it is missing")
    before = np.concatenate([_GENESIS, links.own[:-1]])
    report("chain", (links.previous != before).any(axis=1) & follows, "it does not name the link before it")
    is_earlier = np.r_[False, np.diff(links.version) < 0]
    report("version", is_earlier, "it says an earlier version than the link before it")
    return links


def _check_unlinked(
    golem_id: str, ticks: Int64Array, version: Int64Array, linked: BoolArray, findings: Findings
) -> None:
    """Check that rows without a link precede all links."""
    if linked.all() or not linked.any():
        return
    late = ~linked & (version > version[linked].min())
    if late.any():
        tick = int(ticks[np.flatnonzero(late)[0]])
        findings.broken("link", "it has no link, and came after links did", golem_id=golem_id, tick=tick)


def _fixed(column: pa.Array) -> NDArray[np.uint8]:
    """Return hashes as rows of 32 bytes; a null or a value of another length becomes 32 bytes of 0xff."""
    is_hash = pc.fill_null(pc.equal(pc.binary_length(column), len(GENESIS)), False)
    column = pc.if_else(is_hash, column, pa.scalar(b"\xff" * len(GENESIS))).cast(pa.binary(len(GENESIS)))
    values = np.frombuffer(column.buffers()[1], dtype=np.uint8).reshape(-1, len(GENESIS))
    return values[column.offset : column.offset + len(column)]
