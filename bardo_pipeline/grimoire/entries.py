"""Schema of entries: types, statuses, categories, domains, bands, columns. Pure.

Source: INH S7.3 (types), MEM and TOOLS (categories), KAT (domains), canon 16-18.
"""

from __future__ import annotations

import re

import pyarrow as pa

from bardo_pipeline.events.record.arrow_columns import all_nullable, all_required

ENTRY_KINDS = ("insight", "heuristic", "warning", "causal_link", "strategy_fragment")
"""INH S7.3."""

STATUSES = ("candidate", "active", "pruned", "retracted", "folded")
"""A candidate gathers evidence; an active entry is in use; a pruned one fell below the confidence limit; a retracted
one was removed by its owner; a folded one is represented by a wider rule of its golem (gas_bands.py). Pruned and
retracted entries can be learned again from later evidence."""

PROVENANCES = ("self", "death_testament", "dream_counterfactual", "import", "replicant", "clade_sibling")
"""Origin of an entry: own evidence, inheritance at a death (canon 3), a dream (KAT, Loop 3), an import during life, a
report of the golem's short-lived replicant (INH S5.2, S7.6), or a parcel of a living sibling (INH S6)."""

CLADE_SIBLING = PROVENANCES[5]

DREAMT = PROVENANCES[2]

CAME_OVER = PROVENANCES[3:]
"""Provenances of entries received during life: quarantined until own outcomes confirm them."""

DECAY_CLASSES = ("structural", "regime_conditional", "tactical", "ephemeral", "fact")
"""INH S7.4; a consolidated fact that became an entry decays by the fact's rule alone (canon 6)."""

SOURCES = ("pattern", "baseline", "causal", "dream", "choice", "strategy", "report")
"""A pattern is a cluster of judged decisions; a baseline the level of a protocol's metric; a causal link names the
market variable that moves another, and the lag in ticks; a dream states the value of decisions with one thing changed,
named by its `cause`; a choice states the value of a half-width beside another, of entering, of leaving, of
re-centring, of a loan or of repaying it over hours, over all regimes or in one; a strategy binds rules that were
learned together; a report states the value of an action that a runtime reported with its reward, beside its other
actions under the same conditions, which `cause` holds."""

TEXT = "text"
"""Source of an insight in a runtime's own words, which answers of `ask` list beside the entries. No table holds it."""

_WIDTH_ACT = re.compile(r"range_(\d+)_over_(\d+)")


def width_of_act(action_type: str | None) -> tuple[int, int] | None:
    """Return (half-width, half-width it is compared with) in pool ticks; None for any other action type."""
    stated = _WIDTH_ACT.fullmatch(action_type or "")
    return None if stated is None else (int(stated[1]), int(stated[2]))


_RECENTRING_ACT = re.compile(r"recenter_([a-z]+)_(\d+_hours)")


def recentring_of_act(action_type: str | None) -> tuple[str, str] | None:
    """Return (anomaly band, horizon) of an act of re-centring on trial; None for any other action type."""
    stated = _RECENTRING_ACT.fullmatch(action_type or "")
    return None if stated is None else (stated[1], stated[2])


_LOAN_ACT = re.compile(r"(borrow|repay)_(\d+_hours)")


def loan_of_act(action_type: str | None) -> tuple[str, str] | None:
    """Return ("borrow" or "repay", horizon) of an act of a loan on trial; None for any other action type."""
    stated = _LOAN_ACT.fullmatch(action_type or "")
    return None if stated is None else (stated[1], stated[2])


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
"""KAT's proposition domains. A rule about reports has the domain that its runtime states instead."""

ANOMALY_BANDS = ("calm", "stirred", "strained", "stretched", "broken")
"""Bands of the anomaly score, between the policy's four edges."""

GAS_BANDS = ("cheap", "normal", "dear")
"""Bands of the gas price relative to its hour, between the policy's two edges; wider rules span several
(gas_bands.py)."""

BASELINE_METRICS = ("gas_price", "pool_volume", "slippage", "gas_cost")
"""Metrics of baseline facts."""

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
"""Unit of a metric's integers."""

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
"""Variables of the causal graph; curator/causality/variables.py computes them from observations."""

EFFECT_CATEGORY = {
    "gas_gwei": "gas_timing",
    "volume": "liquidity_conditions",
    "liquidity": "liquidity_depth",
    "price_move": "volatility",
    "price_return": "pool_behavior",
}
"""Category of a causal link by its effect; the keys are all possible effects."""

CHANGE_CATEGORY = {
    "threshold_higher": "rebalance_timing",
    "threshold_lower": "rebalance_timing",
    "range_narrower": "range_selection",
    "range_wider": "range_selection",
    "wait_for_gas": "gas_timing",
}
"""Category of a dream entry by the change it imagines; the keys are all changes."""

MOMENT = pa.timestamp("us", tz="UTC")

STRUCTURE_FIELDS = [
    *all_required(pa.string(), "structure", "source", "category", "domain", "chain", "protocol", "pair"),
    *all_nullable(pa.string(), "tool", "action_type", "regime", "anomaly_band", "gas_band"),
    *all_nullable(pa.string(), "metric", "cause", "effect"),
    pa.field("lag_ticks", pa.int64()),
]
"""Columns of an entry's structure. A causal link has cause, effect, lag_ticks, and a regime if it is limited to one; a
dream entry has a pattern's situation and, in cause, the imagined change; a report has in cause its conditions
(conditions.py), null for any situation."""

COUNTED_FIELDS = [
    *all_required(pa.int64(), "sign", "confidence_ppm", "validations", "contradictions", "generation", "created_cycle"),
    *all_required(pa.int64(), "effect_mean_ppm", "effect_low_ppm", "effect_high_ppm", "evidence_count"),
    *all_required(pa.int64(), "own_count", "own_sum", "own_sumsq"),
    *all_required(pa.int64(), "pleasure_sum_milli", "arousal_sum_milli", "dominance_sum_milli"),
    *all_required(pa.int64(), "confidence_origin_ppm", "pinned_ppm"),
    *all_required(pa.int64(), "level_p10", "level_p90"),
]

ENTRY_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "golem_id", "entry_id"),
        *STRUCTURE_FIELDS,
        *all_required(pa.string(), "kind", "status", "text", "provenance", "origin_golem_id", "decay_class"),
        *all_required(pa.bool_(), "is_anti_knowledge", "is_bloodstain"),
        *COUNTED_FIELDS,
        *all_required(MOMENT, "anchor_at", "created_at", "validated_at"),
        pa.field("fades_at", MOMENT),
    ]
)
"""One row per (golem, entry). `confidence_ppm`: confidence at `anchor_at`, in parts per million; confidence.py
computes other moments. `effect_*`: the stated effect in ppm of a position's value (report: of the best reward;
baseline: median and quartiles, in the metric's unit; causal link: change of the effect in ppm of its level per step
of the cause). `own_*`: exact sums of the golem's own evidence. `*_sum_milli`: sums of its mood at that evidence, in
thousandths. `pinned_ppm`: floor set by the owner, 0 if not pinned. `level_*`: 10th and 90th percentile that a
baseline states, 0 elsewhere and in an inherited baseline. Own evidence of a baseline: `own_count` market days,
`own_sumsq` readings since cycle `own_sum`. The own evidence of a choice begins with that of the golem's
line, at a discount (inheritance/choice_evidence.py).
"""
