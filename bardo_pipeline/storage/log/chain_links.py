"""Linking: the links that the news of a batch add to their golems' chains. Pure.

What came as JSON has one link a record, in the order given; what came as Arrow, one link a golem (custody.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from bardo_pipeline.errors import SignatureError
from bardo_pipeline.events.custody.hash_chain import KeyRing, Signature, Tip, link_of, slice_contents
from bardo_pipeline.events.record.upcast import absent
from bardo_pipeline.storage.log.admission import Known, Sent, Verdicts, Wrong
from bardo_pipeline.storage.log.protocol import LINK_TYPE
from bardo_pipeline.storage.log.stream_heads import Groups


@dataclass(frozen=True)
class Links:
    """Links field by field (LINK_TYPE): of a tuple a link, the garbage collector would have to look at each."""

    numbers: list[int] = field(default_factory=list)
    previous: list[bytes] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    key_ids: list[str | None] = field(default_factory=list)
    signatures: list[bytes | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.numbers)

    def add(self, tip: Tip, link: bytes, signature: Signature | None) -> Tip:
        """Add the link that follows a tip; returns the tip that it is."""
        self.numbers.append(tip.number + 1)
        self.previous.append(tip.hash)
        self.hashes.append(link)
        key_id, value = signature or (None, None)
        self.key_ids.append(key_id)
        self.signatures.append(value)
        return Tip(tip.number + 1, link)


class Linked(NamedTuple):
    """Links; of each row of the batch, which of them it has (-1: it does not come in); what is wrong with others.

    No links at all: the rows come in without.
    """

    links: Links
    which: np.ndarray
    wrong: Wrong

    @property
    def rows(self) -> np.ndarray:
        """The rows that come in."""
        return np.flatnonzero(self.which >= 0)

    def column(self) -> pa.Array:
        """The links of the rows that come in (LINK_TYPE)."""
        links = self.links
        if not len(links):
            return absent(LINK_TYPE, len(self.rows))
        fields = list(LINK_TYPE)
        parts = (links.numbers, links.previous, links.hashes, links.key_ids, links.signatures)
        arrays = [pa.array(part, field.type) for part, field in zip(parts, fields, strict=True)]
        return pa.StructArray.from_arrays(arrays, fields=fields).take(pa.array(self.which[self.rows]))


# records that came as JSON


def unsigned_lines(
    rows: Sent,
    which: np.ndarray,
    contents: Sequence[bytes],
    signatures: Sequence[Signature | None] | None,
    known: Known,
) -> Wrong:
    """Those of these rows whose bytes are not signed as their golem's keys ask."""
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
    rows: Sent, news: np.ndarray, contents: Sequence[bytes], signatures: Sequence[Signature | None] | None, known: Known
) -> Linked:
    """The links of lines that are news. A link names the one before, so this is a loop over rows."""
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
    """A golem's rows of a batch that are news, in tick order, and how many rows of it were sent."""

    golem_id: str
    rows: np.ndarray
    sent: int


def slices_of(groups: Groups, news: np.ndarray) -> list[Slice]:
    """The golems of which there is news, each with its slice."""
    found = (Slice(golem_id, own[news[own]], len(own)) for golem_id, own in groups)
    return [piece for piece in found if len(piece.rows)]


def unlinked(slices: Sequence[Slice], rows: int) -> Linked:
    """The same rows with no link."""
    which = np.full(rows, -1)
    for piece in slices:
        which[piece.rows] = 0
    return Linked(Links(), which, {})


def link_slices(
    records: pa.Table, slices: Sequence[Slice], verdicts: Verdicts, signatures: Mapping[str, Signature], known: Known
) -> Linked:
    """The links of slices of a batch (RECORD_SCHEMA). A slice that is not signed as it should be is wrong as a whole.

    Those that stand together and in order in the batch are not copied.
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
            f"golem {piece.golem_id}: its signed slice is on record in part, or holds what may not come in: sign and "
            "send what is new"
        )
    for end in (piece.rows[0], piece.rows[-1]):
        ring.check(ticks[int(end)].as_py(), content, signature)
