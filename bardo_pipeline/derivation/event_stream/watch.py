"""The event fabric, followed: the newest events first, or those behind a place; then what comes.

Within a source events come by commit; between sources by the moment of the commit, ties as in SOURCES; within a commit
as Emitted orders them. Nothing is kept for who watches and no writer waits for one: watching is reading.
Source: EV-7; HB "The Event Fabric" ("Last 10,000 for reconnection replay").
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.episodes import importance_tiers
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.event_stream.sources import (
    SOURCES,
    Commit,
    Mark,
    Place,
    RecordCommits,
    Source,
    TableCommits,
)
from bardo_pipeline.derivation.incremental.adjacent_ticks import Neighbours
from bardo_pipeline.derivation.incremental.gap_bridge import GapSteps
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle
from bardo_pipeline.errors import BundleError, QueryError
from bardo_pipeline.events.stream.catalogue import CATEGORIES, EVENTS, GolemEvent
from bardo_pipeline.events.stream.event_table import Emitted
from bardo_pipeline.events.stream.from_changes import NEIGHBOUR_COLUMNS
from bardo_pipeline.events.stream.from_projections import (
    CYCLE_COLUMNS,
    DECISION_COLUMNS,
    cycle_events,
    decision_events,
    life_events,
)
from bardo_pipeline.events.stream.from_records import RECORD_COLUMNS, record_events
from bardo_pipeline.inheritance.bundle_files import ENTRIES, EPISODES
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.protocol import LIFE_LOG_SCHEMA

_CHUNK = 1_000  # events that are made at a time


class Fabric:
    """The events of one home under one derivation, for one subscriber: `newest` or `behind` a place, then `fresh`.

    categories, golems: only their events; the place counts all. Raises QueryError for a category that is none.
    """

    def __init__(
        self,
        context: DerivationContext,
        categories: Collection[str] | None = None,
        golems: Collection[str] | None = None,
    ) -> None:
        unknown = sorted(set(categories or ()) - set(CATEGORIES))
        if unknown:
            raise QueryError(f"there is no category {', '.join(unknown)}: take some of {', '.join(CATEGORIES)}")
        self._context = context
        self._names = frozenset(
            n for n, family in EVENTS.items() if categories is None or family.category in categories
        )
        self._golems = None if golems is None else frozenset(golems)
        self._neighbours, self._across = Neighbours(context.log), GapSteps(context)
        self._sources = {
            "life": Source("life", TableCommits(tuple(LIFE_LOG_SCHEMA.names), lambda: _opened(context.home.life))),
            "records": Source("records", RecordCommits(RECORD_COLUMNS, context.log)),
            "decisions": Source("decisions", TableCommits(DECISION_COLUMNS, lambda: self._derived("curation"))),
            "cycles": Source("cycles", TableCommits(CYCLE_COLUMNS, lambda: self._derived("cycles"))),
        }
        self.place = Place()

    def _derived(self, name: str) -> AppendOnlyTable | None:
        """A projection's table, if it was derived: who only watches makes none."""
        if not (self._context.projections.root / name / "_delta_log").is_dir():
            return None
        return self._context.projections.growing(name).table

    def newest(self, count: int) -> Iterator[GolemEvent]:
        """The newest events, as many as are wanted of all categories (those of one's own among them), oldest first."""
        until = {name: source.version for name, source in self._sources.items()}
        self.place = Place(*(Mark(until[name] + 1) for name in SOURCES))
        chosen: list[Commit] = []
        total = 0
        if count:
            streams = (source.backwards(until[name]) for name, source in self._sources.items())
            for commit in heapq.merge(*streams, key=lambda c: (-c.moment, -SOURCES.index(c.source))):
                chosen.append(commit)
                self._mark(commit.source, Mark(commit.version))
                total += len(self._emitted(commit, None))
                if total >= count:
                    break
        chosen.reverse()
        batch = [commit for commit in chosen if commit.source == "records"]
        made = [(commit, self._emitted(commit, batch)) for commit in chosen]
        spare = sum(len(emitted) for _, emitted in made) - count
        for commit, emitted in made:
            yield from self._told(commit, emitted, min(max(spare, 0), len(emitted)))
            spare -= len(emitted)
        for name in SOURCES:
            self._mark(name, Mark(until[name] + 1))

    def behind(self, place: Place) -> Iterator[GolemEvent]:
        """All events behind a place. Raises QueryError for a place that this home cannot tell of (any more)."""
        for name, source in self._sources.items():
            source.check(getattr(place, name))
        self.place = place
        return self.fresh()

    def fresh(self) -> Iterator[GolemEvent]:
        """What came since."""
        until = {name: source.version for name, source in self._sources.items()}
        marks = {name: getattr(self.place, name) for name in SOURCES}
        streams = (source.forwards(marks[name], until[name]) for name, source in self._sources.items())
        for commit in heapq.merge(*streams, key=lambda c: (c.moment, SOURCES.index(c.source))):
            mark = marks[commit.source]
            emitted = self._emitted(commit, commit.batch)
            yield from self._told(commit, emitted, mark.events if commit.version == mark.version else 0)
        for name, version in until.items():
            if version >= marks[name].version:
                self._mark(name, Mark(version + 1))

    def _told(self, commit: Commit, emitted: Emitted, skipped: int) -> Iterator[GolemEvent]:
        """The events of a commit that are wanted, without the first so many."""
        for first in range(skipped, len(emitted), _CHUNK):
            for place, event in emitted.events(first, first + _CHUNK, names=self._names, golems=self._golems):
                self._mark(commit.source, Mark(commit.version, place + 1))
                yield event.model_copy(update={"position": str(self.place)})
        self._mark(commit.source, Mark(commit.version + 1))

    def _mark(self, source: str, mark: Mark) -> None:
        self.place = self.place._replace(**{source: mark})

    def _emitted(self, commit: Commit, batch: Sequence[Commit] | None) -> Emitted:
        """The events of a commit; batch: those read with it, None for a first count without what neighbours tell."""
        rows, policy = commit.rows, self._context.policy
        if commit.source == "life":
            return life_events(rows, self._imports(rows), self._across.completed_by_gaps(rows))
        if commit.source == "decisions":
            return decision_events(rows)
        if commit.source == "cycles":
            return cycle_events(rows)
        pnl, worth = rows["outcome.pnl_impact_micros"], rows["observation.net_asset_value_micros"]
        tiers = importance_tiers(pnl.combine_chunks(), worth.combine_chunks(), policy)
        beside = rows.select(NEIGHBOUR_COLUMNS).slice(0, 0) if batch is None else self._neighbours.of(commit, batch)
        rules, window = policy.fabric, policy.prediction.fitness_window
        across = None if batch is None else self._across.completed_by_records(rows)
        return record_events(rows, beside, tiers, policy=rules, window=window, across=across)

    def _imports(self, events: pa.Table) -> list[dict[str, Any]]:
        """What each import among these life events brought, as its bundle tells."""
        found = []
        for row in events.filter(pc.equal(events["kind"], "KnowledgeReceived"))["received"].to_pylist():
            told: dict[str, Any] = {"content_hash": row["content_hash"], "insights": row["entry_count"]}
            told |= {"episodes": None, "strategies": None, "confidence_override": self._override()}
            try:
                bundle = load_bundle(self._context.home, row["content_hash"])
            except BundleError:
                found.append(told)
                continue
            fragments = sum(entry["kind"] == "strategy_fragment" for entry in bundle.rows(ENTRIES))
            told |= {"episodes": len(bundle.rows(EPISODES)), "strategies": fragments}
            found.append(told | {"insights": row["entry_count"] - fragments})
        return found

    def _override(self) -> float | None:
        rules = self._context.policy.inheritance
        return rules.reset_confidence if rules.weismann == "reset" else None


