"""Every number of the specification in one frozen object, each with its source.

Sources: MEM, INH, TOOLS, HB, KAT are the five documents; "canon N" is a row of the canon; "ours" marks a number that no
document gives. Policies with equal values have equal hashes; derived tables carry the hash.
"""

from __future__ import annotations

import hashlib
from typing import Any

from bardo_pipeline.policy.agent import (
    AffectPolicy,
    AnomalyPolicy,
    CagePolicy,
    ClockPolicy,
    CostPolicy,
    CreditPolicy,
    DyingPolicy,
    GatePolicy,
    GatingPolicy,
    LendingPolicy,
    MortalityPolicy,
    PlaybookPolicy,
    PredictionPolicy,
    ProbePolicy,
    RegimePolicy,
    TraitPolicy,
    TriagePolicy,
)
from bardo_pipeline.policy.base import Frozen, Operational
from bardo_pipeline.policy.inheritance import (
    BridgePolicy,
    CladePolicy,
    DivergencePolicy,
    InheritancePolicy,
    KatabasisPolicy,
    LibraryPolicy,
    ReceptionPolicy,
    StewardPolicy,
    SuccessionPolicy,
)
from bardo_pipeline.policy.memory import (
    CausalPolicy,
    CuratorPolicy,
    DecayPolicy,
    DreamPolicy,
    EpisodePolicy,
    ForetellingPolicy,
    RetrievalPolicy,
    SearchPolicy,
)
from bardo_pipeline.policy.operations import (
    CarePolicy,
    EmbeddingPolicy,
    FabricPolicy,
    GatewayPolicy,
    GrowthPolicy,
    HealthPolicy,
    LogPolicy,
    ReorgPolicy,
    ToolsPolicy,
    WorthPolicy,
    WriterPolicy,
)
from bardo_pipeline.policy.safety import CachePolicy, RiskPolicy, SpendingPolicy, WatchPolicy


class Policy(Frozen):
    """The complete policy. `Policy()` holds the values of the specification."""

    log: LogPolicy = LogPolicy()
    writer: WriterPolicy = WriterPolicy()
    care: CarePolicy = CarePolicy()
    health: HealthPolicy = HealthPolicy()
    reorg: ReorgPolicy = ReorgPolicy()
    fabric: FabricPolicy = FabricPolicy()
    embedding: EmbeddingPolicy = EmbeddingPolicy()
    search: SearchPolicy = SearchPolicy()
    growth: GrowthPolicy = GrowthPolicy()
    probes: ProbePolicy = ProbePolicy()
    regime: RegimePolicy = RegimePolicy()
    clocks: ClockPolicy = ClockPolicy()
    gate: GatePolicy = GatePolicy()
    gating: GatingPolicy = GatingPolicy()
    triage: TriagePolicy = TriagePolicy()
    cost: CostPolicy = CostPolicy()
    cage: CagePolicy = CagePolicy()
    credit: CreditPolicy = CreditPolicy()
    affect: AffectPolicy = AffectPolicy()
    anomaly: AnomalyPolicy = AnomalyPolicy()
    prediction: PredictionPolicy = PredictionPolicy()
    mortality: MortalityPolicy = MortalityPolicy()
    decay: DecayPolicy = DecayPolicy()
    curator: CuratorPolicy = CuratorPolicy()
    causal: CausalPolicy = CausalPolicy()
    playbook: PlaybookPolicy = PlaybookPolicy()
    traits: TraitPolicy = TraitPolicy()
    retrieval: RetrievalPolicy = RetrievalPolicy()
    episode: EpisodePolicy = EpisodePolicy()
    dreams: DreamPolicy = DreamPolicy()
    foretelling: ForetellingPolicy = ForetellingPolicy()
    bridge: BridgePolicy = BridgePolicy()
    katabasis: KatabasisPolicy = KatabasisPolicy()
    inheritance: InheritancePolicy = InheritancePolicy()
    divergence: DivergencePolicy = DivergencePolicy()
    steward: StewardPolicy = StewardPolicy()
    reception: ReceptionPolicy = ReceptionPolicy()
    library: LibraryPolicy = LibraryPolicy()
    worth: WorthPolicy = WorthPolicy()
    gateway: GatewayPolicy = GatewayPolicy()
    dying: DyingPolicy = DyingPolicy()
    succession: SuccessionPolicy = SuccessionPolicy()
    lending: LendingPolicy = LendingPolicy()
    tools: ToolsPolicy = ToolsPolicy()
    clade: CladePolicy = CladePolicy()
    spending: SpendingPolicy = SpendingPolicy()
    risk: RiskPolicy = RiskPolicy()
    cache: CachePolicy = CachePolicy()
    watch: WatchPolicy = WatchPolicy()

    @property
    def settings(self) -> dict[str, Any]:
        """Return every setting by dotted name (`gate.base_threshold`), with JSON values."""
        parts = self.model_dump(mode="json")
        return {
            f"{part}.{name}": value for part, part_settings in parts.items() for name, value in part_settings.items()
        }

    @property
    def content(self) -> str:
        """Return the policy without its OPERATIONAL parts, as canonical JSON."""
        return self.model_dump_json(exclude=set(OPERATIONAL))

    @property
    def hash(self) -> str:
        """Return the first 16 hex characters of the SHA-256 of `content`."""
        return hashlib.sha256(self.content.encode()).hexdigest()[:16]


OPERATIONAL = tuple(name for name, part in Policy.model_fields.items() if isinstance(part.default, Operational))
"""Parts of the policy that its hash leaves out."""
