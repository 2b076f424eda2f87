"""Searches texts by words (BM25) and meaning (cosine), fuses both rankings and multiplies by retention. Pure.

The search is exact: it compares every text that passes the filters. Source: TOOLS (memory_search), MEM-10, canon 23.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Float32Array, Float64Array, Int64Array
from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.record.arrow_columns import all_required, codes_of, contiguous, required
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.confidence import PPM, ppm
from bardo_pipeline.grimoire.entries import CATEGORIES, DOMAINS, DREAMT, ENTRY_KINDS, STATUSES
from bardo_pipeline.grimoire.entry_columns import confidence_of, int_column, with_columns
from bardo_pipeline.policy import Policy, RetrievalPolicy
from bardo_pipeline.retrieval.scoring import Floats

OWN = ("self", DREAMT)
"""Provenances of entries that a golem learned itself."""

_NO_WORD = r"[^\p{L}\p{N}]+"

SEARCH_SCHEMA = pa.schema(
    [
        required("rank", pa.int64()),
        *all_required(pa.string(), "store", "id", "golem_id", "kind", "text"),
        *all_required(pa.float64(), "relevance", "retained", "score"),
        required("holders", pa.int64()),
    ]
)
"""One row per text found, best first; ties by store, id and golem. relevance: sum of the reciprocal ranks of both
rankings. retained: an episode's retention or an entry's confidence at the time of the question, in [0, 1]; 1 without
decay. score = relevance x retained. holders: number of rows that share the text, of which the best is shown."""


def bm25(texts: pa.Array, question: str, rules: RetrievalPolicy) -> Float64Array:
    """Return the BM25 score of each text, 0 for texts without a word of the question."""
    text_of_word, words = _words(texts)
    _, question_words = _words(pa.array([question], pa.string()))
    code = codes_of(words, question_words.unique())
    asked = np.flatnonzero(code >= 0)
    size = len(question_words) + 1
    pairs, count = np.unique(text_of_word[asked] * size + code[asked], return_counts=True)
    text, word = pairs // size, pairs % size
    document_count = np.bincount(word)[word]
    rarity = np.log1p((len(texts) - document_count + 0.5) / (document_count + 0.5))
    length = np.bincount(text_of_word, minlength=len(texts))
    mean = max(float(length.mean()), 1.0) if len(length) else 1.0
    saturation = rules.words_saturation * (1.0 - rules.words_length + rules.words_length * length[text] / mean)
    gain = rarity * count * (rules.words_saturation + 1.0) / (count + saturation)
    scores: Float64Array = np.bincount(text, weights=gain, minlength=len(texts)).astype(np.float64)
    return scores


def _words(texts: pa.Array) -> tuple[Int64Array, pa.Array]:
    """Return the text index of each word, and the lower-case words of letters and digits."""
    split = pc.split_pattern_regex(pc.utf8_lower(texts), pattern=_NO_WORD)
    text, words = pc.list_parent_indices(split), pc.list_flatten(split)
    nonempty = pc.not_equal(words, "")
    return text.filter(nonempty).to_numpy(zero_copy_only=False).astype(np.int64), words.filter(nonempty)


def likeness(vectors: Float32Array, question: Float32Array) -> Float64Array:
    """Return each unit vector's cosine with the question, rounded to 1e-6, negatives as 0 (canon 21)."""
    cosine = (vectors.astype(np.float64) * question.astype(np.float64)).sum(axis=1)
    rounded: Float64Array = np.rint(np.maximum(cosine, 0.0) * PPM) / PPM
    return rounded


