"""The event fabric: names, categories and payloads of all typed events. Data.

Events are not stored: from_records.py and from_projections.py derive them from records, life events and projections.
The id of an event names its cause, so every derivation gives the same id. Names and payloads come from the
specification (HB S7, S12, S18; TOOLS; MEM); docs/events.md lists them, the additions, and events without a cause yet.
Source: EV-7; HB "The Event Fabric".
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, SerializeAsAny

from bardo_pipeline.events.life import (
    bundle_events,
    events,
    inherited_defaults,
    library_events,
    loan_granted,
    override_events,
    proposal_events,
    received_knowledge,
    succession_events,
    testament_phrased,
    thanatopsis_events,
)
from bardo_pipeline.events.record.model import Part
from bardo_pipeline.events.stream.payloads import (
    AccuracyUpdate,
    ActionTaken,
    Consolidated,
    ContextAssembled,
    CycleCurated,
    DecisionResolved,
    DroppedInDream,
    EntryRetrieved,
    EpisodeStored,
    GrimoireWritten,
    Imported,
    ImportHook,
    InferenceCompleted,
    MarkerFired,
    MarketObserved,
    MoodShifted,
    MutationSeen,
    OutcomeVerified,
    PhaseChanged,
    PredictionRegistered,
    PredictionResolved,
    ProbeRaised,
    QueueWarning,
    RegimeShifted,
    SteerReceived,
    TickCompleted,
    TickDropped,
    TickGated,
    TickSuppressed,
    ToolEnded,
    ToolStarted,
    ToolUpdated,
    VitalityChanged,
)

CATEGORIES = (
    "prediction",
    "attention",
    "affect",
    "cognition",
    "action",
    "memory",
    "mortality",
    "dream",
    "social",
    "hermes",
)
"""HB's ten. `hermes` has no event yet: skills are deferred (canon 4)."""


class Family(NamedTuple):
    """Category and payload type of the events of one name."""

    category: str
    payload: type[Part]


