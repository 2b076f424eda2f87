"""The row-at-a-time twin of the causal moments: one tick after another, all variables by their definitions.

It computes the table of curator/causality/variables.py with lists and loops; sums are Python's integers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from bardo_pipeline.curator.causality.variables import ALL_VARIABLES, COLUMNS, LIMIT, QUIET, SCALE, WARM, WINDOW
from bardo_pipeline.policy import CausalPolicy, Policy

Row = Mapping[str, Any]
Variables = dict[str, int]


class Run(list[Row]):
    """Consecutive ticks of a golem. Runs compare by identity, so that results can be cached by run."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other


def moments_by_row(rows: Iterable[Row], policy: Policy) -> dict[tuple[str, int], list[list[int]]]:
    """Return sums of products by (golem, stretch), over ticks with enough consecutive past. rows: records of one
    market.
    """
    lives: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        lives[row["golem_id"]].append(row)
    span = policy.curator.cycle_ticks * policy.causal.test_cycles
    out: dict[tuple[str, int], list[list[int]]] = {}
    for golem_id, life in lives.items():
        for run in _unbroken(sorted(life, key=lambda row: row["tick"])):
            lines = [variables_of(run, place, policy.causal) for place in range(len(run))]
            for place in range(WARM, len(run)):
                wanted = [lines[place - lag][ALL_VARIABLES[variable]] for variable, lag in COLUMNS] + [SCALE]
                key = (golem_id, (run[place]["tick"] - 1) // span + 1)
                sums = out.setdefault(key, [[0] * len(wanted) for _ in wanted])
                for i, item in enumerate(wanted):
                    for j, other in enumerate(wanted):
                        sums[i][j] += item * other
    return out


def _unbroken(life: list[Row]) -> list[Run]:
    runs: list[Run] = []
    for row in life:
        if runs and row["tick"] == runs[-1][-1]["tick"] + 1:
            runs[-1].append(row)
        else:
            runs.append(Run([row]))
    return runs


def variables_of(run: Run, place: int, rules: CausalPolicy) -> Variables:
    """Return all variables of one tick from its run."""
    seen = run[place]["observation"]
    change = {name: _change(run, place, name) for name in ("return", "gas", "liquidity")}
    unit = {name: _spread(run, place, name, rules) for name in change}
    scaled = {name: _clip(round(SCALE * change[name] / unit[name]), LIMIT) for name in change}
    returned = _clip(scaled["return"], SCALE * rules.clip_sigma)
    own = {
        "price_return": returned,
        "volume": _volume(seen),
        "liquidity": scaled["liquidity"],
        "gas_gwei": scaled["gas"],
    }
    minute = int(run[place]["observed_at"].timestamp()) // 60 % 1_440
    angle = minute * (2.0 * math.pi / 1_440)
    by_key: Variables = {
        **own,
        "crash": SCALE * _crashed(run, place, rules),
        "crash_soon": SCALE * any(_deep(run, i, place - 1, rules) for i in range(max(place - QUIET, 0), place)),
        "crash_lately": _wake(run, place, rules),
        "price_move": min(round(SCALE * math.log1p(abs(change["return"]) / 5.0)), LIMIT),
        "price_size": min(abs(change["return"]), LIMIT),
        "past_return": 4 * sum(_ordinary(run, i, rules) for i in range(max(place - WINDOW, 0), place + 1)) // WINDOW,
        "price_excursion": _clip(round(SCALE * _away(seen) / 10_000.0), LIMIT),
        "hour_14_to_16_utc": SCALE * (14 * 60 <= minute < 16 * 60),
        "gas_level": _clip(_ppm(math.log(max(seen["gas_hour_ratio"], 1e-3))) // SCALE, 2 * SCALE),
        "liquidity_level": _clip(_over_hour(run, place) // SCALE, 2 * SCALE),
        "day_sine": round(SCALE * math.sin(angle)),
        "day_cosine": round(SCALE * math.cos(angle)),
    }
    for name in own:
        for when, (nearest, farthest) in (("soon", (4, 15)), ("late", (16, 60))):
            past = [_own(run, i, name, rules) for i in range(max(place - farthest, 0), max(place - nearest + 1, 0))]
            by_key[f"{name}_{when}"] = sum(past) // (farthest - nearest + 1)
    return by_key


@lru_cache(maxsize=100_000)
def _own(run: Run, place: int, name: str, rules: CausalPolicy) -> int:
    if name == "volume":
        return _volume(run[place]["observation"])
    reading = {"price_return": "return", "liquidity": "liquidity", "gas_gwei": "gas"}[name]
    scaled = _clip(round(SCALE * _change(run, place, reading) / _spread(run, place, reading, rules)), LIMIT)
    return _clip(scaled, SCALE * rules.clip_sigma) if name == "price_return" else scaled


def _ordinary(run: Run, place: int, rules: CausalPolicy) -> int:
    return _clip(_own(run, place, "price_return", rules), SCALE)


def _level(row: Row, name: str) -> int:
    seen = row["observation"]
    if name == "return":
        return _ppm(seen["price_return"])
    return _ppm(math.log(max(seen["gas_gwei"], 1e-6) if name == "gas" else max(seen["liquidity"], 1.0)))


@lru_cache(maxsize=100_000)
def _change(run: Run, place: int, name: str) -> int:
    if place == 0:
        return 0
    now = _level(run[place], name)
    return _clip(now if name == "return" else now - _level(run[place - 1], name), 20_000_000)


@lru_cache(maxsize=100_000)
def _spread(run: Run, place: int, name: str, rules: CausalPolicy) -> float:
    cap, floor = getattr(rules, f"{name}_cap_ppm"), getattr(rules, f"{name}_floor_ppm")
    past = [int(min(abs(_change(run, i, name)), cap)) for i in range(max(place - WINDOW, 0), place)]
    return max(math.sqrt(sum(x * x for x in past) / WINDOW), floor)


@lru_cache(maxsize=100_000)
def _fell(run: Run, place: int, rules: CausalPolicy) -> bool:
    change = _change(run, place, "return")
    return change <= -rules.fall_ppm and change <= -rules.fall_sigma * _spread(run, place, "return", rules)


@lru_cache(maxsize=100_000)
def _crashed(run: Run, place: int, rules: CausalPolicy) -> bool:
    before = range(max(place - QUIET, 0), place)
    return _fell(run, place, rules) and not any(_fell(run, i, rules) for i in before)


def _deep(run: Run, begin: int, last: int, rules: CausalPolicy) -> bool:
    """Return whether a sharp fall begins at this tick and is deep by some tick up to the last."""
    if not _crashed(run, begin, rules):
        return False
    fallen = 0
    for i in range(begin, last + 1):
        fallen += _change(run, i, "return")
        if fallen <= -rules.crash_ppm:
            return True
    return False


def _wake(run: Run, place: int, rules: CausalPolicy) -> int:
    """Return the depth, QUIET ticks after its start, of the last crash in the hour that ended QUIET ticks ago."""
    for begin in range(place - QUIET - 1, max(place - QUIET - WINDOW, 0) - 1, -1):
        if _deep(run, begin, begin + QUIET, rules):
            fallen = -sum(_change(run, i, "return") for i in range(begin, begin + QUIET + 1))
            return max(min(round(SCALE * fallen / rules.crash_ppm), LIMIT), 0)
    return 0


def _over_hour(run: Run, place: int) -> int:
    past = [_level(row, "liquidity") for row in run[max(place - WINDOW, 0) : place]]
    return _level(run[place], "liquidity") - sum(past) // len(past) if past else 0


def _volume(seen: Mapping[str, Any]) -> int:
    return min(_ppm(math.log1p(seen["volume_micros"] / 100_000_000.0)) // SCALE, LIMIT)


def _away(seen: Mapping[str, Any]) -> int:
    return _ppm(math.log(seen["price"]) - math.log(seen["sma"])) if seen["sma"] and seen["price"] > 0 else 0


def _ppm(value: float) -> int:
    return round(value * 1e6)


def _clip(value: int, limit: int) -> int:
    return max(-limit, min(limit, value))
