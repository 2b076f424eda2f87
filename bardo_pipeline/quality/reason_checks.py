"""Checks of records: each stated reason against the numbers of its own record. Pure.

The rule-based golem states its gate, its playbook rule and its refusals in fixed sentences with numbers (HB-4, HB-15).
A record contradicts itself if a number differs from the record's, or does not lead to the recorded act. Sentences of
other runtimes are free texts and are not checked. Records before schema version 4 state less and keep their meaning
(ADR 66).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

REASON_COLUMNS = (
    "schema_version", "golem_id", "tick", "observation", "regime", "probe_results", "prediction_error",
    "deliberation_threshold", "tier", "forced_by", "gating_reason", "attention", "credit_partitions", "deliberation",
    "retrieval", "actions", "gating", "spending",
    "cached_decision",
)  # fmt: skip
"""Record columns that the checks read."""

FIRST_VERSION = 4
"""Schema version whose reasons state the rule that decided."""

_WIDTHS_SINCE = 5
_ROWS_AT_ONCE = 1_000
_ROUNDED = 5.1e-5  # numbers in sentences have four decimals
_COARSE = 5.1e-3  # or two

_LOWERED = (
    r"(?P<answered>; the decision cache answers (?P<asked>T1|T2): hold, after (?P<outcomes>\d+) like outcomes)?"
    r"(?P<lowered>; the daily budget lowers (?P<wanted>T1|T2): (?P<spent>\d+) of (?P<cap>\d+) micro-dollars are spent)?"
)
_GATE = re.compile(
    r"(?P<tier>T0|T1|T2|suppress): (?P<force>the owner steers; |the terminal phase is near; |first tick of a life; |"
    r"the chain took back blocks; )?surprise (?P<surprise>[\d.]+) (?P<verb>is below|reaches|reaches (?P<times>[\d.]+) "
    r"times) the threshold (?P<threshold>[\d.]+)(?P<attention>; attention passes over it: (?P<vain>[\d.]+) of "
    r"(?P<thoughts>[\d.]+) thoughts here led to no action, draw (?P<draw>[\d.]+) is below the chance "
    r"(?P<chance>[\d.]+))?(?P<settled>; the playbook stays out of this regime, rule \w+)?" + _LOWERED
)
_LEARNED = re.compile(
    r"(?P<tier>T0|T1|T2|suppress): composite (?P<composite>[\d.]+) (?P<explores>explores a discarded tick; it )?"
    r"(?P<woke>belongs to a tick that a chain event woke; it )?"
    r"(?P<verb>exceeds|does not exceed) the threshold of (?P<of>T0|T1|T2), (?P<threshold>[\d.]+)"
    r"(?P<settled>; the playbook stays out of this regime, rule \w+)?" + _LOWERED
)
_FORCES = {
    "the owner steers; ": "steer", "the terminal phase is near; ": "phase_transition",
    "first tick of a life; ": "birth", "the chain took back blocks; ": "reorg", None: None,
}  # fmt: skip
_RULE = re.compile(
    r"(?P<rule>.*?)(?:, rule (?P<presence>\w+))?(?:; half-width (?P<width>\d+) by (?P<by>trait|rule \w+))?"
    r"(?:; loan .*|; a loan .*)?; decision: (?P<decision>\w+)(?P<loan>; .*)?"
)


def _compiled(*rules: tuple[str, str]) -> tuple[tuple[re.Pattern[str], str], ...]:
    """Return the patterns of reasons, each with the decision or status that it explains."""
    return tuple((re.compile(words), outcome) for words, outcome in rules)


_RULES = _compiled(
    (r"anomaly ([\d.]+) is below the playbook's ([\d.]+)", "hold"),
    (r"anomaly ([\d.]+) reaches the playbook's ([\d.]+)", "rebalance"),
    (r"no position in the first tick of a life", "add_liquidity"),
    (r"no position; tick (\d+) reaches the end of the cool-down, tick (\d+)", "add_liquidity"),
    (r"drawdown ([\d.]+) reaches the halt at ([\d.]+)", "remove_liquidity"),
    (r"fees of (\d+) micro-dollars reach the playbook's (\d+)", "collect_fees"),
    (r"no position; tick (\d+) is before the end of the cool-down, tick (\d+)", "hold"),
    (r"no position; a volatile regime is not entered", "hold"),
    (r"no position; the playbook stays out of this regime", "hold"),
    (r"the playbook leaves this regime", "remove_liquidity"),
    (r"no position; the playbook enters this regime", "add_liquidity"),
    (r"anomaly ([\d.]+) is below the threshold that scars and propositions raise to ([\d.]+)", "hold"),
    (r"anomaly ([\d.]+) reaches the threshold that propositions lower to ([\d.]+)", "rebalance"),
    (r"anomaly ([\d.]+) is below the threshold that lessons of dreams raise to ([\d.]+)", "hold"),
    (r"anomaly ([\d.]+) reaches the threshold that lessons of dreams lower to ([\d.]+)", "rebalance"),
)
(
    _STAY, _MOVE, _BORN, _REENTER, _FALLEN, _FEES, _COOLING, _TURMOIL, _OUTSIDE, _GONE, _CALLED, _WARY, _URGED,
    _TAUGHT_TO_WAIT, _TAUGHT_TO_MOVE,
) = range(len(_RULES))  # fmt: skip
_WAITS, _MOVES = (_WARY, _TAUGHT_TO_WAIT), (_URGED, _TAUGHT_TO_MOVE)
_REFUSALS = _compiled(
    (r"a warning stands against acting here: .+", "blocked"),
    (r"simulation: slippage of (\d+) ppm is above the limit of (\d+) ppm", "blocked"),
    (r"policy cage: (\d+) ppm of the pool is above the limit of (\d+) ppm", "blocked"),
    (r"policy cage: gas of (\d+) micro-dollars is above the position's limit of (\d+) micro-dollars", "deferred"),
    (r"gas gate: gas of (\d+) micro-dollars is above the partition's available (\d+) micro-dollars", "deferred"),
    (
        r"gas gate: gas of (\d+) micro-dollars is above the multiple of the average hourly cost, (\d+) micro-dollars",
        "deferred",
    ),
    (r"inclusion: slippage of (\d+) ppm is above the limit of (\d+) ppm", "reverted"),
    (r"policy cage: this protocol may not be touched", "blocked"),
    (r"its loan is being liquidated", "deferred"),
    (r"policy cage: debt of (\d+) ppm of the collateral is above the limit of (\d+) ppm", "blocked"),
    (r"policy cage: a yearly borrow rate of (\d+) ppm is above the limit of (\d+) ppm", "blocked"),
    (r"gas gate: gas of (\d+) micro-dollars is above what a liquidation would take, (\d+) micro-dollars", "deferred"),
    (r"simulation: a cost of (\d+) ppm of the value is above the limit of (\d+) ppm", "blocked"),
    (r"risk engine: a cost of (\d+) micro-dollars is above the Kelly cap of (\d+) micro-dollars", "blocked"),
    (r"risk engine: an exposure of (\d+) ppm of the net value is above the limit of (\d+) ppm", "blocked"),
    (r"risk engine: a drawdown of (\d+) ppm is above the limit of (\d+) ppm", "blocked"),
    (r"risk engine: slippage on leaving of (\d+) ppm is above the limit of (\d+) ppm", "blocked"),
    (r"risk engine: debt of (\d+) ppm of what the collateral bears is above the limit of (\d+) ppm", "deferred"),
    (r"accuracy gate: (\d+) ppm of the predictions missed, above the limit of (\d+) ppm", "blocked"),
    (r"its permit does not allow this action now", "deferred"),
    (r"the owner's steer cancelled this call", "blocked"),
    (r"a safety constraint blocked this call", "blocked"),
)
_VALUE_SHARE, _AVAILABLE, _HOURLY = 3, 4, 5


def contradictions(records: pa.Table) -> list[dict[str, Any]]:
    """Return what records state against their own numbers: golem_id, tick, field and problem of each.

    Parameters
    ----------
    records : REASON_COLUMNS
    """
    problems = []
    stated = records.filter(pc.greater_equal(records["schema_version"], FIRST_VERSION))
    batches = stated.to_batches(max_chunksize=_ROWS_AT_ONCE)  # a record as Python objects takes about 10 kB
    for row in (row for batch in batches for row in batch.to_pylist()):
        for field, problem in (*_gate_problems(row), *_rule_problems(row), *_refusal_problems(row)):
            problems.append({"golem_id": row["golem_id"], "tick": row["tick"], "field": field, "problem": problem})
    return problems


def _gate_problems(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    text, tier, weighed = row["gating_reason"], row["tier"], row["attention"]
    stated, learned = _GATE.fullmatch(text), _LEARNED.fullmatch(text)
    if learned:
        yield from (("gating_reason", f"{problem}: {text!r}") for problem in _learned_problems(row, learned))
    if stated is None:
        return
    error, threshold = row["prediction_error"], row["deliberation_threshold"]
    forced = row["forced_by"]

    def wrong(problem: str) -> tuple[str, str]:
        return "gating_reason", f"{problem}: {text!r}"

    if stated["tier"] != tier:
        yield wrong(f"the tier is {tier}")
    if _FORCES[stated["force"]] != forced:
        yield wrong(f"forced_by is {forced}")
    for name, value in (("surprise", error), ("threshold", threshold)):
        if abs(float(stated[name]) - value) > _ROUNDED:
            yield wrong(f"the {name} is {value}")
    limit = threshold * float(stated["times"] or 1)
    if (error >= limit) is (stated["verb"] == "is below"):
        yield wrong(f"surprise {error} against threshold {threshold}")
    if stated["settled"] and (tier != "suppress" or any(p["liquidity"] > 0 for p in row["observation"]["positions"])):
        yield wrong("a playbook that stays out settles suppressed ticks without a position")
    yield from (wrong(problem) for problem in _spending_problems(row, stated))
    chosen = stated["asked"] or stated["wanted"] or tier
    verbs = {"T0": ("is below",), "T1": ("reaches",), "suppress": ("reaches",)}.get(chosen)
    if forced is None and not (stated["verb"] in verbs if verbs else stated["times"]):
        yield wrong(f"this does not lead to {chosen}")
    if forced is not None and chosen != "T2":
        yield wrong("a forced tick is not at T2")
    yield from _attention_problems(row, stated, weighed, wrong)


def _spending_problems(row: dict[str, Any], stated: re.Match[str]) -> Iterator[str]:
    """Yield what a reason states against the record's spending: figures, and the tier that its band allows."""
    spending, cached = row.get("spending") or {}, row.get("cached_decision") or {}
    if (stated["answered"] is not None) is not (cached.get("result") == "hit"):
        yield f"the decision cache's result is {cached.get('result')}"
    elif stated["answered"]:
        if (stated["asked"], int(stated["outcomes"])) != (cached["wanted_tier"], cached["outcomes"]):
            yield f"the record has {cached['wanted_tier']} and {cached['outcomes']} outcomes"
        if row["tier"] != "T0" or row["actions"]:
            yield "an answered tick is at T0 and does not act"
    if stated["wanted"] != spending.get("wanted_tier"):
        yield f"the record's spending lowers {spending.get('wanted_tier')}"
    if not (stated["lowered"] and spending):
        return
    for name in ("spent", "cap"):
        if int(stated[name]) != spending[f"day_{name}_micros"]:
            yield f"the record has {spending[f'day_{name}_micros']}"
    allowed = "T1" if spending["band"] == "no_large_model" else "T0"
    if row["tier"] != allowed or stated["wanted"] <= allowed:
        yield f"the band {spending['band']} allows {allowed}"


