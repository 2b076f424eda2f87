"""Index of texts in memory: words, vectors and neighbours of each golem's texts, kept and extended. Pure.

Each golem (or other key) has a shard, so a question to one golem reads its texts only. Texts of a shard are in the
order of their moments; a late text makes its shard be built anew. Readers take a snapshot (`View`) and need no lock.
Source: TOOLS (memory_search); ADR 0080.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float32Array, Float64Array, Int64Array
from bardo_pipeline.retrieval.exact_vectors import STEPS, cosine_steps, exact, products
from bardo_pipeline.retrieval.postings import Int32Array, Postings, Run
from bardo_pipeline.retrieval.words import stems

_ROOM = 64
NONE, LONE = -1, -2
FACETS = ("sort", "tool", "category", "chain", "pair", "session")
"""Names by which a search filters texts."""


class Doc(NamedTuple):
    """A text to index.

    order: place among the texts of its shard. text: without its speaker, of whom its vector, whose key is text_hash,
    knows nothing either. beside: words that count beside the text, such as date and tags. speaker: name of its speaker.
    session: key of the stretch of texts in which it has neighbours; "" for the texts without a session, None for a text
    without neighbours. upserts: whether a later text like it is its upvote (canon 17). stated: whether it is no upvote
    itself, because an operation on insights states it. worth: confidence of an insight, and the share that retention
    keeps of another text. origin: shard from which it was inherited, "" for an own text. facets: values that filters
    compare, in the order of FACETS.
    """

    doc_id: str
    order: tuple[int, int, str]
    text: str
    text_hash: str
    sort: str
    at_us: int
    strength_days: float
    beside: str = ""
    speaker: str = ""
    session: str | None = ""
    upserts: bool = False
    stated: bool = False
    worth: float = 1.0
    origin: str = ""
    facets: tuple[str | None, ...] = ()
    payload: Any = None

    @property
    def at(self) -> datetime:
        """Moment of the text."""
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=self.at_us)


class View(NamedTuple):
    """A snapshot of a shard: its first `size` texts.

    session: number of each text's session, NONE without one. speakers: numbers of the words that name a speaker.
    vectors: rows of `exact`, zeros without a vector. before: LONE for a text that has no neighbours by nature. after
    may name texts beyond the snapshot. stands_for: the text that an upvote belongs to, NONE for texts that stand for
    themselves. voted: confidence that votes leave an insight, NaN for a text without votes of an operation. codes:
    number of each facet's value, by column, and of its text in the last one. inherited: texts of another origin.
    """

    key: str
    size: int
    docs: Sequence[Doc]
    runs: tuple[Run, ...]
    length: Float32Array
    before: Int32Array
    after: Int32Array
    session: Int32Array
    session_count: int
    speakers: frozenset[int]
    at_us: Int64Array
    strength: Float32Array
    worth: Float64Array
    vectors: Float32Array
    stands_for: Int32Array
    upvotes: Int32Array
    voted: Float64Array
    codes: Int32Array
    inherited: Sequence[int]


_COLUMNS = {
    "length": 0, "strength": 0, "before": NONE, "after": NONE, "session": 0, "at_us": 0, "worth": 0, "vectors": 0,
    "stands_for": NONE, "upvotes": 0, "voted": np.nan, "codes": 0,
}  # fmt: skip
"""Arrays of a shard, and the value of each for a text that is not added yet."""


@dataclass
class Shard:
    """The texts of one key. dimension: of the vectors. edition: number that each change replaces by a new one."""

    key: str
    dimension: int
    edition: int = 0
    docs: list[Doc] = field(default_factory=list)
    postings: Postings = field(default_factory=Postings)
    speakers: set[int] = field(default_factory=set)
    inherited: list[int] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    _sessions: dict[str, int] = field(default_factory=dict)
    _last: dict[str, int] = field(default_factory=dict)
    _waiting: dict[str, list[int]] = field(default_factory=dict)
    _undecided: list[int] = field(default_factory=list)
    _standing: dict[str, tuple[list[int], Float32Array]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.length, self.strength = np.zeros(_ROOM, np.float32), np.zeros(_ROOM, np.float32)
        self.before, self.after = np.full(_ROOM, NONE, np.int32), np.full(_ROOM, NONE, np.int32)
        self.session, self.at_us = np.zeros(_ROOM, np.int32), np.zeros(_ROOM, np.int64)
        self.vectors = np.zeros((_ROOM, self.dimension), np.float32)
        self.worth = np.zeros(_ROOM)
        self.stands_for, self.upvotes = np.full(_ROOM, NONE, np.int32), np.zeros(_ROOM, np.int32)
        self.voted = np.full(_ROOM, np.nan)
        self.codes = np.zeros((_ROOM, len(FACETS) + 1), np.int32)

    def view(self) -> View:
        """Return a snapshot."""
        return View(
            self.key, len(self.docs), self.docs, self.postings.runs, self.length, self.before, self.after,
            self.session, len(self._sessions), frozenset(self.speakers), self.at_us,
            self.strength, self.worth, self.vectors, self.stands_for,
            self.upvotes, self.voted, self.codes, self.inherited,
        )  # fmt: skip

    def add(self, docs: Sequence[Doc], number_of: dict[str, int], code_of: dict[str | None, int]) -> None:
        """Append texts in order, each behind the last of the shard.

        Parameters
        ----------
        number_of, code_of : numbers of all known words and of all known values of facets
        """
        first, count = len(self.docs), len(docs)
        self._grow(first + count)
        text, word, is_beside = _occurrences(docs, number_of)
        self.postings.add(text + first, word, is_beside)
        self.length[first : first + count] = np.bincount(text[~is_beside], minlength=count)
        for speaker in {doc.speaker for doc in docs} - self._names:
            self.speakers.update(number_of[name] for name in stems([speaker])[1])
            self._names.add(speaker)
        self.codes[first : first + count] = [
            [code_of.setdefault(v, len(code_of)) for v in (*doc.facets, doc.speaker + doc.text_hash)] for doc in docs
        ]
        self.at_us[first : first + count] = [doc.at_us for doc in docs]
        self.strength[first : first + count] = [doc.strength_days for doc in docs]
        self.worth[first : first + count] = [doc.worth for doc in docs]
        for row, doc in enumerate(docs, first):
            session = self._sessions.setdefault(doc.session, len(self._sessions)) if doc.session else NONE
            self.session[row] = session
            if doc.session is not None:
                last = self._last.get(doc.session, NONE)
                self.before[row] = last
                if last != NONE:
                    self.after[last] = row
                self._last[doc.session] = row
            else:
                self.before[row] = LONE
            self._waiting.setdefault(doc.text_hash, []).append(row)
            if doc.origin:
                self.inherited.append(row)
            if doc.upserts:
                self._undecided.append(row)
        self.docs.extend(docs)

    def waiting(self) -> dict[str, str]:
        """Return the texts without a vector, by hash, the newest last."""
        return {key: self.docs[rows[0]].text for key, rows in self._waiting.items()}

    def hold(self, vector_of: Mapping[str, Float32Array], similarity: float) -> None:
        """Store exact vectors of waiting texts, then decide which texts are upvotes of earlier ones.

        A text is an upvote of the most similar earlier text of its sort that stands for itself, from this cosine on. It
        is decided in the order of the shard, so the order in which vectors arrive does not matter. A stated text is no
        upvote.
        """
        for key in self._waiting.keys() & vector_of.keys():
            for row in self._waiting.pop(key):
                self.vectors[row] = vector_of[key]
        done = 0
        while done < len(self._undecided) and self.docs[self._undecided[done]].text_hash not in self._waiting:
            self._decide(self._undecided[done], similarity)
            done += 1
        del self._undecided[:done]

    def _decide(self, row: int, similarity: float) -> None:
        rows, vectors = self._standing.get(self.docs[row].sort, ([], np.zeros((_ROOM, self.dimension), np.float32)))
        if rows and not self.docs[row].stated:
            likeness = cosine_steps(products(vectors[: len(rows)], self.vectors[row, None])[0], self.dimension) / STEPS
            nearest = int(np.argmax(likeness))
            if likeness[nearest] >= similarity:
                self.stands_for[row] = rows[nearest]
                self.upvotes[rows[nearest]] += 1
                return
        if len(rows) == len(vectors):
            vectors = np.concatenate([vectors, np.zeros_like(vectors)])
        vectors[len(rows)] = self.vectors[row]
        rows.append(row)
        self._standing[self.docs[row].sort] = rows, vectors

    def _grow(self, count: int) -> None:
        """Make room for this number of texts; arrays that a reader holds stay as they are."""
        for name, empty in _COLUMNS.items():
            array = getattr(self, name)
            if count > len(array):
                roomy = np.full((max(count, 2 * len(array)), *array.shape[1:]), empty, array.dtype)
                roomy[: len(array)] = array
                setattr(self, name, roomy)


def _occurrences(docs: Sequence[Doc], number_of: dict[str, int]) -> tuple[Int64Array, Int64Array, BoolArray]:
    """Return the text, the number of the word, and whether it is beside the text, of each occurrence."""
    count = len(docs)
    fields = [doc.text for doc in docs] + [f"{doc.speaker} {doc.beside}" for doc in docs]
    owner, distinct, stem = stems(fields)
    number = np.array([number_of.setdefault(word, len(number_of)) for word in distinct], np.int64)
    return owner % count, number[stem] if len(stem) else stem, owner >= count


class TextIndex:
    """Shards by key. similarity: cosine from which a text is an upvote of another (canon 17)."""

    def __init__(self, dimension: int, similarity: float) -> None:
        self._dimension, self._similarity = dimension, similarity
        self._shards: dict[str, Shard] = {}
        self._ids: dict[str, dict[str, int]] = {}
        self.number_of: dict[str, int] = {}
        self.code_of: dict[str | None, int] = {}
        self._editions = count(1)

    def add(self, key: str, docs: Iterable[Doc]) -> None:
        """Add texts to a shard; texts that it has are left out."""
        known = self._ids.setdefault(key, {})
        fresh = sorted((doc for doc in docs if doc.doc_id not in known), key=lambda doc: doc.order)
        if not fresh:
            return
        shard = self._shards.setdefault(key, Shard(key, self._dimension))
        if shard.docs and fresh[0].order < shard.docs[-1].order:
            self._rebuild(key, [*shard.docs, *fresh], [shard])
        else:
            shard.add(fresh, self.number_of, self.code_of)
            shard.edition = next(self._editions)
            known.update({doc.doc_id: row for row, doc in enumerate(shard.docs[len(known) :], len(known))})

    def replace(self, key: str, docs: Sequence[Doc]) -> None:
        """Replace the texts of a shard, and keep the vectors of those that stay."""
        self._rebuild(key, docs, self._of([key]))

    def drop(self, keys: Iterable[str]) -> None:
        """Remove these shards."""
        for key in keys:
            self._shards.pop(key, None)
            self._ids.pop(key, None)

    def inherit(self, key: str, from_key: str, docs: Sequence[Doc]) -> None:
        """Give texts of another shard to this one, in place of those that it inherited before."""
        own = self._shards.get(key)
        kept = [] if own is None else [doc for doc in own.docs if not doc.origin]
        sources = [*([] if own is None else [own]), *self._of([from_key])]
        self._rebuild(key, [*docs, *kept], sources)

    def _rebuild(self, key: str, docs: Sequence[Doc], sources: Sequence[Shard]) -> None:
        """Build a shard of these texts anew, with the vectors that these shards have."""
        shard = Shard(key, self._dimension, edition=next(self._editions))
        shard.add(sorted(docs, key=lambda doc: doc.order), self.number_of, self.code_of)
        wanted, vector_of = {doc.text_hash for doc in docs}, dict[str, Float32Array]()
        for source in sources:
            waiting = source.waiting()
            pairs = zip(source.docs, source.vectors, strict=False)
            vector_of |= {d.text_hash: v for d, v in pairs if d.text_hash in wanted and d.text_hash not in waiting}
        shard.hold(vector_of, self._similarity)
        self._shards[key] = shard
        self._ids[key] = {doc.doc_id: row for row, doc in enumerate(shard.docs)}

    def size(self, key: str) -> int:
        """Return the number of texts of a shard."""
        return len(self._ids.get(key, ()))

    def rows(self, key: str) -> dict[str, int]:
        """Return the rows of the texts of a shard by id."""
        return self._ids.get(key, {})

    def waiting(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the texts without a vector in these shards, by hash."""
        return {text_hash: text for shard in self._of(keys) for text_hash, text in shard.waiting().items()}

    def hold(self, keys: Iterable[str], hashes: Sequence[str], vectors: Float32Array) -> None:
        """Store vectors of waiting texts of these shards."""
        vector_of = dict(zip(hashes, exact(vectors), strict=True)) if len(hashes) else {}
        for shard in self._of(keys):
            shard.edition = next(self._editions)
            shard.hold(vector_of, self._similarity)

    def vote(self, key: str, confidence_of: Mapping[str, float]) -> None:
        """State the confidence that votes leave the insights of a shard, by id; ids that it lacks are left out."""
        for shard in self._of([key]):
            rows = self._ids[key]
            for doc_id in confidence_of.keys() & rows.keys():
                if shard.voted[rows[doc_id]] != confidence_of[doc_id]:
                    shard.voted[rows[doc_id]] = confidence_of[doc_id]
                    shard.edition = next(self._editions)

    def views(self, keys: Iterable[str] | None = None) -> list[View]:
        """Return snapshots of these shards, or of all, by key; shards without texts are left out."""
        return [shard.view() for shard in self._of(self._shards if keys is None else keys)]

    def editions(self, keys: Iterable[str]) -> tuple[int, ...]:
        """Return the edition of each shard, 0 for none; views of a shard in one edition are equal."""
        shards = (self._shards.get(key) for key in keys)
        return tuple(0 if shard is None else shard.edition for shard in shards)

    @property
    def keys(self) -> list[str]:
        """Keys of all shards."""
        return sorted(self._shards)

    def _of(self, keys: Iterable[str]) -> list[Shard]:
        return [self._shards[key] for key in sorted(set(keys)) if key in self._shards]
