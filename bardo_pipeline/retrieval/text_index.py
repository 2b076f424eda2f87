"""Index of texts in memory: words, vectors and neighbours of each golem's texts, kept and extended. Pure.

Each golem (or other key) has a shard, so a question to one golem reads its texts only. Texts of a shard are in the
order of their moments; a late text makes its shard be built anew. Readers take a snapshot (`View`) and need no lock.
Source: TOOLS (memory_search); ADR 0080.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float32Array, Float64Array, Int64Array
from bardo_pipeline.clock import moment_at
from bardo_pipeline.events.experience.stored_text import StoredText
from bardo_pipeline.retrieval.exact_vectors import STEPS, cosine_steps, exact, products
from bardo_pipeline.retrieval.postings import Int32Array, Postings, Run
from bardo_pipeline.retrieval.words import stems

_ROOM = 64
NONE, LONE = -1, -2
FOREVER = int(np.iinfo(np.int64).max)
_SPOKEN, _SAID = -2, -1  # columns of `codes`
FACETS = ("sort", "tool", "category", "chain", "pair", "session")
"""Names by which a search filters texts."""

STORED = tuple(StoredText.model_fields)
"""Names of the fields of a text's event."""

_TEXT_PLACE = STORED.index("text")


class Doc(NamedTuple):
    """A text to index.

    order: place among the texts of its shard. text: without its speaker. text_hash: key of the vector of this text.
    beside: words that count beside the text, such as date and tags. speaker: name of its speaker. session: key of the
    stretch of texts in which it has neighbours; "" for texts without a session, None for a text without neighbours.
    upserts: whether a later similar text is an upvote of it (canon 17). stated: whether an operation on insights states
    the text, so that it is never an upvote. worth: confidence of an insight; of another text, the share that retention
    keeps. origin: shard from which it was inherited, "" for an own text. facets: values that filters compare, in the
    order of FACETS. values: fields of its event, in the order of STORED; none for a derived text. until_us: moment at
    which an edit replaced its words, FOREVER without; from then on it counts for no search and no upvote.
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
    values: tuple[Any, ...] = ()
    until_us: int = FOREVER

    @property
    def stored(self) -> dict[str, Any]:
        """Fields of the text's event by name."""
        return dict(zip(STORED, self.values, strict=True))

    @property
    def stored_text(self) -> str:
        """Words of the text's event, with the speaker."""
        text: str = self.values[_TEXT_PLACE]
        return text

    @property
    def at(self) -> datetime:
        """Moment of the text."""
        return moment_at(self.at_us)


class View(NamedTuple):
    """A snapshot of a shard: its first `size` texts.

    session: number of each text's session, NONE without one. speakers: numbers of the words that name a speaker.
    vectors: rows of `exact`, zeros for a text that is_waiting for one. before, after: neighbours; LONE before a text
    that has none by its kind; after may name texts beyond the snapshot. stands_for: the text that an upvote belongs to,
    NONE for texts that stand for themselves. voted: confidence of an insight after votes by operations, NaN without
    one. until_us: as of a Doc; of an upvote, that of the text that it belongs to. codes: a number for each facet's
    value, then for the text (the key of its vector), and last for speaker and text together. inherited: texts of
    another origin.
    """

    key: str
    size: int
    docs: Sequence[Doc]
    runs: tuple[Run, ...]
    session_count: int
    speakers: frozenset[int]
    inherited: Sequence[int]
    length: Float32Array
    before: Int32Array
    after: Int32Array
    session: Int32Array
    at_us: Int64Array
    strength: Float32Array
    worth: Float64Array
    vectors: Float32Array
    stands_for: Int32Array
    upvotes: Int32Array
    voted: Float64Array
    until_us: Int64Array
    codes: Int32Array
    is_waiting: BoolArray


_COLUMNS = {
    "length": 0, "strength": 0, "before": NONE, "after": NONE, "session": 0, "at_us": 0, "worth": 0, "vectors": 0,
    "stands_for": NONE, "upvotes": 0, "voted": np.nan, "until_us": FOREVER, "codes": 0, "is_waiting": 0,
}  # fmt: skip
"""Arrays of a shard, and the value of each for a text that is not added yet."""


