"""The entry: an atom of knowledge, its five types, nineteen categories and six domains. Pure.

Source: INH S7.3 (types), MEM and TOOLS (categories), KAT (domains), canon 16-18.
"""

from __future__ import annotations

import pyarrow as pa

ENTRY_KINDS = ("insight", "heuristic", "warning", "causal_link", "strategy_fragment")
"""INH S7.3."""

STATUSES = ("candidate", "active", "pruned", "retracted", "folded")
"""A candidate gathers evidence, an active entry is known, a pruned one is forgotten, a retracted one was taken
out by its owner. What was pruned or retracted can be learned again, from evidence that came later. A folded one is told
by a wider rule of its golem, which stands for it (gas_bands.py)."""

PROVENANCES = ("self", "death_testament", "dream_counterfactual", "import", "replicant")
"""Where an entry came from; succession is the death testament (canon 3), a counterfactual a dream (KAT, Loop 3), an
import what somebody gave the golem in its life, a replicant its own short-lived offspring (INH S5.2, S7.6)."""

DREAMT = PROVENANCES[2]

CAME_OVER = PROVENANCES[3:]
"""Provenances of what came to a golem in the midst of its life: in quarantine until its own outcomes bear it out."""

DECAY_CLASSES = ("structural", "regime_conditional", "tactical", "ephemeral", "fact")
"""INH S7.4; a consolidated fact that became an entry decays by the fact's rule alone (canon 6)."""

SOURCES = ("pattern", "baseline", "causal", "dream")
"""A pattern is a cluster of judged decisions; a baseline is the level of a metric of a protocol; a causal link says
which variable of a market moves another, and how many ticks later; a dream says what would become of decisions with one
thing changed, which its `cause` names."""

CATEGORIES: dict[str, str] = {
    "slippage": "dex_lp",
    "gas_timing": "gas",
    "route_selection": "dex_lp",
    "liquidity_conditions": "dex_lp",
    "regime_transitions": "regime",
    "risk_events": "risk",
    "rebalance_timing": "dex_lp",
    "range_selection": "dex_lp",
    "fee_optimization": "yield",
    "jit_defense": "dex_lp",
    "tool_guidance": "risk",
    "strategic_patterns": "yield",
    "pool_behavior": "dex_lp",
    "mev_pattern": "risk",
    "liquidity_depth": "dex_lp",
    "volatility": "regime",
    "vault_strategy": "yield",
    "emergency": "risk",
    "general": "risk",
}
"""The nineteen categories and the KAT domain of each (canon 18). Lending has a domain and no category yet."""

DOMAINS = ("dex_lp", "lending", "yield", "gas", "regime", "risk")
"""KAT's proposition domains."""

ANOMALY_BANDS = ("calm", "stirred", "strained", "stretched", "broken")
"""Bands of the anomaly score, between the policy's four edges."""

GAS_BANDS = ("cheap", "normal", "dear")
"""Bands of the gas price relative to its hour, between the policy's two edges; wider rules span several
(gas_bands.py)."""

BASELINE_METRICS = ("gas_price", "pool_volume", "slippage", "gas_cost")
"""What a baseline fact describes."""

METRIC_CATEGORY = {
    "gas_price": "gas_timing",
    "pool_volume": "liquidity_conditions",
    "slippage": "slippage",
    "gas_cost": "gas_timing",
}
METRIC_UNIT = {
    "gas_price": "thousandths of a gwei",
    "pool_volume": "dollars a tick",
    "slippage": "ppm",
    "gas_cost": "micro-dollars",
}
"""Unit in which a metric's integers are kept."""

CAUSAL_VARIABLES = (
    "crash",
    "price_return",
    "price_move",
    "past_return",
    "price_excursion",
    "volume",
    "liquidity",
    "gas_gwei",
    "hour_14_to_16_utc",
)
"""The variables of the causal graph; how each is read from an observation: curator/causality/variables.py."""

EFFECT_CATEGORY = {
    "gas_gwei": "gas_timing",
    "volume": "liquidity_conditions",
    "liquidity": "liquidity_depth",
    "price_move": "volatility",
    "price_return": "pool_behavior",
}
"""Category of a causal link, by what it moves; also: the variables that can be an effect."""

CHANGE_CATEGORY = {
    "threshold_higher": "rebalance_timing",
    "threshold_lower": "rebalance_timing",
    "range_narrower": "range_selection",
    "range_wider": "range_selection",
    "wait_for_gas": "gas_timing",
}
"""Category of what a dream taught, by what it changed; also: the changes that there are."""

MOMENT = pa.timestamp("us", tz="UTC")

STRUCTURE_FIELDS = [
    pa.field("structure", pa.string(), nullable=False),
    pa.field("source", pa.string(), nullable=False),
    pa.field("category", pa.string(), nullable=False),
    pa.field("domain", pa.string(), nullable=False),
    pa.field("chain", pa.string(), nullable=False),
    pa.field("protocol", pa.string(), nullable=False),
    pa.field("pair", pa.string(), nullable=False),
    pa.field("tool", pa.string()),
    pa.field("action_type", pa.string()),
    pa.field("regime", pa.string()),
    pa.field("anomaly_band", pa.string()),
    pa.field("gas_band", pa.string()),
    pa.field("metric", pa.string()),
    pa.field("cause", pa.string()),
    pa.field("effect", pa.string()),
    pa.field("lag_ticks", pa.int64()),
]
"""What an entry is about. A causal link has cause, effect and lag_ticks, and the regime where it holds in one alone;
what a dream taught has a pattern's situation, and in cause the one thing that is changed."""

COUNTED_FIELDS = [
    pa.field(name, pa.int64(), nullable=False)
    for name in (
        "sign",
        "confidence_ppm",
        "validations",
        "contradictions",
        "generation",
        "created_cycle",
        "effect_mean_ppm",
        "effect_low_ppm",
        "effect_high_ppm",
        "evidence_count",
        "own_count",
        "own_sum",
        "own_sumsq",
        "pleasure_sum_milli",
        "arousal_sum_milli",
        "dominance_sum_milli",
        "confidence_origin_ppm",
        "pinned_ppm",
    )
]

ENTRY_SCHEMA = pa.schema(
    [
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("entry_id", pa.string(), nullable=False),
        *STRUCTURE_FIELDS,
        pa.field("kind", pa.string(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("provenance", pa.string(), nullable=False),
        pa.field("origin_golem_id", pa.string(), nullable=False),
        pa.field("decay_class", pa.string(), nullable=False),
        pa.field("is_anti_knowledge", pa.bool_(), nullable=False),
        pa.field("is_bloodstain", pa.bool_(), nullable=False),
        *COUNTED_FIELDS,
        pa.field("anchor_at", MOMENT, nullable=False),
        pa.field("created_at", MOMENT, nullable=False),
        pa.field("validated_at", MOMENT, nullable=False),
        pa.field("fades_at", MOMENT),
    ]
)
"""One row per (golem, entry). `confidence_ppm` is the confidence at `anchor_at` in parts per million; the confidence at
another moment is computed (confidence.py). `effect_*` is the effect that the entry states, in ppm of a position's value
(a baseline: its mean, and one spread below and above it, in the metric's unit; a causal link: change of the effect, in
ppm of its own level, for one step of the cause); `own_*` are the exact sums of the golem's own evidence, `*_sum_milli`
of its mood at that evidence in thousandths. `pinned_ppm`: below this its owner does not let it fade; 0 where it is not
pinned."""
