"""Policy of memory: episodes, decay, the curator, causal links, retrieval, search, dreams, foretold confidence."""

from __future__ import annotations

from itertools import pairwise
from typing import Self

from pydantic import model_validator

from bardo_pipeline.policy.base import Count, Frozen, Operational, Positive, PositiveCount, Unit, setting


class EpisodePolicy(Frozen):
    """Importance of episodes (canon 13, 14)."""

    importance_balance_share: Positive = setting(
        0.02, "importance is abs(PnL) over this share of the balance, capped at 1 (canon 14)"
    )
    notable: Unit = setting(0.5, "lowest importance of a notable episode (canon 14)")
    critical: Unit = setting(0.7, "lowest importance of a critical episode")
    emergency: Unit = setting(0.9, "lowest importance of an emergency")


class DecayPolicy(Frozen):
    """Decay of confidence: half-lives and floors (INH S7.4, canon 4-9)."""

    regime_conditional_days: Positive = setting(14.0, "half-life (INH S7.4)")
    tactical_days: Positive = setting(7.0, "half-life (INH S7.4)")
    ephemeral_days: Positive = setting(1.0, "half-life: 24 hours (INH S7.4)")
    anti_knowledge_floor: Unit = setting(0.3, "MEM, canon 8")
    bloodstain_floor: Unit = setting(0.05, "KAT, canon 7")
    bloodstain_multiplier: Positive = setting(3.0, "half-life x 3 (KAT, canon 7)")
    dreamt_multiplier: Positive = setting(2.0, "half-life x 2 for confirmed entries from dreams (KAT, canon 5)")
    fact_e_fold_days: Positive = setting(7.0, "e-folding time of facts, scaled by max(1, ln(episodes)) (canon 6)")
    routine_days: Positive = setting(7.0, "Ebbinghaus S (TOOLS)")
    notable_days: Positive = setting(30.0, "TOOLS")
    critical_days: Positive = setting(90.0, "TOOLS")
    emergency_days: Positive = setting(180.0, "TOOLS")
    episode_retention_min: Unit = setting(0.05, "retention below which an episode may be dropped (TOOLS)")