@dataclass
class Shard:
    """The texts of one key. dimension: of the vectors. edition: a new number after each change."""

    key: str
    dimension: int
    edition: int = 0
    docs: list[Doc] = field(default_factory=list)
    postings: Postings = field(default_factory=Postings)
    speakers: set[int] = field(default_factory=set)
    inherited: list[int] = field(default_factory=list)
    _sessions: dict[str, int] = field(default_factory=dict)
    _last: dict[str, int] = field(default_factory=dict)
    _undecided: list[int] = field(default_factory=list)
    _standing: dict[str, tuple[list[int], Float32Array]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.length, self.strength = np.zeros(_ROOM, np.float32), np.zeros(_ROOM, np.float32)
        self.before, self.after = np.full(_ROOM, NONE, np.int32), np.full(_ROOM, NONE, np.int32)
        self.session, self.at_us = np.zeros(_ROOM, np.int32), np.zeros(_ROOM, np.int64)
        self.vectors = np.zeros((_ROOM, self.dimension), np.float32)
        self.worth = np.zeros(_ROOM)
        self.stands_for, self.upvotes = np.full(_ROOM, NONE, np.int32), np.zeros(_ROOM, np.int32)
        self.voted, self.until_us = np.full(_ROOM, np.nan), np.full(_ROOM, FOREVER)
        self.codes, self.is_waiting = np.zeros((_ROOM, len(FACETS) + 2), np.int32), np.zeros(_ROOM, bool)

    def view(self) -> View:
        """Return a snapshot."""
        return View(
            self.key, len(self.docs), self.docs, self.postings.runs, len(self._sessions), frozenset(self.speakers),
            self.inherited, **{name: getattr(self, name) for name in _COLUMNS},
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
        self._name_speakers(docs, number_of)
        facets = {
            facets: [code_of.setdefault(v, len(code_of)) for v in facets] for facets in {doc.facets: 0 for doc in docs}
        }
        self.codes[first : first + count, : len(FACETS)] = [facets[doc.facets] for doc in docs]
        for column, texts in (_SPOKEN, [d.text_hash for d in docs]), (_SAID, [d.speaker + d.text_hash for d in docs]):
            self.codes[first : first + count, column] = [code_of.setdefault(text, len(code_of)) for text in texts]
        self.is_waiting[first : first + count] = True
        self.at_us[first : first + count] = [doc.at_us for doc in docs]
        self.strength[first : first + count] = [doc.strength_days for doc in docs]
        self.worth[first : first + count] = [doc.worth for doc in docs]
        self.until_us[first : first + count] = [doc.until_us for doc in docs]
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
            if doc.origin:
                self.inherited.append(row)
            if doc.upserts:
                self._undecided.append(row)
        self.docs.extend(docs)

    def _name_speakers(self, docs: Iterable[Doc], number_of: Mapping[str, int]) -> None:
        for speaker in {doc.speaker for doc in docs if doc.until_us == FOREVER}:
            self.speakers.update(number_of[name] for name in stems([speaker])[1])

    def withdraw(self, until_us: Mapping[int, int], number_of: Mapping[str, int]) -> bool:
        """Withdraw texts by row; return whether a later text was decided to be an upvote of one of them."""
        for row, moment in until_us.items():
            self.docs[row] = self.docs[row]._replace(until_us=moment)
            self.until_us[row] = moment
        if any(self.docs[row].speaker for row in until_us):
            self.speakers = set()
            self._name_speakers(self.docs, number_of)
        votes = np.flatnonzero(np.isin(self.stands_for[: len(self.docs)], list(until_us)))
        self.until_us[votes] = self.until_us[self.stands_for[votes]]
        return bool((self.at_us[votes] >= self.until_us[votes]).any())

    def hold(self, place: Int32Array, vectors: Float32Array) -> bool:
        """Store exact vectors of waiting texts; return whether any was stored. place: row of a vector by text code."""
        rows = np.flatnonzero(self.is_waiting)
        at = place[self.codes[rows, _SPOKEN]]
        rows, at = rows[at != NONE], at[at != NONE]
        self.vectors[rows] = vectors[at]
        self.is_waiting[rows] = False
        return bool(len(rows))

    def decide(self, similarity: float) -> None:
        """Decide which texts are upvotes of earlier ones.

        A text is an upvote of the most similar earlier text of its sort that stands for itself, from this cosine on,
        unless an edit had replaced the words of that one. It is decided in the order of the shard, so the order in
        which vectors arrive does not matter. A stated text is no upvote.
        """
        done = 0
        while done < len(self._undecided) and not self.is_waiting[self._undecided[done]]:
            self._decide(self._undecided[done], similarity)
            done += 1
        del self._undecided[:done]

    def _decide(self, row: int, similarity: float) -> None:
        rows, vectors = self._standing.get(self.docs[row].sort, ([], np.zeros((_ROOM, self.dimension), np.float32)))
        if rows and not self.docs[row].stated:
            likeness = cosine_steps(products(vectors[: len(rows)], self.vectors[row, None])[0], self.dimension) / STEPS
            nearest = int(np.argmax(likeness))
            while likeness[nearest] >= similarity and self.until_us[rows[nearest]] <= self.at_us[row]:
                likeness[nearest] = -1.0
                nearest = int(np.argmax(likeness))
            if likeness[nearest] >= similarity:
                self.stands_for[row], self.until_us[row] = rows[nearest], self.until_us[rows[nearest]]
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
                roomy = np.zeros((max(count, 2 * len(array)), *array.shape[1:]), array.dtype)
                roomy[: len(array)] = array
                if empty:  # zeros need no memory before they are written
                    roomy[len(array) :] = empty
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
        self.dimension, self._similarity = dimension, similarity
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
        shard = self._shards.setdefault(key, Shard(key, self.dimension))
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
        """Build a shard of these texts anew, with the vectors that these shards have; without a text drop it."""
        if not docs:
            self.drop([key])
            return
        shard = Shard(key, self.dimension, edition=next(self._editions))
        shard.add(sorted(docs, key=lambda doc: doc.order), self.number_of, self.code_of)
        for source in sources:
            rows = np.flatnonzero(~source.is_waiting[: len(source.docs)])
            shard.hold(self._place(source.codes[rows, _SPOKEN], rows), source.vectors)
        shard.decide(self._similarity)
        self._shards[key] = shard
        self._ids[key] = {doc.doc_id: row for row, doc in enumerate(shard.docs)}

    def rows(self, key: str) -> dict[str, int]:
        """Return the rows of the texts of a shard by id."""
        return self._ids.get(key, {})

    def waiting(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the texts without a vector in these shards, by hash, the newest of a shard last."""
        shards = self._of(keys)
        docs = [shard.docs[row] for shard in shards for row in np.flatnonzero(shard.is_waiting)]
        return {doc.text_hash: doc.text for doc in docs}

    def waiting_count(self, keys: Iterable[str]) -> int:
        """Return the number of texts without a vector in these shards."""
        return sum(int(np.count_nonzero(shard.is_waiting)) for shard in self._of(keys))

    def hold(self, keys: Iterable[str], hashes: Sequence[str], vectors: Float32Array) -> None:
        """Store vectors of waiting texts of these shards."""
        known = [row for row, text_hash in enumerate(hashes) if text_hash in self.code_of]
        place, exactly = self._place([self.code_of[hashes[row]] for row in known], known), exact(vectors)
        for shard in self._of(keys):
            if shard.hold(place, exactly):
                shard.decide(self._similarity)
                shard.edition = next(self._editions)

    def _place(self, codes: Sequence[int] | Int32Array, rows: Sequence[int] | Int64Array) -> Int32Array:
        """Return the row of the vector of each text by the text's code, NONE without one."""
        place: Int32Array = np.full(len(self.code_of), NONE, np.int32)
        place[codes] = rows
        return place

    def vote(self, key: str, confidence_of: Mapping[str, float]) -> None:
        """State the confidence that votes leave the insights of a shard, by id; ids that it lacks are left out."""
        for shard in self._of([key]):
            rows = self._ids[key]
            for doc_id in confidence_of.keys() & rows.keys():
                if shard.voted[rows[doc_id]] != confidence_of[doc_id]:
                    shard.voted[rows[doc_id]] = confidence_of[doc_id]
                    shard.edition = next(self._editions)

    def withdraw(self, key: str, until_us: Mapping[str, int]) -> None:
        """Withdraw texts of a shard from the moments at which edits replaced them, by id; unknown ids are left out."""
        for shard in self._of([key]):
            row_of = self._ids[key]
            rows = {row_of[doc_id]: moment for doc_id, moment in until_us.items() if doc_id in row_of}
            rows = {row: moment for row, moment in rows.items() if shard.until_us[row] != moment}
            if rows and shard.withdraw(rows, self.number_of):
                self._rebuild(key, shard.docs, [shard])
            elif rows:
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
