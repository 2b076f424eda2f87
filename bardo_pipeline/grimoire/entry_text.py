"""Texts of entries, generated from their structure in banded words, so that equal rules have equal texts. Pure.

Source: canon 17 ("the same structure"), MEM-4.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from bardo_pipeline.events.record.model import NO_MARKET
from bardo_pipeline.grimoire.conditions import conditions_in
from bardo_pipeline.grimoire.entries import loan_of_act, recentring_of_act, width_of_act

REGIME_WORDS = {
    "trending_up": "a rising trend",
    "trending_down": "a falling trend",
    "range_bound": "a range-bound market",
    "volatile": "a volatile market",
    "unknown": "an unclear market",
}
ANOMALY_WORDS = {
    "calm": "well inside its range",
    "stirred": "off the centre of its range",
    "strained": "at the edge of its range",
    "stretched": "just outside its range",
    "broken": "far outside its range",
}
GAS_WORDS = {
    "cheap": "gas cheap",
    "normal": "gas normal",
    "dear": "gas dear",
    "not_dear": "gas cheap or normal",
    "not_cheap": "gas normal or dear",
    "any": "gas at any price",
}
ACTION_WORDS = {
    "rebalance": "re-centring", "add_liquidity": "entering", "remove_liquidity": "leaving", "borrow": "borrowing",
    "repay": "repaying", "liquidated": "keeping the loan",
}  # fmt: skip

SIZE_EDGES_PPM = (150, 600)
SIZE_WORDS = ("slightly", "clearly", "strongly")


def size_word(effect_ppm: int) -> str:
    """Return the word for the size of an effect in ppm of a position's value."""
    return SIZE_WORDS[bisect_right(SIZE_EDGES_PPM, abs(effect_ppm))]


def scene_words(regime: str, pair: str, protocol: str, anomaly_band: str, gas_band: str) -> str:
    """Return the clause that describes regime, pair, protocol, range and gas."""
    if not anomaly_band:
        where = REGIME_WORDS.get(regime, regime) if regime else "any market"
        return f"In {where}, with {pair} on {protocol}"
    return (
        f"In {REGIME_WORDS.get(regime, regime)}, with a {pair} position on {protocol} "
        f"{ANOMALY_WORDS.get(anomaly_band, anomaly_band)} and {GAS_WORDS.get(gas_band, gas_band)}"
    )


def pattern_text(
    *,
    kind: str,
    action_type: str,
    protocol: str,
    pair: str,
    regime: str,
    anomaly_band: str,
    gas_band: str,
    sign: int,
    mean_ppm: int,
) -> str:
    """Return the sentence of a rule learned from judged decisions."""
    act = ACTION_WORDS.get(action_type, action_type)
    scene = scene_words(regime, pair, protocol, anomaly_band, gas_band)
    word = size_word(mean_ppm)
    if sign == 0:
        return f"{scene}, it is open whether {act} beats holding."
    verdict = f"{act} has {word} {'beaten' if sign > 0 else 'lost to'} holding"
    if kind == "heuristic":
        return f"{scene}, prefer {act}: {verdict}."
    if kind == "warning":
        return f"{scene}, do not act: {verdict}."
    return f"{scene}, {verdict}."


def choice_text(*, kind: str, action_type: str, protocol: str, pair: str, regime: str, sign: int, mean_ppm: int) -> str:
    """Return the sentence of a choice: a half-width, presence, or re-centring and loans over hours."""
    scene, widths = scene_words(regime, pair, protocol, "", ""), width_of_act(action_type)
    act, rival = ACTION_WORDS.get(action_type, action_type), "staying as it is"
    if widths is not None:
        act, rival = f"a half-width of {widths[0]} ticks", f"one of {widths[1]}"
    if (recentring := recentring_of_act(action_type)) is not None:
        band, horizon = recentring
        act = f"re-centring a position {ANOMALY_WORDS.get(band, band)}"
        rival = f"keeping it, over {_spaced(horizon)}"
    if (loan := loan_of_act(action_type)) is not None:
        act, rival = (("borrowing", "no loan"), ("repaying the loan", "keeping it"))[loan[0] == "repay"]
        rival = f"{rival}, over {_spaced(loan[1])}"
    if sign == 0:
        return f"{scene}, it is open whether {act} beats {rival}."
    verdict = f"{act} has {size_word(mean_ppm)} {'beaten' if sign > 0 else 'lost to'} {rival}"
    advice = {"heuristic": f"prefer {act}: ", "warning": f"avoid {act}: "}.get(kind, "")
    return f"{scene}, {advice}{verdict}."


