"""An agent outside finance: it learns which tool suits which task, and a second agent asks it before each choice.

    python examples/tools/choose_tools.py HOME [SEED]

The first agent tries its tools at random for 1,200 tasks and reports each task, tool and reward. The memory derives
rules from the reports. Two agents then do the same 400 tasks: one chooses at random, one asks the memory. The last
lines state the share of tasks for which each of them chose the best tool, and its mean reward.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bardo_pipeline import Advice, DecisionCycleRecord, EventWriter, advice, birth, derive, open_home, record_of, report

START = datetime(2026, 1, 1, tzinfo=UTC)
TASKS, NETWORKS = ("lookup", "sum", "translate"), ("fast", "slow")
TOOLS = ("search", "calculator", "model", "memory")
SUCCESS = {
    ("lookup", "search"): 0.9, ("lookup", "memory"): 0.45, ("lookup", "model"): 0.4, ("lookup", "calculator"): 0.0,
    ("sum", "calculator"): 0.95, ("sum", "model"): 0.6, ("sum", "search"): 0.2, ("sum", "memory"): 0.1,
    ("translate", "model"): 0.9, ("translate", "memory"): 0.35, ("translate", "search"): 0.3,
    ("translate", "calculator"): 0.0,
}  # fmt: skip
"""Chance that a tool solves a task."""

PRICE = {"search": 0.1, "calculator": 0.0, "model": 0.2, "memory": 0.0}
"""Cost of a tool as a share of what a solved task is worth."""

Situation = dict[str, str]


def chance(situation: Situation, tool: str) -> float:
    """Return the chance that a tool solves a task. A slow network stops most searches."""
    is_stopped = tool == "search" and situation["network"] == "slow"
    return SUCCESS[situation["task"], tool] * (0.3 if is_stopped else 1.0)


def expected_reward(situation: Situation, tool: str) -> float:
    """Return the mean reward of a tool."""
    return chance(situation, tool) - PRICE[tool]


def best_tool(situation: Situation) -> str:
    """Return the tool of the highest mean reward, which no agent knows."""
    return max(TOOLS, key=lambda tool: expected_reward(situation, tool))


def drawn(draw: random.Random) -> Situation:
    """Draw a task and the state of the network."""
    return {"task": draw.choice(TASKS), "network": draw.choice(NETWORKS)}


def tried(draw: random.Random, situation: Situation, tool: str) -> float:
    """Use a tool and return its reward."""
    return float(draw.random() < chance(situation, tool)) - PRICE[tool]


def explored(golem_id: str, seed: int, tasks: int) -> Iterator[DecisionCycleRecord]:
    """Try tools at random, and yield a record of each task."""
    draw = random.Random(f"explore {seed}")  # noqa: S311 - no secret depends on it
    for tick in range(1, tasks + 1):
        situation, tool = drawn(draw), draw.choice(TOOLS)
        told = report(situation, tool, tried(draw, situation, tool), alternatives=[t for t in TOOLS if t != tool])
        yield record_of(golem_id, tick, START + timedelta(minutes=tick), [told], domain="tool_choice")


def choices(seed: int, tasks: int, known: Advice | None) -> tuple[float, float]:
    """Do tasks, at random or by advice. Return the share of best choices and the mean reward."""
    draw, world, guess = (random.Random(f"{part} {seed}") for part in ("tasks", "world", "guess"))  # noqa: S311
    good = reward = 0.0
    for _ in range(tasks):
        situation = drawn(draw)
        tool = guess.choice(TOOLS) if known is None else known.best(situation, TOOLS)
        good += tool == best_tool(situation)
        reward += tried(world, situation, tool)
    return good / tasks, reward / tasks


def main(home: Path, seed: int = 1, tasks: int = 1_200, later: int = 400) -> dict[str, tuple[float, float]]:
    """Run the three agents. Return share of best choices and mean reward of the two later ones."""
    open_home(home)
    golem_id = birth(home, lineage="tools/1", at=START)
    with EventWriter.open(home, golem_id) as writer:
        for record in explored(golem_id, seed, tasks):
            writer.append(record)  # returns when the record is durable
    derive(home)
    known = advice(home, golem_id)
    for rule in known.rules:
        print(f"{rule.kind:9} {rule.effect:+.2f} at confidence {rule.confidence:.2f}: {rule.text}")
    results = {"at random": choices(seed, later, None), "asking": choices(seed, later, known)}
    for name, (good, reward) in results.items():
        print(f"{name}: the best tool for {good:.0%} of the tasks, mean reward {reward:.2f}")
    return results


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:3]))
