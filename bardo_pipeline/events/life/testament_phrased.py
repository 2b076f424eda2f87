"""The phrasing of a testament by a language model, as a life event carries it.

Source: INH-3 ("a language model may phrase the testament; it may not add a claim"), canon 58.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bardo_pipeline.events.life.proposal_events import Outcome
from bardo_pipeline.events.record.model import Name, Part, Spent, Text, Whole

WORDING_LENGTH_MAX = 1_000


class Wording(Part):
    """One sentence in a model's words. statement: the derived sentence, of that category. fault: why the wording may
    not stand for it, null where it may: it claims what the sentence claims, and no more."""

    category: Name
    statement: Text
    wording: Annotated[str, Field(max_length=WORDING_LENGTH_MAX)]
    fault: Text | None


class Phrased(Part):
    """A language model was asked to phrase a dead golem's testament, and what came of it, failures included.

    wordings: of the sentences that it phrased, in the order in which they were asked; what it left out stands as it
    was derived. detail, answer, costs: as of any asking (`Asked`).
    """

    provider: Name
    model: Name
    prompt_hash: Name
    outcome: Outcome
    detail: Text
    answer: Text | None
    wordings: tuple[Wording, ...]
    request_count: Whole
    input_tokens: Whole
    output_tokens: Whole
    cost_micros: Spent
    latency_ms: Whole
