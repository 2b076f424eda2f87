"""Policy of memory: episodes, decay, the curator, causal links, retrieval, dreams."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Self

from pydantic import Field, model_validator

from bardo_pipeline.policy.base import Count, Frozen, Positive, PositiveCount, Unit


class EpisodePolicy(Frozen):
    """Importance of episodes (canon 13, 14)."""

    importance_balance_share: Positive = Field(
        0.02, description="importance is abs(PnL) over this share of the balance, capped at 1 (canon 14)"
    )
    notable: Unit = Field(0.5, description="lowest importance of a notable episode (canon 14)")
    critical: Unit = Field(0.7, description="lowest importance of a critical episode")
    emergency: Unit = Field(0.9, description="lowest importance of an emergency")


class DecayPolicy(Frozen):
    """Decay of confidence: half-lives and floors (INH S7.4, canon 4-9)."""

    regime_conditional_days: Positive = Field(14.0, description="half-life (INH S7.4)")
    tactical_days: Positive = Field(7.0, description="half-life (INH S7.4)")
    ephemeral_days: Positive = Field(1.0, description="half-life: 24 hours (INH S7.4)")
    anti_knowledge_floor: Unit = Field(0.3, description="MEM, canon 8")
    bloodstain_floor: Unit = Field(0.05, description="KAT, canon 7")
    bloodstain_multiplier: Positive = Field(3.0, description="half-life x 3 (KAT, canon 7)")
    dreamt_multiplier: Positive = Field(
        2.0, description="half-life x 2 for confirmed entries from dreams (KAT, canon 5)"
    )
    fact_e_fold_days: Positive = Field(
        7.0, description="e-folding time of facts, scaled by max(1, ln(episodes)) (canon 6)"
    )
    routine_days: Positive = Field(7.0, description="Ebbinghaus S (TOOLS)")
    notable_days: Positive = Field(30.0, description="TOOLS")
    critical_days: Positive = Field(90.0, description="TOOLS")
    emergency_days: Positive = Field(180.0, description="TOOLS")
    episode_retention_min: Unit = Field(0.05, description="retention below which an episode may be dropped (TOOLS)")


class CuratorPolicy(Frozen):
    """The curator's passes (MEM, TOOLS, canon)."""

    cycle_ticks: PositiveCount = Field(50, description="ticks of a curator cycle (MEM)")
    phage_cycles: PositiveCount = Field(2, description="cycles between two phage passes: 100 ticks (canon, phage pass)")
    cluster_min: Annotated[int, Field(ge=2)] = Field(3, description="smallest cluster of episodes (TOOLS)")
    witness_ticks: PositiveCount = Field(
        50, description="market window: its evidence for a rule counts once; divides cycle_ticks (ours)"
    )
    false_alarm: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.05, description="probability that a rule without effect is ever believed, over all looks (ours)"
    )
    sharpest_witnesses: Positive = Field(
        10.0, description="witness count at which the anytime-valid interval is narrowest (ours)"
    )
    interval_z: Positive = Field(1.96, description="half-width of a causal link's interval in standard errors")
    variance_prior: Positive = Field(3.0, description="pseudo-observations of the prior spread of effects (ours)")
    effect_sigma_prior_ppm: Positive = Field(
        2_500.0, description="prior spread of an effect, parts per million of the position (ours)"
    )
    effect_min_ppm: Positive = Field(50.0, description="smallest mean effect worth a rule, ppm (ours)")
    confidence_insight: Unit = Field(0.6, description="distilled insights (canon 1)")
    confidence_fact: Unit = Field(0.7, description="consolidated facts (canon 1)")
    upvote: Unit = Field(0.1, description="confidence added by a confirmation, capped at 1.0 (TOOLS)")
    downvote: Unit = Field(0.15, description="confidence taken by a contradiction, floor 0.0 (TOOLS)")
    promote_confidence: Unit = Field(
        0.65, description="confidence from which an insight becomes a rule; 0.6 needs one upvote (ours)"
    )
    promote_validations: PositiveCount = Field(1, description="confirming cycles since the insight was made (ours)")
    demote_confidence: Unit = Field(0.5, description="a contradicted rule below this becomes an insight again (ours)")
    anti_effect_ppm: Positive = Field(
        200.0, description="harm, at the mildest end of its interval, from which a warning is anti-knowledge (ours)"
    )
    prune_confidence: Unit = Field(
        0.1, description="entries without a floor are pruned below this confidence (MEM; value is ours)"
    )
    baseline_min: Annotated[int, Field(ge=2)] = Field(3, description="fewest episodes of a baseline (MEM)")
    level_spread_prior: Positive = Field(
        0.5, description="prior spread of a level as a share of its mean, weighted by variance_prior (ours)"
    )
    level_sigma: Positive = Field(
        2.0, description="a cycle's level further than this from a baseline, in spreads, contradicts it (ours)"
    )
    replay_episodes: PositiveCount = Field(20, description="episodes replayed after a cycle (ours)")
    replay_new_share: Unit = Field(0.7, description="share of replayed episodes from the closing cycle (MEM: 70/30)")
    replay_utility_min: Annotated[float, Field(gt=0, le=1)] = Field(
        0.01, description="lower bound of gain x need, so that every episode can be drawn (ours)"
    )
    need_regime: Unit = Field(0.5, description="weight of the regime in an episode's likeness to the present (ours)")
    need_market: Unit = Field(0.2, description="weight of protocol and pair (ours)")
    need_mood: Unit = Field(0.3, description="weight of the mood; the three sum to 1 (ours)")
    phage_count: PositiveCount = Field(5, description="weakest entries that a phage pass tries to falsify (ours)")
    fold_witnesses: Annotated[int, Field(ge=2)] = Field(
        5,
        description="witnesses that each of two rules needs before they merge; at 3 the intervals are too wide (ours)",
    )
    anomaly_edges: tuple[Unit, Unit, Unit, Unit] = Field(
        (0.5, 0.7, 0.8, 0.9), description="edges of the five anomaly bands (ours; 0.7 and 0.9 are KAT's)"
    )
    gas_edges: tuple[Positive, Positive] = Field(
        (0.75, 2.0), description="edges of the three gas bands, ratio to the hour (2 is HB S9)"
    )

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        if self.cycle_ticks % self.witness_ticks:
            raise ValueError(f"witness_ticks {self.witness_ticks} does not divide cycle_ticks {self.cycle_ticks}")
        for name, edges in (("anomaly_edges", self.anomaly_edges), ("gas_edges", self.gas_edges)):
            if any(low >= high for low, high in pairwise(edges)):
                raise ValueError(f"{name} {edges} do not ascend")
        self.require_sum_of_one("need_regime", "need_market", "need_mood")
        return self


