"""Search: texts by their words (BM25) and by their meaning (cosine), both rankings fused, decay as a penalty. Pure.

Exact: every text that may be found is compared. Source: TOOLS (memory_search), MEM-10, canon 23.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.record.arrow_columns import one
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.confidence import PPM, ppm
from bardo_pipeline.grimoire.entries import CATEGORIES, DOMAINS, DREAMT, ENTRY_KINDS, STATUSES
from bardo_pipeline.grimoire.entry_columns import confidence_of, int_column
from bardo_pipeline.policy import Policy, RetrievalPolicy
from bardo_pipeline.retrieval.scoring import Floats, Truth, Whole

OWN = ("self", DREAMT)
"""Provenances of what a golem learned itself."""

_NO_WORD = r"[^\p{L}\p{N}]+"

FOUND_SCHEMA = pa.schema(
    [
        pa.field("rank", pa.int64(), nullable=False),
        pa.field("store", pa.string(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("relevance", pa.float64(), nullable=False),
        pa.field("retained", pa.float64(), nullable=False),
        pa.field("score", pa.float64(), nullable=False),
        pa.field("holders", pa.int64(), nullable=False),
    ]
)
"""One row per text found, best first, equals by store, id and golem. relevance: sum of reciprocal ranks, by words and
by meaning. retained: of an episode what is retained of it, of an entry its confidence, at the moment of asking, in
[0, 1]; 1 where decay is left out. score = relevance x retained. holders: how many rows share the text; the best of them
stands for all."""


@dataclass(frozen=True)
class Words:
    """The words of texts, for BM25: one element a (text, word) and how often it is there; texts with each word."""

    vocabulary: pa.Array
    text: Whole
    word: Whole
    count: Whole
    length: Whole
    documents: Whole

    @classmethod
    def of(cls, texts: pa.Array) -> Words:
        """Taken apart: lower case, letters and digits."""
        texts_of, words = _words(texts)
        encoded = words.dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        size = max(len(encoded.dictionary), 1)
        pairs, count = np.unique(texts_of * size + codes, return_counts=True)
        text, word = pairs // size, pairs % size
        length = np.bincount(texts_of, minlength=len(texts))
        documents = np.bincount(word, minlength=len(encoded.dictionary))
        return cls(encoded.dictionary, text, word, count, length, documents)

    def scores(self, question: str, rules: RetrievalPolicy) -> NDArray[np.float64]:
        """BM25 of each text, 0 for one without a word of the question. float64 [texts]."""
        _, asked = _words(pa.array([question], pa.string()))
        codes = pc.index_in(asked.unique(), value_set=self.vocabulary).drop_null().to_numpy()
        wanted = np.isin(self.word, codes)
        text, word, count = self.text[wanted], self.word[wanted], self.count[wanted]
        held = self.documents[word]
        rarity = np.log1p((len(self.length) - held + 0.5) / (held + 0.5))
        mean = max(float(self.length.mean()), 1.0) if len(self.length) else 1.0
        slow = rules.words_saturation * (1.0 - rules.words_length + rules.words_length * self.length[text] / mean)
        gain = rarity * count * (rules.words_saturation + 1.0) / (count + slow)
        summed: NDArray[np.float64] = np.bincount(text, weights=gain, minlength=len(self.length)).astype(np.float64)
        return summed


def _words(texts: pa.Array) -> tuple[Whole, pa.Array]:
    """(text of each word, words), in lower case."""
    split = pc.split_pattern_regex(pc.utf8_lower(texts), pattern=_NO_WORD)
    text, words = pc.list_parent_indices(split), pc.list_flatten(split)
    some = pc.not_equal(words, "")
    return text.filter(some).to_numpy(zero_copy_only=False).astype(np.int64), words.filter(some)


def likeness(vectors: NDArray[np.float32], question: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cosine of each unit vector with the question in millionths of one, negatives counting 0 (canon 21)."""
    close = (vectors.astype(np.float64) * question.astype(np.float64)).sum(axis=1)
    rounded: NDArray[np.float64] = np.rint(np.maximum(close, 0.0) * PPM) / PPM
    return rounded


def fused(rankings: Sequence[Floats], k: int) -> NDArray[np.float64]:
    """Reciprocal rank fusion: sum of 1 / (k + rank) over the rankings. Equals share the better rank; 0 is in none.

    Scores that differ by less than 1e-9 are equal: what the same sum gives in another order of addition.
    """
    out = np.zeros(len(rankings[0]))
    for exact in rankings:
        scores = np.round(exact, 9)
        ordered = np.sort(-scores)
        rank = np.searchsorted(ordered, -scores, side="left") + 1
        out += np.where(scores > 0.0, 1.0 / (k + rank), 0.0)
    return out


