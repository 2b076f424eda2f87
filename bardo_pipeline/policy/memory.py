"""How a golem remembers: what it learns, how that fades, how it is found again, and what is dreamt of it."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Self

from pydantic import Field, model_validator

from bardo_pipeline.policy.base import Count, Frozen, Positive, Unit


class EpisodePolicy(Frozen):
    """What is an episode, and what it weighs (canon 13, 14)."""

    importance_balance_share: Positive = Field(
        0.02, description="abs(PnL) over 2 % of the balance, capped at 1 (canon 14)"
    )
    notable: Unit = Field(0.5, description="importance from (canon 14)")
    critical: Unit = Field(0.7, description="importance from")
    emergency: Unit = Field(0.9, description="importance from")


class DecayPolicy(Frozen):
    """How confidence fades (INH S7.4, canon 4-9)."""

    regime_conditional_days: Positive = Field(14.0, description="half-life (INH S7.4)")
    tactical_days: Positive = Field(7.0, description="half-life (INH S7.4)")
    ephemeral_days: Positive = Field(1.0, description="half-life: 24 hours (INH S7.4)")
    anti_knowledge_floor: Unit = Field(0.3, description="MEM, canon 8")
    bloodstain_floor: Unit = Field(0.05, description="KAT, canon 7")
    bloodstain_multiplier: Positive = Field(3.0, description="half-life x 3 (KAT, canon 7)")
    dreamt_multiplier: Positive = Field(
        2.0, description="half-life x 2 of what was dreamt and confirmed: half the rate (KAT, canon 5)"
    )
    fact_e_fold_days: Positive = Field(
        7.0, description="days in place of blocks, scaled by max(1, ln(episodes)) (canon 6)"
    )
    routine_days: Positive = Field(7.0, description="Ebbinghaus S (TOOLS)")
    notable_days: Positive = Field(30.0, description="TOOLS")
    critical_days: Positive = Field(90.0, description="TOOLS")
    emergency_days: Positive = Field(180.0, description="TOOLS")
    episode_retention_min: Unit = Field(0.05, description="episodes below may go (TOOLS)")


class CuratorPolicy(Frozen):
    """The curator's passes (MEM, TOOLS, canon)."""

    cycle_ticks: Annotated[int, Field(ge=1)] = Field(50, description="ticks a cycle (MEM)")
    phage_cycles: Annotated[int, Field(ge=1)] = Field(2, description="every 100 ticks (canon, phage pass)")
    cluster_min: Annotated[int, Field(ge=2)] = Field(3, description="smallest cluster (TOOLS)")
    witness_ticks: Annotated[int, Field(ge=1)] = Field(
        50, description="a market window: what it brings for a rule counts once; a part of a cycle or all of it (ours)"
    )
    false_alarm: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.05, description="chance that a rule without effect is ever believed, however often one looks (ours)"
    )
    sharpest_witnesses: Positive = Field(
        10.0, description="witnesses at which the interval that holds at every look is sharpest (ours)"
    )
    interval_z: Positive = Field(1.96, description="half-width of a causal link's interval in standard errors")
    variance_prior: Positive = Field(3.0, description="pseudo-observations of the prior spread of effects (ours)")
    effect_sigma_prior_ppm: Positive = Field(
        2_500.0, description="prior spread of an effect, parts per million of the position (ours)"
    )
    effect_min_ppm: Positive = Field(50.0, description="smallest mean effect worth a rule, ppm (ours)")
    confidence_insight: Unit = Field(0.6, description="distilled insights (canon 1)")
    confidence_fact: Unit = Field(0.7, description="consolidated facts (canon 1)")
    upvote: Unit = Field(0.1, description="cap 1.0 (TOOLS)")
    downvote: Unit = Field(0.15, description="floor 0.0 (TOOLS)")
    promote_confidence: Unit = Field(
        0.65, description="an insight of 0.6 reaches it by one upvote, unless it faded for days before (ours)"
    )
    promote_validations: Annotated[int, Field(ge=1)] = Field(
        1, description="cycles that confirmed it since it was made (ours)"
    )
    demote_confidence: Unit = Field(
        0.5, description="a rule that is contradicted and falls below is an insight again (ours)"
    )
    anti_effect_ppm: Positive = Field(
        200.0, description="harm, at the kind end of its interval, from which a warning is anti-knowledge (ours)"
    )
    prune_confidence: Unit = Field(
        0.1, description="below, without a floor, an entry goes (MEM: eviction threshold; ours in value)"
    )
    baseline_min: Annotated[int, Field(ge=2)] = Field(3, description="episodes a baseline needs (MEM)")
    level_spread_prior: Positive = Field(
        0.5, description="prior spread of a level, share of its mean; variance_prior says how much it weighs (ours)"
    )
    level_sigma: Positive = Field(
        2.0, description="spreads from what a baseline states beyond which a cycle's level contradicts it (ours)"
    )
    replay_episodes: Annotated[int, Field(ge=1)] = Field(20, description="episodes replayed after a cycle (ours)")
    replay_new_share: Unit = Field(0.7, description="of them from the closing cycle, the rest from before (MEM: 70/30)")
    replay_utility_min: Annotated[float, Field(gt=0, le=1)] = Field(
        0.01, description="least gain x need, so that no episode is without a chance (ours)"
    )
    need_regime: Unit = Field(0.5, description="part of the regime in how like now an episode is (ours)")
    need_market: Unit = Field(0.2, description="part of protocol and pair (ours)")
    need_mood: Unit = Field(0.3, description="part of the mood; the three sum to 1 (ours)")
    phage_count: Annotated[int, Field(ge=1)] = Field(
        5, description="weakest entries that a phage pass tries to falsify (ours)"
    )
    fold_witnesses: Annotated[int, Field(ge=2)] = Field(
        5,
        description="witnesses of each of two rules before one stands for both: at the 3 that make a rule its interval "
        "is too wide to tell them apart (ours)",
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
        self.shares("need_regime", "need_market", "need_mood")
        return self


class CausalPolicy(Frozen):
    """The causal graph: what counts as a cause, how surely (HB S4; issue 4; canon 1, 16)."""

    test_cycles: Annotated[int, Field(ge=1)] = Field(20, description="every 1,000 ticks (ours)")
    ticks_min: Annotated[int, Field(ge=100)] = Field(1_000, description="ticks before anything is tested (ours)")
    false_discovery: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        0.05, description="share of found links that may be chance, whatever depends on what (Benjamini-Yekutieli)"
    )
    links_max: Annotated[int, Field(ge=1, le=16)] = Field(4, description="causes of one effect at most (ours)")
    effect_min: Positive = Field(0.05, description="smallest share of the effect's spread a step moves (ours)")
    confidence_found: Unit = Field(
        0.5, description="a link that fresh evidence supports, but does not confirm: below a fact (ours)"
    )
    confirm_sigma: Positive = Field(
        3.0, description="how far from chance evidence later than the finding must be to confirm it (ours)"
    )
    confirm_witnesses: Annotated[int, Field(ge=1)] = Field(
        2, description="stretches of 1,000 ticks that must support it, less those against it (ours)"
    )
    witness_sigma: Positive = Field(1.0, description="from here such a stretch is a witness, either way (ours)")
    missed_sigma: Positive = Field(
        3.0, description="where the stated effect would have shown by so much and did not, it is contradicted (ours)"
    )
    missed_share: Unit = Field(
        0.25, description="share of that effect below which a stretch counts as not having shown it (ours)"
    )
    predict_confidence: Unit = Field(0.6, description="a link from here on moves the golem's predictions (issue 4)")
    probe_shift: Positive = Field(0.5, description="spreads by which the price must be expected to move (ours)")
    probe_sigma: Positive = Field(
        3.0, description="spreads that it must miss by, the other way, to break a link (ours)"
    )
    return_cap_ppm: Positive = Field(
        1_000.0, description="a tick's return beyond says no more of its usual spread (ours)"
    )
    gas_cap_ppm: Positive = Field(200_000.0, description="the same of a change of gas (ours)")
    liquidity_cap_ppm: Positive = Field(
        50_000.0, description="the same of a change of liquidity; higher, its flight would hide itself (ours)"
    )
    return_floor_ppm: Positive = Field(50.0, description="smallest spread of a tick's return (ours)")
    gas_floor_ppm: Positive = Field(10_000.0, description="smallest spread of a tick's change of gas (ours)")
    liquidity_floor_ppm: Positive = Field(10_000.0, description="smallest spread of its change of liquidity (ours)")
    clip_sigma: Annotated[int, Field(ge=2, le=8)] = Field(
        2, description="changes beyond count as this many spreads, so that none decides alone (ours)"
    )
    fall_ppm: Positive = Field(2_500.0, description="a tick's fall from which it is sharp (ours)")
    fall_sigma: Positive = Field(3.0, description="and in spreads (ours)")
    crash_ppm: Positive = Field(
        40_000.0, description="and by so much in 15 ticks, where its wake is looked at: a crash, and no swing (ours)"
    )
    events_min: Count = Field(3, description="sharp falls before they can be a cause: the smallest cluster (TOOLS)")
    found_sigma: Positive = Field(
        1.5, description="how far from chance fresh evidence must be for a link to be made (ours)"
    )
    info_min: Positive = Field(
        0.5, description="squared steps of a cause below which a stretch says nothing of it: half an event (ours)"
    )


