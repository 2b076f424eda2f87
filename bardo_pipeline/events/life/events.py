"""Life events: what happens to a golem beside its ticks. One model a kind, one row an event.

Each event names its golem, its event time, and carries exactly one payload. Its id is the SHA-256 of its content, so
that the same event written twice is one.

Source: architecture ("What is an event, not a projection"); MEM, INH S13, HB S7.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Literal, Self

import orjson
from pydantic import Field, model_validator

from bardo_pipeline.events.life.bundle_events import (
    BundleImported,
    BundleSigned,
    BundleWaived,
    OwnerKeyRegistered,
    OwnerKeyRevoked,
    PublicKey,
)
from bardo_pipeline.events.life.inherited_defaults import DefaultsInherited
from bardo_pipeline.events.life.library_events import BundlePurchased, EntryExported, EntryPulled, KitOrdered
from bardo_pipeline.events.life.loan_granted import LoanGranted
from bardo_pipeline.events.life.override_events import Corrected, Override, Pinned, Retracted, Unpinned
from bardo_pipeline.events.life.proposal_events import Asked
from bardo_pipeline.events.life.received_knowledge import Quarantined, Replicant
from bardo_pipeline.events.life.succession_events import Advanced, Configured, Credited, TakenUp
from bardo_pipeline.events.life.testament_phrased import Phrased
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
]  # fmt: skip


class Traits(Part):
    """What a golem is born with beside knowledge: how it was configured, drawn from its seed or taken over."""

    rebalance_threshold: Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
    range_half_width_ticks: Whole
    forecast_memory: Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]


class Born(Part):
    """Birth: owner, generation, budget, the lifespan drawn, and what it inherits."""

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


class Died(Part):
    """Death: the cause, and the state in which it came.

    Of one that fell silent it is the state of its last record, and its moment the death's: whoever declares it, and
    whenever, declares the same.
    """

    cause: Cause
    tick: Tick
    phase: Phase
    vitality: Vitality
    credits_micros: Spent
    capital_micros: Spent
    earned_micros: Micros


class FailedExpectation(Part):
    """One expectation that a candidate bundle did not meet."""

    expectation: Name
    severity: Literal["warning", "critical"]
    observed: Text


class Judged(Part):
    """The verdict of the expectations on one candidate bundle."""

    bundle_hash: Name
    passed: bool
    expectations: Whole
    failed: tuple[FailedExpectation, ...]


class Published(Part):
    """A bundle that passed and may be inherited."""

    bundle_hash: Name
    entry_count: Whole
    derivation_id: Name


class Received(Part):
    """Knowledge that came from elsewhere, by content hash: at birth, or later (`Quarantined` tells how)."""

    source: Literal["succession", "import", "replicant"]
    from_golem_id: Name
    content_hash: Name
    entry_count: Whole


class Steered(Part):
    """The owner interrupts: high severity is a steer and forces T2, low is a follow-up."""

    intervention_id: Name
    due_tick: Tick
    severity: Literal["low", "high"]
    intent: Text


class Gap(Part):
    """The owner accepts that these ticks will never come; derivation goes on behind them."""

    tick_from: LivedTick
    tick_to: LivedTick
    why: Text

    @model_validator(mode="after")
    def _ascends(self) -> Self:
        if self.tick_to < self.tick_from:
            raise ValueError(f"a gap from tick {self.tick_from} to tick {self.tick_to} holds no tick")
        return self


class Struck(Part):
    """The record of this tick counts as if it had never been; the log keeps it (X-4, canon 20)."""

    tick: Tick
    why: Text


class Reorg(Part):
    """The chain took back these blocks: the records of these ticks count as if they had never been (HB S10, EV-8)."""

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
    """Inherited entries that came from a record which was struck or reorged since; `because` is that event's id."""

    because: Name
    from_golem_id: Name
    tick: Tick
    entry_ids: tuple[Name, ...]


class KeyRegistered(Part):
    """The golem's first signing key; from this tick on every record of it is signed."""

    key_id: Name
    public_key: PublicKey
    tick_from: Tick


