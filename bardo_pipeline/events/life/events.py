"""Life events of golems, such as birth, death and bundles. One model per kind, one row per event.

Each event has a golem, an event time and exactly one payload. Its id is a SHA-256 of its content, so an event that is
written twice is stored once.

Source: architecture ("What is an event, not a projection"); MEM, INH S13, HB S7.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Literal, NamedTuple, Self, get_args

import orjson
from pydantic import Field, model_validator

from bardo_pipeline.events.experience.stored_text import StoredText
from bardo_pipeline.events.life import bundle_events as bundles
from bardo_pipeline.events.life import tool_events as tools
from bardo_pipeline.events.life.bundle_events import PublicKey
from bardo_pipeline.events.life.clade_events import NoteReceived, PostsReceived, StyxCalled
from bardo_pipeline.events.life.override_events import Corrected, Pinned, Retracted, Unpinned
from bardo_pipeline.events.life.proposal_events import Asked, Phrased
from bardo_pipeline.events.life.received_knowledge import Quarantined, Replicant
from bardo_pipeline.events.life.succession_events import Advanced, Configured, Credited, DefaultsInherited, TakenUp
from bardo_pipeline.events.life.thanatopsis_events import Accepted, Bequeathed, Cause, Reflected, Settled
from bardo_pipeline.events.record.model import (
    SCHEMA_VERSION,
    LivedTick,
    Micros,
    Moment,
    Name,
    Part,
    Phase,
    Spent,
    Text,
    Tick,
    Unit,
    Vitality,
    Whole,
)

Kind = Literal[
    "GolemBorn", "DeathDeclared", "BundleJudged", "BundlePublished", "KnowledgeReceived",
    "OwnerSteered", "GapAccepted", "RecordStruck", "ReorgObserved", "KnowledgeWithdrawn",
    "KeyRegistered", "KeyRotated", "KeyRevoked", "SealKeyMade", "SealKeyDestroyed",
    "DerivationAdopted",
    "EntryPinned", "EntryUnpinned", "EntryRetracted", "EntryCorrected",
    "ModelAsked",
    "OwnerKeyRegistered", "OwnerKeyRevoked", "BundleSigned", "BundleImported",
    "ConfigurationAdopted", "SuccessionAdvanced", "CreditCommitted", "GolemTakenUp",
    "DeathAccepted", "AffairsSettled", "LifeReflected", "LegacyLeft",
    "BundleWaived",
    "ReplicantSent", "DefaultsInherited",
    "EntryPulled", "EntryExported", "BundlePurchased", "KitOrdered",
    "TestamentPhrased",
    "LoanGranted",
    "BundleConsented",
    "StrategyStored", "ExecutionRecorded", "OutcomeRecorded", "InsightManaged", "EpisodesConsolidated",
    "AdjustmentStaged", "ArchiveImported", "ToolCalled",
    "TextStored",
    "EntriesShared", "NoteReceived", "PostsReceived", "StyxCalled",
]  # fmt: skip


class Traits(Part):
    """Configuration of a golem at birth, drawn from its seed or inherited."""

    rebalance_threshold: Unit
    range_half_width_ticks: Whole
    forecast_memory: Unit


class Born(Part):
    """Birth: owner, lineage, budget, lifespan, inherited bundle and traits."""

    owner_id: Name
    generation: Whole
    lineage_id: Name
    predecessor_id: Name | None
    bundle_hash: Name | None
    credits_micros: Spent
    reserve_micros: Spent
    capital_micros: Spent
    lifespan_ticks: Whole
    market: Name
    market_hash: Name
    policy_hash: Name
    derivation_id: Name
    traits: Traits


class LoanGranted(Part):
    """The golem and its heirs may borrow from a protocol against this collateral, up to this loan-to-value ratio.

    The debt is in the other token of its market.
    """

    protocol: Name
    collateral: Literal["USDC", "WETH"]
    loan_to_value: Unit


class Died(Part):
    """Death: the cause and the state at death.

    For a death by silence, state and time are those of the last record, so every observer declares the same event.
    """

    cause: Cause
    tick: Tick
    phase: Phase
    vitality: Vitality
    credits_micros: Spent
    capital_micros: Spent
    earned_micros: Micros


class FailedExpectation(Part):
    """A failed expectation of a candidate bundle."""

    expectation: Name
    severity: Literal["warning", "critical"]
    observed: Text


class Judged(Part):
    """The verdict of the expectations on a candidate bundle."""

    bundle_hash: Name
    passed: bool
    expectations: Whole
    failed: tuple[FailedExpectation, ...]


class Published(Part):
    """A bundle that passed its expectations and may be inherited."""

    bundle_hash: Name
    entry_count: Whole
    derivation_id: Name


class Received(Part):
    """Received knowledge by content hash: at birth, or later (then `Quarantined` has the details).

    source: purchase for a bundle of another owner of this home, at birth or later; clade for a parcel of a sibling.
    """

    source: Literal["succession", "import", "replicant", "purchase", "clade"]
    from_golem_id: Name
    content_hash: Name
    entry_count: Whole


class Steered(Part):
    """An intervention by the owner: high severity is a steer and forces T2, low severity is a follow-up."""

    intervention_id: Name
    due_tick: Tick
    severity: Literal["low", "high"]
    intent: Text


class Gap(Part):
    """The owner accepts these ticks as lost; derivation continues after them."""

    tick_from: LivedTick
    tick_to: LivedTick
    why: Text

    @model_validator(mode="after")
    def _ascends(self) -> Self:
        if self.tick_to < self.tick_from:
            raise ValueError(f"a gap from tick {self.tick_from} to tick {self.tick_to} holds no tick")
        return self


class Struck(Part):
    """The record of this tick is excluded from all derivations; the log keeps it (X-4, canon 20)."""

    tick: Tick
    why: Text


class Reorg(Part):
    """A chain reorganisation of these blocks: the records of these ticks are excluded (HB S10, EV-8)."""

    chain: Name
    block_from: Whole
    block_to: Whole
    tick_from: Tick
    tick_to: Tick

    @model_validator(mode="after")
    def _ascends(self) -> Self:
        if self.tick_to < self.tick_from or self.block_to < self.block_from:
            raise ValueError(
                f"a reorg of blocks {self.block_from} to {self.block_to}, ticks {self.tick_from} to {self.tick_to}, "
                "holds nothing"
            )
        return self


class Withdrawn(Part):
    """Withdrawal of inherited entries that derive from an excluded record; `because`: id of the excluding event."""

    because: Name
    from_golem_id: Name
    tick: Tick
    entry_ids: tuple[Name, ...]


class KeyRegistered(Part):
    """The golem's first signing key; all records from this tick on are signed."""

    key_id: Name
    public_key: PublicKey
    tick_from: Tick


