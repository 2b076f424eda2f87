"""Writes the text of a scar from its structure and mechanism, never from the golem's private reasoning. Pure.

Scars are shared with the clade. The text may state the loss in percent of the position, but no size, price or time.
Source: KAT (causal narrative), canon 44.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bardo_pipeline.grimoire.entry_text import ACTION_WORDS, CAUSE_WORDS, EFFECT_WORDS, banded, scene_words

INSTEAD = {
    "rebalance": "holding the range that was there",
    "add_liquidity": "staying in cash",
    "remove_liquidity": "staying in the market",
    "borrow": "owing nothing",
    "repay": "keeping the loan",
    "liquidated": "repaying in time",
}
"""Maps each action to the alternative that was not taken."""

UNEXPLAINED = "unexplained"
MECHANISMS = ("refused", "slipped", "gas", "cause", "cost", "return", UNEXPLAINED)
"""Why an action failed. refused: the market passed the slippage limit before inclusion. slipped: the swap slipped.
gas: gas exceeded the gain. cause: a variable named by the record moved another. cost: the cost of acting was never
earned back. return: the price recovered. unexplained: a loss without a known reason."""


def _percent(ppm: int) -> str:
    return f"{banded(abs(ppm) / 10_000)} %"


def act_words(action_type: str) -> str:
    """Return the words for an action type; an unknown type is returned with spaces for underscores."""
    return ACTION_WORDS.get(action_type, action_type.replace("_", " "))


def mechanism_words(row: Mapping[str, Any]) -> str:
    """Return the clause that explains the failure; cause_variable and effect_variable matter for mechanism "cause"."""
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


def outcome_words(row: Mapping[str, Any]) -> str:
    """Return the clause that describes the outcome: revert, slippage, or the loss in percent."""
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
    """Return scene, action, outcome and mechanism in one sentence."""
    scene = scene_words(*(row[name] for name in ("regime", "pair", "protocol", "anomaly_band", "gas_band")))
    return f"{scene}, {act_words(row['action_type'])} {outcome_words(row)}: {mechanism_words(row)}."


def context(row: Mapping[str, Any]) -> dict[str, str]:
    """Return strategy, hypothesis, actual outcome and the better alternative (KAT, CausalContext)."""
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
