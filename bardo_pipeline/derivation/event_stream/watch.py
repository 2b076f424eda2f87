"""Subscription to typed events: the newest events or those after a cursor, then new ones.

Events are ordered by commit within a source, by commit time between sources (ties as in SOURCES), and by the order of
Emitted within a commit. A subscription only reads; the home keeps no state for it and no writer waits for it.
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
from bardo_pipeline.derivation.event_stream.adjacent_ticks import GapSteps, Neighbours
from bardo_pipeline.derivation.event_stream.sources import (
    SOURCES,
    Commit,
    Mark,
    Place,
    RecordCommits,
    Source,
    TableCommits,
)
from bardo_pipeline.derivation.incremental.received_posts import unpacked_posts
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle
from bardo_pipeline.errors import BundleError, QueryError
from bardo_pipeline.events.stream.catalogue import CATEGORIES, EVENTS, GolemEvent
from bardo_pipeline.events.stream.event_table import NEIGHBOUR_COLUMNS, Emitted
from bardo_pipeline.events.stream.from_projections import (
    CYCLE_COLUMNS,
    DECISION_COLUMNS,
    DREAM_COLUMNS,
    HYPOTHESIS_COLUMNS,
    cycle_events,
    decision_events,
    dream_events,
    hypothesis_events,
    life_events,
)
from bardo_pipeline.events.stream.from_records import RECORD_COLUMNS, record_events
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.inheritance.bundle_files import ENTRIES, EPISODES
from bardo_pipeline.katabasis.public_posts import Pheromone
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.owner_log import golems_in_view
from bardo_pipeline.storage.log.protocol import LIFE_LOG_SCHEMA

_CHUNK = 1_000  # events built at a time


class Fabric:
    """The events of a home under one derivation, for one subscriber: `newest` or `behind` a cursor, then `fresh`.

    categories, golems: return only their events; the cursor counts all. Raises QueryError for an unknown category.
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
        self.golems = golems
        self._neighbours, self._across = Neighbours(context.log), GapSteps(context)
        self._sources = {
            "life": Source("life", TableCommits(tuple(LIFE_LOG_SCHEMA.names), lambda: _open_life(context.home.life))),
            "records": Source("records", RecordCommits(RECORD_COLUMNS, context.log)),
            "decisions": Source("decisions", TableCommits(DECISION_COLUMNS, lambda: self._derived("curation"))),
            "cycles": Source("cycles", TableCommits(CYCLE_COLUMNS, lambda: self._derived("cycles"))),
            "hypotheses": Source("hypotheses", TableCommits(HYPOTHESIS_COLUMNS, lambda: self._derived("hypotheses"))),
            "dreams": Source("dreams", TableCommits(DREAM_COLUMNS, lambda: self._derived("dreams"))),
        }
        self.place = Place()

    def _derived(self, name: str) -> AppendOnlyTable | None:
        """Return the table of a projection if it exists; watching does not create tables."""
        if not (self._context.projections.root / name / "_delta_log").is_dir():
            return None
        return self._context.projections.growing(name).table

    def newest(self, count: int) -> Iterator[GolemEvent]:
        """Yield the matching events among the newest `count` events of all categories, oldest first."""
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
        emissions = [(commit, self._emitted(commit, batch)) for commit in chosen]
        surplus = sum(len(emitted) for _, emitted in emissions) - count
        for commit, emitted in emissions:
            yield from self._matching(commit, emitted, min(max(surplus, 0), len(emitted)))
            surplus -= len(emitted)
        for name in SOURCES:
            self._mark(name, Mark(until[name] + 1))

    def behind(self, place: Place) -> Iterator[GolemEvent]:
        """Yield all events after a cursor. Raises QueryError for a cursor that this home cannot continue."""
        for name, source in self._sources.items():
            source.check(getattr(place, name))
        self.place = place
        return self.fresh()

    def fresh(self) -> Iterator[GolemEvent]:
        """Yield the new events."""
        until = {name: source.version for name, source in self._sources.items()}
        marks = {name: getattr(self.place, name) for name in SOURCES}
        streams = (source.forwards(marks[name], until[name]) for name, source in self._sources.items())
        for commit in heapq.merge(*streams, key=lambda c: (c.moment, SOURCES.index(c.source))):
            mark = marks[commit.source]
            emitted = self._emitted(commit, commit.batch)
            yield from self._matching(commit, emitted, mark.events if commit.version == mark.version else 0)
        for name, version in until.items():
            if version >= marks[name].version:
                self._mark(name, Mark(version + 1))

    def _matching(self, commit: Commit, emitted: Emitted, skipped: int) -> Iterator[GolemEvent]:
        """Yield the matching events of a commit after the first `skipped`."""
        for first in range(skipped, len(emitted), _CHUNK):
            for place, event in emitted.events(first, first + _CHUNK, names=self._names, golems=self.golems):
                self._mark(commit.source, Mark(commit.version, place + 1))
                yield event.model_copy(update={"position": str(self.place)})
        self._mark(commit.source, Mark(commit.version + 1))

    def _mark(self, source: str, mark: Mark) -> None:
        self.place = self.place._replace(**{source: mark})

    def _emitted(self, commit: Commit, batch: Sequence[Commit] | None) -> Emitted:
        """Return the events of a commit. batch: commits read with it; None for a count without neighbouring records."""
        rows, policy = commit.rows, self._context.policy
        if commit.source == "life":
            return life_events(rows, self._imports(rows), self._across.completed_by_gaps(rows), list(_deposits(rows)))
        if commit.source == "decisions":
            return decision_events(rows)
        if commit.source == "cycles":
            return cycle_events(rows)
        if commit.source == "hypotheses":
            return hypothesis_events(rows)
        if commit.source == "dreams":
            return dream_events(rows)
        pnl, worth = rows["outcome.pnl_impact_micros"], rows["observation.net_asset_value_micros"]
        tiers = importance_tiers(pnl.combine_chunks(), worth.combine_chunks(), policy)
        neighbours = rows.select(NEIGHBOUR_COLUMNS).slice(0, 0) if batch is None else self._neighbours.of(commit, batch)
        rules, window = policy.fabric, policy.prediction.fitness_window
        across = None if batch is None else self._across.completed_by_records(rows)
        return record_events(rows, neighbours, tiers, policy=rules, window=window, across=across)

    def _imports(self, events: pa.Table) -> list[dict[str, Any]]:
        """Return the payload of each import among these life events, from its bundle."""
        imports = []
        for row in events.filter(pc.equal(events["kind"], "KnowledgeReceived"))["received"].to_pylist():
            payload: dict[str, Any] = {"content_hash": row["content_hash"], "insights": row["entry_count"]}
            payload |= {"episodes": None, "strategies": None, "confidence_override": self._override()}
            try:
                bundle = load_bundle(self._context.home, row["content_hash"])
            except BundleError:
                imports.append(payload)
                continue
            fragments = sum(entry["kind"] == "strategy_fragment" for entry in bundle.rows(ENTRIES))
            payload |= {"episodes": len(bundle.rows(EPISODES)), "strategies": fragments}
            imports.append(payload | {"insights": row["entry_count"] - fragments})
        return imports

    def _override(self) -> float | None:
        rules = self._context.policy.inheritance
        return rules.reset_confidence if rules.weismann == "reset" else None