@dataclass(frozen=True)
class Filters:
    """What an entry must be to be found; None asks for nothing.

    confidence_min in [0, 1] is compared with the publisher's confidence: of what came from another, that with which it
    was made (canon 23). Raises QueryError for a word that there is not, and a confidence outside of [0, 1].
    """

    kind: str | None = None
    category: str | None = None
    domain: str | None = None
    regime: str | None = None
    status: str | None = "active"
    chain: str | None = None
    pair: str | None = None
    tool: str | None = None
    confidence_min: float = 0.0

    def __post_init__(self) -> None:
        words = {"kind": ENTRY_KINDS, "category": CATEGORIES, "domain": DOMAINS, "regime": REGIMES, "status": STATUSES}
        for name, known in words.items():
            asked = getattr(self, name)
            if asked is not None and asked not in known:
                raise QueryError(f"no {name} is called {asked!r}: there are {', '.join(known)}")
        if not 0.0 <= self.confidence_min <= 1.0:
            raise QueryError(f"a confidence is between 0 and 1, not {self.confidence_min}")

    def of(self, entries: pa.Table, confidence: Whole) -> Truth:
        """Which entries (ENTRY_SCHEMA) pass. confidence: of each now, in ppm."""
        own = pc.is_in(entries["provenance"], value_set=pa.array(OWN)).to_numpy()
        published = np.where(own, confidence, int_column(entries, "confidence_origin_ppm"))
        passed = published >= ppm(self.confidence_min)
        for name in ("kind", "category", "domain", "regime", "status", "chain", "pair", "tool"):
            if (asked := getattr(self, name)) is not None:
                passed &= pc.fill_null(pc.equal(entries[name], asked), False).to_numpy()
        return passed


def search_entries(
    entries: pa.Table,
    vectors: NDArray[np.float32],
    text_of: Whole,
    question: str,
    vector: NDArray[np.float32],
    *,
    at_us: int,
    filters: Filters,
    decay: bool,
    policy: Policy,
) -> pa.Table:
    """Every entry that shares a word or a meaning with the question (FOUND_SCHEMA), no two of one text, best first.

    entries: ENTRY_SCHEMA. vectors: float32 [texts, dimension], unit rows; text_of: int64 [entries]. at_us: the moment
    at which confidence counts. decay: whether what faded ranks lower.
    """
    confidence = confidence_of(entries, at_us, policy.decay)
    rows = np.flatnonzero(filters.of(entries, confidence))
    texts, place = np.unique(text_of[rows], return_inverse=True)
    if not len(rows):
        return FOUND_SCHEMA.empty_table()
    _, first = np.unique(place, return_index=True)
    told = one(entries.column("text")).take(pa.array(rows[first]))
    rules = policy.retrieval
    near, worded = likeness(vectors[texts], vector), Words.of(told).scores(question, rules)
    relevance = fused([worded, near], rules.fusion_k)[place]
    retained = confidence[rows] / PPM if decay else np.ones(len(rows))
    found = entries.select(["entry_id", "golem_id", "kind", "text"]).take(pa.array(rows))
    columns = {"store": "entries", "id": found["entry_id"], "golem_id": found["golem_id"], "kind": found["kind"]}
    return ranked(columns | {"text": found["text"]}, relevance, retained)


def ranked(columns: dict[str, Any], relevance: Floats, retained: Floats) -> pa.Table:
    """Rows by relevance x retained, equals by id and golem, the first of each text; FOUND_SCHEMA."""
    count = len(relevance)
    numbers = {"relevance": relevance, "retained": retained, "score": relevance * retained}
    columns = columns | {"rank": np.zeros(count, np.int64), "holders": np.ones(count, np.int64), **numbers}
    columns["store"] = pa.repeat(pa.scalar(columns["store"]), count)
    table = pa.table({n: columns[n] for n in FOUND_SCHEMA.names}).cast(FOUND_SCHEMA)
    return first_of_each_text(table.filter(pc.greater(table["relevance"], 0.0)))


def first_of_each_text(found: pa.Table) -> pa.Table:
    """The best row of each text of a store, with how many share it; best first, equals by store, id and golem."""
    keys = [("score", "descending"), ("store", "ascending"), ("id", "ascending"), ("golem_id", "ascending")]
    ordered = found.sort_by(keys)
    text = one(pc.binary_join_element_wise(ordered["store"], ordered["text"], "\x1f"))
    codes = text.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    holders = np.bincount(inverse, weights=ordered["holders"].to_numpy()).astype(np.int64)
    kept = np.sort(first)
    out = ordered.take(pa.array(kept, pa.int64()))
    out = out.set_column(
        out.schema.get_field_index("holders"), FOUND_SCHEMA.field("holders"), pa.array(holders[codes[kept]])
    )
    rank = pa.array(np.arange(1, out.num_rows + 1))
    return out.set_column(0, FOUND_SCHEMA.field("rank"), rank)