class RetrievalPolicy(Frozen):
    """The four factors (MEM, canon 21-24)."""

    semantic: Unit = Field(0.40, description="MEM, KAT")
    recency: Unit = Field(0.20, description="MEM, KAT")
    importance: Unit = Field(0.25, description="MEM, KAT")
    affect: Unit = Field(0.15, description="MEM, KAT")
    confidence_min: Unit = Field(
        0.5, description="confidence below which an entry is not put before the golem (MEM, injection.minConfidence)"
    )
    like_regime: Unit = Field(0.5, description="part of the regime in how alike two situations are (ours)")
    like_anomaly: Unit = Field(0.3, description="part of the anomaly band, less by its distance (ours)")
    like_gas: Unit = Field(0.2, description="part of the gas band; the three sum to 1 (ours)")
    like_baseline: Unit = Field(0.3, description="likeness of a baseline to any situation (ours)")
    bloodstain_boost: Positive = Field(1.2, description="on the importance factor (KAT)")
    structural_recency_days: Positive = Field(14.0, description="recency half-life of structural entries (canon 21)")
    layer_clade: Unit = Field(
        0.80, description="on the confidence of an entry of the same owner's fleet (MEM, canon 22)"
    )
    layer_marketplace: Unit = Field(0.60, description="of a purchased entry (MEM, canon 22)")
    layer_lethe: Unit = Field(0.50, description="of an anonymous entry (MEM, canon 22)")
    contrarian_ticks: Annotated[int, Field(ge=1)] = Field(
        100, description="every so many ticks the opposite of the mood is sought (HB S3)"
    )
    dormant_transition_ticks: Annotated[int, Field(ge=1)] = Field(
        50, description="ticks in which what was learned in the regime just left falls asleep (INH S2; ours in value)"
    )
    dormant_unclear: Unit = Field(
        0.5, description="how awake other regimes' entries are while the regime is unclear (INH S2; ours in value)"
    )
    skip_arousal_max: Unit = Field(
        0.5, description="arousal from which retrieval is never skipped (KAT; ours in value)"
    )
    skip_surprise_max: Unit = Field(0.3, description="surprise from which it is never skipped (KAT; HB S5's base)")
    skip_coverage_min: Unit = Field(
        0.75, description="share of a protocol's levels that is known where it may be skipped (KAT; ours in value)"
    )
    skip_confidence_min: Unit = Field(0.5, description="confidence from which a level counts as known (MEM)")
    question_bytes_max: Annotated[int, Field(ge=1)] = Field(16_384, description="a longer question is refused (ours)")
    fusion_k: Annotated[int, Field(ge=1)] = Field(
        60, description="k of reciprocal rank fusion (ours; TOOLS names none)"
    )
    words_saturation: Positive = Field(1.2, description="k1 of BM25: how soon a repeated word adds no more (usual)")
    words_length: Unit = Field(0.75, description="b of BM25: how much a long text counts less (usual)")
    results: Annotated[int, Field(ge=1)] = Field(5, description="entries put before the golem (HB S3: top five)")
    search_results: Annotated[int, Field(ge=1)] = Field(10, description="results of a search (TOOLS)")
    search_results_max: Annotated[int, Field(ge=1)] = Field(50, description="and at most (TOOLS)")

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        self.shares("semantic", "recency", "importance", "affect")
        self.shares("like_regime", "like_anomaly", "like_gas")
        return self


