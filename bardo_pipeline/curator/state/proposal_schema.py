"""Schema of proposed operations on a grimoire: ADD, UPVOTE, DOWNVOTE, EDIT (ExpeL). Pure.

A language model proposes operations in this schema. An operation names a rule by its situation or entry, and cites
ticks of the golem as evidence. It changes nothing by itself.
Source: TOOLS (memory_manage_insight, memory_consolidate), MEM-4.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from bardo_pipeline.events.life.proposal_events import (
    CITED_MAX,
    NOTE_LENGTH_MAX,
    OPERATIONS_MAX,
    REASON_LENGTH_MAX,
    ProposedOperation,
    ProposedSituation,
)
from bardo_pipeline.events.record.model import Part, Tick, Unit

SCHEMA_EDITION = "1"
"""Part of a prompt's hash; increase it when the schema asks for something else."""

EntryId = Annotated[str, Field(pattern=r"^[0-9a-f]{24}$", description="entry_id of one of the listed rules")]
Reason = Annotated[str, Field(min_length=1, max_length=REASON_LENGTH_MAX, description="why, in one or two sentences")]
Evidence = Annotated[
    tuple[Tick, ...],
    Field(min_length=1, max_length=CITED_MAX, description="ticks listed as evidence that speak for this operation"),
]


class Situation(ProposedSituation):
    """Where a rule holds, and which action it judges against holding."""


class Add(Part):
    """ADD: a rule that should be watched. sign: 1 where acting beats holding, -1 where it loses to holding."""

    operation: Literal["ADD"]
    situation: Situation
    sign: Literal[1, -1]
    confidence: Annotated[Unit, Field(description="how sure you are, from 0 to 1; it moves nothing by itself")]
    reason: Reason
    evidence: Evidence


class Upvote(Part):
    """UPVOTE: the cited ticks confirm an active rule."""

    operation: Literal["UPVOTE"]
    entry_id: EntryId
    reason: Reason
    evidence: Evidence


class Downvote(Part):
    """DOWNVOTE: the cited ticks speak against an active rule."""

    operation: Literal["DOWNVOTE"]
    entry_id: EntryId
    reason: Reason
    evidence: Evidence


class Edit(Part):
    """EDIT: a note beside an active rule, for whoever reads it; the rule itself is not touched."""

    operation: Literal["EDIT"]
    entry_id: EntryId
    note: Annotated[str, Field(min_length=1, max_length=NOTE_LENGTH_MAX)]
    reason: Reason
    evidence: Evidence


class Proposals(Part):
    """What is proposed about one golem's grimoire: none, one or several operations."""

    operations: Annotated[
        tuple[Annotated[Add | Upvote | Downvote | Edit, Field(discriminator="operation")], ...],
        Field(max_length=OPERATIONS_MAX),
    ]

    def recorded(self) -> tuple[ProposedOperation, ...]:
        """Return the operations in the form that an event carries."""
        return tuple(_recorded(operation) for operation in self.operations)


def _recorded(proposed: Add | Upvote | Downvote | Edit) -> ProposedOperation:
    given = proposed.model_dump() | {"evidence": tuple(sorted(set(proposed.evidence)))}
    return ProposedOperation.model_validate(dict.fromkeys(ProposedOperation.model_fields) | given)
