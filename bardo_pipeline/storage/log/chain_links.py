"""Build the links that the new rows of a batch add to their golems' chains. Pure.

A JSON batch has one link per record in the given order; an Arrow batch has one link per golem.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.errors import SignatureError
from bardo_pipeline.events.custody.hash_chain import KeyRing, Signature, Tip, link_of, slice_contents
from bardo_pipeline.events.record.arrow_columns import absent
from bardo_pipeline.storage.log.admission import BatchRows, Known, Verdicts, Wrong
from bardo_pipeline.storage.log.protocol import LINK_TYPE
from bardo_pipeline.storage.log.stream_heads import Groups


@dataclass(frozen=True)
class Links:
    """Links by field (LINK_TYPE); one object per link would slow down the garbage collector."""

    numbers: list[int] = field(default_factory=list)
    previous: list[bytes] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    key_ids: list[str | None] = field(default_factory=list)
    signatures: list[bytes | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.numbers)

    def add(self, tip: Tip, link: bytes, signature: Signature | None) -> Tip:
        """Add the link after a tip; return the new tip."""
        self.numbers.append(tip.number + 1)
        self.previous.append(tip.hash)
        self.hashes.append(link)
        key_id, value = signature or (None, None)
        self.key_ids.append(key_id)
        self.signatures.append(value)
        return Tip(tip.number + 1, link)


class Linked(NamedTuple):
    """Links of a batch; without any, the rows are written without links.

    Parameters
    ----------
    which : index of the link of each row; -1 for a row that is not admitted
    wrong : error by row
    """

    links: Links
    which: Int64Array
    wrong: Wrong

    @property
    def rows(self) -> Int64Array:
        """Indices of the admitted rows."""
        return np.flatnonzero(self.which >= 0)

    def column(self) -> pa.Array:
        """Return the links of the admitted rows (LINK_TYPE)."""
        links = self.links
        if not len(links):
            return absent(LINK_TYPE, len(self.rows))
        fields = list(LINK_TYPE)
        parts = (links.numbers, links.previous, links.hashes, links.key_ids, links.signatures)
        arrays = [pa.array(part, field.type) for part, field in zip(parts, fields, strict=True)]
        return pa.StructArray.from_arrays(arrays, fields=fields).take(pa.array(self.which[self.rows]))


# records that came as JSON


def unsigned_lines(
    rows: BatchRows,
    which: Int64Array,
    contents: Sequence[bytes],
    signatures: Sequence[Signature | None] | None,
    known: Known,
) -> Wrong:
    """Return errors of the rows without a valid signature of their golem's keys."""
    keyed = {golem_id for golem_id in rows.groups.names if known.ring(golem_id).keys}
    if signatures is None and not keyed:
        return {}
    wrong: Wrong = {}
    ids = rows.golem_ids.take(pa.array(which)).to_pylist()
    for row, golem_id in zip(which.tolist(), ids, strict=True):
        signature = None if signatures is None else signatures[row]
        if signature is None and golem_id not in keyed:
            continue
        try:
            known.ring(golem_id).check(int(rows.ticks[row]), contents[row], signature)
        except SignatureError as error:
            wrong[row] = error
    return wrong


def link_lines(
    rows: BatchRows, news: BoolArray, contents: Sequence[bytes], signatures: Sequence[Signature | None] | None,
    known: Known,
) -> Linked:  # fmt: skip
    """Link the new lines one by one, because each link names its predecessor."""
    kept = np.flatnonzero(news)
    tips: dict[str, Tip] = {}
    links = Links()
    for row, golem_id in zip(kept.tolist(), rows.golem_ids.take(pa.array(kept)).to_pylist(), strict=True):
        tip = tips.get(golem_id) or known.tip(golem_id)
        link = link_of(golem_id, tip.number + 1, tip.hash, contents[row])
        tips[golem_id] = links.add(tip, link, None if signatures is None else signatures[row])
    return Linked(links, np.where(news, np.cumsum(news) - 1, -1), {})


# records that came as Arrow


class Slice(NamedTuple):
    """New rows of a golem in a batch, by tick, and the number of its rows that were sent."""

    golem_id: str
    rows: Int64Array
    sent: int


def slices_of(groups: Groups, news: BoolArray) -> list[Slice]:
    """Return the slices of the golems with new rows."""
    slices = (Slice(golem_id, own[news[own]], len(own)) for golem_id, own in groups)
    return [piece for piece in slices if len(piece.rows)]


def unlinked(slices: Sequence[Slice], rows: int) -> Linked:
    """Admit the rows of these slices without links."""
    which = np.full(rows, -1)
    for piece in slices:
        which[piece.rows] = 0
    return Linked(Links(), which, {})


def link_slices(
    records: pa.Table, slices: Sequence[Slice], verdicts: Verdicts, signatures: Mapping[str, Signature], known: Known
) -> Linked:
    """Link the slices of a batch (RECORD_SCHEMA). A missing or wrong signature refuses the whole slice.

    Slices that are contiguous and in order are not copied.
    """
    linked = Linked(Links(), np.full(len(records), -1), {})
    if not slices:
        return linked
    order = np.concatenate([piece.rows for piece in slices])
    edges = np.cumsum([0, *(len(piece.rows) for piece in slices)])
    if int(order[-1]) - int(order[0]) + 1 == len(order) and bool((np.diff(order) == 1).all()):
        contents = slice_contents(records.slice(int(order[0]), len(order)), edges)
    else:
        contents = slice_contents(records, edges, order)
    for piece, content in zip(slices, contents, strict=True):
        signature, tip = signatures.get(piece.golem_id), known.tip(piece.golem_id)
        try:
            _check_slice(piece, records.column("tick"), content, signature, known.ring(piece.golem_id))
        except SignatureError as error:
            repeats = np.flatnonzero(np.isin(verdicts.first, piece.rows))
            linked.wrong.update((row, error) for row in repeats.tolist() if row not in verdicts.wrong)
            continue
        linked.which[piece.rows] = len(linked.links)
        linked.links.add(tip, link_of(piece.golem_id, tip.number + 1, tip.hash, content), signature)
    return linked


def _check_slice(
    piece: Slice, ticks: pa.ChunkedArray, content: bytes, signature: Signature | None, ring: KeyRing
) -> None:
    if signature is None and not ring.keys:
        return
    if signature is not None and len(piece.rows) < piece.sent:
        raise SignatureError(
            f"golem {piece.golem_id}: part of its signed slice is already in the log or is refused: sign and send only "
            "the new records"
        )
    for end in (piece.rows[0], piece.rows[-1]):
        ring.check(ticks[int(end)].as_py(), content, signature)