class CausalPolicy(Frozen):
    """Discovery, confirmation and use of causal links (HB S4; canon 1, 16)."""

    test_cycles: PositiveCount = Field(
        20, description="curator cycles between two searches for links: 1,000 ticks (ours)"
    )
    ticks_min: Annotated[int, Field(ge=100)] = Field(1_000, description="ticks before the first test (ours)")
    false_discovery: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        0.05, description="expected share of chance findings, under any dependence (Benjamini-Yekutieli)"
    )
    links_max: Annotated[int, Field(ge=1, le=16)] = Field(
        4, description="largest number of causes of one effect (ours)"
    )
    effect_min: Positive = Field(
        0.05, description="smallest effect of one step, as a share of the effect's spread (ours)"
    )
    confidence_found: Unit = Field(
        0.5, description="confidence of a link that fresh evidence supports but does not confirm (ours)"
    )
    confirm_sigma: Positive = Field(
        3.0, description="sigma by which later evidence must exceed chance to confirm a link (ours)"
    )
    confirm_witnesses: PositiveCount = Field(
        2, description="spans of 1,000 ticks for the link minus those against it, to confirm it (ours)"
    )
    witness_sigma: Positive = Field(1.0, description="sigma from which such a span counts, for or against (ours)")
    missed_sigma: Positive = Field(
        3.0, description="a link is contradicted where its effect, if real, would show this sigma and does not (ours)"
    )
    missed_share: Unit = Field(
        0.25, description="share of the stated effect below which a span counts as not showing it (ours)"
    )
    predict_confidence: Unit = Field(0.6, description="confidence from which a link moves the golem's predictions")
    probe_shift: Positive = Field(0.5, description="predicted price move, in spreads, that tests a link (ours)")
    probe_sigma: Positive = Field(
        3.0, description="miss in the opposite direction, in spreads, that breaks a link (ours)"
    )
    return_cap_ppm: Positive = Field(1_000.0, description="cap of a tick's return in the estimate of its spread (ours)")
    gas_cap_ppm: Positive = Field(200_000.0, description="the same for a change of gas (ours)")
    liquidity_cap_ppm: Positive = Field(
        50_000.0, description="the same for liquidity; a higher cap would let a flight of liquidity hide itself (ours)"
    )
    return_floor_ppm: Positive = Field(50.0, description="smallest spread of a tick's return (ours)")
    gas_floor_ppm: Positive = Field(10_000.0, description="smallest spread of a tick's change of gas (ours)")
    liquidity_floor_ppm: Positive = Field(
        10_000.0, description="smallest spread of a tick's change of liquidity (ours)"
    )
    clip_sigma: Annotated[int, Field(ge=2, le=8)] = Field(
        2, description="larger changes are clipped to this many spreads, so that none decides alone (ours)"
    )
    fall_ppm: Positive = Field(2_500.0, description="smallest price fall in one tick that is sharp (ours)")
    fall_sigma: Positive = Field(3.0, description="smallest sharp fall in spreads (ours)")
    crash_ppm: Positive = Field(40_000.0, description="smallest fall in 15 ticks that is a crash (ours)")
    events_min: Count = Field(3, description="sharp falls before they can be a cause (TOOLS: smallest cluster)")
    found_sigma: Positive = Field(
        1.5, description="sigma by which fresh evidence must exceed chance to make a link (ours)"
    )
    info_min: Positive = Field(
        0.5, description="a span with a smaller sum of squared cause steps is ignored: half an event (ours)"
    )


