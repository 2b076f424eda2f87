"""Admission: which rows of a batch are news, which may not come in and why, and the links of those that do. Pure.

Each row is judged by what is on record and by those rows of the batch that may come in: one that is refused takes no
tick, no link and no other row's place.
Source: architecture ("Laws", "Time and order"); X-9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.errors import BardoError, ForkError, LeaseError, RegressionError, SignatureError
from bardo_pipeline.events.custody import KeyRing, Signature, Tip, content_of, link_of, rings_after, slice_contents
from bardo_pipeline.events.life import LifeEvent
from bardo_pipeline.events.schema import RECORD_SCHEMA
from bardo_pipeline.events.sealing import unsealed
from bardo_pipeline.storage.heads import Groups, Heads, Ticks, golem_column, grouped
from bardo_pipeline.storage.protocols import CYCLES_SCHEMA, LINK_TYPE

Wrong = dict[int, BardoError]
"""Row of the batch to what is wrong with it."""

Link = tuple[int, bytes, bytes, str | None, bytes | None]
"""Number, previous, hash, key id, signature: the fields of LINK_TYPE."""


@dataclass
class Known:
    """What the rows and events on record say of each golem."""

    heads: Heads = field(default_factory=Heads)
    deaths: dict[str, int] = field(default_factory=dict)
    rings: dict[str, KeyRing] = field(default_factory=dict)
    sealing: set[str] = field(default_factory=set)
    _key_events: set[str] = field(default_factory=set)

    def ring(self, golem_id: str) -> KeyRing:
        """The golem's signing keys."""
        return self.rings.get(golem_id) or KeyRing(golem_id)

    def tip(self, golem_id: str) -> Tip:
        """The newest link of the golem's chain."""
        head = self.heads.of.get(golem_id)
        return Tip() if head is None else head.tip

    def learn_life(self, events: pa.Table) -> None:
        """Take in accepted gaps, deaths, and who seals private parts (columns golem_id, kind, gap, died)."""
        kinds = events.column("kind")
        self.sealing.update(events.column("golem_id").filter(pc.equal(kinds, "SealKeyMade")).to_pylist())
        gaps = events.select(["golem_id", "gap"]).filter(pc.equal(events.column("kind"), "GapAccepted"))
        for row in gaps.to_pylist():
            self.heads.head(row["golem_id"]).accept((row["gap"]["tick_from"], row["gap"]["tick_to"]))
        deaths = events.select(["golem_id", "died"]).filter(pc.equal(events.column("kind"), "DeathDeclared"))
        for row in deaths.to_pylist():
            tick = row["died"]["tick"]
            self.deaths[row["golem_id"]] = min(tick, self.deaths.get(row["golem_id"], tick))

    def learn_keys(self, events: Iterable[LifeEvent]) -> None:
        """Take in key events; those known already change nothing."""
        fresh = [event for event in events if event.event_id not in self._key_events]
        self.rings |= rings_after(fresh, self.rings)
        self._key_events.update(event.event_id for event in fresh)


class Sent(NamedTuple):
    """A batch whose rows keep the model's rules: whose they are, their ticks and digests, and their order."""

    golem_ids: pa.Array
    ticks: Ticks
    hashes: pa.Array
    groups: Groups


def sent(batch: pa.Table) -> Sent:
    """The batch (RECORD_SCHEMA and content_hash), looked at."""
    golem_ids, ticks = golem_column(batch), batch.column("tick").to_numpy()
    return Sent(golem_ids, ticks, batch.column("content_hash").combine_chunks(), grouped(golem_ids, ticks))


class Verdicts(NamedTuple):
    """Of each row: whether it is news, which row of the batch it is or repeats, and what is wrong with it, if it is.

    A row that is neither news nor wrong repeats what is on record or what is news.
    """

    news: np.ndarray
    first: np.ndarray
    wrong: Wrong


