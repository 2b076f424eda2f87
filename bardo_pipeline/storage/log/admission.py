"""Admission: which rows of a batch are new and which are refused with which error. Pure.

Each row is compared with the log and with the admitted rows of its batch. A refused row occupies no tick and no link.
Source: architecture ("Laws", "Time and order"); X-9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.errors import BardoError, ForkError, LeaseError, RegressionError
from bardo_pipeline.events.custody.authority import Owners
from bardo_pipeline.events.custody.hash_chain import KeyRing, Tip, check_rings, rings_after
from bardo_pipeline.events.custody.sealing import unsealed
from bardo_pipeline.events.life.events import LifeEvent
from bardo_pipeline.events.life.override_events import OVERRIDES, Override, check_overrides
from bardo_pipeline.events.life.proposal_events import check_model_requests
from bardo_pipeline.events.life.received_knowledge import check_arrivals
from bardo_pipeline.events.life.thanatopsis_events import PHASES_OF_DYING, check_dying, drop_repeated_deaths
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
"""Row of the batch -> its error."""


@dataclass
class Known:
    """State of each golem, accumulated from the rows and events of the log."""

    heads: Heads = field(default_factory=Heads)
    deaths: dict[str, int] = field(default_factory=dict)
    causes: dict[str, str] = field(default_factory=dict)
    dying: dict[str, int] = field(default_factory=dict)
    rings: dict[str, KeyRing] = field(default_factory=dict)
    sealing: set[str] = field(default_factory=set)
    overrides: dict[str, set[str]] = field(default_factory=dict)
    owners: Owners = field(default_factory=Owners)
    _key_events: set[str] = field(default_factory=set)

    def ring(self, golem_id: str) -> KeyRing:
        """Return the golem's signing keys."""
        return self.rings.get(golem_id) or KeyRing(golem_id)

    def tip(self, golem_id: str) -> Tip:
        """Return the newest link of the golem's chain."""
        head = self.heads.of.get(golem_id)
        return Tip() if head is None else head.tip

    def passed(self, golem_id: str) -> int:
        """Return the number of recorded phases of the golem's death."""
        return self.dying.get(golem_id, 0)

    def drop_repeated_deaths(self, events: Iterable[LifeEvent]) -> list[LifeEvent]:
        """Drop second deaths and phases of dying that are already recorded."""
        return drop_repeated_deaths(events, is_dead=self.deaths.__contains__, passed=self.passed)

    def check(self, events: Sequence[LifeEvent]) -> None:
        """Raise the error of an event that contradicts the log."""
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
        """Update the state from life events (columns event_id, golem_id, kind, gap, died)."""
        kinds = events.column("kind")
        overrides = events.select(["golem_id", "event_id"]).filter(pc.is_in(kinds, value_set=pa.array(list(OVERRIDES))))
        for row in overrides.to_pylist():
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
        """Update the key rings from key events; repeated events change nothing."""
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
    """Raise the error of a death, override, model request or received entry that contradicts its golem's state.

    Parameters
    ----------
    highest : golem -> highest recorded tick
    contiguous : golem -> last tick before the first gap
    death : golem -> tick of the recorded death
    overrides : golem -> number of recorded overrides
    """
    check_deaths(events, highest)
    stated = [(event.golem_id, event.payload) for event in events if isinstance(event.payload, Override)]
    check_overrides(stated, contiguous=contiguous, death=death, recorded=overrides)
    requests = [(event.golem_id, event.asked) for event in events if event.asked is not None]
    check_model_requests(requests, contiguous=contiguous, death=death)
    arrivals = [(event.golem_id, event.quarantined) for event in events if event.quarantined is not None]
    check_arrivals(arrivals, contiguous=contiguous, death=death)


class BatchRows(NamedTuple):
    """Valid rows of a batch: golem, tick and digest of each, and their grouping by golem."""

    golem_ids: pa.Array
    ticks: Ticks
    hashes: pa.Array
    groups: Groups


def batch_rows(records: pa.Table, hashes: pa.Array) -> BatchRows:
    """Group records (RECORD_SCHEMA) with their digests."""
    golem_ids, ticks = golem_column(records), records.column("tick").to_numpy()
    return BatchRows(golem_ids, ticks, hashes, grouped(golem_ids, ticks))