class DreamPolicy(Frozen):
    """Dreams: when, what is replayed, what is imagined, and what becomes of it (KAT, TOOLS, MEM)."""

    every_hours: Positive = Field(4.0, description="event time between two dreams, while idle (TOOLS)")
    idle_ticks: Annotated[int, Field(ge=1)] = Field(
        10, description="ticks without thought or action after which a golem is idle (ours; TOOLS: no active session)"
    )
    lookback_ticks: Annotated[int, Field(ge=1)] = Field(
        500, description="ticks back from which episodes are replayed (HB S6: what stays warm)"
    )
    budget: Annotated[int, Field(ge=1)] = Field(
        100, description="replays and imagined branches of a dream (TOOLS: episodes of a consolidation)"
    )
    counterfactual_share: Unit = Field(0.4, description="of the budget (KAT)")
    arousal_weight: Unit = Field(0.4, description="NREM salience (KAT)")
    valence_weight: Unit = Field(0.3, description="NREM salience, of abs(valence) (KAT)")
    recency_weight: Unit = Field(0.2, description="NREM salience, of exp(-age / recency_ticks) (KAT)")
    novelty_weight: Unit = Field(0.1, description="NREM salience, of 1 - likeness to what is known (KAT)")
    recency_ticks: Positive = Field(100.0, description="KAT")
    depotentiation: Unit = Field(0.12, description="arousal that REM takes from what was replayed (KAT)")
    arousal_floor: Unit = Field(0.10, description="REM takes nothing below (KAT, canon 50)")
    witnesses_min: Annotated[int, Field(ge=2)] = Field(
        3, description="witnesses of a cluster, imagined or live (TOOLS: smallest cluster)"
    )
    interval_z: Positive = Field(
        2.576,
        description="half-width of an effect's interval in standard errors: 99 %, as each dream looks anew (ours)",
    )
    variance_prior: Positive = Field(3.0, description="pseudo-observations of the prior spread (ours)")
    effect_sigma_prior_ppm: Positive = Field(
        800.0, description="prior spread of what one change is worth, ppm of the position (ours)"
    )
    effect_min_ppm: Positive = Field(50.0, description="smallest mean effect worth a hypothesis, ppm (ours)")
    staged_confidence_min: Unit = Field(0.2, description="of a hypothesis, not sure at all (KAT)")
    staged_confidence_max: Unit = Field(0.3, description="it stays below until it is admitted (KAT, canon 50)")
    admitted_confidence: Unit = Field(0.3, description="of a hypothesis that live outcomes confirmed (MEM, canon 50)")
    clade_confidence: Unit = Field(0.5, description="offered to the clade from here on, once validated (MEM)")
    confirm_days: Positive = Field(7.0, description="live outcomes so long after staging may confirm (MEM)")
    expire_days: Positive = Field(14.0, description="unconfirmed, it is gone (MEM)")
    width_scales: tuple[Positive, Positive] = Field(
        (0.6, 1.6), description="narrower and wider ranges, as shares of the golem's own (ours, as its traits)"
    )
    wait_ticks: Annotated[int, Field(ge=1)] = Field(10, description="longest wait for cheaper gas (ours)")
    reproduced_ppm: Count = Field(
        5, description="a re-simulation further than this from the recorded verdict does not count (ours)"
    )