EVENTS: dict[str, Family] = {
    "GolemBorn": Family("mortality", events.Born),
    "LoanGranted": Family("mortality", loan_granted.LoanGranted),
    "KnowledgeReceived": Family("social", events.Received),
    "grimoire:import_complete": Family("memory", Imported),
    "dream:import_hook": Family("dream", ImportHook),
    "OwnerSteered": Family("cognition", events.Steered),
    "prediction:registered": Family("prediction", PredictionRegistered),
    "heartbeat:queue_warning": Family("cognition", QueueWarning),
    "heartbeat:tick_dropped": Family("cognition", TickDropped),
    "heartbeat:tick_dropped_during_dream": Family("dream", DroppedInDream),
    "heartbeat:observation": Family("cognition", MarketObserved),
    "heartbeat:regime_shift": Family("cognition", RegimeShifted),
    "attention:probe_raised": Family("attention", ProbeRaised),
    "prediction:resolved": Family("prediction", PredictionResolved),
    "prediction:decision_resolved": Family("prediction", DecisionResolved),
    "AccuracyUpdated": Family("prediction", AccuracyUpdate),
    "heartbeat:tick": Family("cognition", TickGated),
    "heartbeat:suppress": Family("cognition", TickSuppressed),
    "heartbeat:steer_received": Family("cognition", SteerReceived),
    "grimoire:retrieved": Family("memory", EntryRetrieved),
    "context:assembled": Family("cognition", ContextAssembled),
    "inference:complete": Family("cognition", InferenceCompleted),
    "tool:start": Family("action", ToolStarted),
    "tool:update": Family("action", ToolUpdated),
    "tool:end": Family("action", ToolEnded),
    "action:executed": Family("action", ActionTaken),
    "action:failed": Family("action", ActionTaken),
    "action:blocked": Family("action", ActionTaken),
    "action:deferred": Family("action", ActionTaken),
    "action:verified": Family("action", OutcomeVerified),
    "affect:shifted": Family("affect", MoodShifted),
    "affect:somatic_marker": Family("affect", MarkerFired),
    "grimoire:episode_stored": Family("memory", EpisodeStored),
    "grimoire:mutation_seen": Family("memory", MutationSeen),
    "mortality:vitality": Family("mortality", VitalityChanged),
    "mortality:phase_transition": Family("mortality", PhaseChanged),
    "heartbeat:complete": Family("cognition", TickCompleted),
    "GrimoireWrite": Family("memory", GrimoireWritten),
    "grimoire:consolidation_complete": Family("memory", Consolidated),
    "CuratorCycleComplete": Family("memory", CycleCurated),
    "DeathDeclared": Family("mortality", events.Died),
    "BundleJudged": Family("social", events.Judged),
    "BundlePublished": Family("social", events.Published),
    "DeathAccepted": Family("mortality", thanatopsis_events.Accepted),
    "AffairsSettled": Family("mortality", thanatopsis_events.Settled),
    "LifeReflected": Family("mortality", thanatopsis_events.Reflected),
    "LegacyLeft": Family("mortality", thanatopsis_events.Bequeathed),
    "GapAccepted": Family("memory", events.Gap),
    "RecordStruck": Family("memory", events.Struck),
    "ReorgObserved": Family("memory", events.Reorg),
    "KnowledgeWithdrawn": Family("memory", events.Withdrawn),
    "KeyRegistered": Family("social", events.KeyRegistered),
    "KeyRotated": Family("social", events.KeyRotated),
    "KeyRevoked": Family("social", events.KeyRevoked),
    "SealKeyMade": Family("memory", events.SealKeyMade),
    "SealKeyDestroyed": Family("memory", events.SealKeyDestroyed),
    "DerivationAdopted": Family("memory", events.Adopted),
    "EntryPinned": Family("memory", override_events.Pinned),
    "EntryUnpinned": Family("memory", override_events.Unpinned),
    "EntryRetracted": Family("memory", override_events.Retracted),
    "EntryCorrected": Family("memory", override_events.Corrected),
    "ModelAsked": Family("memory", proposal_events.Asked),
    "OwnerKeyRegistered": Family("social", bundle_events.OwnerKeyRegistered),
    "OwnerKeyRevoked": Family("social", bundle_events.OwnerKeyRevoked),
    "BundleSigned": Family("social", bundle_events.BundleSigned),
    "BundleImported": Family("social", bundle_events.BundleImported),
    "DefaultsInherited": Family("social", inherited_defaults.DefaultsInherited),
    "ReplicantSent": Family("social", received_knowledge.Replicant),
    "ConfigurationAdopted": Family("memory", succession_events.Configured),
    "SuccessionAdvanced": Family("mortality", succession_events.Advanced),
    "CreditCommitted": Family("mortality", succession_events.Credited),
    "GolemTakenUp": Family("mortality", succession_events.TakenUp),
    "BundleWaived": Family("social", bundle_events.BundleWaived),
    "EntryPulled": Family("memory", library_events.EntryPulled),
    "EntryExported": Family("memory", library_events.EntryExported),
    "BundlePurchased": Family("social", library_events.BundlePurchased),
    "KitOrdered": Family("social", library_events.KitOrdered),
    "TestamentPhrased": Family("mortality", testament_phrased.Phrased),
}
"""All events by name, in the order of events at the same time."""


class GolemEvent(BaseModel):
    """A typed event. tick: null without a single tick. at: event time.

    position: cursor of the subscriber after this event, for `watch`; it differs between subscribers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    event_id: str
    category: str
    name: str
    golem_id: str
    tick: int | None
    at: datetime
    payload: SerializeAsAny[Part]
    position: str = ""

    @classmethod
    def of(cls, name: str, row: dict[str, Any], position: str = "") -> GolemEvent:
        """Build the event of a row of a frame (event_table.py)."""
        family = EVENTS[name]
        return cls.model_construct(
            event_id=row["event_id"],
            category=family.category,
            name=name,
            golem_id=row["golem_id"],
            tick=row["tick"],
            at=row["at"],
            payload=family.payload.model_validate(_tuples(row["payload"])),
            position=position,
        )


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _tuples(v) for k, v in value.items()}
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
