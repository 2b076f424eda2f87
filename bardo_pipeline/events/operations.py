"""Operations proposed about a golem's grimoire, and the asking that brought them, as a life event carries them.

Source: TOOLS (ADD, UPVOTE, DOWNVOTE, EDIT), canon 58 ("answers of a model are events").
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from bardo_pipeline.events.record import Name, Part, Spent, Text, Tick, Unit, Whole

OPERATIONS_MAX = 16
CITED_MAX = 64
REASON_LENGTH_MAX = 500
NOTE_LENGTH_MAX = 500

Outcome = Literal["answered", "refused", "timed_out", "malformed", "failed", "over_cap"]


class ProposedSituation(Part):
    """Where a rule holds, in the words of an entry's structure."""

    chain: Name
    protocol: Name
    pair: Name
    tool: Name
    action_type: Name
    regime: Name
    anomaly_band: Name
    gas_band: Name


class ProposedOperation(Part):
    """One operation. entry_id: of UPVOTE, DOWNVOTE and EDIT; situation, sign and confidence: of ADD; note: of EDIT."""

    operation: Literal["ADD", "UPVOTE", "DOWNVOTE", "EDIT"]
    entry_id: Name | None
    situation: ProposedSituation | None
    sign: Annotated[int, Field(ge=-1, le=1)] | None
    confidence: Unit | None
    note: Annotated[str, Field(max_length=NOTE_LENGTH_MAX)] | None
    reason: Annotated[str, Field(max_length=REASON_LENGTH_MAX)]
    evidence: tuple[Tick, ...]


class Asked(Part):
    """A language model was asked what a golem's closed cycles teach, and what came of it, failures included.

    cycle: the last closed cycle that the prompt shows. tick_seen: the tick up to which the golem's stream had no gap
    when the answer was recorded; its operations are judged when the cycle of the next tick closes. detail: what went
    wrong, empty where nothing did. answer: as it came, null where none did, cut where it is longer than a text may be.
    cost_micros: micro-dollars, by the provider's list price where it is known, else by the policy's. latency_ms: of
    the asking, retries included.
    """

    cycle: Whole
    tick_seen: Whole
    provider: Name
    model: Name
    prompt_hash: Name
    outcome: Outcome
    detail: Text
    answer: Text | None
    operations: tuple[ProposedOperation, ...]
    request_count: Whole
    input_tokens: Whole
    output_tokens: Whole
    cost_micros: Spent
    latency_ms: Whole