def judge(
    rows: Sent,
    known: Known,
    *,
    held: Callable[[set[str]], Mapping[str, str]],
    on_record: Callable[[pa.Table], pa.Table],
    unsigned: Callable[[np.ndarray], Wrong],
    plain: Callable[[set[str]], np.ndarray],
) -> Verdicts:
    """Judge each row by what is on record and by those rows of the batch that may come in.

    held: of these golems, those that a writer holds, and how it says so. on_record: the digests of these golems and
    ticks (columns golem_id, tick, content_hash). unsigned: which of these rows are not signed as they should be. plain:
    which rows carry in plain text what these golems seal.
    """
    wrong: Wrong = {}
    covered = np.zeros(len(rows.ticks), dtype=np.bool_)
    for golem_id, own in rows.groups:
        ticks, head, death = rows.ticks[own], known.heads.of.get(golem_id), known.deaths.get(golem_id)
        if head is not None:
            covered[own] = head.covered(ticks)
        if death is not None and ticks[-1] > death:
            for row in own[(ticks > death) & ~covered[own]].tolist():
                wrong[row] = RegressionError(golem_id, int(rows.ticks[row]), f"comes after its death at tick {death}")
    reasons = held(set(rows.groups.names))
    for golem_id, own in rows.groups if reasons else ():
        for row in own[~covered[own]].tolist() if golem_id in reasons else ():
            wrong.setdefault(row, LeaseError(f"golem {golem_id}: tick {rows.ticks[row]} {reasons[golem_id]}"))
    for row in np.flatnonzero(plain(known.sealing) & ~covered).tolist() if known.sealing else ():
        wrong.setdefault(row, unsealed(rows.golem_ids[row].as_py(), int(rows.ticks[row])))
    wrong |= _conflicts_on_record(rows, np.flatnonzero(covered), on_record)
    open_ = ~covered
    open_[list(wrong)] = False
    wrong |= unsigned(np.flatnonzero(open_))
    open_[list(wrong)] = False
    first = _first_of_its_tick(rows.groups, rows.ticks, open_)
    repeats = first != np.arange(len(first))
    wrong |= _conflicts(rows, np.flatnonzero(repeats), first)
    return Verdicts(open_ & ~repeats, first, wrong)


def _first_of_its_tick(groups: Groups, ticks: Ticks, open_: np.ndarray) -> np.ndarray:
    """To each open row the first open row of its golem and tick; to others themselves."""
    order = groups.order[open_[groups.order]]
    starts = np.ones(len(order), dtype=np.bool_)
    codes = groups.codes[order]
    starts[1:] = (codes[1:] != codes[:-1]) | (ticks[order[1:]] != ticks[order[:-1]])
    first = np.arange(len(ticks))
    first[order] = order[np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))] if len(order) else order
    return first


def _conflicts(rows: Sent, repeats: np.ndarray, first: np.ndarray) -> Wrong:
    """Rows that say something else than the first row of the same golem and tick in the batch."""
    if not len(repeats):
        return {}
    same = pc.equal(rows.hashes.take(pa.array(repeats)), rows.hashes.take(pa.array(first[repeats])))
    return {
        int(row): ForkError(
            rows.golem_ids[int(row)].as_py(), int(rows.ticks[row]), "comes twice in the batch, with different content"
        )
        for row in repeats[~np.asarray(same)]
    }


def _conflicts_on_record(rows: Sent, covered: np.ndarray, on_record: Callable[[pa.Table], pa.Table]) -> Wrong:
    """Rows at or below a head that are not what is on record there."""
    if not len(covered):
        return {}
    at = pa.array(covered)
    wanted = pa.table(
        {
            "golem_id": rows.golem_ids.take(at),
            "tick": rows.ticks[covered],
            "given": rows.hashes.take(at),
            "row": covered,
        }
    )
    matched = wanted.join(on_record(wanted), ["golem_id", "tick"], join_type="left outer")
    differs = matched.filter(pc.invert(pc.fill_null(pc.equal(matched["given"], matched["content_hash"]), False)))
    found: Wrong = {}
    for row in differs.select(["golem_id", "tick", "row", "content_hash"]).to_pylist():
        golem_id, tick = row["golem_id"], row["tick"]
        found[row["row"]] = (
            ForkError(golem_id, tick, "is already on record with different content")
            if row["content_hash"] is not None
            else RegressionError(golem_id, tick, "comes after its gap was accepted as lost")
        )
    return found


