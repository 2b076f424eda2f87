"""Keeps the texts of entries and episodes in the index of texts, golem by golem.

A question reads only buckets of entries that changed and episodes that are new since the last question.
Source: TOOLS (memory_search), MEM-10; ADR 0080.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.dreams.derive_lessons import known_entries_of_buckets
from bardo_pipeline.grimoire.confidence import DAY_US, PPM, retention
from bardo_pipeline.grimoire.entry_columns import confidence_of, micros
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.hybrid_search import Filters, Rows
from bardo_pipeline.retrieval.text_docs import lone_doc
from bardo_pipeline.retrieval.text_index import TextIndex, View
from bardo_pipeline.storage.delta.table_digest import Digest
from bardo_pipeline.storage.home import bucket_of

OF_EPISODES = ("chain", "pair", "regime")
"""Filters that apply to episodes."""

_COLUMNS = ["episode_id", "golem_id", "tick", "at", "importance_tier", "tier", "text", "text_hash", *OF_EPISODES]


@dataclass
class DerivedTexts:
    """Entries and episodes of one derivation, by golem, whose texts are in shards of an index.

    edition counts the changes.
    """

    name: str
    index: TextIndex
    edition: int = 0
    entries: dict[str, pa.Table] = field(default_factory=dict)
    episodes: dict[str, pa.Table] = field(default_factory=dict)
    _place: dict[str, dict[str, int]] = field(default_factory=dict)
    _digests: dict[int, tuple[Digest | None, Digest | None]] = field(default_factory=dict)
    _seen: tuple[int, int] = (-1, 0)

    def key(self, store: str, golem_id: str) -> str:
        """Return the key of the shard with these texts of a golem."""
        return f"{self.name}\x1f{store}\x1f{golem_id}"

    def refresh(self, context: DerivationContext) -> None:
        """Read what changed since the last call. context: of the whole home."""
        self._refresh_entries(context)
        self._refresh_episodes(context)

    def _refresh_entries(self, context: DerivationContext) -> None:
        grimoire, lessons = (context.projections.replaceable(name).digests() for name in ("grimoire", "lessons"))
        digests = {b: (grimoire.get(b), lessons.get(b)) for b in {*grimoire, *lessons}}
        changed = {b for b in {*digests, *self._digests} if digests.get(b) != self._digests.get(b)}
        if not changed:
            return
        self.edition += 1
        rows, count = known_entries_of_buckets(context, changed), context.home.bucket_count
        by_golem = _by_golem(rows)
        gone = [g for g in self.entries if bucket_of(g, count) in changed and g not in by_golem]
        for golem_id in gone:
            del self.entries[golem_id]
        self.index.drop(self.key("entries", golem_id) for golem_id in gone)
        for golem_id, entries in by_golem.items():
            old, self.entries[golem_id] = self.entries.get(golem_id), entries
            named = ["entry_id", "text"]
            if old is None or not old.select(named).equals(entries.select(named)):
                pairs = zip(entries["entry_id"].to_pylist(), entries["text"].to_pylist(), strict=True)
                docs = [lone_doc(entry_id, text, place, "entry") for place, (entry_id, text) in enumerate(pairs)]
                self.index.replace(self.key("entries", golem_id), docs)
        self._digests = digests

    def _refresh_episodes(self, context: DerivationContext) -> None:
        episodes = context.projections.growing("episodes")
        version, turn = episodes.table.version, episodes.turn
        if (version, turn) == self._seen:
            return
        self.edition += 1
        if turn != self._seen[1]:  # a repair retracted rows
            self.index.drop(self.key("episodes", golem_id) for golem_id in self.episodes)
            self.episodes.clear()
            self._place.clear()
            self._seen = -1, turn
        since = None if self._seen[0] < 0 else self._seen[0]
        for golem_id, rows in _by_golem(episodes.read(_COLUMNS, since_version=since)).items():
            self._add_episodes(golem_id, rows)
        self._seen = version, turn

    def _add_episodes(self, golem_id: str, read: pa.Table) -> None:
        old, fresh = self.episodes.get(golem_id), read
        if old is not None:  # after a compaction older rows may come again
            fresh = read.filter(pc.invert(pc.is_in(read["episode_id"], value_set=old["episode_id"].combine_chunks())))
        place = self._place.setdefault(golem_id, {})
        pairs = zip(fresh["text_hash"].to_pylist(), fresh["text"].to_pylist(), strict=True)
        new = {text_hash: text for text_hash, text in pairs if text_hash not in place}
        docs = [lone_doc(name, new[name], len(place) + number, "tick") for number, name in enumerate(sorted(new))]
        place |= {doc.doc_id: doc.order[0] for doc in docs}
        self.index.add(self.key("episodes", golem_id), docs)
        doc_of = pa.array([place[text_hash] for text_hash in fresh["text_hash"].to_pylist()], pa.int64())
        rows = fresh.append_column("doc", doc_of)
        self.episodes[golem_id] = (rows if old is None else pa.concat_tables([old, rows])).combine_chunks()


def entry_rows(
    view: View, start: int, golem_id: str, entries: pa.Table, at_us: int, filters: Filters, policy: Policy
) -> Rows:
    """Return the entries of a golem as rows. start: place of its first text among all texts in scope."""
    confidence = confidence_of(entries, at_us, policy.decay)
    return Rows(
        "entries", np.arange(start, start + view.size), view.codes[: view.size, -1].astype(np.int64),
        filters.of(entries, confidence), confidence / PPM, _described(entries, golem_id, "entry_id", "kind"), golem_id,
    )  # fmt: skip


def episode_rows(view: View, start: int, golem_id: str, episodes: pa.Table, at_us: int, asked: _Asked) -> Rows:
    """Return the episodes of a golem as rows. asked: filters, and the retracted records."""
    doc: Int64Array = episodes["doc"].to_numpy()
    passed = ~asked.left_out(episodes["golem_id"], episodes["tick"].to_numpy())
    for name in OF_EPISODES:
        if (value := getattr(asked.filters, name)) is not None:
            passed &= pc.fill_null(pc.equal(episodes[name], value), False).to_numpy()
    tiers = episodes["importance_tier"].combine_chunks().dictionary_encode()
    days = np.array([asked.strength[tier] for tier in tiers.dictionary.to_pylist()])
    age = np.maximum(at_us - micros(episodes, "at"), 0) / DAY_US
    strength = days[tiers.indices.to_numpy()] if len(doc) else np.ones(0)
    text = view.codes[: view.size, -1].astype(np.int64)[doc]
    described = _described(episodes, golem_id, "episode_id", "tier")
    return Rows("episodes", doc + start, text, passed, retention(age, strength), described, golem_id)


@dataclass(frozen=True)
class _Asked:
    filters: Filters
    left_out: Callable[[Any, Any], BoolArray]
    strength: Mapping[str, float]


def asked_of(context: DerivationContext, filters: Filters) -> _Asked:
    """Return what a question asks of episodes."""
    tiers = ("routine", "notable", "critical", "emergency")
    strength = {tier: float(getattr(context.policy.decay, f"{tier}_days")) for tier in tiers}
    return _Asked(filters, context.left_out().records, strength)


def _described(
    rows: pa.Table, golem_id: str, id_column: str, kind_column: str
) -> Callable[[int], tuple[str, str, str, str]]:
    def describe(row: int) -> tuple[str, str, str, str]:
        return rows[id_column][row].as_py(), golem_id, rows[kind_column][row].as_py(), rows["text"][row].as_py()

    return describe


def _by_golem(rows: pa.Table) -> dict[str, pa.Table]:
    """Return the rows of each golem, in their order."""
    golems: Collection[str] = rows["golem_id"].unique().to_pylist()
    return {golem_id: rows.filter(pc.equal(rows["golem_id"], golem_id)).combine_chunks() for golem_id in golems}