class RetrievalPolicy(Frozen):
    """Retrieval: the four factors of the score, and when it is skipped (MEM, canon 21-24)."""

    semantic: Unit = Field(0.40, description="MEM, KAT")
    recency: Unit = Field(0.20, description="MEM, KAT")
    importance: Unit = Field(0.25, description="MEM, KAT")
    affect: Unit = Field(0.15, description="MEM, KAT")
    confidence_min: Unit = Field(
        0.5, description="lowest confidence of an entry shown to the golem (MEM, injection.minConfidence)"
    )
    like_regime: Unit = Field(0.5, description="weight of the regime in the likeness of two situations (ours)")
    like_anomaly: Unit = Field(0.3, description="weight of the anomaly band, reduced by its distance (ours)")
    like_gas: Unit = Field(0.2, description="weight of the gas band; the three sum to 1 (ours)")
    like_baseline: Unit = Field(0.3, description="likeness of a baseline to any situation (ours)")
    bloodstain_boost: Positive = Field(1.2, description="multiplier of the importance factor (KAT)")
    structural_recency_days: Positive = Field(14.0, description="recency half-life of structural entries (canon 21)")
    layer_clade: Unit = Field(
        0.80, description="multiplier of the confidence of an entry from the same owner's fleet (MEM, canon 22)"
    )
    layer_marketplace: Unit = Field(0.60, description="multiplier for a purchased entry (MEM, canon 22)")
    layer_lethe: Unit = Field(0.50, description="multiplier for an anonymous entry (MEM, canon 22)")
    contrarian_ticks: PositiveCount = Field(100, description="ticks between two retrievals against the mood (HB S3)")
    dormant_transition_ticks: PositiveCount = Field(
        50, description="ticks over which entries of the previous regime become dormant (INH S2; value is ours)"
    )
    dormant_unclear: Unit = Field(
        0.5, description="weight of other regimes' entries while the regime is unclear (INH S2; value is ours)"
    )
    skip_arousal_max: Unit = Field(
        0.5, description="arousal from which retrieval is never skipped (KAT; value is ours)"
    )
    skip_surprise_max: Unit = Field(
        0.3, description="surprise from which retrieval is never skipped (KAT; HB S5's base)"
    )
    skip_coverage_min: Unit = Field(
        0.75, description="known share of a protocol's levels from which retrieval may be skipped (KAT; value is ours)"
    )
    skip_confidence_min: Unit = Field(0.5, description="confidence from which a level counts as known (MEM)")
    question_bytes_max: PositiveCount = Field(16_384, description="size limit of a question (ours)")
    fusion_k: PositiveCount = Field(60, description="k of reciprocal rank fusion (ours; TOOLS names none)")
    words_saturation: Positive = Field(1.2, description="k1 of BM25: saturation of repeated words (usual)")
    words_length: Unit = Field(0.75, description="b of BM25: penalty of long texts (usual)")
    results: PositiveCount = Field(5, description="entries shown to the golem (HB S3: top five)")
    search_results: PositiveCount = Field(10, description="results of a search (TOOLS)")
    search_results_max: PositiveCount = Field(50, description="largest number of results of a search (TOOLS)")

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        self.require_sum_of_one("semantic", "recency", "importance", "affect")
        self.require_sum_of_one("like_regime", "like_anomaly", "like_gas")
        return self


