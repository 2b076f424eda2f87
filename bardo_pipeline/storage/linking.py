"""Linking: the links that the news of a batch add to their golems' chains. Pure.

What came as JSON has one link a record, in the order given; what came as Arrow, one link a golem (custody.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from bardo_pipeline.errors import SignatureError
from bardo_pipeline.events.custody import Signature, Tip, content_of, link_of, slice_contents
from bardo_pipeline.storage.admission import Known, Sent, Verdicts, Wrong
from bardo_pipeline.storage.heads import Groups
from bardo_pipeline.storage.protocols import LINK_TYPE

Link = tuple[int, bytes, bytes, str | None, bytes | None]
"""Number, previous, hash, key id, signature: the fields of LINK_TYPE."""


class Linked(NamedTuple):
    """Links; of each row of the batch, which of them it has (-1: none, since it does not come in); what is wrong."""

    links: list[Link]
    which: np.ndarray
    wrong: Wrong

    @property
    def rows(self) -> np.ndarray:
        """The rows that come in."""
        return np.flatnonzero(self.which >= 0)

    def column(self) -> pa.Array:
        """The links of the rows that come in (LINK_TYPE)."""
        parts = zip(*self.links, strict=True) if self.links else ((), (), (), (), ())
        fields = list(LINK_TYPE)
        arrays = [pa.array(part, field.type) for part, field in zip(parts, fields, strict=True)]
        return pa.StructArray.from_arrays(arrays, fields=fields).take(pa.array(self.which[self.rows]))


def together(parts: Sequence[Linked], rows: int) -> Linked:
    """The links of all parts of a batch of so many rows."""
    links: list[Link] = []
    which = np.full(rows, -1)
    wrong: Wrong = {}
    for part in parts:
        which = np.where(part.which >= 0, part.which + len(links), which)
        links += part.links
        wrong |= part.wrong
    return Linked(links, which, wrong)


# records that came as JSON


def unsigned_lines(
    rows: Sent, which: np.ndarray, lines: pa.Array, signatures: Sequence[Signature | None] | None, known: Known
) -> Wrong:
    """Those of these rows whose bytes are not signed as their golem's keys ask."""
    if signatures is None and not known.rings:
        return {}
    wrong: Wrong = {}
    ids = rows.golem_ids.take(pa.array(which)).to_pylist()
    for row, golem_id in zip(which.tolist(), ids, strict=True):
        signature = None if signatures is None else signatures[row]
        if signature is None and golem_id not in known.rings:
            continue
        try:
            known.ring(golem_id).check(int(rows.ticks[row]), content_of(lines[row].as_py()), signature)
        except SignatureError as error:
            wrong[row] = error
    return wrong


def link_lines(
    rows: Sent, news: np.ndarray, lines: pa.Array, signatures: Sequence[Signature | None] | None, known: Known
) -> Linked:
    """The links of lines that are news. A link names the one before, so this is a loop over rows."""
    kept = np.flatnonzero(news)
    at = pa.array(kept)
    tips: dict[str, Tip] = {}
    links: list[Link] = []
    for row, golem_id, line in zip(
        kept.tolist(), rows.golem_ids.take(at).to_pylist(), lines.take(at).to_pylist(), strict=True
    ):
        tip = tips.get(golem_id) or known.tip(golem_id)
        link = link_of(golem_id, tip.number + 1, tip.hash, content_of(line))
        tips[golem_id] = Tip(tip.number + 1, link)
        signature = None if signatures is None else signatures[row]
        links.append((tip.number + 1, tip.hash, link, *(signature or (None, None))))
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


def shared(slices: Sequence[Slice], count: int) -> list[list[Slice]]:
    """The slices in at most so many runs of about equal length."""
    reached = np.cumsum([len(piece.rows) for piece in slices])
    which = (reached - 1) * count // max(int(reached[-1]), 1) if slices else reached
    runs = [[piece for piece, at in zip(slices, which, strict=True) if at == k] for k in range(count)]
    return [run for run in runs if run]


def link_slices(
    records: pa.Table, slices: Sequence[Slice], verdicts: Verdicts, signatures: Mapping[str, Signature], known: Known
) -> Linked:
    """The links of slices of a batch (RECORD_SCHEMA). A slice that is not signed as it should be is wrong as a whole.

    Those that stand together and in order in the batch are not copied.
    """
    order = np.concatenate([piece.rows for piece in slices])
    edges = np.cumsum([0, *(len(piece.rows) for piece in slices)])
    if int(order[-1]) - int(order[0]) + 1 == len(order) and bool((np.diff(order) == 1).all()):
        contents = slice_contents(records.slice(int(order[0]), len(order)), edges)
    else:
        contents = slice_contents(records, edges, order)
    linked = Linked([], np.full(len(records), -1), {})
    for piece, content in zip(slices, contents, strict=True):
        signature, tip = signatures.get(piece.golem_id), known.tip(piece.golem_id)
        try:
            _check_slice(piece, records.column("tick"), content, signature, known)
        except SignatureError as error:
            repeats = np.flatnonzero(np.isin(verdicts.first, piece.rows))
            linked.wrong.update((row, error) for row in repeats.tolist() if row not in verdicts.wrong)
            continue
        linked.which[piece.rows] = len(linked.links)
        link = link_of(piece.golem_id, tip.number + 1, tip.hash, content)
        linked.links.append((tip.number + 1, tip.hash, link, *(signature or (None, None))))
    return linked


def _check_slice(
    piece: Slice, ticks: pa.ChunkedArray, content: bytes, signature: Signature | None, known: Known
) -> None:
    if signature is None and piece.golem_id not in known.rings:
        return
    if signature is not None and len(piece.rows) < piece.sent:
        raise SignatureError(
            f"golem {piece.golem_id}: its signed slice is on record in part, or holds what may not come in: sign and "
            "send what is new"
        )
    for end in (piece.rows[0], piece.rows[-1]):
        known.ring(piece.golem_id).check(ticks[int(end)].as_py(), content, signature)
