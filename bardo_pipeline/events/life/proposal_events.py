"""Requests to a language model: operations on a golem's grimoire, wordings of a testament.

Source: TOOLS (ADD, UPVOTE, DOWNVOTE, EDIT), INH-3 ("a language model may phrase the testament; it may not add a
claim"), canon 58 ("answers of a model are events").
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from bardo_pipeline.errors import RegressionError
from bardo_pipeline.events.life.override_events import ExternalEvents, cycle_after
from bardo_pipeline.events.record.model import Name, Part, Regime, Spent, Text, Tick, Unit, Whole

OPERATIONS_MAX = 16
CITED_MAX = 64
REASON_LENGTH_MAX = 500
NOTE_LENGTH_MAX = 500
WORDING_LENGTH_MAX = 1_000

AnomalyBand = Literal["calm", "stirred", "strained", "stretched", "broken"]
GasBand = Literal["cheap", "normal", "dear"]
Operation = Literal["ADD", "UPVOTE", "DOWNVOTE", "EDIT"]
Outcome = Literal["answered", "refused", "timed_out", "malformed", "failed", "over_cap"]


class ProposedSituation(Part):
    """Situation of a rule, with the values of an entry's structure."""

    chain: Name
    protocol: Name
    pair: Name
    tool: Name
    action_type: Name
    regime: Regime
    anomaly_band: AnomalyBand
    gas_band: GasBand


class ProposedOperation(Part):
    """A proposed operation. UPVOTE, DOWNVOTE, EDIT: entry_id; ADD: situation, sign, confidence; EDIT: note."""

    operation: Operation
    entry_id: Name | None
    situation: ProposedSituation | None
    sign: Annotated[int, Field(ge=-1, le=1)] | None
    confidence: Unit | None
    note: Annotated[str, Field(max_length=NOTE_LENGTH_MAX)] | None
    reason: Annotated[str, Field(max_length=REASON_LENGTH_MAX)]
    evidence: tuple[Tick, ...]


class Asked(Part):
    """A request to a language model about a golem's closed cycles, and its outcome, failures included.

    cycle: last closed cycle in the prompt. tick_seen: last tick before the first gap of the golem's stream at the time
    of recording; the operations are judged when the cycle of the next tick closes. detail: description of a failure,
    else empty. answer: as received, truncated to the limit of a text; null without one. cost_micros: micro-dollars by
    the provider's list price, or by the policy's price if that is unknown. latency_ms: including retries.
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


class Proposal(NamedTuple):
    """A proposed operation with its event. situation: values of ProposedSituation in order, for ADD only."""

    golem_id: str
    tick_seen: int
    event_id: str
    number: int
    source: str
    operation: str
    reason: str
    evidence: tuple[int, ...]
    entry_id: str | None = None
    situation: tuple[str, ...] | None = None
    sign: int | None = None
    note: str | None = None

    def cycle(self, cycle_ticks: int) -> int:
        """Return the cycle in which the proposal is judged."""
        return cycle_after(self.tick_seen, cycle_ticks)


class Proposed(ExternalEvents[Proposal]):
    """All proposals by golem, tick seen, event and number."""

    @classmethod
    def of(cls, events: pa.Table) -> Self:
        """Read life events (LIFE_SCHEMA); events of other kinds are ignored."""
        requests = events.filter(pc.equal(events["kind"], "ModelAsked"))
        rows = requests.select(["golem_id", "event_id", "asked"]).to_pylist()
        return cls(tuple(sorted(proposal for row in rows for proposal in _proposals(**row))))


def _proposals(golem_id: str, event_id: str, asked: Mapping[str, Any]) -> Iterable[Proposal]:
    source = f"{asked['provider']}:{asked['model']}"
    for number, operation in enumerate(asked["operations"]):
        situation = operation["situation"]
        yield Proposal(
            golem_id, asked["tick_seen"], event_id, number, source, operation["operation"], operation["reason"],
            tuple(operation["evidence"]), operation["entry_id"],
            tuple(situation[name] for name in ProposedSituation.model_fields) if situation else None,
            operation["sign"], operation["note"],
        )  # fmt: skip


def check_model_requests(
    requests: Iterable[tuple[str, Asked]], *, contiguous: Callable[[str], int], death: Callable[[str], int | None]
) -> None:
    """Raise RegressionError for operations that do not refer to the present state of their golem.

    Parameters
    ----------
    requests : (golem, request)
    contiguous : golem -> last tick before the first gap
    death : golem -> tick of the recorded death
    """
    for golem_id, asked in requests:
        newest, died = contiguous(golem_id), death(golem_id)
        if not asked.operations:
            continue
        if died is not None and newest >= died:
            raise RegressionError(golem_id, died, "was its last: a proposal would never be judged")
        if asked.tick_seen != newest:
            raise RegressionError(golem_id, asked.tick_seen, f"is no longer its newest tick: that is {newest}")
