"""Scar words: how a failure is told, written from its structure and its mechanism. Pure.

Never from a golem's own reasoning, which is private. What crosses to the clade may say how much was lost, in percent of
the position; a size, a price or a moment of the market is in no sentence. Source: KAT (causal narrative), canon 44.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bardo_pipeline.grimoire.entry_text import (
    ACTION_WORDS,
    ANOMALY_WORDS,
    CAUSE_WORDS,
    EFFECT_WORDS,
    GAS_WORDS,
    REGIME_WORDS,
    banded,
)

INSTEAD = {
    "rebalance": "holding the range that was there",
    "add_liquidity": "staying in cash",
    "remove_liquidity": "staying in the market",
    "borrow": "owing nothing",
    "repay": "keeping the loan",
    "liquidated": "repaying in time",
}
"""What would have been done instead, by what was done."""

UNEXPLAINED = "unexplained"
MECHANISMS = ("refused", "slipped", "gas", "cause", "cost", "return", UNEXPLAINED)
"""Why it failed: the market moved past the limit before inclusion; the swap slipped; gas ate it; a variable that the
record names moved another; what acting cost was never earned back; price came back to where nothing had been to do. Of
an unexplained loss it is known that it hurt, not why."""


def _percent(ppm: int) -> str:
    return f"{banded(abs(ppm) / 10_000)} %"


def act_words(action_type: str) -> str:
    """An act in words; one without words stands for itself."""
    return ACTION_WORDS.get(action_type, action_type.replace("_", " "))


def mechanism_words(row: Mapping[str, Any]) -> str:
    """Why it failed, as a clause. row: mechanism, and cause_variable and effect_variable where it is a cause."""
    act = act_words(row["action_type"])
    moved = EFFECT_WORDS.get(row["effect_variable"] or "", row["effect_variable"] or "the position")
    return {
        "refused": f"the market moved past the slippage limit before {act} was included, so only gas was spent",
        "slipped": f"{act} slipped: the swap moved against itself by more than it could win",
        "gas": f"gas for {act} ate what it could win",
        "cause": f"{CAUSE_WORDS.get(row['cause_variable'] or '', row['cause_variable'] or '')} hurt {moved}",
        "cost": f"what {act} cost was not earned back",
        "return": "price came back, and the place that was left would have earned more than the new one",
        UNEXPLAINED: "nothing on record says why",
    }[str(row["mechanism"])]


def scene_words(row: Mapping[str, Any]) -> str:
    """Where and when it was done: regime, pair, protocol, range, gas."""
    return (
        f"In {REGIME_WORDS.get(row['regime'], row['regime'])}, with a {row['pair']} position on {row['protocol']} "
        f"{ANOMALY_WORDS.get(row['anomaly_band'], row['anomaly_band'])} and {GAS_WORDS[row['gas_band']]}"
    )


def outcome_words(row: Mapping[str, Any]) -> str:
    """What happened, in a clause. row: outcome_class, confirmed, pnl_ppm, effect_ppm, slippage_ppm."""
    if row["outcome_class"] == "revert":
        return "was refused on inclusion"
    if row["outcome_class"] == "slippage":
        return f"slipped {_percent(row['slippage_ppm'])}, beyond the limit"
    if row["outcome_class"] == "drawdown":
        return f"lost {_percent(row['pnl_ppm'])} at once"
    if row["confirmed"] == "at_death":
        return f"cost {_percent(row['pnl_ppm'])}, and death came before the check"
    return f"was {_percent(row['effect_ppm'])} behind when it was checked"


def narrative(row: Mapping[str, Any]) -> str:
    """Scene, act, outcome and mechanism in one sentence."""
    return f"{scene_words(row)}, {act_words(row['action_type'])} {outcome_words(row)}: {mechanism_words(row)}."


def context(row: Mapping[str, Any]) -> dict[str, str]:
    """What was believed beside what came, and what would have been better (KAT, CausalContext)."""
    act, instead = act_words(row["action_type"]), INSTEAD.get(row["action_type"], "doing nothing")
    version = row["playbook_version"]
    saved = row["effect_ppm"] if row["effect_ppm"] is not None and row["effect_ppm"] < 0 else row["pnl_ppm"]
    kept = f" would have kept {_percent(saved)}" if saved is not None and saved < 0 else " would have spent no gas"
    return {
        "active_strategy": f"{act} by PLAYBOOK.md, version {version}" if version else f"{act} by the defaults at birth",
        "hypothesis_at_action": f"{act} beats {instead}",
        "actual_outcome": f"{act} {outcome_words(row)}",
        "counterfactual_hint": f"{instead}{kept}",
    }