class KeyRotated(Part):
    """Another signing key from this tick on. Signed by the previous key, or null where that one was revoked before."""

    key_id: Name
    public_key: PublicKey
    previous_key_id: Name
    tick_from: Tick
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")] | None
    why: Text


class KeyRevoked(Part):
    """Nothing signed with this key is taken from this tick on."""

    key_id: Name
    tick_from: Tick
    why: Text


class SealKeyMade(Part):
    """From here on the private parts of the golem's records are sealed under this key, which is not in the log."""

    key_id: Name


class SealKeyDestroyed(Part):
    """The key is gone, and with it what was sealed under it."""

    key_id: Name
    why: Text


EVERY_GOLEM = "*"
"""The golem that an event names which concerns the whole home."""


class Adopted(Part):
    """From here on the whole home goes by this derivation; policy: all that its hash covers, as canonical JSON."""

    derivation_id: Name
    previous_derivation_id: Name
    policy_hash: Name
    passes_edition: Name
    embedder: Name
    policy: Text
    why: Text


class LifeEvent(Part):
    """One event; exactly the payload that belongs to its kind is present."""

    schema_version: Annotated[int, Field(ge=1, le=SCHEMA_VERSION)] = SCHEMA_VERSION
    event_id: Name
    kind: Kind
    golem_id: Name
    observed_at: Moment
    born: Born | None = None
    died: Died | None = None
    judged: Judged | None = None
    published: Published | None = None
    received: Received | None = None
    quarantined: Quarantined | None = None
    steered: Steered | None = None
    gap: Gap | None = None
    struck: Struck | None = None
    reorg: Reorg | None = None
    withdrawn: Withdrawn | None = None
    key_registered: KeyRegistered | None = None
    key_rotated: KeyRotated | None = None
    key_revoked: KeyRevoked | None = None
    seal_key_made: SealKeyMade | None = None
    seal_key_destroyed: SealKeyDestroyed | None = None
    adopted: Adopted | None = None
    pinned: Pinned | None = None
    unpinned: Unpinned | None = None
    retracted: Retracted | None = None
    corrected: Corrected | None = None
    asked: Asked | None = None
    owner_key_registered: OwnerKeyRegistered | None = None
    owner_key_revoked: OwnerKeyRevoked | None = None
    signed: BundleSigned | None = None
    imported: BundleImported | None = None
    configured: Configured | None = None
    advanced: Advanced | None = None
    credited: Credited | None = None
    taken_up: TakenUp | None = None
    pulled: EntryPulled | None = None
    exported: EntryExported | None = None
    purchased: BundlePurchased | None = None
    kit_ordered: KitOrdered | None = None
    accepted: Accepted | None = None
    settled: Settled | None = None
    reflected: Reflected | None = None
    bequeathed: Bequeathed | None = None
    waived: BundleWaived | None = None
    replicant: Replicant | None = None
    instincts: DefaultsInherited | None = None
    phrased: Phrased | None = None
    granted: LoanGranted | None = None

    @model_validator(mode="after")
    def _holds_its_payload(self) -> Self:
        wanted = _ATTRIBUTE_OF[self.kind]
        present = [name for name in _ATTRIBUTE_OF.values() if getattr(self, name) is not None]
        if present != [wanted]:
            raise ValueError(f"{self.kind} carries {wanted} and nothing else, not {', '.join(present) or 'nothing'}")
        if (self.quarantined is not None) != (self.received is not None and self.received.source != "succession"):
            raise ValueError("what comes by import or from a replicant is quarantined, and nothing else is")
        return self

    @property
    def payload(self) -> Part:
        """The payload that belongs to its kind."""
        payload: Part = getattr(self, _ATTRIBUTE_OF[self.kind])
        return payload

    def content_id(self) -> str:
        """The id that its content gives it."""
        return _content_id(self.kind, self.golem_id, self.observed_at, self.payload, self.quarantined)