class Verdicts(NamedTuple):
    """Verdict on each row; a row that is neither new nor wrong is a repetition.

    Parameters
    ----------
    news : mask of the new rows
    first : row of the batch that this row is or repeats
    wrong : error by row
    """

    news: BoolArray
    first: Int64Array
    wrong: Wrong


def judge(
    rows: BatchRows,
    known: Known,
    *,
    leased: Callable[[set[str]], Mapping[str, str]],
    on_record: Callable[[pa.Table], pa.Table],
    unsigned: Callable[[Int64Array], Wrong],
    unsealed_rows: Callable[[set[str]], BoolArray],
    unfit: Wrong,
) -> Verdicts:
    """Compare each row with the log and with the admitted rows of the batch.

    Parameters
    ----------
    leased : golems -> those whose lease a writer holds, with the reason for the error
    on_record : table of golem_id, tick -> their digests (golem_id, tick, content_hash)
    unsigned : rows -> errors of missing or wrong signatures
    unsealed_rows : golems that seal -> mask of the rows with private parts in plain text
    unfit : errors of rows that no log accepts, unless they are on record from before
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
    reasons = leased(set(rows.groups.names))
    for golem_id, own in rows.groups if reasons else ():
        for row in own[~covered[own]].tolist() if golem_id in reasons else ():
            wrong.setdefault(row, LeaseError(f"golem {golem_id}: tick {rows.ticks[row]} {reasons[golem_id]}"))
    for row in np.flatnonzero(unsealed_rows(known.sealing) & ~covered).tolist() if known.sealing else ():
        wrong.setdefault(row, unsealed(rows.golem_ids[row].as_py(), int(rows.ticks[row])))
    for row, error in unfit.items():
        if not covered[row]:
            wrong.setdefault(row, error)
    wrong |= _conflicts_on_record(rows, np.flatnonzero(covered), on_record)
    open_ = ~covered
    open_[list(wrong)] = False
    wrong |= unsigned(np.flatnonzero(open_))
    open_[list(wrong)] = False
    first = _first_of_its_tick(rows.groups, rows.ticks, open_)
    repeats = first != np.arange(len(first))
    wrong |= _conflicts(rows, np.flatnonzero(repeats), first)
    return Verdicts(open_ & ~repeats, first, wrong)


def _first_of_its_tick(groups: Groups, ticks: Ticks, open_: BoolArray) -> Int64Array:
    """Return for each open row the first open row of its golem and tick, for other rows themselves."""
    order = groups.order[open_[groups.order]]
    starts = np.ones(len(order), dtype=np.bool_)
    codes = groups.codes[order]
    starts[1:] = (codes[1:] != codes[:-1]) | (ticks[order[1:]] != ticks[order[:-1]])
    first = np.arange(len(ticks))
    first[order] = order[np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))] if len(order) else order
    return first


def _conflicts(rows: BatchRows, repeats: Int64Array, first: Int64Array) -> Wrong:
    """Return errors of the rows that differ from the first row of the same golem and tick in the batch."""
    if not len(repeats):
        return {}
    same = pc.equal(rows.hashes.take(pa.array(repeats)), rows.hashes.take(pa.array(first[repeats])))
    return {
        int(row): ForkError(
            rows.golem_ids[int(row)].as_py(), int(rows.ticks[row]), "comes twice in the batch, with different content"
        )
        for row in repeats[~np.asarray(same)]
    }


def _conflicts_on_record(rows: BatchRows, covered: Int64Array, on_record: Callable[[pa.Table], pa.Table]) -> Wrong:
    """Return errors of the covered rows that differ from the log."""
    if not len(covered):
        return {}
    at = pa.array(covered)
    wanted = pa.table(
        {
            "golem_id": rows.golem_ids.take(at),
            "tick": rows.ticks[covered],
            "sent_hash": rows.hashes.take(at),
            "row": covered,
        }
    )
    matched = wanted.join(on_record(wanted), ["golem_id", "tick"], join_type="left outer")
    differs = matched.filter(pc.invert(pc.fill_null(pc.equal(matched["sent_hash"], matched["content_hash"]), False)))
    conflicts: Wrong = {}
    for row in differs.select(["golem_id", "tick", "row", "content_hash"]).to_pylist():
        golem_id, tick = row["golem_id"], row["tick"]
        conflicts[row["row"]] = (
            ForkError(golem_id, tick, "is already on record with different content")
            if row["content_hash"] is not None
            else RegressionError(golem_id, tick, "comes after its gap was accepted as lost")
        )
    return conflicts