def _deposits(events: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield each pheromone among received posts, once for each golem that heard it."""
    rows = events.filter(pc.equal(events["kind"], "PostsReceived")).select(["event_id", "observed_at", "posts"])
    for row in rows.to_pylist():
        found = [post.facts for post in unpacked_posts(row["posts"]["content"]) if isinstance(post.facts, Pheromone)]
        for golem_id in row["posts"]["golem_ids"]:
            for place, facts in enumerate(found):
                stated = facts.model_dump() | {"intensity": facts.intensity_ppm / PPM}
                yield stated | {
                    "event_id": row["event_id"],
                    "place": place,
                    "golem_id": golem_id,
                    "at": row["observed_at"],
                }


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
    owner: str | None = None,
) -> AsyncIterator[GolemEvent]:
    """Yield the events of a home: a replay of the newest, then new ones as they are written, each once.

    Raises NoHomeError, QueryError.

    Parameters
    ----------
    categories, golems : return only their events; None for all
    replay : number of newest events of all categories to search first (policy.fabric.replay_events)
    since : position of an event, to continue after it instead of a replay
    follow : wait for new events, polling the log every poll_seconds
    owner : return only events of this owner's golems
    """
    root = home if isinstance(home, Path) else home.root
    context = await asyncio.to_thread(DerivationContext.open, root, policy=policy, embedder=embedder, owner=owner)
    rules = context.policy
    fabric = Fabric(context.whole, categories, golems_in_view(context.log, golems))
    count = rules.fabric.replay_events if replay is None else replay
    events = fabric.newest(count) if since is None else fabric.behind(Place.parse(since))
    while True:
        waited = True
        while batch := await asyncio.to_thread(list, islice(events, _CHUNK)):
            waited = False
            for event in batch:
                yield event
        if not follow:
            return
        if waited:
            await asyncio.sleep(rules.fabric.poll_seconds if poll_seconds is None else poll_seconds)
        fabric.golems = golems_in_view(context.log, golems)  # the owner may have more golems by now
        events = fabric.fresh()


def _open_life(path: Path) -> AppendOnlyTable | None:
    return AppendOnlyTable(path, LIFE_LOG_SCHEMA, ["golem_id", "kind"]) if (path / "_delta_log").is_dir() else None
