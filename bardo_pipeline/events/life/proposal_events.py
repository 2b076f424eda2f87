"""Operations proposed about a golem's grimoire, and the asking that brought them, as a life event carries them.

Source: TOOLS (ADD, UPVOTE, DOWNVOTE, EDIT), canon 58 ("answers of a model are events").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from bardo_pipeline.errors import RegressionError
from bardo_pipeline.events.life.effective_cycle import by_golem, cycle_after, due
from bardo_pipeline.events.record.model import Name, Part, Regime, Spent, Text, Tick, Unit, Whole

OPERATIONS_MAX = 16
CITED_MAX = 64
REASON_LENGTH_MAX = 500
NOTE_LENGTH_MAX = 500

AnomalyBand = Literal["calm", "stirred", "strained", "stretched", "broken"]
GasBand = Literal["cheap", "normal", "dear"]
Operation = Literal["ADD", "UPVOTE", "DOWNVOTE", "EDIT"]
Outcome = Literal["answered", "refused", "timed_out", "malformed", "failed", "over_cap"]


class ProposedSituation(Part):
    """Where a rule holds, in the words of an entry's structure."""

    chain: Name
    protocol: Name
    pair: Name
    tool: Name
    action_type: Name
    regime: Regime
    anomaly_band: AnomalyBand
    gas_band: GasBand


class ProposedOperation(Part):
    """One operation. entry_id: of UPVOTE, DOWNVOTE and EDIT; situation, sign and confidence: of ADD; note: of EDIT."""

    operation: Operation
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


class Proposal(NamedTuple):
    """One operation of a recorded answer, as it is judged. situation: its words in order, of ADD alone."""

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
        """The cycle in which it is judged."""
        return cycle_after(self.tick_seen, cycle_ticks)


@dataclass(frozen=True)
class Proposed:
    """All that models proposed, by golem, tick seen, event and number."""

    proposals: tuple[Proposal, ...] = ()

    @classmethod
    def of(cls, events: pa.Table) -> Proposed:
        """From life events (LIFE_SCHEMA); events of other kinds do no harm."""
        told = events.filter(pc.equal(events["kind"], "ModelAsked"))
        rows = told.select(["golem_id", "event_id", "asked"]).to_pylist()
        return cls(tuple(sorted(one for row in rows for one in _proposals(**row))))

    @cached_property
    def _by_golem(self) -> dict[str, tuple[Proposal, ...]]:
        return by_golem(self.proposals)

    def due(self, done: Mapping[str, int], upto: Mapping[str, int], cycle_ticks: int) -> tuple[Proposal, ...]:
        """What is judged in these golems' cycles after one and up to another. done: 0 for golems that it lacks."""
        return due(self._by_golem, done, upto, cycle_ticks)


def _proposals(golem_id: str, event_id: str, asked: Mapping[str, Any]) -> Iterable[Proposal]:
    source = f"{asked['provider']}:{asked['model']}"
    for number, said in enumerate(asked["operations"]):
        situation = said["situation"]
        yield Proposal(
            golem_id, asked["tick_seen"], event_id, number, source, said["operation"], said["reason"],
            tuple(said["evidence"]), said["entry_id"],
            tuple(situation[name] for name in ProposedSituation.model_fields) if situation else None,
            said["sign"], said["note"],
        )  # fmt: skip


def check_askings(
    said: Iterable[tuple[str, Asked]], *, contiguous: Callable[[str], int], death: Callable[[str], int | None]
) -> None:
    """Raise RegressionError for operations that were not proposed of the golem as it stands now.

    said: golem and asking. contiguous: the tick up to which its stream has no gap. death: of its recorded death.
    """
    for golem_id, asked in said:
        newest, died = contiguous(golem_id), death(golem_id)
        if not asked.operations:
            continue
        if died is not None and newest >= died:
            raise RegressionError(golem_id, died, "was its last: nothing that is proposed would be judged any more")
        if asked.tick_seen != newest:
            raise RegressionError(golem_id, asked.tick_seen, f"is not its newest any more, tick {newest} is")
