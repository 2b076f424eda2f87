"""The index of texts that a process keeps for a home, shared by all its questions.

It is extended by the texts that were recorded, and the entries and episodes that were derived, since the last question.
Source: TOOLS (memory_search); ADR 0080, 0081.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from threading import Lock, RLock, local

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Float32Array, Float64Array
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import ancestors, birth_rows, predecessors
from bardo_pipeline.derivation.memory.derived_texts import DerivedTexts
from bardo_pipeline.derivation.memory.embed_texts import embed_new
from bardo_pipeline.errors import EmbeddingPaused
from bardo_pipeline.grimoire.entry_columns import micros
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.exact_vectors import exact
from bardo_pipeline.retrieval.hybrid_search import Candidates
from bardo_pipeline.retrieval.insight_votes import KnownInsight, insights_in
from bardo_pipeline.retrieval.text_docs import docs_of
from bardo_pipeline.retrieval.text_index import Doc, TextIndex
from bardo_pipeline.retrieval.text_ranking import crossing, has_facet
from bardo_pipeline.retrieval.text_scoring import Scope

_INDEXES_MAX = 8
_QUESTIONS_MAX = 4_096
_KEPT_TEXTS_MAX = 1_000_000  # in the scopes and among the candidates that are kept, up to 350 bytes each
_EMBEDDED_TOGETHER = 32  # texts after which the model is free for a question
_LOOK_UP_FROM = 64  # from this number of texts on, their vectors are looked for in the log before they are embedded


@dataclass
class SharedTexts:
    """The index of a home, an embedder and a policy in this process.

    key: of the context. version: of the life events in it. fresh: golems with texts that `embed_stored` has not read
    yet. embedding: held by the thread that embeds, which may take `mutex` then; the holder of `mutex` never waits for
    it. compared: relevance computed in advance, by the scope's id and the question.
    """

    key: tuple[str, ...]
    index: TextIndex
    version: int = -1
    fresh: set[str] = field(default_factory=set)
    embedding: Lock = field(default_factory=Lock)
    _looked_up: set[str] = field(default_factory=set)
    _insights: dict[str, tuple[tuple[int, int], dict[str, KnownInsight]]] = field(default_factory=dict)
    _inherited: dict[str, tuple[int, int]] = field(default_factory=dict)
    _lives: tuple[int, int] = (0, 0)  # deaths and births from which `_heirs` is made
    _heirs: list[tuple[int, str, str, int, int]] = field(default_factory=list)  # generation, heir, dead, death, close
    _operations: int = 0  # operations on insights from which `_replaced` is made
    _replaced: dict[str, dict[str, int]] = field(default_factory=dict)
    _derived: OrderedDict[str, DerivedTexts] = field(default_factory=OrderedDict)
    _questions: OrderedDict[str, Float32Array] = field(default_factory=OrderedDict)
    _scopes: OrderedDict[tuple[str, ...], tuple[tuple[int, ...], Scope]] = field(default_factory=OrderedDict)
    _candidates: OrderedDict[Hashable, tuple[Hashable, Scope, Candidates]] = field(default_factory=OrderedDict)
    compared: dict[tuple[int, str], Float64Array] = field(default_factory=dict)
    mutex: RLock = field(default_factory=RLock)

    def golem_ids(self) -> list[str]:
        """Return the golems with stored texts."""
        return [key for key in self.index.keys if "\x1f" not in key]

    def derived(self, context: DerivationContext) -> DerivedTexts:
        """Return the entries and episodes of the context's derivation, of all golems, up to now."""
        name = str(context.projections.root)
        if name not in self._derived:
            self._derived[name] = DerivedTexts(name, self.index)
        if getattr(_local, "texts", None) is not self:
            self._derived[name].refresh(context.whole)
        return self._derived[name]

    def refresh(self, context: DerivationContext, now: datetime) -> None:
        """Add the texts that were recorded since the last call, of all golems."""
        log = context.whole.log
        if log.life_version == self.version:
            return
        before, is_collecting = self.version, gc.isenabled()
        self.version, rows = log.texts(None if before < 0 else before)
        gc.disable()  # each pass of the collector would visit all texts made so far
        try:
            self._add(context, rows, is_first=before < 0)
            operations = context.whole.life("InsightManaged").num_rows
            if operations != self._operations:
                self._replaced, self._operations = _replaced(context), operations
            self._inherit(context, self._replaced, now)
            for golem_id, until_us in self._replaced.items():
                self.index.withdraw(golem_id, until_us)
        except BaseException:
            self.version = before  # the next call reads these texts again
            raise
        finally:
            if is_collecting:
                gc.enable()

    def _add(self, context: DerivationContext, rows: pa.Table, *, is_first: bool) -> None:
        """Add recorded texts; those that the index has are left out."""
        by_golem: dict[str, list[Doc]] = {}
        has_insight = pc.any(pc.equal(pc.struct_field(rows["text_stored"], "sort"), "insight")).as_py()
        stated = set(_operations(context)["text_id"].to_pylist()) if has_insight else set()
        for golem_id, doc in docs_of(rows, context.policy, stated):
            by_golem.setdefault(golem_id, []).append(doc)
        if not is_first:
            self.fresh.update(by_golem)
            self._looked_up.update(golem_id for golem_id in by_golem if not self.index.rows(golem_id))
        for golem_id, docs in by_golem.items():
            self.index.add(golem_id, docs)

    def _inherit(self, context: DerivationContext, replaced: Mapping[str, Mapping[str, int]], now: datetime) -> None:
        """Give each heir the texts that cross the death of its predecessor, elders first.

        An heir without a bundle inherits no text. A text of the predecessor that arrives late crosses then. A death by
        silence lies at the last record, but the memory is open until it is declared: texts told between them cross.
        Texts whose words an edit `replaced` do not.
        """
        whole = context.whole
        deaths, births = whole.life("DeathDeclared"), whole.life("GolemBorn")
        if (deaths.num_rows, births.num_rows) != self._lives:
            observed_us, declared_us = (micros(deaths, name) for name in ("observed_at", "recorded_at"))
            ends = np.stack([observed_us, np.maximum(observed_us, declared_us)], axis=1).tolist()
            died = dict(zip(deaths["golem_id"].to_pylist(), ends, strict=True))
            born = birth_rows(whole)
            self._heirs = sorted(
                (birth["generation"], heir, birth["predecessor_id"], *died[birth["predecessor_id"]])
                for heir, birth in born.items()
                if birth["bundle_hash"] is not None and birth["predecessor_id"] in died
            )
            self._lives = deaths.num_rows, births.num_rows
        for _, heir, dead, died_us, closed_us in self._heirs:
            state = (died_us, len(self.index.rows(dead)))
            if self._inherited.get(heir, (died_us, 0)) == state:
                continue
            with suppress(EmbeddingPaused):
                self.embed_all(whole, [dead], now)
            self.vote(whole, [dead])
            self.index.withdraw(dead, replaced.get(dead, {}))
            (view,) = self.index.views([dead])
            self.index.inherit(heir, dead, crossing(view, died_us, closed_us, self.index.code_of, context.policy))
            self._inherited[heir] = state

    def embed(self, context: DerivationContext, keys: Collection[str], now: datetime) -> None:
        """Give vectors to waiting texts of these shards: from the log, and the newest ones by the model.

        While another thread embeds, or if the model has drifted, texts stay waiting; words find them meanwhile.
        """
        if not self.index.waiting_count(keys) or not self.embedding.acquire(blocking=False):
            return
        try:
            with suppress(EmbeddingPaused):
                self.embed_all(context, keys, now, context.policy.search.embedded_at_once)
        finally:
            self.embedding.release()

    def embed_insights(self, context: DerivationContext, keys: Collection[str], now: datetime) -> None:
        """Give vectors to texts of these shards if an insight among them waits, because its votes depend on vectors."""
        for view in self.index.views(keys):
            if (has_facet(view, "sort", ["insight"], self.index.code_of) & view.is_waiting[: view.size]).any():
                self.embed(context, [view.key], now)

    def embed_all(
        self, context: DerivationContext, keys: Collection[str], now: datetime, limit: int | None = None
    ) -> None:
        """Give vectors to waiting texts of these shards. Raises EmbeddingPaused if the model has drifted.

        Parameters
        ----------
        limit : number of texts that the model embeds, the newest ones; None for all
        """
        newest = self.without_vector(context, keys, limit)
        if newest:
            self.index.hold(keys, *embed_new(context, newest, now))

    def without_vector(
        self, context: DerivationContext, keys: Collection[str], limit: int | None = None
    ) -> dict[str, str]:
        """Return the newest texts of these shards that have no vector in the log either, by hash."""
        if self.index.waiting_count(keys) >= (_LOOK_UP_FROM if self._looked_up.issuperset(keys) else 1):
            self.hold_recorded(keys, context.log.vector_parts(context.embedder.identity.key))
        self._looked_up.update(keys)
        waiting = self.index.waiting(keys)
        first = 0 if limit is None else max(len(waiting) - limit, 0)
        return dict(list(waiting.items())[first:])

    def hold_recorded(self, keys: Collection[str], vectors: Iterable[pa.Table]) -> None:
        """Store recorded vectors (columns text_hash, vector) of waiting texts of these shards."""
        for part in vectors:
            matrix = part["vector"].combine_chunks().flatten().to_numpy()
            self.index.hold(keys, part["text_hash"].to_pylist(), matrix.reshape(-1, self.index.dimension))
        self._looked_up.update(keys)

    def vote(self, context: DerivationContext, keys: Collection[str]) -> None:
        """Give the insights of these golems the confidence that operations on them leave."""
        for golem_id in set(_operations(context)["golem_id"].to_pylist()).intersection(keys):
            known = self.insights(context, golem_id).values()
            self.index.vote(
                golem_id, {text_id: insight.confidence for insight in known for text_id in insight.text_ids}
            )

    def insights(
        self, context: DerivationContext, golem_id: str, moment: datetime | None = None
    ) -> dict[str, KnownInsight]:
        """Return the insights of a golem's own words by id, at a moment or with all that is recorded."""
        if moment is not None:
            return self._folded_insights(context, golem_id, moment)
        state = self.version, self.index.waiting_count([golem_id])
        if self._insights.get(golem_id, (None, {}))[0] != state:
            self._insights[golem_id] = state, self._folded_insights(context, golem_id, None)
        return self._insights[golem_id][1]

    def _folded_insights(
        self, context: DerivationContext, golem_id: str, moment: datetime | None
    ) -> dict[str, KnownInsight]:
        operations = [
            row["insight"] | {"at": row["observed_at"], "event_id": row["event_id"]}
            for row in context.whole.life("InsightManaged", [golem_id]).to_pylist()
            if moment is None or row["observed_at"] <= moment
        ]
        known: dict[str, KnownInsight] = {}
        for view in self.index.views([golem_id]):
            rows = np.flatnonzero(has_facet(view, "sort", ["insight"], self.index.code_of)).tolist()
            told = [row for row in rows if moment is None or view.docs[row].at <= moment]
            known = insights_in(view, told, operations, context.policy)
        return known

    def vectors_of(self, context: DerivationContext, questions: Sequence[str]) -> Float32Array:
        """Return the exact vectors of questions; those of recent questions are kept."""
        unknown = [question for question in dict.fromkeys(questions) if question not in self._questions]
        if unknown:
            embedded = exact(np.asarray(context.embedder.embed(unknown), np.float32))
            self._questions |= zip(unknown, embedded, strict=True)
        vectors = np.zeros((len(questions), context.embedder.identity.dimension), np.float32)
        for place, question in enumerate(questions):
            self._questions.move_to_end(question)
            vectors[place] = self._questions[question]
        while len(self._questions) > _QUESTIONS_MAX:
            self._questions.popitem(last=False)
        return vectors

    def scope_of(self, keys: tuple[str, ...], policy: Policy) -> Scope:
        """Return the texts of these shards as the scope of a question, kept until one of them changes."""
        editions = self.index.editions(keys)
        kept = self._scopes.get(keys)
        if kept is None or kept[0] != editions:
            kept = editions, Scope.of(self.index.views(keys), policy)
            self._scopes[keys] = kept
        self._scopes.move_to_end(keys)
        while len(self._scopes) > 1 and sum(scope.size for _, scope in self._scopes.values()) > _KEPT_TEXTS_MAX:
            self._scopes.popitem(last=False)
        return kept[1]

    def kept_candidates(self, key: Hashable, state: Hashable) -> tuple[Scope, Candidates] | None:
        """Return the kept rows from which a search chooses, with their scope; None after a change of the state."""
        kept = self._candidates.get(key)
        if kept is None or kept[0] != state:
            return None
        self._candidates.move_to_end(key)
        return kept[1:]

    def keep_candidates(self, key: Hashable, state: Hashable, scope: Scope, candidates: Candidates) -> None:
        """Keep rows for the next search; drop the least recently used ones beyond _KEPT_TEXTS_MAX texts."""
        self._candidates.pop(key, None)
        self._candidates[key] = state, scope, candidates
        while len(self._candidates) > 1 and sum(s.size for _, s, _ in self._candidates.values()) > _KEPT_TEXTS_MAX:
            self._candidates.popitem(last=False)


