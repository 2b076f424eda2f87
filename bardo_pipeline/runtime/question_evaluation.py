"""Measures how often golems retrieve an entry that answers a question about it.

Source: X-5 ("retrieval on questions with known answers").
"""

from __future__ import annotations

from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.ask import text_vectors
from bardo_pipeline.quality.grimoire_precision import Look
from bardo_pipeline.quality.known_questions import Question, QuestionScore, questions, score_answers
from bardo_pipeline.retrieval.retrieve import Grimoire
from bardo_pipeline.retrieval.situation import Situation


def questioned(context: DerivationContext, grimoire: pa.Table, last: Look, now: datetime) -> QuestionScore:
    """Ask each golem about its correct entries, in other words, in the entry's situation.

    grimoire: ENTRY_SCHEMA at the last look. now: recording time of new vectors.
    """
    first = context.policy.worth.questions_in_first
    living = grimoire.filter(pc.equal(grimoire["status"], "active"))
    put = questions(living, last.verdicts)
    if not put:
        return score_answers([], first)
    words = sorted({question.words for question in put})
    vectors = dict(zip(words, np.asarray(context.embedder.embed(words), np.float32), strict=True))
    by_golem: dict[str, list[Question]] = {}
    for question in put:
        by_golem.setdefault(question.golem_id, []).append(question)
    places: list[int | None] = []
    for golem_id, mine in sorted(by_golem.items()):
        entries = living.filter(pc.equal(living["golem_id"], golem_id)).combine_chunks()
        known = Grimoire(entries, *text_vectors(context, entries["text"], now), context.policy)
        for question in mine:
            situation = Situation(last.at_us, regime=question.regime)
            hits = known.retrieve(vectors[question.words], situation, first, may_skip=False).hits
            found = hits["entry_id"].to_pylist()
            places.append(found.index(question.entry_id) + 1 if question.entry_id in found else None)
    return score_answers(places, first)