class KeyRotated(Part):
    """A new signing key from this tick on, signed by the previous key; null if that key was revoked before."""

    key_id: Name
    public_key: PublicKey
    previous_key_id: Name
    tick_from: Tick
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")] | None
    why: Text


class KeyRevoked(Part):
    """Records signed with this key are refused from this tick on."""

    key_id: Name
    tick_from: Tick
    why: Text


class SealKeyMade(Part):
    """The private parts of the golem's records are sealed with this key from now on. The key is not in the log."""

    key_id: Name


class SealKeyDestroyed(Part):
    """The key was destroyed, so the parts sealed with it are unreadable."""

    key_id: Name
    why: Text


TEXTS = "TextStored"
"""Kind of the texts of runtimes, of which a home may hold more than of all other kinds together."""

FREQUENT = (TEXTS, "ToolCalled")
"""Kinds that runtimes record as often as they like, and that no derivation folds over the whole log."""

EVERY_GOLEM = "*"
"""Golem id of events that concern the whole home."""


class Adopted(Part):
    """The home uses this derivation from now on. policy: the hashed content as canonical JSON."""

    derivation_id: Name
    previous_derivation_id: Name
    policy_hash: Name
    passes_edition: Name
    embedder: Name
    policy: Text
    why: Text


class PayloadOf(NamedTuple):
    """Marks the attribute of a life event that holds the payload of a kind."""

    kind: str