class DreamPolicy(Frozen):
    """Dreams: schedule, replay, imagined branches, and the life of a hypothesis (KAT, TOOLS, MEM)."""

    every_hours: Positive = Field(4.0, description="event time between two dreams of an idle golem (TOOLS)")
    idle_ticks: PositiveCount = Field(
        10, description="ticks without thought or action after which a golem is idle (ours; TOOLS: no active session)"
    )
    lookback_ticks: PositiveCount = Field(
        500, description="ticks back to the oldest replayed episode (HB S6: the warm range)"
    )
    budget: PositiveCount = Field(
        100, description="replays and imagined branches of a dream (TOOLS: episodes of a consolidation)"
    )
    counterfactual_share: Unit = Field(0.4, description="share of the budget for imagined branches (KAT)")
    arousal_weight: Unit = Field(0.4, description="NREM salience (KAT)")
    valence_weight: Unit = Field(0.3, description="NREM salience, of abs(valence) (KAT)")
    recency_weight: Unit = Field(0.2, description="NREM salience, of exp(-age / recency_ticks) (KAT)")
    novelty_weight: Unit = Field(0.1, description="NREM salience, of 1 - likeness to known entries (KAT)")
    recency_ticks: Positive = Field(100.0, description="KAT")
    depotentiation: Unit = Field(0.12, description="arousal that REM takes from a replayed episode (KAT)")
    arousal_floor: Unit = Field(0.10, description="lowest arousal that REM leaves (KAT, canon 50)")
    witnesses_min: Annotated[int, Field(ge=2)] = Field(
        3, description="witnesses of a cluster, imagined or live (TOOLS: smallest cluster)"
    )
    interval_z: Positive = Field(
        2.576,
        description="half-width of an effect's interval in standard errors: 99 %, since each dream tests again (ours)",
    )
    variance_prior: Positive = Field(3.0, description="pseudo-observations of the prior spread (ours)")
    effect_sigma_prior_ppm: Positive = Field(
        800.0, description="prior spread of the effect of one change, ppm of the position (ours)"
    )
    effect_min_ppm: Positive = Field(50.0, description="smallest mean effect worth a hypothesis, ppm (ours)")
    staged_confidence_min: Unit = Field(0.2, description="confidence of the least sure hypothesis (KAT)")
    staged_confidence_max: Unit = Field(0.3, description="upper bound of a hypothesis before admission (KAT, canon 50)")
    admitted_confidence: Unit = Field(
        0.3, description="confidence of a hypothesis confirmed by live outcomes (MEM, canon 50)"
    )
    clade_confidence: Unit = Field(
        0.5, description="confidence from which a validated hypothesis is offered to the clade (MEM)"
    )
    confirm_days: Positive = Field(7.0, description="days after staging in which live outcomes may confirm (MEM)")
    expire_days: Positive = Field(14.0, description="days after which an unconfirmed hypothesis expires (MEM)")
    width_scales: tuple[Positive, Positive] = Field(
        (0.6, 1.6), description="narrower and wider ranges, as require_sum_of_one of the golem's own (ours)"
    )
    wait_ticks: PositiveCount = Field(10, description="longest wait for cheaper gas (ours)")
    reproduced_ppm: Count = Field(5, description="a re-simulation must match the recorded verdict within this (ours)")
