"""The phrasing of a testament by a language model.

Source: INH-3 ("a language model may phrase the testament; it may not add a claim"), canon 58.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bardo_pipeline.events.life.proposal_events import Outcome
from bardo_pipeline.events.record.model import Name, Part, Spent, Text, Whole

WORDING_LENGTH_MAX = 1_000


class Wording(Part):
    """A sentence phrased by a model. statement: the derived sentence. fault: reason for refusing the wording, null if
    accepted; an accepted wording claims exactly what the sentence claims."""

    category: Name
    statement: Text
    wording: Annotated[str, Field(max_length=WORDING_LENGTH_MAX)]
    fault: Text | None


class Phrased(Part):
    """A request to a language model to phrase a dead golem's testament, and its outcome, failures included.

    wordings: phrased sentences in the order of the request; other sentences keep the derived form. detail, answer and
    costs: as in `Asked`.
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