def _learned_problems(row: dict[str, Any], stated: re.Match[str]) -> Iterator[str]:
    """Yield what a reason of the learned gate states against the record's composite and thresholds."""
    figures, tier = row["gating"], row["tier"]
    if figures is None or figures["boundary_t1"]["threshold"] is None:
        yield "the record holds no figures of the learned gate"
        return
    limits = {name: figures[f"boundary_{name.lower()}"]["threshold"] for name in ("T2", "T1", "T0")}
    composite, of = figures["composite"], stated["of"]
    for name, value in (("composite", composite), ("threshold", limits[of])):
        if abs(float(stated[name]) - value) > _ROUNDED:
            yield f"the {name} is {value}"
    if (composite > limits[of]) is not (stated["verb"] == "exceeds"):
        yield f"composite {composite} against threshold {limits[of]}"
    chosen = next((name for name, limit in limits.items() if composite > limit), "suppress")
    if figures["explored"] is not bool(stated["explores"]):
        yield f"explored is {figures['explored']}"
    woke = (row.get("triage") or {}).get("woke", False)
    if woke is not bool(stated["woke"]):
        yield f"woke is {woke}"
    thinks = figures["explored"] or woke
    leads_to = "T1" if thinks else "suppress" if stated["settled"] else chosen
    yield from _spending_problems(row, stated)
    if stated["tier"] != tier or (stated["asked"] or stated["wanted"] or tier) != leads_to:
        yield f"this leads to {leads_to}, the tier is {tier}"
    if of != ("T1" if thinks else "T0" if chosen == "suppress" else chosen):
        yield f"the composite's tier is {chosen}"
    if row["forced_by"] is not None:
        yield f"forced_by is {row['forced_by']}"


