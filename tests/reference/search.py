"""Search text by text: the score of each text for a question, from the words and vectors of all texts in scope."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from statistics import fmean

from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.text_index import Doc
from bardo_pipeline.retrieval.words import stems


def words_of(text: str) -> list[str]:
    """Return the stems of a text in order."""
    _, distinct, stem = stems([text])
    return [distinct[place] for place in stem]


def scored(
    shards: Sequence[Sequence[Doc]], vectors: dict[str, list[float]], question: str, asked: list[float], policy: Policy
) -> list[float]:
    """Return the relevance of all texts, shard by shard. vectors: by text_hash."""
    rules, k1, b = policy.search, policy.retrieval.words_saturation, policy.retrieval.words_length
    docs = [(shard, doc) for shard, docs in enumerate(shards) for doc in docs]
    texts = [words_of(doc.text) for _, doc in docs]
    beside = [words_of(f"{doc.speaker} {doc.beside}") for _, doc in docs]
    speakers = {word for _, doc in docs for word in words_of(doc.speaker)}
    mean = max(fmean(len(words) for words in texts), 1.0)
    sessions: dict[tuple[int, str], list[int]] = {}
    for place, (shard, doc) in enumerate(docs):
        if doc.session:
            sessions.setdefault((shard, doc.session), []).append(place)
    session_length = {key: sum(len(texts[n]) for n in places) for key, places in sessions.items()}
    session_mean = max(fmean(session_length.values()), 1.0) if sessions else 1.0
    own = [0.0] * len(docs)
    of_session = dict.fromkeys(sessions, 0.0)
    named = [False] * len(docs)
    ideal = 0.0
    for word in dict.fromkeys(words_of(question)):
        holders = sum(word in texts[n] + beside[n] for n in range(len(docs)))
        rarity = log(1.0 + (len(docs) - holders + 0.5) / (holders + 0.5))
        is_speaker = word in speakers
        ideal += 0.0 if is_speaker else rarity
        count = [0.0] * len(docs)
        for n in range(len(docs)):
            named[n] |= is_speaker and word in beside[n]
            inside, around = texts[n].count(word), beside[n].count(word)
            count[n] = inside * rules.addressed if is_speaker else inside + around * rules.beside
            norm = k1 * (1.0 - b + b * len(texts[n]) / mean)
            own[n] += rarity * count[n] * (k1 + 1.0) / (count[n] + norm)
        for key, places in sessions.items():
            total = sum(count[n] for n in places)
            norm = k1 * (1.0 - b + b * session_length[key] / session_mean)
            of_session[key] += rarity * total * (k1 + 1.0) / (total + norm)
    cosine = [round(sum(x * y for x, y in zip(vectors[doc.text_hash], asked, strict=True)), 5) for _, doc in docs]
    excess = [max(value - fmean(cosine), 0.0) for value in cosine]
    full = max(*own, ideal * rules.words_matched)
    base = [
        (rules.words * own[n] / full if full else 0.0)
        + ((1.0 - rules.words) * excess[n] / max(*excess, rules.likeness))
        for n in range(len(docs))
    ]
    best_session = max(of_session.values(), default=0.0)
    result = []
    for n, (shard, doc) in enumerate(docs):
        if doc.session is None:
            score = base[n] * (1.0 + 0.5 * (rules.before + rules.behind))
        else:
            stream = [m for m, (other, d) in enumerate(docs) if other == shard and d.session == doc.session]
            at = stream.index(n)
            score = base[n] + rules.before * sum(base[m] for m in stream[max(at - 1, 0) : at])
            score += rules.behind * sum(base[m] for m in stream[at + 1 : at + 2])
        if doc.session and best_session:
            score += rules.session * of_session[shard, doc.session] / best_session
        score = (score + rules.speaker * named[n]) * max(1.0 - rules.brief / (len(texts[n]) + 1.0 + rules.brief), 0.5)
        score += 0.01 * max(cosine[n], 0.0)
        result.append(score / (1.0 + rules.before + rules.behind + rules.session + rules.speaker + 0.01))
    return result
