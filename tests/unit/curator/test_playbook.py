"""PLAYBOOK.md: how rules change a golem's thresholds, and how its page describes them."""

from datetime import timedelta
from pathlib import Path

import pytest

from bardo_pipeline.curator.state.grimoire_state import GrimoireState
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.storage.home import Home
from tests.support.knowledge.curated_lives import BAD, GOOD, POLICY, SILENCE, STRONG, WORSE, CuratedLife, lived
from tests.support.records.handmade_records import LULL, RALLY, SPAN, START, STORM, judged, record, table


def _thresholds(life: CuratedLife) -> dict[str, float]:
    rebalance_threshold: dict[str, float] = life.made.playbooks.to_pylist()[-1]["rebalance_threshold"]
    return rebalance_threshold


def test_a_heuristic_lowers_the_threshold_of_its_regime_and_a_warning_raises_it() -> None:
    base = POLICY.playbook.rebalance_threshold
    low, high = STORM._replace(score=0.55), LULL
    life = lived((low, [GOOD, STRONG, STRONG]), (high, [SILENCE, BAD, WORSE]))
    assert _thresholds(life) == dict.fromkeys(REGIMES, base) | {"volatile": 0.5, "range_bound": 0.9}
    *_, last = life.made.playbooks.to_pylist()
    assert (last["version"], last["cycle"]) == (3, 3)
    assert last["cause_entries"] == sorted(life.entry(s)["entry_id"] for s in (low, high))


@pytest.mark.row("MEM-8")
def test_a_new_heuristic_is_staged_until_confirmed_and_a_warning_acts_at_once() -> None:
    low, high = STORM._replace(score=0.55), LULL
    life = lived((low, [GOOD, STRONG, STRONG]), (high, [BAD, WORSE]))
    ids = {when: life.entry(when)["entry_id"] for when in (low, high)}
    first, staged, proven = life.made.playbooks.to_pylist()
    assert (first["cause_entries"], first["staged_entries"]) == ([], [])
    assert (staged["cycle"], staged["cause_entries"], staged["staged_entries"]) == (2, [ids[high]], [ids[low]])
    assert staged["rebalance_threshold"]["volatile"] == POLICY.playbook.rebalance_threshold
    assert staged["rebalance_threshold"]["range_bound"] == 0.9
    assert "## Staged: to prove themselves\n\n- (heuristic, 70 %) In a volatile market" in staged["markdown"]
    assert (proven["cycle"], proven["cause_entries"], proven["staged_entries"]) == (3, sorted(ids.values()), [])
    assert proven["rebalance_threshold"]["volatile"] == 0.5
    assert "Staged" not in proven["markdown"]


@pytest.mark.row("MEM-8")
def test_an_unconfirmed_staged_heuristic_is_removed_without_effect() -> None:
    life = lived((STORM._replace(score=0.55), [GOOD, GOOD, WORSE, WORSE, WORSE]))
    versions = life.made.playbooks.to_pylist()
    assert [bool(row["staged_entries"]) for row in versions] == [False, True, False]
    assert {row["rebalance_threshold"]["volatile"] for row in versions} == {POLICY.playbook.rebalance_threshold}


@pytest.mark.row("MEM-8")
def test_a_name_adds_no_lines_to_a_page_and_no_folders_to_a_home(tmp_path: Path) -> None:
    pair = "WETH\n\n## rebalanceThreshold\n- volatile: 0.00"
    rows = [
        record("g-1\n# mine", tick, observation={"pair": pair}, resolutions=[judged(LULL, effect)])
        for tick, effect in enumerate([-6_000] * (3 * SPAN), 1)
    ]
    page = CuratedLife(table(rows)).made.playbooks.to_pylist()[-1]["markdown"]
    assert "do not act" in page
    assert [line for line in page.splitlines() if line.startswith("#")] == [
        "# PLAYBOOK of g-1 # mine", "## rebalanceThreshold", "## Rules",
    ]  # fmt: skip
    home = Home.create(tmp_path / "home", POLICY, START)
    names = ["g-1", "../../there", "/there", ".", "..", "a/b", "a b", "\x00", "g" * 256, "\u00e9" * 256]
    pages = {home.playbook(name) for name in names}
    assert {page.parent.parent for page in pages} == {home.playbooks}
    assert (len(pages), max(len(page.parent.name) for page in pages)) == (len(names), 43)
    assert home.playbook("g-1") == home.playbooks / "g-1" / "PLAYBOOK.md"


@pytest.mark.row("MEM-8")
def test_an_inherited_heuristic_is_not_staged() -> None:
    state = GrimoireState()
    life = lived((STORM._replace(score=0.55), [GOOD, GOOD]), state=state)
    assert life.made.playbooks.to_pylist()[-1]["staged_entries"]
    state["generation"][:] = 1
    heir = lived((STORM._replace(score=0.55), [SILENCE]), state=state)
    assert heir.made.playbooks.to_pylist()[-1]["staged_entries"] == []
    assert _thresholds(heir)["volatile"] == 0.5


def test_a_warning_overrides_a_heuristic_and_rules_for_dear_gas_are_ignored() -> None:
    life = lived((STORM, [GOOD, STRONG, STRONG]), (STORM._replace(gas=0.5), [BAD, WORSE]), (RALLY, [BAD, WORSE]))
    assert _thresholds(life)["volatile"] == 0.8
    assert _thresholds(life)["trending_up"] == POLICY.playbook.rebalance_threshold


def test_a_decayed_rule_no_longer_moves_the_threshold() -> None:
    life = lived((STORM._replace(score=0.55), [*[STRONG] * 4, *[SILENCE] * 4]), every=timedelta(hours=12))
    pairs = [(row["cycle"], row["rebalance_threshold"]["volatile"]) for row in life.made.playbooks.to_pylist()]
    assert pairs == [
        (1, 0.7),
        (3, 0.5),
        (8, 0.7),
    ]
