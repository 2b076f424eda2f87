"""Reports: evidence about the actions that a runtime reported with their rewards, in any domain. Pure.

A report counts for situations of no condition, of one and of two: seven for an agent with three conditions. The effect
of an action is its reward less the mean reward of the other actions in the same situation and window of ticks, so that
a change of the world that moves all rewards moves no effect. An alternative whose reward is known counts as an action.
A situation with a single action in a window is no evidence, which also keeps free texts as values out.
Source: docs/adr/0088.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.curator.state.structures import Structure, Structures
from bardo_pipeline.events.record.arrow_columns import contiguous
from bardo_pipeline.grimoire.conditions import conditions_text
from bardo_pipeline.policy import CuratorPolicy

CONDITIONS_JOINED = 2
"""Most conditions of one rule. Triples would need more reports than a life has."""


def reported_effects(
    records: pa.Table,
    *,
    golem: Int64Array,
    cycle: Int64Array,
    market: Int64Array,
    markets: list[tuple[str, str, str]],
    structures: Structures,
    policy: CuratorPolicy,
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array, Int64Array]:
    """Return row of the record, structure, effect in ppm, decision tick and report tick; one element per finding.

    golem, cycle, market: codes by row.
    """
    column = contiguous(records.column("experiences"))
    rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    tick = records.column("tick").to_numpy().astype(np.int64)
    window = (tick - 1) // policy.witness_ticks
    words: dict[Any, int] = {}
    found: list[tuple[int, int, int, int, int, int]] = []
    lists = column.take(pa.array(rows)).to_pylist()
    for row, experiences in zip(rows.tolist(), lists, strict=True):
        place = (int(golem[row]), int(cycle[row]), int(window[row]), int(market[row]))
        for experience in experiences:
            if not experience["verified"]:
                continue
            rewards = [(experience["action"], experience["reward_ppm"])]
            rewards += [(other["action"], other["reward_ppm"]) for other in experience["alternatives"]]
            for situation in situations_of(experience["conditions"], policy.report_conditions):
                scene = words.setdefault((*place, situation), len(words))
                for action, reward in rewards:
                    if reward is not None:
                        act = words.setdefault((int(market[row]), situation, action), len(words))
                        found.append((row, scene, act, reward, experience["decision_tick"], int(tick[row])))
    if not found:
        none = np.zeros(0, np.int64)
        return none, none, none, none, none
    row, scene, act, reward, decided, told = np.array(found, np.int64).T
    effect, is_compared = _beside_the_others(scene, act, reward)
    codes = np.full(len(words), -1)
    named = {place: key for key, place in words.items() if len(key) == _NAMED}
    for place in np.unique(act[is_compared]).tolist():
        at, situation, action = named[place]
        about = Structure("report", *markets[at])
        codes[place] = structures.code(about._replace(action_type=action, cause=situation or None))
    kept = np.flatnonzero(is_compared)
    return row[kept], codes[act[kept]], effect[kept], decided[kept], told[kept]


_NAMED = 3
"""Parts of a key of `words` that names a market, a situation and an action."""


def situations_of(conditions: list[dict[str, str]], most: int) -> list[str]:
    """Return the situations for which a report counts, as texts; the first `most` conditions by name are used."""
    pairs = sorted({part["name"]: part["value"] for part in conditions}.items())[:most]
    return [conditions_text(part) for size in range(CONDITIONS_JOINED + 1) for part in combinations(pairs, size)]


def _beside_the_others(scene: Int64Array, act: Int64Array, reward: Int64Array) -> tuple[Int64Array, BoolArray]:
    """Return each reward less the mean reward of the other actions of its scene, and whether there are others."""
    _, of_scene = np.unique(scene, return_inverse=True)
    _, of_act = np.unique(np.stack([scene, act]), axis=1, return_inverse=True)
    of_act = of_act.reshape(-1)
    count, total = (np.zeros((2, len(reward)), np.int64) for _ in range(2))
    for line, group in enumerate((of_scene, of_act)):
        sums = np.zeros(group.max() + 1, np.int64)
        np.add.at(sums, group, reward)
        count[line], total[line] = np.bincount(group)[group], sums[group]
    others, sum_of_others = count[0] - count[1], total[0] - total[1]
    divisor = np.maximum(others, 1)
    return reward - (2 * sum_of_others + divisor) // (2 * divisor), others > 0
