"""The score of a search by columns equals its twin text by text; its filters, its penalty and its best rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bardo_pipeline.errors import QueryError
from bardo_pipeline.grimoire.entry_columns import confidence_of
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval import text_scoring
from bardo_pipeline.retrieval.exact_vectors import exact, scale_of
from bardo_pipeline.retrieval.hybrid_search import Candidates, Filters, Rows
from bardo_pipeline.retrieval.text_index import FOREVER, Doc, TextIndex
from bardo_pipeline.retrieval.text_scoring import Scope, relevance, relevances
from bardo_pipeline.retrieval.words import stems
from tests.reference.search import scored
from tests.support.knowledge.handmade_grimoires import DIED, entry, grimoire

POLICY = Policy()
NOW = int(DIED.timestamp() * 10**6)
VOCABULARY = ("gas", "Gas", "price", "crash", "falling", "trend", "7,700", "Größe", "pool_fee", "Ada", "the", "May")
TEXTS = st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=6).map(" ".join)


def unit(text: str, dimension: int = 8) -> np.ndarray:
    drawn = np.random.default_rng(sum(map(ord, text))).standard_normal(dimension)
    return (drawn / np.linalg.norm(drawn)).astype(np.float32)


def stepped(text: str) -> list[float]:
    return [float(x) / scale_of(8) for x in exact(unit(text))]


@st.composite
def shards(draw: st.DrawFn) -> list[list[Doc]]:
    """Texts of up to three golems, in sessions, without a session, and without neighbours."""
    made = []
    for shard in range(draw(st.integers(1, 3))):
        docs = []
        for place in range(draw(st.integers(1, 8))):
            text = draw(TEXTS)
            docs.append(
                Doc(
                    f"{shard}/{place}", (place, 0, ""), text, f"hash of {text}", "episode", place, 7.0,
                    beside=draw(st.sampled_from(["", "2023 may", "gas"])), speaker=draw(st.sampled_from(["", "Ada"])),
                    session=draw(st.sampled_from(["s1", "s2", "", None])), facets=("episode", *[None] * 5),
                )
            )  # fmt: skip
        made.append(docs)
    return made


def index_of(made: list[list[Doc]], step: int) -> TextIndex:
    """Add the texts of each golem in portions."""
    index = TextIndex(8, POLICY.search.similarity)
    for first in range(0, max(map(len, made)), step):
        for shard, docs in enumerate(made):
            index.add(f"g-{shard}", docs[first : first + step])
    keys = index.keys
    waiting = index.waiting(keys)
    index.hold(keys, list(waiting), np.stack([unit(text) for text in waiting.values()]))
    return index


@pytest.mark.row("MEM-10")
@settings(max_examples=60, deadline=None)
@given(shards(), TEXTS, st.integers(1, 8))
def test_scores_equal_their_twin_in_any_portions(made: list[list[Doc]], question: str, step: int) -> None:
    index = index_of(made, step)
    scope = Scope.of(index.views(), POLICY)
    (product,) = scope.products(exact(unit(question)[None, :]))
    scores = relevance(scope, index.number_of, question, product, POLICY)
    vectors = {doc.text_hash: stepped(doc.text) for docs in made for doc in docs}
    twin = scored(made, vectors, question, stepped(question), POLICY)
    assert scores.tolist() == pytest.approx(twin, abs=2e-4)  # cosines are rounded to 1e-5 before they are scaled
    assert min(scores) >= 0.0
    assert max(scores) <= 1.0


@pytest.mark.row("MEM-10", "MEM-21")
@settings(max_examples=60, deadline=None)
@given(shards(), TEXTS, st.integers(1, 8), st.data())
def test_texts_that_an_edit_replaced_change_no_score(
    made: list[list[Doc]], question: str, step: int, data: st.DataObject
) -> None:
    index = index_of(made, step)
    ids = [doc.doc_id for docs in made for doc in docs]
    gone = data.draw(st.sets(st.sampled_from(ids), max_size=len(ids) - 1))
    for key in index.keys:
        index.withdraw(key, dict.fromkeys(sorted(gone), 100))
    left = [[doc for doc in docs if doc.doc_id not in gone] for docs in made]
    scopes = [Scope.of(index.views(), POLICY), Scope.of(index_of(left, 8).views(), POLICY)]
    assert scopes[0].speakers == {index.number_of[w] for docs in left for doc in docs for w in stems([doc.speaker])[1]}
    scores = []
    for scope, number_of in zip(scopes, (index.number_of, index_of(left, 8).number_of), strict=True):
        (product,) = scope.products(exact(unit(question)[None, :]))
        scores.append(relevance(scope, number_of, question, product, POLICY).tolist())
    stays = [score for score, doc_id in zip(scores[0], ids, strict=True) if doc_id not in gone]
    assert stays == pytest.approx(scores[1], abs=1e-12)


@pytest.mark.row("MEM-21")
@pytest.mark.parametrize("is_known_late", [False, True])
def test_a_text_behind_an_edit_is_no_upvote_of_the_replaced_words(is_known_late: bool) -> None:
    docs = [
        Doc(name, (at, 0, name), "gas", "hash", "insight", at, 7.0, upserts=True, facets=("insight", *[None] * 5))
        for at, name in enumerate(("first", "before", "behind", "last"))
    ]
    index = TextIndex(8, POLICY.search.similarity)
    index.add("g", docs)
    for step in (index.hold, index.withdraw) if is_known_late else (index.withdraw, index.hold):
        step("g", {"first": 2}) if step == index.withdraw else step(["g"], ["hash"], unit("gas")[None, :])
    (view,) = index.views()
    assert view.stands_for[:4].tolist() == [-1, 0, -1, 2]
    assert view.until_us[:4].tolist() == [2, 2, FOREVER, FOREVER], "an earlier upvote states the replaced words too"


@pytest.mark.row("MEM-10")
@settings(max_examples=60, deadline=None)
@given(shards(), st.lists(TEXTS, min_size=2, max_size=6))
def test_words_of_earlier_questions_change_no_score(made: list[list[Doc]], questions: list[str]) -> None:
    index = index_of(made, 8)
    kept = Scope.of(index.views(), POLICY)
    for question in [*questions, *questions]:
        (product,) = kept.products(exact(unit(question)[None, :]))
        scores = [
            relevance(scope, index.number_of, question, product, POLICY).tolist()
            for scope in (kept, Scope.of(index.views(), POLICY))
        ]
        assert scores[0] == scores[1]


@pytest.mark.row("MEM-10")
@pytest.mark.parametrize("shared_from", [1, 10**9])
def test_scores_of_questions_together_equal_those_alone(shared_from: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_scoring, "SHARED_FROM", shared_from)
    draw = np.random.default_rng(7)
    docs = [
        Doc(f"{place}", (place, 0, ""), text, text, "episode", place, 7.0, session="s", facets=("episode", *[None] * 5))
        for place, text in enumerate(" ".join(draw.choice(VOCABULARY, 5)) for _ in range(300))
    ]  # fmt: skip
    index = index_of([docs], 8)
    scope = Scope.of(index.views(), POLICY)
    questions = [" ".join(draw.choice(VOCABULARY, 3)) for _ in range(16)]
    together = scope.products(exact(np.stack([unit(question) for question in questions])))
    scores = relevances(scope, index.number_of, questions, together, POLICY)
    for question, row in zip(questions, scores, strict=True):
        (product,) = scope.products(exact(unit(question)[None, :]))
        assert row.tobytes() == relevance(scope, index.number_of, question, product, POLICY).tobytes()
    assert len({row.tobytes() for row in scores}) > 1


@pytest.mark.row("MEM-10")
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.booleans(), st.integers(0, 4)), max_size=40),
    st.integers(1, 6),
)
def test_the_best_row_of_each_text_is_returned(rows: list[tuple[int, int, bool, int]], count: int) -> None:
    doc, text, passed, quarters = (
        (np.array(column) for column in zip(*rows, strict=True)) if rows else [np.zeros(0)] * 4
    )
    relevant, penalty = np.array([0.0, 0.2, 0.4, 0.6, 0.8]), 0.15
    text = text.astype(np.int64)
    cut, parts = len(rows) // 3, []
    for golem, place in (("g-1", slice(0, cut)), ("g-2", slice(cut, 2 * cut)), ("g-2", slice(2 * cut, None))):

        def described(n: int, first: int = place.start) -> tuple[str, str, str, str]:
            return f"{first + n:03}", "g", "", f"{text[first + n]}"

        columns = (doc.astype(np.int64), text, passed.astype(bool), quarters / 4)
        parts.append(Rows("entries", *(column[place] for column in columns), described, golem))
    hits = [found._asdict() for found in Candidates(parts, penalty).best(relevant, count)]
    best: dict[int, tuple[float, int]] = {}
    for n, (d, t, ok, q) in enumerate(rows):
        score = round(relevant[d] * (1.0 - penalty * (1.0 - q / 4)), 9)
        if ok and score > 0.0:
            best[t] = min(best.get(t, (0.0, 0)), (-score, n))
    assert [(hit["text"], hit["id"]) for hit in hits] == [
        (str(t), f"{n:03}") for t, (_, n) in sorted(best.items(), key=lambda item: item[1])
    ][:count]
    for hit in hits:
        assert hit["holders"] == len({n < cut for n, (_, t, ok, _) in enumerate(rows) if ok and str(t) == hit["text"]})


def passing(rows: list[dict[str, Any]], **filters: Any) -> list[str]:
    """Return the texts of the entries that pass."""
    table = pa.concat_tables([grimoire(row) for row in rows])
    passed = Filters(**filters).of(table, confidence_of(table, NOW, POLICY.decay))
    return table.filter(pa.array(passed))["text"].to_pylist()


@pytest.mark.row("MEM-10")
def test_the_minimum_confidence_applies_to_the_confidence_of_the_publisher() -> None:
    own = entry("g-1", "a", text="gas price", confidence_ppm=300_000, confidence_origin_ppm=900_000, anchor_at=DIED)
    row = entry(
        "g-1", "b", text="gas crash", provenance="death_testament", confidence_ppm=300_000,
        confidence_origin_ppm=900_000, anchor_at=DIED,
    )  # fmt: skip
    assert passing([own, row]) == ["gas price", "gas crash"]
    assert passing([own, row], confidence_min=0.5) == ["gas crash"]
    assert passing([own, row], confidence_min=0.95) == []


@pytest.mark.row("MEM-10")
@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"kind": "foo"}, "no kind is called 'foo'"),
        ({"category": "foo"}, "no category is called 'foo'"),
        ({"regime": "bull"}, "no regime is called 'bull'"),
        ({"status": "foo"}, "no status is called 'foo'"),
        ({"confidence_min": 1.7}, "a confidence is between 0 and 1, not 1.7"),
        ({"confidence_min": float("nan")}, "a confidence is between 0 and 1"),
    ],
)
def test_an_unknown_filter_value_is_refused(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(QueryError, match=text):
        Filters(**wrong)


@pytest.mark.row("MEM-10")
@pytest.mark.parametrize("name", ["kind", "category", "domain", "regime", "status", "chain", "pair", "tool"])
def test_each_filter_narrows_by_its_own_column(name: str) -> None:
    other = {"kind": "warning", "category": "slippage", "domain": "gas", "regime": "trending_up", "status": "candidate",
             "chain": "base", "pair": "WBTC/USDC", "tool": "swap"}  # fmt: skip
    rows = [entry("g-1", "a", text="gas price"), entry("g-1", "b", text="gas crash") | {name: other[name]}]
    plain = {"status": None} if name != "status" else {}
    assert rows[0][name] != other[name]
    assert passing(rows, status=None) == ["gas price", "gas crash"]
    assert passing(rows, **(plain | {name: other[name]})) == ["gas crash"]