async def watch(
    home: Home | Path,
    categories: Collection[str] | None = None,
    *,
    golems: Collection[str] | None = None,
    replay: int | None = None,
    since: str | None = None,
    follow: bool = True,
    poll_seconds: float | None = None,
    policy: Policy | None = None,
    embedder: str | None = None,
) -> AsyncIterator[GolemEvent]:
    """The events of a home: the newest, then, for as long as one listens, those that come.

    categories, golems: only their events (all for None). replay: how many of the newest events of all categories are
    looked through first (policy.fabric.replay_events). since: the position of an event, to go on behind it instead of
    a replay. follow: go on when there is no more; a look at the log every poll_seconds while nothing comes.
    Each event comes once. Raises NoHomeError, QueryError.
    """
    root = home if isinstance(home, Path) else home.root
    context = await asyncio.to_thread(DerivationContext.open, root, policy=policy, embedder=embedder)
    rules = context.policy
    fabric = Fabric(context, categories, golems)
    count = rules.fabric.replay_events if replay is None else replay
    events = fabric.newest(count) if since is None else fabric.behind(Place.parse(since))
    while True:
        told = False
        while batch := await asyncio.to_thread(_some, events):
            told = True
            for event in batch:
                yield event
        if not follow:
            return
        if not told:
            await asyncio.sleep(rules.fabric.poll_seconds if poll_seconds is None else poll_seconds)
        events = fabric.fresh()


def _some(events: Iterator[GolemEvent]) -> list[GolemEvent]:
    return list(islice(events, _CHUNK))


def _opened(path: Path) -> AppendOnlyTable | None:
    return AppendOnlyTable(path, LIFE_LOG_SCHEMA, ["golem_id", "kind"]) if (path / "_delta_log").is_dir() else None