class CuratorPolicy(Frozen):
    """The curator's passes (MEM, TOOLS, canon)."""

    cycle_ticks: PositiveCount = setting(50, "ticks of a curator cycle (MEM)")
    phage_cycles: PositiveCount = setting(2, "cycles between two phage passes: 100 ticks (canon, phage pass)")
    cluster_min: int = setting(3, "smallest cluster of episodes (TOOLS)", ge=2)
    witness_ticks: PositiveCount = setting(
        50, "market window: its evidence for a rule counts once; divides cycle_ticks (ours)"
    )
    false_alarm: float = setting(
        0.05, "probability that a rule without effect is ever believed, over all looks (ours)", gt=0, lt=1
    )
    sharpest_witnesses: Positive = setting(
        10.0, "witness count at which the anytime-valid interval is narrowest (ours)"
    )
    interval_z: Positive = setting(1.96, "half-width of a causal link's interval in standard errors")
    variance_prior: Positive = setting(3.0, "pseudo-observations of the prior spread of effects (ours)")
    effect_sigma_prior_ppm: Positive = setting(
        2_500.0, "prior spread of an effect, parts per million of the position (ours)"
    )
    effect_min_ppm: Positive = setting(50.0, "smallest mean effect worth a rule, ppm (ours)")
    pool_witnesses: Positive = setting(
        20.0, "witnesses that a choice's rule over all regimes counts as beside that of one regime (ours)"
    )
    confidence_insight: Unit = setting(0.6, "distilled insights (canon 1)")
    confidence_fact: Unit = setting(0.7, "consolidated facts (canon 1)")
    upvote: Unit = setting(0.1, "confidence added by a confirmation, capped at 1.0 (TOOLS)")
    downvote: Unit = setting(0.15, "confidence taken by a contradiction, floor 0.0 (TOOLS)")
    promote_confidence: Unit = setting(
        0.65, "confidence from which an insight becomes a rule; 0.6 needs one upvote (ours)"
    )
    promote_validations: PositiveCount = setting(1, "confirming cycles since the insight was made (ours)")
    demote_confidence: Unit = setting(0.5, "a contradicted rule below this becomes an insight again (ours)")
    anti_effect_ppm: Positive = setting(
        200.0, "harm, at the mildest end of its interval, from which a warning is anti-knowledge (ours)"
    )
    prune_confidence: Unit = setting(
        0.1, "entries without a floor are pruned below this confidence (MEM; value is ours)"
    )
    baseline_min: int = setting(3, "fewest readings of a baseline (MEM)", ge=2)
    level_tolerance: float = setting(
        1.5, "factor by which a cycle's median may leave a baseline's 10th to 90th percentile (ours)", ge=1
    )
    replay_episodes: PositiveCount = setting(20, "episodes replayed after a cycle (ours)")
    replay_new_share: Unit = setting(0.7, "share of replayed episodes from the closing cycle (MEM: 70/30)")
    replay_utility_min: float = setting(
        0.01, "lower bound of gain x need, so that every episode can be drawn (ours)", gt=0, le=1
    )
    need_regime: Unit = setting(0.5, "weight of the regime in an episode's likeness to the present (ours)")
    need_market: Unit = setting(0.2, "weight of protocol and pair (ours)")
    need_mood: Unit = setting(0.3, "weight of the mood; the three sum to 1 (ours)")
    phage_count: PositiveCount = setting(5, "weakest entries that a phage pass tries to falsify (ours)")
    fold_witnesses: int = setting(
        5, "witnesses that each of two rules needs before they merge; at 3 the intervals are too wide (ours)", ge=2
    )
    report_conditions: int = setting(
        4, "conditions of a runtime's report, by name, that situations are made of (ours)", ge=1, le=8
    )
    report_effect_prior: Positive = setting(
        1.0, "expected size of a reported action's effect, in spreads of its windows (ours)"
    )
    anomaly_edges: tuple[Unit, Unit, Unit, Unit] = setting(
        (0.5, 0.7, 0.8, 0.9), "edges of the five anomaly bands (ours; 0.7 and 0.9 are KAT's)"
    )
    gas_edges: tuple[Positive, Positive] = setting(
        (0.75, 2.0), "edges of the three gas bands, ratio to the hour (2 is HB S9)"
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

    test_cycles: PositiveCount = setting(20, "curator cycles between two searches for links: 1,000 ticks (ours)")
    ticks_min: int = setting(1_000, "ticks before the first test (ours)", ge=100)
    false_discovery: float = setting(
        0.05, "expected share of chance findings, under any dependence (Benjamini-Yekutieli)", gt=0.0, lt=1.0
    )
    links_max: int = setting(4, "largest number of causes of one effect (ours)", ge=1, le=16)
    effect_min: Positive = setting(0.05, "smallest effect of one step, as a share of the effect's spread (ours)")
    confidence_found: Unit = setting(
        0.5, "confidence of a link that fresh evidence supports but does not confirm (ours)"
    )
    confirm_sigma: Positive = setting(3.0, "sigma by which later evidence must exceed chance to confirm a link (ours)")
    confirm_witnesses: PositiveCount = setting(
        2, "spans of 1,000 ticks for the link minus those against it, to confirm it (ours)"
    )
    witness_sigma: Positive = setting(1.0, "sigma from which such a span counts, for or against (ours)")
    missed_sigma: Positive = setting(
        3.0, "a link is contradicted where its effect, if real, would show this sigma and does not (ours)"
    )
    missed_share: Unit = setting(0.25, "share of the stated effect below which a span counts as not showing it (ours)")
    predict_confidence: Unit = setting(0.6, "confidence from which a link moves the golem's predictions")
    probe_shift: Positive = setting(0.5, "predicted price move, in spreads, that tests a link (ours)")
    probe_sigma: Positive = setting(3.0, "miss in the opposite direction, in spreads, that breaks a link (ours)")
    return_cap_ppm: Positive = setting(1_000.0, "cap of a tick's return in the estimate of its spread (ours)")
    gas_cap_ppm: Positive = setting(200_000.0, "cap of a tick's change of gas in the estimate of its spread (ours)")
    liquidity_cap_ppm: Positive = setting(
        50_000.0, "such a cap for liquidity; a higher one would let a flight of liquidity hide itself (ours)"
    )
    return_floor_ppm: Positive = setting(50.0, "smallest spread of a tick's return (ours)")
    gas_floor_ppm: Positive = setting(10_000.0, "smallest spread of a tick's change of gas (ours)")
    liquidity_floor_ppm: Positive = setting(10_000.0, "smallest spread of a tick's change of liquidity (ours)")
    clip_sigma: int = setting(
        2, "larger changes are clipped to this many spreads, so that none decides alone (ours)", ge=2, le=8
    )
    fall_ppm: Positive = setting(2_500.0, "smallest price fall in one tick that is sharp (ours)")
    fall_sigma: Positive = setting(3.0, "smallest sharp fall in spreads (ours)")
    crash_ppm: Positive = setting(40_000.0, "smallest fall in 15 ticks that is a crash (ours)")
    events_min: Count = setting(3, "sharp falls before they can be a cause (TOOLS: smallest cluster)")
    found_sigma: Positive = setting(1.5, "sigma by which fresh evidence must exceed chance to make a link (ours)")
    info_min: Positive = setting(
        0.5, "a span with a smaller sum of squared cause steps is ignored: half an event (ours)"
    )


class RetrievalPolicy(Frozen):
    """Retrieval: the four factors of the score, and when it is skipped (MEM, canon 21-24)."""

    semantic: Unit = setting(0.40, "MEM, KAT")
    recency: Unit = setting(0.20, "MEM, KAT")
    importance: Unit = setting(0.25, "MEM, KAT")
    affect: Unit = setting(0.15, "MEM, KAT")
    confidence_min: Unit = setting(
        0.5, "lowest confidence of an entry shown to the golem (MEM, injection.minConfidence)"
    )
    like_regime: Unit = setting(0.5, "weight of the regime in the likeness of two situations (ours)")
    like_anomaly: Unit = setting(0.3, "weight of the anomaly band, reduced by its distance (ours)")
    like_gas: Unit = setting(0.2, "weight of the gas band; the three sum to 1 (ours)")
    like_baseline: Unit = setting(0.3, "likeness of a baseline to any situation (ours)")
    bloodstain_boost: Positive = setting(1.2, "multiplier of the importance factor (KAT)")
    scar_sibling: Unit = setting(0.8, "multiplier of the importance of another golem's scar (KAT)")
    proposition_contradicted: Unit = setting(0.5, "multiplier of the importance of a contradicted proposition (KAT)")
    structural_recency_days: Positive = setting(14.0, "recency half-life of structural entries (canon 21)")
    layer_clade: Unit = setting(
        0.80, "multiplier of the confidence of an entry from the same owner's fleet (MEM, canon 22)"
    )
    layer_marketplace: Unit = setting(0.60, "multiplier for a purchased entry (MEM, canon 22)")
    layer_lethe: Unit = setting(0.50, "multiplier for an anonymous entry (MEM, canon 22)")
    contrarian_ticks: PositiveCount = setting(100, "ticks between two retrievals against the mood (HB S3)")
    dormant_transition_ticks: PositiveCount = setting(
        50, "ticks over which entries of the previous regime become dormant (INH S2; value is ours)"
    )
    dormant_unclear: Unit = setting(
        0.5, "weight of other regimes' entries while the regime is unclear (INH S2; value is ours)"
    )
    skip_arousal_max: Unit = setting(0.5, "arousal from which retrieval is never skipped (KAT; value is ours)")
    skip_surprise_max: Unit = setting(0.3, "surprise from which retrieval is never skipped (KAT; HB S5's base)")
    skip_coverage_min: Unit = setting(
        0.75, "known share of a protocol's levels from which retrieval may be skipped (KAT; value is ours)"
    )
    skip_confidence_min: Unit = setting(0.5, "confidence from which a level counts as known (MEM)")
    question_bytes_max: PositiveCount = setting(16_384, "size limit of a question (ours)")
    fusion_k: PositiveCount = setting(60, "without effect since ADR 0080; recorded policies and their hashes have it")
    words_saturation: Positive = setting(1.2, "k1 of BM25: saturation of repeated words (usual)")
    words_length: Unit = setting(0.75, "b of BM25: penalty of long texts (usual)")
    results: PositiveCount = setting(5, "entries shown to the golem (HB S3: top five)")
    search_results: PositiveCount = setting(10, "results of a search (TOOLS)")
    search_results_max: PositiveCount = setting(50, "largest number of results of a search (TOOLS)")

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        self.require_sum_of_one("semantic", "recency", "importance", "affect")
        self.require_sum_of_one("like_regime", "like_anomaly", "like_gas")
        return self


class SearchPolicy(Operational):
    """Search of texts: how words, vectors, neighbours, session and age add up (TOOLS; ADR 0080, 0095)."""

    words: Unit = setting(0.5, "share of the words in the score of a text; the rest is the vector's (ours)")
    before: Unit = setting(0.5, "weight of the text before, beside 1 for the text (ours)")
    behind: Unit = setting(0.25, "weight of the text behind, which is less often the question to an answer (ours)")
    session: Unit = setting(0.15, "weight of the whole session (ours)")
    beside: Positive = setting(1.0, "occurrences in a text that one beside it counts as: date, tags, outcome (ours)")
    words_matched: Unit = setting(
        0.75, "share of the question's words, by rarity, from which a text has the full score of words (ours)"
    )
    likeness: Unit = setting(0.4, "excess of a cosine over the mean that gives the full score of vectors (ours)")
    speaker: Unit = setting(0.25, "weight of a speaker whom the question names (ours)")
    brief: Positive = setting(5.0, "words of a text, and one more, for half of the weight of a long text (ours)")
    brief_least: Unit = setting(0.5, "least weight of a short text, so that it is found by its own words (ours)")
    addressed: Unit = setting(0.3, "weight of a speaker's name in a text, where it mostly addresses a person (ours)")
    decay_penalty: float = setting(
        0.15, "largest share of the score that age and confidence take; TOOLS gives none, at most a half", ge=0, le=0.5
    )
    similarity: Unit = setting(0.85, "cosine from which a statement is an upvote of an earlier one (canon 17)")
    crossing: PositiveCount = setting(256, "texts of a golem that its heir receives (ours; canon 40: the bottleneck)")
    embedded_at_once: PositiveCount = setting(
        256, "texts without a vector that one question embeds, newest first (ours)"
    )


class DreamPolicy(Frozen):
    """Dreams: schedule, replay, imagined branches, and the life of a hypothesis (KAT, TOOLS, MEM)."""

    every_hours: Positive = setting(4.0, "event time between two dreams of an idle golem (TOOLS)")
    idle_ticks: PositiveCount = setting(
        10, "ticks without thought or action after which a golem is idle (ours; TOOLS: no active session)"
    )
    lookback_ticks: PositiveCount = setting(500, "ticks back to the oldest replayed episode (HB S6: the warm range)")
    budget: PositiveCount = setting(
        100, "replays and imagined branches of a dream (TOOLS: episodes of a consolidation)"
    )
    counterfactual_share: Unit = setting(0.4, "share of the budget for imagined branches (KAT)")
    arousal_weight: Unit = setting(0.4, "NREM salience (KAT)")
    valence_weight: Unit = setting(0.3, "NREM salience, of abs(valence) (KAT)")
    recency_weight: Unit = setting(0.2, "NREM salience, of exp(-age / recency_ticks) (KAT)")
    novelty_weight: Unit = setting(0.1, "NREM salience, of 1 - likeness to known entries (KAT)")
    recency_ticks: Positive = setting(100.0, "KAT")
    depotentiation: Unit = setting(0.12, "arousal that REM takes from a replayed episode (KAT)")
    arousal_floor: Unit = setting(0.10, "lowest arousal that REM leaves (KAT, canon 50)")
    witnesses_min: int = setting(3, "witnesses of a cluster, imagined or live (TOOLS: smallest cluster)", ge=2)
    interval_z: Positive = setting(
        2.576, "half-width of an effect's interval in standard errors: 99 %, since each dream tests again (ours)"
    )
    variance_prior: Positive = setting(3.0, "pseudo-observations of the prior spread (ours)")
    effect_sigma_prior_ppm: Positive = setting(
        800.0, "prior spread of the effect of one change, ppm of the position (ours)"
    )
    effect_min_ppm: Positive = setting(50.0, "smallest mean effect worth a hypothesis, ppm (ours)")
    staged_confidence_min: Unit = setting(0.2, "confidence of the least sure hypothesis (KAT)")
    staged_confidence_max: Unit = setting(0.3, "upper bound of a hypothesis before admission (KAT, canon 50)")
    admitted_confidence: Unit = setting(0.3, "confidence of a hypothesis confirmed by live outcomes (MEM, canon 50)")
    clade_confidence: Unit = setting(0.5, "confidence from which a validated hypothesis is offered to the clade (MEM)")
    confirm_days: Positive = setting(7.0, "days after staging in which live outcomes may confirm (MEM)")
    expire_days: Positive = setting(14.0, "days after which an unconfirmed hypothesis expires (MEM)")
    width_scales: tuple[Positive, Positive] = setting(
        (0.6, 1.6), "narrower and wider ranges, as shares of the golem's own (ours)"
    )
    wait_ticks: PositiveCount = setting(10, "longest wait for cheaper gas (ours)")
    reproduced_ppm: Count = setting(5, "a re-simulation must match the recorded verdict within this (ours)")


class ForetellingPolicy(Frozen):
    """The chance that an entry holds on the next day, and its correction by verdicts (X-3)."""

    half_life_days: Positive = setting(5.0, "half-life of a witness, because markets turn (ours)")
    window_days: Positive = setting(10.0, "age beyond which a witness does not count (ours)")
    rule_witnesses: Positive = setting(20.0, "weight of the chance of rules, in witnesses (ours)")
    fact_witnesses: Positive = setting(2.0, "weight of the confidence of new facts and dreams, in witnesses (ours)")
    choice_windows: Positive = setting(100.0, "independent windows of the next day for a choice in all regimes (ours)")
    regime_windows: Positive = setting(20.0, "the same for a choice in one regime (ours)")
    pattern_windows: Positive = setting(1.0, "the same for a pattern (ours)")
    bands: PositiveCount = setting(10, "bands of stated confidence (ours)")
    foretold_min: Unit = setting(0.05, "lower bound of a foretold confidence (ours)")
    foretold_max: Unit = setting(0.98, "upper bound of a foretold confidence (ours)")
