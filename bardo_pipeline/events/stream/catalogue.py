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

from bardo_pipeline.events.experience.stored_text import StoredText
from bardo_pipeline.events.life import (
    bundle_events,
    clade_events,
    events,
    override_events,
    proposal_events,
    received_knowledge,
    succession_events,
    thanatopsis_events,
    tool_events,
)
from bardo_pipeline.events.record.arrow_schema import frozen_lists
from bardo_pipeline.events.record.model import Part
from bardo_pipeline.events.stream import payloads

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
    "LoanGranted": Family("mortality", events.LoanGranted),
    "KnowledgeReceived": Family("social", events.Received),
    "grimoire:import_complete": Family("memory", payloads.Imported),
    "dream:import_hook": Family("dream", payloads.ImportHook),
    "dream:consolidation_hook": Family("dream", payloads.ConsolidationHook),
    "OwnerSteered": Family("cognition", events.Steered),
    "prediction:registered": Family("prediction", payloads.PredictionRegistered),
    "heartbeat:queue_warning": Family("cognition", payloads.QueueWarning),
    "heartbeat:tick_dropped": Family("cognition", payloads.TickDropped),
    "heartbeat:tick_dropped_during_dream": Family("dream", payloads.DroppedInDream),
    "heartbeat:observation": Family("cognition", payloads.MarketObserved),
    "heartbeat:regime_shift": Family("cognition", payloads.RegimeShifted),
    "attention:probe_raised": Family("attention", payloads.ProbeRaised),
    "attention:changed": Family("attention", payloads.AttentionChanged),
    "ChainEvent": Family("attention", payloads.ChainEvent),
    "prediction:resolved": Family("prediction", payloads.PredictionResolved),
    "prediction:decision_resolved": Family("prediction", payloads.DecisionResolved),
    "AccuracyUpdated": Family("prediction", payloads.AccuracyUpdate),
    "heartbeat:tick": Family("cognition", payloads.TickGated),
    "heartbeat:suppress": Family("cognition", payloads.TickSuppressed),
    "heartbeat:steer_received": Family("cognition", payloads.SteerReceived),
    "grimoire:retrieved": Family("memory", payloads.EntryRetrieved),
    "context:assembled": Family("cognition", payloads.ContextAssembled),
    "inference:complete": Family("cognition", payloads.InferenceCompleted),
    "tool:start": Family("action", payloads.ToolStarted),
    "tool:update": Family("action", payloads.ToolUpdated),
    "tool:end": Family("action", payloads.ToolEnded),
    "action:executed": Family("action", payloads.ActionTaken),
    "action:failed": Family("action", payloads.ActionTaken),
    "action:blocked": Family("action", payloads.ActionTaken),
    "action:deferred": Family("action", payloads.ActionTaken),
    "action:verified": Family("action", payloads.OutcomeVerified),
    "affect:shifted": Family("affect", payloads.MoodShifted),
    "affect:somatic_marker": Family("affect", payloads.MarkerFired),
    "grimoire:episode_stored": Family("memory", payloads.EpisodeStored),
    "grimoire:mutation_seen": Family("memory", payloads.MutationSeen),
    "mortality:vitality": Family("mortality", payloads.VitalityChanged),
    "mortality:phase_transition": Family("mortality", payloads.PhaseChanged),
    "heartbeat:complete": Family("cognition", payloads.TickCompleted),
    "GrimoireWrite": Family("memory", payloads.GrimoireWritten),
    "grimoire:consolidation_complete": Family("memory", payloads.Consolidated),
    "CuratorCycleComplete": Family("memory", payloads.CycleCurated),
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
    "DefaultsInherited": Family("social", succession_events.DefaultsInherited),
    "ReplicantSent": Family("social", received_knowledge.Replicant),
    "ConfigurationAdopted": Family("memory", succession_events.Configured),
    "SuccessionAdvanced": Family("mortality", succession_events.Advanced),
    "CreditCommitted": Family("mortality", succession_events.Credited),
    "GolemTakenUp": Family("mortality", succession_events.TakenUp),
    "BundleWaived": Family("social", bundle_events.BundleWaived),
    "EntryPulled": Family("memory", bundle_events.EntryPulled),
    "EntryExported": Family("memory", bundle_events.EntryExported),
    "BundlePurchased": Family("social", bundle_events.BundlePurchased),
    "BundleConsented": Family("social", bundle_events.BundleConsented),
    "KitOrdered": Family("social", bundle_events.KitOrdered),
    "TestamentPhrased": Family("mortality", proposal_events.Phrased),
    "StrategyStored": Family("memory", tool_events.StrategyStored),
    "ExecutionRecorded": Family("action", tool_events.ExecutionRecorded),
    "OutcomeRecorded": Family("action", tool_events.OutcomeRecorded),
    "InsightManaged": Family("memory", tool_events.InsightManaged),
    "EpisodesConsolidated": Family("memory", tool_events.EpisodesConsolidated),
    "AdjustmentStaged": Family("memory", tool_events.AdjustmentStaged),
    "ArchiveImported": Family("memory", tool_events.ArchiveImported),
    "ToolCalled": Family("action", tool_events.ToolCalled),
    "TextStored": Family("memory", StoredText),
    "EntriesShared": Family("social", bundle_events.EntriesShared),
    "NoteReceived": Family("social", clade_events.NoteReceived),
    "PostsReceived": Family("social", clade_events.PostsReceived),
    "StyxCalled": Family("social", clade_events.StyxCalled),
    "pheromone:deposited": Family("social", payloads.PheromoneDeposited),
    "dream:integration": Family("dream", payloads.DreamIntegration),
    "dream:cycle_start": Family("dream", payloads.DreamBegan),
    "dream:fragment": Family("dream", payloads.DreamFragment),
    "dream:cycle_end": Family("dream", payloads.DreamEnded),
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
            payload=family.payload.model_validate(frozen_lists(row["payload"])),
            position=position,
        )