_indexes: OrderedDict[tuple[str, ...], SharedTexts] = OrderedDict()
_indexes_mutex = RLock()
_local = local()


@contextmanager
def held_state(texts: SharedTexts) -> Iterator[None]:
    """Inside the block this thread reads no newer text and no newer derived table into an index."""
    _local.texts, _local.selections = texts, {}
    try:
        yield
    finally:
        _local.texts = _local.selections = None


def held_selections(texts: SharedTexts) -> dict[Hashable, tuple[Scope, Candidates]] | None:
    """Return what searches of this thread opened by their parameters in a block of `held_state`; None outside of it."""
    return _local.selections if getattr(_local, "texts", None) is texts else None


@contextmanager
def shared_texts(context: DerivationContext, now: datetime) -> Iterator[SharedTexts]:
    """Yield the index of the context's home, with all texts that are recorded, for this thread alone."""
    held: SharedTexts | None = getattr(_local, "texts", None)
    if held is not None and held.key == context.text_index_key:
        with held.mutex:
            yield held
        return
    key, policy, identity = context.text_index_key, context.policy, context.embedder.identity
    with _indexes_mutex:
        is_older = key in _indexes and context.whole.log.life_version < _indexes[key].version  # a restored home
        if key not in _indexes or is_older:
            _indexes[key] = SharedTexts(key, TextIndex(identity.dimension, policy.search.similarity))
            if len(_indexes) > _INDEXES_MAX:
                _indexes.popitem(last=False)
        _indexes.move_to_end(key)
        texts = _indexes[key]
    with texts.mutex:
        texts.refresh(context, now)
        yield texts