_KIND_OF: dict[type[Part], tuple[str, str]] = {
    Born: ("GolemBorn", "born"),
    Died: ("DeathDeclared", "died"),
    Judged: ("BundleJudged", "judged"),
    Published: ("BundlePublished", "published"),
    Received: ("KnowledgeReceived", "received"),
    Steered: ("OwnerSteered", "steered"),
    Gap: ("GapAccepted", "gap"),
    Struck: ("RecordStruck", "struck"),
    Reorg: ("ReorgObserved", "reorg"),
    Withdrawn: ("KnowledgeWithdrawn", "withdrawn"),
    KeyRegistered: ("KeyRegistered", "key_registered"),
    KeyRotated: ("KeyRotated", "key_rotated"),
    KeyRevoked: ("KeyRevoked", "key_revoked"),
    SealKeyMade: ("SealKeyMade", "seal_key_made"),
    SealKeyDestroyed: ("SealKeyDestroyed", "seal_key_destroyed"),
    Adopted: ("DerivationAdopted", "adopted"),
    Pinned: ("EntryPinned", "pinned"),
    Unpinned: ("EntryUnpinned", "unpinned"),
    Retracted: ("EntryRetracted", "retracted"),
    Corrected: ("EntryCorrected", "corrected"),
    Asked: ("ModelAsked", "asked"),
    OwnerKeyRegistered: ("OwnerKeyRegistered", "owner_key_registered"),
    OwnerKeyRevoked: ("OwnerKeyRevoked", "owner_key_revoked"),
    BundleSigned: ("BundleSigned", "signed"),
    BundleImported: ("BundleImported", "imported"),
    Configured: ("ConfigurationAdopted", "configured"),
    Advanced: ("SuccessionAdvanced", "advanced"),
    Credited: ("CreditCommitted", "credited"),
    TakenUp: ("GolemTakenUp", "taken_up"),
    EntryPulled: ("EntryPulled", "pulled"),
    EntryExported: ("EntryExported", "exported"),
    BundlePurchased: ("BundlePurchased", "purchased"),
    KitOrdered: ("KitOrdered", "kit_ordered"),
    Accepted: ("DeathAccepted", "accepted"),
    Settled: ("AffairsSettled", "settled"),
    Reflected: ("LifeReflected", "reflected"),
    Bequeathed: ("LegacyLeft", "bequeathed"),
    BundleWaived: ("BundleWaived", "waived"),
    Replicant: ("ReplicantSent", "replicant"),
    DefaultsInherited: ("DefaultsInherited", "instincts"),
    Phrased: ("TestamentPhrased", "phrased"),
    LoanGranted: ("LoanGranted", "granted"),
}


_ATTRIBUTE_OF: dict[str, str] = dict(_KIND_OF.values())


def _content_id(kind: str, golem_id: str, observed_at: datetime, payload: Part, way: Quarantined | None) -> str:
    content = {"kind": kind, "golem_id": golem_id, "observed_at": observed_at, "payload": payload.model_dump()}
    if way is not None:
        content["quarantined"] = way.model_dump()
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def life_event(golem_id: str, observed_at: datetime, payload: Part, way: Quarantined | None = None) -> LifeEvent:
    """An event around its payload, with the id that its content gives it. way: of knowledge that came after birth."""
    kind, attribute = _KIND_OF[type(payload)]
    said = {"kind": kind, "golem_id": golem_id, "observed_at": observed_at, attribute: payload, "quarantined": way}
    return LifeEvent.model_validate({"event_id": _content_id(kind, golem_id, observed_at, payload, way), **said})


def arrivals_of(events: Iterable[LifeEvent]) -> list[tuple[str, Quarantined]]:
    """What came over in the midst of lives among these events, each with its golem."""
    return [(event.golem_id, event.quarantined) for event in events if event.quarantined is not None]


def askings_of(events: Iterable[LifeEvent]) -> list[tuple[str, Asked]]:
    """What models were asked among these events, each with its golem."""
    return [(event.golem_id, event.asked) for event in events if event.asked is not None]


def overrides_of(events: Iterable[LifeEvent]) -> list[tuple[str, Override]]:
    """The overrides among these events, each with its golem."""
    return [(event.golem_id, event.payload) for event in events if isinstance(event.payload, Override)]
