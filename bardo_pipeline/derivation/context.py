"""DerivationContext: the stores that a derivation reads and writes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.curate import PASSES_EDITION
from bardo_pipeline.derivation.active_derivation import FIRST_EMBEDDER, InForce, derivation_id, in_force
from bardo_pipeline.errors import DerivationError, EmbedderMismatch
from bardo_pipeline.events.life.events import ATTRIBUTE_OF
from bardo_pipeline.events.life.override_events import OVERRIDES, Overrides
from bardo_pipeline.events.life.ownership import DECIDING_OWNERS, Ownership
from bardo_pipeline.events.life.proposal_events import Proposed
from bardo_pipeline.events.life.received_knowledge import Arrivals
from bardo_pipeline.events.life.retractions import WITHDRAWALS, LeftOut
from bardo_pipeline.events.record.arrow_columns import rows_of_golems
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.embedder_interface import Embedder
from bardo_pipeline.storage.embedding.embedders import embedder_version, open_embedder
from bardo_pipeline.storage.home import Home, bucket_of
from bardo_pipeline.storage.log.configuration_events import with_recorded_operations
from bardo_pipeline.storage.log.embedding_table import EmbeddingLog
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.owner_log import LogOfOwner
from bardo_pipeline.storage.log.snapshot import LogAsOf, LogOfGolems
from bardo_pipeline.storage.projections.derivation_folders import (
    Description,
    HashBucket,
    bucket_count_of,
    describe,
    divide,
)
from bardo_pipeline.storage.projections.owner_projections import ProjectionsOfOwner
from bardo_pipeline.storage.projections.projections import Projections

DEFAULT_EMBEDDER = FIRST_EMBEDDER

T = TypeVar("T")


@dataclass
class DerivationContext:
    """A home, its log and the projections of one derivation.

    Parameters
    ----------
    projections : may be in another folder than that of the derivation (a rebuild)
    as_of : view of the log to read; None for the whole log
    frozen : reason for which nothing may be derived; None if it may
    beside : a side derivation, not in force
    owner : the owner to whom log and projections are limited; None for the whole home
    bucket : the hash bucket whose golems alone are derived; None for all golems
    """

    home: Home
    log: EventLog
    projections: Projections
    policy: Policy
    embedder_name: str
    derivation_id: str
    as_of: LogAsOf | LogOfGolems | None = None
    frozen: str | None = None
    beside: bool = False
    owner: str | None = None
    bucket: HashBucket | None = None
    _life: pa.Table | None = field(default=None, init=False)
    _life_seen: int | None = field(default=None, init=False)
    _is_held: bool = field(default=False, init=False)
    _life_of: dict[str, pa.Table] = field(default_factory=dict, init=False)
    _current: tuple[pa.Table | None, dict[str | None, InForce]] = field(default_factory=lambda: (None, {}), init=False)
    _born: tuple[pa.Table | None, frozenset[str]] = field(default=(None, frozenset()), init=False)
    _embedders: list[Embedder] = field(default_factory=list, init=False, repr=False, compare=False)
    """The embedder, once it is open."""

    _opening: Lock = field(default_factory=Lock, init=False, repr=False, compare=False)
    _folds: dict[tuple[str, ...], tuple[int, Any]] = field(default_factory=dict, init=False)
    """Kinds of life events to the version of the log and the result of `_fold`."""

    @classmethod
    def open(
        cls,
        root: Path,
        *,
        policy: Policy | None = None,
        embedder: str | None = None,
        beside: Path | None = None,
        owner: str | None = None,
    ) -> Self:
        """Open a home with the derivation in force.

        Raises NoHomeError without a home, QueryError for an unknown owner, EmbedderMismatch for the target embedder of
        an unfinished migration.

        Parameters
        ----------
        policy : use this policy instead of the adopted one
        embedder : open the derivation of this embedder
        beside : folder of the projections, instead of the derivation's folder
        owner : limit log and projections to this owner
        """
        home = Home.open(root)
        log = EventLog(home, policy) if owner is None else LogOfOwner(home, policy, owner=owner)
        seen, events = log.life_version, log.life()
        if policy is None:
            adopted, configured = (_of_kind(events, k) for k in ("DerivationAdopted", "ConfigurationAdopted"))
            current = in_force(adopted, embedder)
            current = replace(current, policy=with_recorded_operations(current.policy, configured))
        else:
            name = embedder or DEFAULT_EMBEDDER
            current = InForce(derivation_id(policy, embedder_version(name)), policy, name)
        _refuse_unfinished_migration(home, _of_kind(events, "DerivationAdopted"), embedder)
        folder = beside if beside is not None else home.derivation(current.derivation_id)
        projections = _projections(folder, log, home.bucket_count, current.policy)
        identity = (current.policy, current.embedder, current.derivation_id)
        context = cls(home, log, projections, *identity, frozen=current.frozen, owner=owner)
        context._life, context._life_seen = events, seen
        return context

    @cached_property
    def whole(self) -> DerivationContext:
        """The same derivation of the whole home. Only a view of the whole home is derived into."""
        if self.owner is None:
            return self
        root, count = self.projections.root, self.home.bucket_count
        log, projections = EventLog(self.home, self.policy), Projections(root, count, self.policy)
        return replace(self, log=log, projections=projections, owner=None)

    @cached_property
    def embedding_log(self) -> EmbeddingLog:
        """Drift checks and migrations of embedders."""
        return EmbeddingLog(self.home, self.policy)

    @property
    def is_in_force(self) -> bool:
        """Whether these projections are in force: not a side derivation, a rebuild or a former derivation."""
        if self.beside or self.as_of or self.projections.root != self.home.derivation(self.derivation_id):
            return False
        has_adoption = self.life("DerivationAdopted").num_rows > 0
        return not has_adoption or self.current(self.embedder_name).derivation_id == self.derivation_id

    def current(self, embedder: str | None = None) -> InForce:
        """Return the derivation in force, or that of an embedder; cached until another one is adopted."""
        adoptions = self.life("DerivationAdopted")
        if self._current[0] is not adoptions:
            self._current = adoptions, {}
        if embedder not in self._current[1]:
            self._current[1][embedder] = in_force(adoptions, embedder)
        return self._current[1][embedder]

    @property
    def source(self) -> EventLog | LogAsOf | LogOfGolems:
        """The log or the view from which records and life events are read."""
        return self.as_of or self.log

    def usual_life(self) -> pa.Table:
        """Return all life events except those of FREQUENT kinds. Repeated calls read only new events."""
        version = self._life_seen if self._is_held else self.source.life_version
        if version != self._life_seen:
            fresh = self.source.life(since_version=self._life_seen)
            if self._life is not None and not fresh.num_rows:  # only frequent kinds were added
                self._life_seen = version
        if version != self._life_seen:
            if self._life is not None:  # events written during the last read are returned again
                fresh = fresh.filter(pc.invert(pc.is_in(fresh["event_id"], value_set=self._life["event_id"])))
            known = pa.concat_tables([self._life, fresh]) if self._life is not None else fresh
            unique = known.group_by("event_id", use_threads=False).aggregate([("event_id", "count")])
            assert unique.num_rows == known.num_rows, "the log repeats a life event"
            self._life, self._life_seen, self._life_of = known.combine_chunks(), version, {}
        assert self._life is not None, "a log has its life table"
        return self._life

    def life(self, kind: str, golems: Collection[str] | None = None) -> pa.Table:
        """Return life events of one kind, except FREQUENT ones, of all golems or of these; see `usual_life`."""
        life = self.usual_life()
        if kind not in self._life_of:
            self._life_of[kind] = _of_kind(life, kind)
        events = self._life_of[kind]
        return events if golems is None else rows_of_golems(events, golems)

    @contextmanager
    def held_life(self) -> Iterator[None]:
        """Inside the block, `life` returns no event that is recorded after the first call."""
        self._is_held = self._life_seen is not None
        try:
            yield
        finally:
            self._is_held = False

    def golem_ids(self) -> frozenset[str]:
        """Return the golems that were born; cached until a life event is read."""
        births = self.life("GolemBorn")
        if self._born[0] is not births:
            self._born = births, frozenset(births["golem_id"].to_pylist())
        return self._born[1]

    def life_fields(self, kind: str, *fields: str, golems: Collection[str] | None = None) -> pa.Table:
        """Return life events of one kind as golem_id, event_id, observed_at and these fields of their content."""
        events = self.life(kind)
        content = events[ATTRIBUTE_OF[kind]].combine_chunks()
        columns = {name: events[name] for name in ("golem_id", "event_id", "observed_at")}
        rows = pa.table(columns | {name: pc.struct_field(content, name) for name in fields})
        return rows if golems is None else rows_of_golems(rows, golems)

    def left_out(self) -> LeftOut:
        """Return all retractions of the log, also for a view of an earlier time."""
        return self._fold(WITHDRAWALS, LeftOut.of, self.log)

    def ownership(self) -> Ownership:
        """Return the owners of all golems and bundles, also for a view of one owner."""
        return self.whole._fold(DECIDING_OWNERS, Ownership.of, self.whole.log)

    def overrides(self) -> Overrides:
        """Return the overrides. They are recorded before their cycle closes, so read the closed cycles first."""
        return self._fold(tuple(OVERRIDES), Overrides.of, self.source)

    def proposed(self) -> Proposed:
        """Return the proposals of models. They precede their cycle's close: read the closed cycles first."""
        return self._fold(("ModelAsked",), Proposed.of, self.source)

    def arrivals(self) -> Arrivals:
        """Return the knowledge received after birth, recorded before its cycle closes."""
        return self._fold(("KnowledgeReceived",), Arrivals.of, self.source)

    def _fold(
        self, kinds: tuple[str, ...], fold: Callable[[pa.Table], T], source: EventLog | LogAsOf | LogOfGolems
    ) -> T:
        """Return a fold of the life events of these kinds, cached by the version of the source."""
        version = source.life_version
        if kinds not in self._folds or self._folds[kinds][0] != version:
            read = self.life if source is self.source else source.life
            self._folds[kinds] = version, fold(pa.concat_tables([read(kind) for kind in kinds]))
        return self._folds[kinds][1]

    @property
    def embedder(self) -> Embedder:
        """The embedder, opened on first use by one thread, for which the others wait."""
        with self._opening:
            if not self._embedders:
                self._embedders.append(open_embedder(self.embedder_name, self.home.models))
            return self._embedders[0]

    def share_embedder(self, embedder: Embedder) -> None:
        """Use an embedder that other contexts use too."""
        self._embedders[:] = [embedder]

    @cached_property
    def text_index_key(self) -> tuple[str, ...]:
        """Home, embedder and settings that an index of stored texts depends on."""
        # A copy of a home has the same table id, so the folder tells them apart.
        place, policy = str(self.home.root.resolve()), self.policy
        return place, self.log.table_id, self.embedder.identity.key, policy.hash, policy.search.model_dump_json()

    def in_bucket(self, bucket: HashBucket) -> DerivationContext:
        """Return the same stores for the derivation of one hash bucket."""
        limited = copy.copy(self)
        limited.bucket = bucket
        return limited

    @property
    def part(self) -> str:
        """Suffix of what a hash bucket saves under a name of its own; empty for all golems."""
        return f"-{self.bucket.number}-of-{self.bucket.count}" if self.bucket and self.bucket.count > 1 else ""

    def holds(self, golem_id: str) -> bool:
        """Return whether this context derives a golem."""
        return self.bucket is None or self.holds_bucket(bucket_of(golem_id, self.home.bucket_count))

    def holds_bucket(self, bucket: int) -> bool:
        """Return whether this context derives the golems of a bucket of the log."""
        return self.bucket is None or bucket % self.bucket.count == self.bucket.number

    def by_bucket(self) -> list[DerivationContext]:
        """Return a context for each hash bucket into which the golems are divided; itself if they are not divided."""
        count = bucket_count_of(self.projections.root)
        if self.bucket is not None or count == 1:
            return [self]
        return [self.in_bucket(HashBucket(number, count)) for number in range(count)]

    @contextmanager
    def deriving(self) -> Iterator[None]:
        """Hold the lock for deriving into these projections; that of a bucket excludes all but other buckets.

        Raises DerivationError if they are frozen, or if another process divides the golems otherwise meanwhile.
        """
        assert self.owner is None, "a view of one owner is read, never derived into: use `whole`"
        if self.frozen is not None:
            raise DerivationError(self.frozen)
        root, lock, bucket = self.projections.root, f"derive-{self.projections.root.name}", self.bucket
        root.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            if bucket is not None:
                if bucket_count_of(root) != bucket.count:
                    with self.home.lock(lock):
                        divide(root, bucket.count)
                held.enter_context(self.home.lock(lock, shared=True))
                held.enter_context(self.home.lock(f"{lock}-{bucket.number}"))
                if (count := bucket_count_of(root)) != bucket.count:
                    raise DerivationError(f"another process derives {count} buckets, not {bucket.count}: derive again")
            else:
                held.enter_context(self.home.lock(lock))
            if root.parent == self.home.derivations:
                describe(root, self.description)
            yield

    @property
    def description(self) -> Description:
        """Description of these projections for their folder."""
        golems = self.as_of.golems if isinstance(self.as_of, LogOfGolems) else None
        policy, name = self.policy, self.embedder_name
        return Description(self.derivation_id, policy.content, policy.hash, PASSES_EDITION, name, golems)


def _projections(folder: Path, log: EventLog, bucket_count: int, policy: Policy) -> Projections:
    if isinstance(log, LogOfOwner):
        return ProjectionsOfOwner(folder, bucket_count, policy, owner=log.owner, golems=lambda: log.golems)
    return Projections(folder, bucket_count, policy)


def _of_kind(life: pa.Table, kind: str) -> pa.Table:
    """Return the events of a kind; the check for none avoids filtering nested columns."""
    is_kind = pc.equal(life["kind"], kind)
    return life.filter(is_kind) if pc.any(is_kind, min_count=0).as_py() else life.slice(0, 0)


def _refuse_unfinished_migration(home: Home, adoptions: pa.Table, embedder: str | None) -> None:
    """Raise EmbedderMismatch for the target embedder of an unfinished migration."""
    if embedder is None:
        return
    waiting = EmbeddingLog(home).unfinished(adoptions)
    if waiting is not None and waiting.name == embedder:
        current = in_force(adoptions).embedder
        raise EmbedderMismatch(
            f"the migration from {current} to {embedder} is half done: `bardo reembed` goes on with it; until it ends "
            f"{current} is in force"
        )