class LifeEvent(Part):
    """A life event with exactly the payload of its kind."""

    schema_version: Annotated[int, Field(ge=1, le=SCHEMA_VERSION)] = SCHEMA_VERSION
    event_id: Name
    kind: Kind
    golem_id: Name
    observed_at: Moment
    born: Annotated[Born, PayloadOf("GolemBorn")] | None = None
    died: Annotated[Died, PayloadOf("DeathDeclared")] | None = None
    judged: Annotated[Judged, PayloadOf("BundleJudged")] | None = None
    published: Annotated[Published, PayloadOf("BundlePublished")] | None = None
    received: Annotated[Received, PayloadOf("KnowledgeReceived")] | None = None
    quarantined: Quarantined | None = None
    steered: Annotated[Steered, PayloadOf("OwnerSteered")] | None = None
    gap: Annotated[Gap, PayloadOf("GapAccepted")] | None = None
    struck: Annotated[Struck, PayloadOf("RecordStruck")] | None = None
    reorg: Annotated[Reorg, PayloadOf("ReorgObserved")] | None = None
    withdrawn: Annotated[Withdrawn, PayloadOf("KnowledgeWithdrawn")] | None = None
    key_registered: Annotated[KeyRegistered, PayloadOf("KeyRegistered")] | None = None
    key_rotated: Annotated[KeyRotated, PayloadOf("KeyRotated")] | None = None
    key_revoked: Annotated[KeyRevoked, PayloadOf("KeyRevoked")] | None = None
    seal_key_made: Annotated[SealKeyMade, PayloadOf("SealKeyMade")] | None = None
    seal_key_destroyed: Annotated[SealKeyDestroyed, PayloadOf("SealKeyDestroyed")] | None = None
    adopted: Annotated[Adopted, PayloadOf("DerivationAdopted")] | None = None
    pinned: Annotated[Pinned, PayloadOf("EntryPinned")] | None = None
    unpinned: Annotated[Unpinned, PayloadOf("EntryUnpinned")] | None = None
    retracted: Annotated[Retracted, PayloadOf("EntryRetracted")] | None = None
    corrected: Annotated[Corrected, PayloadOf("EntryCorrected")] | None = None
    asked: Annotated[Asked, PayloadOf("ModelAsked")] | None = None
    owner_key_registered: Annotated[bundles.OwnerKeyRegistered, PayloadOf("OwnerKeyRegistered")] | None = None
    owner_key_revoked: Annotated[bundles.OwnerKeyRevoked, PayloadOf("OwnerKeyRevoked")] | None = None
    signed: Annotated[bundles.BundleSigned, PayloadOf("BundleSigned")] | None = None
    imported: Annotated[bundles.BundleImported, PayloadOf("BundleImported")] | None = None
    configured: Annotated[Configured, PayloadOf("ConfigurationAdopted")] | None = None
    advanced: Annotated[Advanced, PayloadOf("SuccessionAdvanced")] | None = None
    credited: Annotated[Credited, PayloadOf("CreditCommitted")] | None = None
    taken_up: Annotated[TakenUp, PayloadOf("GolemTakenUp")] | None = None
    pulled: Annotated[bundles.EntryPulled, PayloadOf("EntryPulled")] | None = None
    exported: Annotated[bundles.EntryExported, PayloadOf("EntryExported")] | None = None
    purchased: Annotated[bundles.BundlePurchased, PayloadOf("BundlePurchased")] | None = None
    kit_ordered: Annotated[bundles.KitOrdered, PayloadOf("KitOrdered")] | None = None
    accepted: Annotated[Accepted, PayloadOf("DeathAccepted")] | None = None
    settled: Annotated[Settled, PayloadOf("AffairsSettled")] | None = None
    reflected: Annotated[Reflected, PayloadOf("LifeReflected")] | None = None
    bequeathed: Annotated[Bequeathed, PayloadOf("LegacyLeft")] | None = None
    waived: Annotated[bundles.BundleWaived, PayloadOf("BundleWaived")] | None = None
    replicant: Annotated[Replicant, PayloadOf("ReplicantSent")] | None = None
    instincts: Annotated[DefaultsInherited, PayloadOf("DefaultsInherited")] | None = None
    phrased: Annotated[Phrased, PayloadOf("TestamentPhrased")] | None = None
    granted: Annotated[LoanGranted, PayloadOf("LoanGranted")] | None = None
    consented: Annotated[bundles.BundleConsented, PayloadOf("BundleConsented")] | None = None
    strategy: Annotated[tools.StrategyStored, PayloadOf("StrategyStored")] | None = None
    execution: Annotated[tools.ExecutionRecorded, PayloadOf("ExecutionRecorded")] | None = None
    settled_outcome: Annotated[tools.OutcomeRecorded, PayloadOf("OutcomeRecorded")] | None = None
    insight: Annotated[tools.InsightManaged, PayloadOf("InsightManaged")] | None = None
    consolidated: Annotated[tools.EpisodesConsolidated, PayloadOf("EpisodesConsolidated")] | None = None
    staged: Annotated[tools.AdjustmentStaged, PayloadOf("AdjustmentStaged")] | None = None
    archive: Annotated[tools.ArchiveImported, PayloadOf("ArchiveImported")] | None = None
    called: Annotated[tools.ToolCalled, PayloadOf("ToolCalled")] | None = None
    text_stored: Annotated[StoredText, PayloadOf("TextStored")] | None = None
    shared: Annotated[bundles.EntriesShared, PayloadOf("EntriesShared")] | None = None
    note: Annotated[NoteReceived, PayloadOf("NoteReceived")] | None = None
    posts: Annotated[PostsReceived, PayloadOf("PostsReceived")] | None = None
    styx_call: Annotated[StyxCalled, PayloadOf("StyxCalled")] | None = None

    @model_validator(mode="after")
    def _check_payload(self) -> Self:
        expected = ATTRIBUTE_OF[self.kind]
        present = [name for name in ATTRIBUTE_OF.values() if getattr(self, name) is not None]
        if present != [expected]:
            raise ValueError(f"{self.kind} carries {expected} and nothing else, not {', '.join(present) or 'nothing'}")
        source = "succession" if self.received is None else self.received.source
        if source != "purchase" and (self.quarantined is not None) != (source != "succession"):
            raise ValueError("knowledge by import or from a replicant is quarantined, and no other knowledge is")
        return self

    @property
    def payload(self) -> Part:
        """The payload of its kind."""
        return getattr(self, ATTRIBUTE_OF[self.kind])

    def content_id(self) -> str:
        """Return the id derived from the content."""
        return _content_id(self.kind, self.golem_id, self.observed_at, self.payload, self.quarantined)


