"""The examples of agents in other domains: an agent that asks the memory chooses better than one that does not."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bardo_pipeline import Advice
from bardo_pipeline.curator.curate import curate
from bardo_pipeline.curator.playbook import Playbooks
from bardo_pipeline.curator.state.grimoire_state import GrimoireState, to_table
from bardo_pipeline.events.record import arrow_schema
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.grimoire.entry_columns import int_column
from bardo_pipeline.policy import Policy

ROOT = Path(__file__).parents[3]
POLICY = Policy()


def example(path: str) -> ModuleType:
    """Import an example by its path."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / "examples" / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


TOOLS, KEEPER = example("tools/choose_tools.py"), example("keeper/keep_loans.py")


def curated(records: Any) -> tuple[GrimoireState, pa.Table]:
    """The grimoire of a golem after these records, by the curator alone, and the decisions."""
    table, state = arrow_schema.to_table(records, RECORD_SCHEMA), GrimoireState()
    cycle = (np.asarray(table["tick"]) - 1) // POLICY.curator.cycle_ticks + 1
    return state, curate(state, Playbooks(), table, cycle, policy=POLICY, policy_hash=POLICY.hash).decisions


def advised(records: Any) -> Advice:
    """The rules of a golem after these records."""
    entries = to_table(curated(records)[0], POLICY.curator, POLICY.decay)
    return Advice.of(entries, int_column(entries, "confidence_ppm"))


@pytest.mark.full
@pytest.mark.row("MEM-4")
def test_the_first_rules_come_after_as_many_reports_as_the_guide_states() -> None:
    first: dict[str, set[int]] = {}
    for agent in (TOOLS, KEEPER):
        for seed in (1, 2, 3):
            decided = curated(agent.explored("g-1", seed, 600))[1]
            active = decided.filter(pc.equal(decided["status"], "active")).select(["kind", "cycle"])
            cycles = active.group_by("kind").aggregate([("cycle", "min")])
            for kind, cycle in zip(cycles["kind"].to_pylist(), cycles["cycle_min"].to_pylist(), strict=True):
                first.setdefault(kind, set()).add(cycle * POLICY.curator.cycle_ticks)
    assert first.pop("insight") == {400, 450}
    assert first.keys() == {"heuristic", "warning"}
    assert {min(set.union(*first.values())), max(set.union(*first.values()))} == {450, 550}
    page = " ".join((ROOT / "docs/guide/agents-and-runtimes.md").read_text().split())
    assert "first insight after 400 or 450 reports and their first heuristic and warning after 450 to 550" in page


@pytest.mark.row("MEM-4")
def test_rules_of_tools_raise_the_share_of_best_choices() -> None:
    known = advised(TOOLS.explored("g-1", 1, 800))
    (random_share, _), (share, _) = TOOLS.choices(1, 400, None), TOOLS.choices(1, 400, known)
    assert random_share < 0.35
    assert share > random_share + 0.3


@pytest.mark.row("MEM-4")
def test_rules_of_loans_raise_the_share_of_good_actions() -> None:
    known = advised(KEEPER.explored("g-1", 1, 800))
    (random_share, _, lost), (share, _, earned) = KEEPER.kept(1, 400, None), KEEPER.kept(1, 400, known)
    assert share > random_share + 0.25
    assert earned > lost + 0.003


@pytest.mark.full
@pytest.mark.row("MEM-4", "EV-3")
@pytest.mark.parametrize("seed", [1, 2])
def test_the_agent_with_tools_runs_over_a_home(seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = TOOLS.main(tmp_path / "home", seed)
    assert results["asking"][0] > results["at random"][0] + 0.4
    assert results["asking"][1] > results["at random"][1] + 0.3
    assert "when task is sum, prefer calculator" in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.row("MEM-4", "EV-3")
@pytest.mark.parametrize("seed", [1, 2])
def test_the_keeper_runs_over_a_home(seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = KEEPER.main(tmp_path / "home", seed)
    assert results["asking"][0] > results["at random"][0] + 0.3
    assert results["asking"][2] > results["at random"][2] + 0.003
    assert "when health is safe, avoid repay" in capsys.readouterr().out
