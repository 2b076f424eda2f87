"""Admission: which rows of a batch are news, and which may not come in and why. Pure.

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

from bardo_pipeline.errors import BardoError, ForkError, LeaseError, RegressionError
from bardo_pipeline.events.custody.hash_chain import KeyRing, Tip, check_rings, rings_after
from bardo_pipeline.events.custody.sealing import unsealed
from bardo_pipeline.events.life.events import LifeEvent, arrivals_of, askings_of, overrides_of
from bardo_pipeline.events.life.override_events import OVERRIDES, check_overrides
from bardo_pipeline.events.life.proposal_events import check_askings
from bardo_pipeline.events.life.received_knowledge import check_arrivals
from bardo_pipeline.events.life.thanatopsis_events import PHASES_OF_DYING, check_dying, unsaid
from bardo_pipeline.storage.log.stream_heads import (
    Groups,
    Head,
    Heads,
    Ticks,
    check_deaths,
    golem_column,
    grouped,
    past_death,
)

Wrong = dict[int, BardoError]
"""Row of the batch to what is wrong with it."""


@dataclass
class Known:
    """What the rows and events on record say of each golem."""

    heads: Heads = field(default_factory=Heads)
    deaths: dict[str, int] = field(default_factory=dict)
    causes: dict[str, str] = field(default_factory=dict)
    dying: dict[str, int] = field(default_factory=dict)
    rings: dict[str, KeyRing] = field(default_factory=dict)
    sealing: set[str] = field(default_factory=set)
    overrides: dict[str, set[str]] = field(default_factory=dict)
    _key_events: set[str] = field(default_factory=set)

    def ring(self, golem_id: str) -> KeyRing:
        """The golem's signing keys."""
        return self.rings.get(golem_id) or KeyRing(golem_id)

    def tip(self, golem_id: str) -> Tip:
        """The newest link of the golem's chain."""
        head = self.heads.of.get(golem_id)
        return Tip() if head is None else head.tip

    def passed(self, golem_id: str) -> int:
        """How many phases of its dying are on record."""
        return self.dying.get(golem_id, 0)

    def unsaid(self, events: Iterable[LifeEvent]) -> list[LifeEvent]:
        """These events without second deaths, and without phases of dying that are passed."""
        return unsaid(events, is_dead=self.deaths.__contains__, passed=self.passed)

    def check(self, events: Sequence[LifeEvent]) -> None:
        """Raise what speaks against putting these events on record, after all that is there."""
        check_rings(events, self.rings)
        check_dying(events, is_dead=self.deaths.__contains__, passed=self.passed)
        check_lives(
            events,
            highest=lambda golem_id: (self.heads.of.get(golem_id) or Head()).highest,
            contiguous=lambda golem_id: (self.heads.of.get(golem_id) or Head()).contiguous,
            death=self.deaths.get,
            overrides=lambda golem_id: len(self.overrides.get(golem_id, ())),
        )

    def learn_life(self, events: pa.Table) -> None:
        """Take in gaps, deaths, phases of dying, overrides, who seals (columns event_id, golem_id, kind, gap, died)."""
        kinds = events.column("kind")
        said = events.select(["golem_id", "event_id"]).filter(pc.is_in(kinds, value_set=pa.array(list(OVERRIDES))))
        for row in said.to_pylist():
            self.overrides.setdefault(row["golem_id"], set()).add(row["event_id"])
        self.sealing.update(events.column("golem_id").filter(pc.equal(kinds, "SealKeyMade")).to_pylist())
        gaps = events.select(["golem_id", "gap"]).filter(pc.equal(events.column("kind"), "GapAccepted"))
        for row in gaps.to_pylist():
            self.heads.head(row["golem_id"]).accept((row["gap"]["tick_from"], row["gap"]["tick_to"]))
        deaths = events.select(["golem_id", "died"]).filter(pc.equal(events.column("kind"), "DeathDeclared"))
        for row in deaths.to_pylist():
            tick = row["died"]["tick"]
            if tick <= self.deaths.get(row["golem_id"], tick):
                self.deaths[row["golem_id"]], self.causes[row["golem_id"]] = tick, row["died"]["cause"]
        passed = events.select(["golem_id", "kind"]).filter(pc.is_in(kinds, value_set=pa.array(PHASES_OF_DYING)))
        for row in passed.to_pylist():
            rank = PHASES_OF_DYING.index(row["kind"]) + 1
            self.dying[row["golem_id"]] = max(rank, self.dying.get(row["golem_id"], 0))

    def learn_keys(self, events: Iterable[LifeEvent]) -> None:
        """Take in key events; those known already change nothing."""
        fresh = [event for event in events if event.event_id not in self._key_events]
        self.rings |= rings_after(fresh, self.rings)
        self._key_events.update(event.event_id for event in fresh)


def check_lives(
    events: Sequence[LifeEvent],
    *,
    highest: Callable[[str], int],
    contiguous: Callable[[str], int],
    death: Callable[[str], int | None],
    overrides: Callable[[str], int],
) -> None:
    """Raise for a death, an override, an asking or an arrival that does not fit its golem as it is now.

    Of a golem: its highest tick, the tick up to which its stream has no gap, that of its recorded death, and how many
    overrides are on record.
    """
    check_deaths(events, highest)
    check_overrides(overrides_of(events), contiguous=contiguous, death=death, known=overrides)
    check_askings(askings_of(events), contiguous=contiguous, death=death)
    check_arrivals(arrivals_of(events), contiguous=contiguous, death=death)


class Sent(NamedTuple):
    """A batch whose rows keep the model's rules: whose they are, their ticks and digests, and their order."""

    golem_ids: pa.Array
    ticks: Ticks
    hashes: pa.Array
    groups: Groups


def sent(records: pa.Table, hashes: pa.Array) -> Sent:
    """The batch, looked at. records: RECORD_SCHEMA. hashes: their digests, as the log keeps them."""
    golem_ids, ticks = golem_column(records), records.column("tick").to_numpy()
    return Sent(golem_ids, ticks, hashes, grouped(golem_ids, ticks))


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
                wrong[row] = past_death(golem_id, int(rows.ticks[row]), death, known.causes.get(golem_id))
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