def report_text(*, kind: str, action_type: str, protocol: str, pair: str, cause: str | None, sign: int) -> str:
    """Return the sentence of a report: an action beside the other reported actions under the same conditions."""
    place = protocol if pair == NO_MARKET else f"{protocol} with {pair}"
    words = [f"{_spaced(name)} is {_spaced(value)}" for name, value in conditions_in(cause)]
    scene = f"In {_spaced(place)}, " + (f"when {' and '.join(words)}" if words else "in any situation")
    act = _spaced(action_type)
    if sign == 0:
        return f"{scene}, it is open whether {act} does better than the other actions."
    verdict = f"{act} has done {'better' if sign > 0 else 'worse'} than the other actions"
    advice = {"heuristic": f"prefer {act}: ", "warning": f"avoid {act}: "}.get(kind, "")
    return f"{scene}, {advice}{verdict}."


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def strategy_text(*, acts: Sequence[str], protocol: str, pair: str, regime: str) -> str:
    """Return the sentence of a strategy fragment. acts: action types of its parts, with "no_" for a warning."""
    words = []
    for act in acts:
        plain = act.removeprefix("no_")
        widths = width_of_act(plain)
        name = ACTION_WORDS.get(plain, plain) if widths is None else f"a half-width of {widths[0]} ticks"
        words.append(f"no {name}" if act != plain else name)
    return f"{scene_words(regime, pair, protocol, '', '')}, these were learned together: {', '.join(words)}."


CHANGE_WORDS = {
    "threshold_higher": "a re-centring threshold one band higher",
    "threshold_lower": "a re-centring threshold one band lower",
    "range_narrower": "a narrower new range",
    "range_wider": "a wider new range",
    "wait_for_gas": "waiting for cheaper gas",
}


def counterfactual_text(
    *, change: str, protocol: str, pair: str, regime: str, anomaly_band: str, gas_band: str, sign: int, mean_ppm: int
) -> str:
    """Return the sentence of a counterfactual: the value of decisions with one thing changed."""
    scene = scene_words(regime, pair, protocol, anomaly_band, gas_band)
    what = CHANGE_WORDS.get(change, change)
    if sign == 0:
        return f"{scene}, it is open what {what} would change."
    return f"{scene}, {what} would have been {size_word(mean_ppm)} {'better' if sign > 0 else 'worse'}."


def banded(value: float) -> str:
    """Round to two significant digits, because a baseline's precision is no better."""
    if value == 0 or not math.isfinite(value):
        return "0"
    digits = 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    return f"{rounded:,.{max(digits, 0)}f}" if digits > 0 else f"{rounded:,.0f}"


METRIC_WORDS = {
    "gas_price": "what gas costs while trading {}",
    "pool_volume": "how much {} trades",
    "slippage": "how much actions on {} slip",
    "gas_cost": "what actions on {} cost in gas",
}


def baseline_text(*, protocol: str, pair: str, metric: str, mean: int, low: int, high: int, known: bool = True) -> str:
    """Return the sentence of a baseline: a metric's median (mean) and quartiles (low, high), in the metric's unit."""
    subject = f"{pair} on {protocol}"
    if not known:
        return f"It is open {METRIC_WORDS[metric].format(subject)}."
    scale = {"gas_price": 1000.0, "gas_cost": 1e6}.get(metric, 1.0)
    median, middle = banded(mean / scale), f"{banded(low / scale)} to {banded(high / scale)}"
    if metric == "gas_price":
        return f"While trading {subject}, gas usually costs about {median} gwei (at half of the ticks {middle})."
    if metric == "pool_volume":
        return f"{subject} usually trades about {median} dollars a tick (at half of the ticks {middle})."
    if metric == "slippage":
        return f"Actions on {subject} usually slip about {median} ppm (half of them {middle})."
    return f"Actions on {subject} usually cost about {median} dollars of gas (half of them {middle})."


CAUSE_WORDS = {
    "crash": "a sharp fall",
    "price_return": "a rising price",
    "price_move": "a large move of the price",
    "past_return": "a rise over the past hour",
    "price_excursion": "a price above its recent mean",
    "volume": "high volume",
    "liquidity": "rising liquidity",
    "gas_gwei": "rising gas",
    "hour_14_to_16_utc": "the time from 14 to 16 UTC",
}
EFFECT_WORDS = {
    "gas_gwei": "gas",
    "volume": "volume",
    "liquidity": "active liquidity",
    "price_move": "the size of price moves",
    "price_return": "the price",
}


def causal_text(*, cause: str, effect: str, lag_ticks: int, regime: str | None, place: str, sign: int) -> str:
    """Return the sentence of a causal link: cause, effect, direction, lag."""
    scene = f"In {REGIME_WORDS.get(regime, regime)}, {place}" if regime else f"For {place}"
    when = "at once" if lag_ticks == 0 else "one tick later" if lag_ticks == 1 else f"{lag_ticks} ticks later"
    moved, mover = EFFECT_WORDS.get(effect, effect), CAUSE_WORDS.get(cause, cause)
    if sign == 0:
        return f"{scene}: it is open whether {mover} moves {moved} {when}."
    return f"{scene}: {mover} moves {moved} {'up' if sign > 0 else 'down'} {when}."