def open_texts(context: DerivationContext, now: datetime) -> None:
    """Read all texts and their recorded vectors at the same time, so that the first question does not wait for them."""
    with ThreadPoolExecutor(1) as reader:
        vectors = reader.submit(lambda: list(context.log.vector_parts(context.embedder.identity.key)))
        with shared_texts(context, now) as texts:
            texts.derived(context)
            texts.hold_recorded(texts.index.keys, vectors.result())


def embed_stored(
    context: DerivationContext, now: datetime, golem_ids: Collection[str] = (), *, waits: bool = True
) -> bool:
    """Give vectors to texts of these golems, and with them to a limited number of texts that were just recorded.

    Returns whether texts are left for a further call. The index is free for questions while the model works. If the
    model has drifted, texts stay waiting.

    Parameters
    ----------
    waits : wait for another thread that embeds; otherwise the texts stay waiting
    """
    with shared_texts(context, now) as texts:
        embedding = texts.embedding
    if not embedding.acquire(blocking=waits):
        return False
    is_paused = False
    try:
        with shared_texts(context, now) as texts:
            others, limit = texts.fresh.difference(golem_ids), context.policy.search.embedded_at_once
            newest = texts.without_vector(context, golem_ids) | texts.without_vector(context, others, limit)
            keys = others.union(golem_ids)
            texts.fresh = others if texts.index.waiting_count(keys) > len(newest) else set()
        for batch in _batches(newest):
            try:
                hashes, vectors = embed_new(context, batch, now)
            except EmbeddingPaused:
                is_paused = True
                break
            with texts.mutex:
                texts.index.hold(keys, hashes, vectors)
    finally:
        embedding.release()
    return bool(texts.fresh) and not is_paused


