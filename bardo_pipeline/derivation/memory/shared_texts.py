"""The index of texts that a process keeps for a home, shared by all its questions.

It is extended by the texts that were recorded, and the entries and episodes that were derived, since the last question.
Source: TOOLS (memory_search); ADR 0080, 0081.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from threading import RLock

import numpy as np
import pyarrow as pa

from bardo_pipeline.arrays import Float32Array
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import birth_rows
from bardo_pipeline.derivation.memory.derived_texts import DerivedTexts
from bardo_pipeline.derivation.memory.embed_texts import embed_new
from bardo_pipeline.errors import EmbeddingPaused
from bardo_pipeline.retrieval.insight_votes import KnownInsight, insights_in
from bardo_pipeline.retrieval.text_docs import doc_of, micros_of
from bardo_pipeline.retrieval.text_index import Doc, TextIndex
from bardo_pipeline.retrieval.text_ranking import crossing

_INDEXES_MAX = 8
_QUESTIONS_MAX = 4_096
_LOOK_UP_FROM = 64  # from this number of texts on, their vectors are looked for in the log before they are embedded


@dataclass
class SharedTexts:
    """The index of a home, an embedder and a policy in this process. version: of the life events in it."""

    index: TextIndex
    version: int = -1
    _looked_up: set[str] = field(default_factory=set)
    _insights: dict[str, tuple[tuple[int, int], dict[str, KnownInsight]]] = field(default_factory=dict)
    _inherited: dict[str, tuple[int, int]] = field(default_factory=dict)
    _derived: OrderedDict[str, DerivedTexts] = field(default_factory=OrderedDict)
    _questions: OrderedDict[str, Float32Array] = field(default_factory=OrderedDict)
    mutex: RLock = field(default_factory=RLock)

    def golem_ids(self) -> list[str]:
        """Return the golems with stored texts."""
        return [key for key in self.index.keys if "\x1f" not in key]

    def derived(self, context: DerivationContext) -> DerivedTexts:
        """Return the entries and episodes of the context's derivation, of all golems, up to now."""
        name = str(context.projections.root)
        if name not in self._derived:
            self._derived[name] = DerivedTexts(name, self.index)
        self._derived[name].refresh(context.whole)
        return self._derived[name]

    def refresh(self, context: DerivationContext, now: datetime) -> None:
        """Add the texts that were recorded since the last call, of all golems."""
        log = context.whole.log
        if log.life_version == self.version:
            return
        self.version, rows = log.texts(None if self.version < 0 else self.version)
        by_golem: dict[str, list[Doc]] = {}
        stated = set(_operations(context)["text_id"].to_pylist())
        for row in rows.to_pylist():
            doc = doc_of(row, context.policy)
            by_golem.setdefault(row["golem_id"], []).append(doc._replace(stated=doc.doc_id in stated))
        for golem_id, docs in by_golem.items():
            self.index.add(golem_id, docs)
        self._inherit(context, now)

    def _inherit(self, context: DerivationContext, now: datetime) -> None:
        """Give each heir the texts that cross the death of its predecessor, elders first.

        An heir without a bundle inherits no text. A text of the predecessor that arrives late crosses then.
        """
        whole = context.whole
        died = {row["golem_id"]: micros_of(row["observed_at"]) for row in whole.life("DeathDeclared").to_pylist()}
        heirs = [(born["generation"], heir, born["predecessor_id"]) for heir, born in birth_rows(whole).items()
                 if born["bundle_hash"] is not None and born["predecessor_id"] in died]  # fmt: skip
        for _, heir, dead in sorted(heirs):
            state = (died[dead], self.index.size(dead))
            if self._inherited.get(heir, (died[dead], 0)) == state:
                continue
            self.embed(whole, [dead], now, limit=None)
            self.vote(whole, [dead])
            (view,) = self.index.views([dead])
            self.index.inherit(heir, dead, crossing(view, died[dead], self.index.code_of, context.policy))
            self._inherited[heir] = state

    def embed(
        self,
        context: DerivationContext,
        keys: Collection[str],
        now: datetime,
        *,
        limit: int | None = -1,
        quiet: bool = True,
    ) -> None:
        """Give vectors to waiting texts of these shards: from the log, and the newest by the model.

        Parameters
        ----------
        limit : number of texts that the model embeds; None for all, the policy's number by default
        quiet : leave the texts waiting if the model has drifted; words find them meanwhile
        """
        limit = context.policy.search.embedded_at_once if limit == -1 else limit
        waiting = self.index.waiting(keys)
        if waiting and (len(waiting) >= _LOOK_UP_FROM or not self._looked_up.issuperset(keys)):
            known = context.log.vectors(context.embedder.identity.key, list(waiting))
            if known.num_rows:
                column = known["vector"].combine_chunks()
                matrix = column.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
                self.index.hold(keys, known["text_hash"].to_pylist(), matrix.reshape(known.num_rows, -1))
                waiting = self.index.waiting(keys)
        self._looked_up.update(keys)
        first = 0 if limit is None else max(len(waiting) - limit, 0)
        newest = list(waiting.items())[first:]
        if not newest:
            return
        try:
            hashes, vectors = embed_new(context, dict(newest), now)
        except EmbeddingPaused:
            if quiet:
                return
            raise
        self.index.hold(keys, hashes, vectors)

    def vote(self, context: DerivationContext, keys: Collection[str]) -> None:
        """Give the insights of these golems the confidence that operations on them leave."""
        for golem_id in set(_operations(context)["golem_id"].to_pylist()).intersection(keys):
            known = self.insights(context, golem_id).values()
            self.index.vote(golem_id, {text_id: one.confidence for one in known for text_id in one.text_ids})

    def insights(self, context: DerivationContext, golem_id: str) -> dict[str, KnownInsight]:
        """Return the insights of a golem's own words by id."""
        state = self.version, len(self.index.waiting([golem_id]))
        if self._insights.get(golem_id, (None, {}))[0] != state:
            rows = context.whole.life("InsightManaged", [golem_id]).select(["observed_at", "insight"]).to_pylist()
            operations = [row["insight"] | {"at": row["observed_at"]} for row in rows]
            views = self.index.views([golem_id])
            known = insights_in(views[0], operations, context.policy) if views else {}
            self._insights[golem_id] = state, known
        return self._insights[golem_id][1]

    def vector_of(self, context: DerivationContext, question: str) -> Float32Array:
        """Return the vector of a question; those of recent questions are kept."""
        if question in self._questions:
            self._questions.move_to_end(question)
            return self._questions[question]
        (vector,) = context.embedder.embed([question])
        self._questions[question] = vector
        if len(self._questions) > _QUESTIONS_MAX:
            self._questions.popitem(last=False)
        return vector