class Linked(NamedTuple):
    """Rows of a batch with their links and payloads, and what was found wrong with others on the way."""

    rows: pa.Table
    wrong: Wrong


# records that came as JSON: one link a record


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
    batch: pa.Table, news: np.ndarray, lines: pa.Array, signatures: Sequence[Signature | None] | None, known: Known
) -> Linked:
    """The news of a batch that came as JSON, in the order given, one link a record.

    A link names the one before, so this is a loop over rows.
    """
    kept = np.flatnonzero(news)
    at = pa.array(kept)
    payloads = lines.take(at).cast(pa.binary())
    tips: dict[str, Tip] = {}
    links: list[Link] = []
    for row, golem_id, line in zip(
        kept.tolist(), golem_column(batch).take(at).to_pylist(), payloads.to_pylist(), strict=True
    ):
        tip = tips.get(golem_id) or known.tip(golem_id)
        tips[golem_id] = Tip(tip.number + 1, link_of(golem_id, tip.number + 1, tip.hash, content_of(line)))
        signature = None if signatures is None else signatures[row]
        links.append((*tips[golem_id][:1], tip.hash, tips[golem_id].hash, *(signature or (None, None))))
    chosen = batch if len(kept) == len(batch) else batch.take(at)
    chosen = chosen.append_column(CYCLES_SCHEMA.field("link"), _links(links))
    return Linked(chosen.append_column(CYCLES_SCHEMA.field("payload"), payloads), {})


# records that came as Arrow: one link a golem


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
    batch: pa.Table, slices: Sequence[Slice], first: np.ndarray, signatures: Mapping[str, Signature], known: Known
) -> Linked:
    """Slices of a batch that came as Arrow, one link a golem. first: see `Verdicts`."""
    order = np.concatenate([piece.rows for piece in slices]) if slices else np.zeros(0, np.int64)
    edges = np.cumsum([0, *(len(piece.rows) for piece in slices)])
    kept = _picked(batch, order)
    contents = slice_contents(kept.select(RECORD_SCHEMA.names), edges) if slices else []
    wrong: Wrong = {}
    links: list[Link] = []
    stays = np.ones(len(order), dtype=np.bool_)
    for k, (piece, content) in enumerate(zip(slices, contents, strict=True)):
        signature, tip = signatures.get(piece.golem_id), known.tip(piece.golem_id)
        try:
            _check_slice(piece, batch.column("tick"), content, signature, known)
        except SignatureError as error:
            wrong |= dict.fromkeys(np.flatnonzero(np.isin(first, piece.rows)).tolist(), error)
            stays[edges[k] : edges[k + 1]] = False
        link = link_of(piece.golem_id, tip.number + 1, tip.hash, content)
        links.append((tip.number + 1, tip.hash, link, *(signature or (None, None))))
    which = pa.array(np.repeat(np.arange(len(slices)), np.diff(edges)))
    kept = kept.append_column(CYCLES_SCHEMA.field("link"), _links(links).take(which))
    kept = kept.append_column(CYCLES_SCHEMA.field("payload"), pa.nulls(len(kept), pa.binary()))
    return Linked(kept if stays.all() else kept.filter(pa.array(stays)), wrong)


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


def _picked(batch: pa.Table, order: np.ndarray) -> pa.Table:
    """These rows, without a copy where they stand together."""
    if len(order) and order[-1] - order[0] + 1 == len(order) and bool((np.diff(order) == 1).all()):
        return batch.slice(int(order[0]), len(order))
    return batch.take(pa.array(order))


def _links(links: Sequence[Link]) -> pa.Array:
    parts = zip(*links, strict=True) if links else ((), (), (), (), ())
    fields = list(LINK_TYPE)
    return pa.StructArray.from_arrays([pa.array(p, f.type) for p, f in zip(parts, fields, strict=True)], fields=fields)