def _batches(texts: dict[str, str]) -> Iterator[dict[str, str]]:
    rest = iter(texts.items())
    while batch := dict(islice(rest, _EMBEDDED_TOGETHER)):
        yield batch


def holds_insights(context: DerivationContext, golem_ids: Collection[str]) -> bool:
    """Return whether one of these golems, or an ancestor, may have stored an insight; without opening an index."""
    if context.text_index_key in _indexes:
        return True
    predecessor_of = predecessors(context.whole)
    line = {golem_id for heir in golem_ids for golem_id in ancestors(predecessor_of, heir)}
    rows = context.whole.log.texts(columns=["golem_id", "text_stored.sort"])[1]
    insights = rows.filter(pc.equal(rows["text_stored.sort"], "insight"))
    return not line.isdisjoint(insights["golem_id"].unique().to_pylist())


def _operations(context: DerivationContext) -> pa.Table:
    """Return the golem and the text of each operation on an insight, in the whole home."""
    return context.whole.life_fields("InsightManaged", "text_id")


def _replaced(context: DerivationContext) -> dict[str, dict[str, int]]:
    """Return the texts whose words an edit of their insight replaced, by golem, and when, in UTC microseconds."""
    operations = context.whole.life_fields("InsightManaged", "operation", "number", "insight_id", "text_id")
    edits = operations.append_column("at_us", operations["observed_at"].cast(pa.int64()))
    edits = edits.filter(pc.and_(pc.equal(edits["operation"], "EDIT"), pc.is_valid(edits["text_id"])))
    newest, until_us = dict[str, str](), dict[str, dict[str, int]]()
    for row in edits.sort_by([("at_us", "ascending"), ("number", "ascending")]).to_pylist():
        key, of_golem = f"{row['golem_id']} {row['insight_id']}", until_us.setdefault(row["golem_id"], {})
        of_golem[newest.get(key, row["insight_id"])], newest[key] = row["at_us"], row["text_id"]
    return until_us


def last_ticks(context: DerivationContext) -> dict[str, int]:
    """Return the close of the last cycle of each golem in UTC microseconds."""
    rows = context.projections.growing("cycles").newest("closed_at", ["closed_at"])
    return dict(zip(rows["golem_id"].to_pylist(), micros(rows, "closed_at").tolist(), strict=True))