def _payload_types() -> Iterator[tuple[type[Part], tuple[str, str]]]:
    """Yield each payload type with its kind and attribute."""
    for name, info in LifeEvent.model_fields.items():
        for choice in get_args(info.annotation):
            match get_args(choice):
                case (part, PayloadOf(kind)):
                    yield part, (kind, name)


KIND_OF = dict(_payload_types())
"""Type of a life event's content -> kind of the event, and attribute that holds the content."""
ATTRIBUTE_OF: dict[str, str] = dict(KIND_OF.values())
"""Kind of a life event -> attribute that holds its content."""


def _content_id(kind: str, golem_id: str, observed_at: datetime, payload: Part, way: Quarantined | None) -> str:
    content = {"kind": kind, "golem_id": golem_id, "observed_at": observed_at, "payload": payload.model_dump()}
    if way is not None:
        content["quarantined"] = way.model_dump()
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def golem_name(lineage_id: str, generation: int) -> str:
    """Return g- and 8 hex characters of the hash of lineage and generation."""
    return "g-" + hashlib.sha256(f"{lineage_id}/{generation}".encode()).hexdigest()[:8]


def life_event(golem_id: str, observed_at: datetime, payload: Part, way: Quarantined | None = None) -> LifeEvent:
    """Build an event from its payload, with the id derived from its content. way: of received knowledge."""
    kind, attribute = KIND_OF[type(payload)]
    fields = {"kind": kind, "golem_id": golem_id, "observed_at": observed_at, attribute: payload, "quarantined": way}
    return LifeEvent.model_validate({"event_id": _content_id(kind, golem_id, observed_at, payload, way), **fields})