def _attention_problems(
    row: dict[str, Any], stated: re.Match[str], weighed: Any, wrong: Any
) -> Iterator[tuple[str, str]]:
    suppressed = row["tier"] == "suppress" and not stated["settled"]
    if (stated["attention"] is not None) is not suppressed:
        yield wrong("attention's figures belong to suppressed ticks, and to these alone")
    if weighed is None:
        if suppressed:
            yield wrong("the record holds no figures of attention")
        return
    if (weighed["draw"] < weighed["chance"]) is not suppressed:
        yield wrong(f"draw {weighed['draw']} against chance {weighed['chance']}")
    if (stated["asked"] or stated["wanted"] or row["tier"]) not in ("T1", "suppress") or row["forced_by"] is not None:
        yield wrong("attention judges unforced ticks at T1")
    if suppressed and stated["attention"]:
        for name, key, within in (
            ("vain", "vain_thoughts", _COARSE), ("thoughts", "thoughts", _COARSE), ("draw", "draw", _ROUNDED),
            ("chance", "chance", _ROUNDED),
        ):  # fmt: skip
            if abs(float(stated[name]) - weighed[key]) > within:
                yield wrong(f"{key} is {weighed[key]}")


def _rule_problems(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    thought = row["deliberation"]
    stated = _RULE.fullmatch(thought["reasoning_summary"]) if thought else None
    if stated is None:
        return
    text, rule = thought["reasoning_summary"], stated["rule"]
    matched = [(code, m, action) for code, (words, action) in enumerate(_RULES) if (m := words.fullmatch(rule))]

    def wrong(problem: str) -> tuple[str, str]:
        return "deliberation.reasoning_summary", f"{problem}: {text!r}"

    if not matched:
        yield wrong("no rule of the playbook is stated")
        return
    code, numbers, action = matched[0]
    if stated["decision"] != action or (not stated["loan"] and thought["decision"] != action):
        yield wrong(f"this rule leads to {action}, the decision is {thought['decision']}")
    held = any(p["liquidity"] > 0 for p in row["observation"]["positions"])
    if (stated["presence"] is not None) is not (code in (_OUTSIDE, _GONE, _CALLED)):
        yield wrong("a learned rule about presence is stated for its own decisions, and for these alone")
    mints = action in ("rebalance", "add_liquidity")
    if row["schema_version"] >= _WIDTHS_SINCE and (stated["width"] is not None) is not mints:
        yield wrong("a half-width is stated for a new range, and for this alone")
    if held is not (code in (_STAY, _MOVE, _FALLEN, _FEES, _GONE, *_WAITS, *_MOVES)):
        yield wrong("a position is open" if held else "no position is open")
    if code == _BORN and row["tick"] != 1:
        yield wrong(f"the tick is {row['tick']}")
    if code == _TURMOIL and row["regime"] != "volatile":
        yield wrong(f"the regime is {row['regime']}")
    if len(numbers.groups()) == 2:
        size, limit = (float(n) for n in numbers.groups())
        yield from _number_problems(row, code, size, limit, wrong)


def _number_problems(
    row: dict[str, Any], code: int, size: float, limit: float, wrong: Any
) -> Iterator[tuple[str, str]]:
    below = code in (_STAY, _COOLING, *_WAITS)
    if (size > limit + 2 * _ROUNDED) if below else (size < limit - 2 * _ROUNDED):
        yield wrong("the numbers contradict the sentence")
    drawdown = next((p["value"] for p in row["probe_results"] if p["probe"] == "circuit_breaker"), None)
    fees = sum(p["fees_owed_micros"] for p in row["observation"]["positions"])
    recorded = {
        **dict.fromkeys((_STAY, _MOVE, *_WAITS, *_MOVES), row["observation"]["anomaly_score"]), _FALLEN: drawdown,
        _FEES: fees, _REENTER: row["tick"], _COOLING: row["tick"],
    }[code]  # fmt: skip
    if recorded is None or abs(size - recorded) > (1.0 if code == _FEES else _ROUNDED):
        yield wrong(f"the record has {recorded}")
    weight = (row["retrieval"] or {"prior_weight": 0.0})["prior_weight"]
    if (code in _WAITS and weight >= 0.0) or (code in _MOVES and weight <= 0.0):
        yield wrong(f"the priors weigh {weight}")
    if code in (_TAUGHT_TO_WAIT, _TAUGHT_TO_MOVE):
        sign = 1 if code == _TAUGHT_TO_MOVE else -1
        if all(prior["kind"] != "lesson" or prior["sign"] != sign for prior in row["retrieval"]["priors"]):
            yield wrong("no lesson of a dream was retrieved that says so")


def _refusal_problems(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    spent = 0
    for action in row["actions"]:
        text, status = action["block_reason"], action["status"]
        if (text is None) is not (status == "executed"):
            yield "actions", f"{action['action_type']} is {status} with the reason {text!r}"
        if text is not None:
            yield from (("actions", f"{problem}: {text!r}") for problem in _refusal(row, action, text, spent))
        spent += action["gas_cost_micros"]


def _refusal(row: dict[str, Any], action: dict[str, Any], text: str, spent: int) -> Iterator[str]:
    matched = [(code, m, status) for code, (words, status) in enumerate(_REFUSALS) if (m := words.fullmatch(text))]
    if not matched:
        return
    code, numbers, status = matched[0]
    if action["status"] != status:
        yield f"this rule leads to {status}, the status is {action['status']}"
    if action["gas_cost_micros"] and status != "reverted":
        yield "an action that was not sent has a gas cost"
    if not numbers.groups():
        return
    size, limit = (int(n) for n in numbers.groups())
    if size <= limit:
        yield "the numbers do not exceed each other"
    credits = row["credit_partitions"]
    if code in (_AVAILABLE, _HOURLY) and credits is None:
        yield "the record holds no credit partitions"
    elif code == _AVAILABLE and limit != credits["gas_available_micros"] - spent:
        yield f"the partition has {credits['gas_available_micros'] - spent}"
    elif code == _HOURLY and limit < credits["gas_hourly_micros"]:
        yield f"the average hourly cost is {credits['gas_hourly_micros']}"
    elif code == _VALUE_SHARE and limit > action["value_micros"]:
        yield f"the value is {action['value_micros']}"