_indexes: OrderedDict[tuple[str, ...], SharedTexts] = OrderedDict()
_indexes_mutex = RLock()


@contextmanager
def shared_texts(context: DerivationContext, now: datetime) -> Iterator[SharedTexts]:
    """Yield the index of the context's home, with all texts that are recorded, for this thread alone."""
    policy = context.policy
    # A copy of a home has the same table id, so the folder tells them apart.
    place, identity = str(context.home.root.resolve()), context.embedder.identity
    key = (place, context.log.table_id, identity.key, policy.hash, policy.search.model_dump_json())
    with _indexes_mutex:
        is_older = key in _indexes and context.whole.log.life_version < _indexes[key].version  # a restored home
        if key not in _indexes or is_older:
            _indexes[key] = SharedTexts(TextIndex(identity.dimension, policy.search.similarity))
            if len(_indexes) > _INDEXES_MAX:
                _indexes.popitem(last=False)
        _indexes.move_to_end(key)
        texts = _indexes[key]
    with texts.mutex:
        texts.refresh(context, now)
        yield texts


def _operations(context: DerivationContext) -> pa.Table:
    """Return the golem and the text of each operation on an insight, in the whole home."""
    return context.whole.life_fields("InsightManaged", "text_id")


def last_ticks(context: DerivationContext) -> dict[str, int]:
    """Return the close of the last cycle of each golem in UTC microseconds."""
    rows = context.projections.growing("cycles").newest("closed_at", ["closed_at"])
    return {row["golem_id"]: micros_of(row["closed_at"]) for row in rows.to_pylist()}