def fused(rankings: Sequence[Floats], k: int) -> Float64Array:
    """Return the reciprocal rank fusion: the sum of 1 / (k + rank) over the rankings.

    Ties share the better rank. A score of 0 is unranked. Scores are rounded to 1e-9, so the order of addition does not
    matter.
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
    """Conditions on entries in a search; None matches everything.

    confidence_min in [0, 1] applies to the current confidence of own entries, and to the confidence at origin of
    received entries (canon 23). Raises QueryError for an unknown value and for a confidence outside of [0, 1].
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
        choices = {"kind": ENTRY_KINDS, "category": CATEGORIES, "domain": DOMAINS, "regime": REGIMES}
        for name, valid_values in (choices | {"status": STATUSES}).items():
            value = getattr(self, name)
            if value is not None and value not in valid_values:
                raise QueryError(f"no {name} is called {value!r}: there are {', '.join(valid_values)}")
        if not 0.0 <= self.confidence_min <= 1.0:
            raise QueryError(f"a confidence is between 0 and 1, not {self.confidence_min}")

    def of(self, entries: pa.Table, confidence: Int64Array) -> BoolArray:
        """Return which entries (ENTRY_SCHEMA) pass. confidence: current, in ppm."""
        own = pc.is_in(entries["provenance"], value_set=pa.array(OWN)).to_numpy()
        published = np.where(own, confidence, int_column(entries, "confidence_origin_ppm"))
        passed = published >= ppm(self.confidence_min)
        for name in ("kind", "category", "domain", "regime", "status", "chain", "pair", "tool"):
            if (value := getattr(self, name)) is not None:
                passed &= pc.fill_null(pc.equal(entries[name], value), False).to_numpy()
        return passed


def search_entries(
    entries: pa.Table,
    vectors: Float32Array,
    text_of: Int64Array,
    question: str,
    vector: Float32Array,
    *,
    at_us: int,
    filters: Filters,
    decay: bool,
    policy: Policy,
) -> pa.Table:
    """Rank the entries that share a word or a meaning with the question, one row per text (SEARCH_SCHEMA).

    Parameters
    ----------
    entries : pa.Table, ENTRY_SCHEMA
    vectors : [texts, dimension], unit rows
    text_of : row of `vectors` of each entry's text
    at_us : time in UTC microseconds to which confidence decays
    decay : whether the score is multiplied by confidence
    """
    confidence = confidence_of(entries, at_us, policy.decay)
    rows = np.flatnonzero(filters.of(entries, confidence))
    texts, text_index = np.unique(text_of[rows], return_inverse=True)
    _, first = np.unique(text_index, return_index=True)
    distinct_texts = contiguous(entries.column("text")).take(pa.array(rows[first]))
    rules = policy.retrieval
    rankings = [bm25(distinct_texts, question, rules), likeness(vectors[texts], vector)]
    relevance = fused(rankings, rules.fusion_k)[text_index]
    retained = confidence[rows] / PPM if decay else np.ones(len(rows))
    hits = entries.select(["entry_id", "golem_id", "kind", "text"]).take(pa.array(rows))
    columns = {"store": "entries", "id": hits["entry_id"], "golem_id": hits["golem_id"], "kind": hits["kind"]}
    return ranked(columns | {"text": hits["text"]}, relevance, retained)


def ranked(columns: dict[str, Any], relevance: Floats, retained: Floats) -> pa.Table:
    """Return SEARCH_SCHEMA rows with relevance above 0, by relevance x retained, one row per text."""
    count = len(relevance)
    numbers = {"relevance": relevance, "retained": retained, "score": relevance * retained}
    columns = columns | {"rank": np.zeros(count, np.int64), "holders": np.ones(count, np.int64), **numbers}
    columns["store"] = pa.repeat(pa.scalar(columns["store"]), count)
    table = pa.table({n: columns[n] for n in SEARCH_SCHEMA.names}).cast(SEARCH_SCHEMA)
    return first_of_each_text(table.filter(pc.greater(table["relevance"], 0.0)))


def first_of_each_text(hits: pa.Table) -> pa.Table:
    """Return the best row of each text of a store with the summed holders; best first, ties by store, id and golem."""
    keys = [("score", "descending"), ("store", "ascending"), ("id", "ascending"), ("golem_id", "ascending")]
    ordered = hits.sort_by(keys)
    text = contiguous(pc.binary_join_element_wise(ordered["store"], ordered["text"], "\x1f"))
    codes = text.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    holders = np.bincount(inverse, weights=ordered["holders"].to_numpy()).astype(np.int64)
    kept = np.sort(first)
    best = ordered.take(pa.array(kept, pa.int64()))
    return with_columns(best, rank=np.arange(1, len(kept) + 1), holders=holders[codes[kept]])
