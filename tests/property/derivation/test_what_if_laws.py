"""Laws of parallel derivations: only what depends on a setting changes, nothing is derived twice; laws 3, 4.

One small home, derived; each law takes a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.strikes_and_reorgs import strike, withdraw
from bardo_pipeline.derivation.versions.policy_diff import altered
from bardo_pipeline.derivation.versions.rebuild import rebuild
from bardo_pipeline.derivation.versions.side_derivations import (
    adopt,
    build,
    drop,
    open_beside,
    settle,
    stored_derivations,
)
from bardo_pipeline.derivation.versions.what_if import NAMING, WhatIf, what_if
from bardo_pipeline.errors import ConfigError, DerivationError, QueryError
from bardo_pipeline.policy import CarePolicy, Policy
from bardo_pipeline.storage.delta.table_specs import TABLES
from tests.conftest import LIVELY, NOW, copy_home
from tests.reference.learning.calibration import sureness

pytestmark = [pytest.mark.row("X-3"), pytest.mark.full]


FADES = "decay.tactical_days=0.01"


@pytest.fixture(scope="module")
def adopted(lively_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of that home under the policy of its golems. Copy before writing."""
    root = copy_home(lively_home, tmp_path_factory.mktemp("what_if") / "home")
    adopt(
        DerivationContext.open(root),
        DerivationContext.open(root, policy=LIVELY).derivation_id,
        "they lived by it",
        now=NOW,
    )
    return root


@pytest.fixture
def stores(adopted: Path, tmp_path: Path) -> DerivationContext:
    return DerivationContext.open(copy_home(adopted, tmp_path / "home"))


def compared(stores: DerivationContext, *settings: str, **more: Any) -> WhatIf:
    return what_if(stores, altered(stores.policy, settings), now=NOW, **more)


def differing(what_if_result: WhatIf) -> set[str]:
    return {t.table for t in what_if_result.tables if t.only_in_force or t.only_beside}


def content(stores: DerivationContext, table: str) -> pa.Table:
    rows = stores.projections.read(table)
    return rows.select([n for n in rows.column_names if n not in NAMING])


def test_an_unchanged_policy_changes_no_rows_and_no_retrievals(stores: DerivationContext) -> None:
    answer = compared(stores, "decay.tactical_days=7")
    assert answer.same
    assert answer.entries.num_rows == 0
    assert answer.calibration[0] == answer.calibration[1]
    assert answer.calibration[0].belief_count > 0
    assert [h.name for h in stored_derivations(stores)] == [stores.derivation_id]
    looked_up = answer.retrievals
    assert looked_up.reproduced == looked_up.decisions > 100, "the history gives other entries than golems retrieved"
    assert (looked_up.differing, looked_up.warnings, looked_up.blocks) == (0, 0, 0)


def test_settings_of_the_gate_change_no_derived_rows(stores: DerivationContext) -> None:
    answer = compared(stores, "gate.base_threshold=0.9", "gate.threshold_max=0.9")
    assert answer.same
    assert [s.name for s in answer.changed] == ["gate.base_threshold", "gate.threshold_max"]


def test_a_setting_of_votes_changes_only_votes_and_shares_episode_files(stores: DerivationContext) -> None:
    answer = compared(stores, "katabasis.vote_confidence_min=0.3")
    assert {"votes"} <= differing(answer) <= {"votes", "vote_causes", "consensus"}
    assert answer.entries.num_rows == 0
    assert answer.retrievals.differing == 0
    beside = stores.home.derivation(answer.name)
    own = sorted(stores.projections.root.glob("episodes/**/*.parquet"))
    others = sorted(beside.glob("episodes/**/*.parquet"))
    assert [p.stat().st_ino for p in own] == [p.stat().st_ino for p in others] != []


def test_a_shorter_half_life_changes_entries_and_every_change_is_listed(stores: DerivationContext) -> None:
    answer = compared(stores, FADES)
    assert {"curation", "grimoire"} <= differing(answer) <= set(TABLES) - {"episodes", "facts"}
    beside = open_beside(stores, altered(stores.policy, [FADES]))
    sides = []
    for side in (stores, beside):
        rows = [row for row in side.projections.read("grimoire").to_pylist() if row["status"] == "active"]
        sides.append(
            {(r["golem_id"], r["entry_id"]): (r["kind"], sureness(r, answer.at, side.policy.decay)) for r in rows}
        )
    before, after = sides
    expected = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    keys = {(r["golem_id"], r["entry_id"]): r for r in answer.entries.to_pylist()}
    assert keys.keys() == expected != set()
    for key, row in keys.items():
        assert (row["kind_before"], row["before_ppm"]) == before.get(key, (None, None))
        assert (row["kind_after"], row["after_ppm"]) == after.get(key, (None, None))
    assert answer.active_counts == (len(before), len(after))
    assert answer.retrievals.blocked_beside < answer.retrievals.blocked_in_force
    assert answer.retrievals.blocks > 0
    assert answer.calibration[0] != answer.calibration[1]


def test_a_setting_of_episodes_derives_episodes_again(stores: DerivationContext) -> None:
    answer = compared(stores, "episode.importance_balance_share=0.0001")
    assert "episodes" in differing(answer)
    assert not any(t.shared for t in answer.tables)


def test_a_repeated_comparison_derives_nothing_and_gives_equal_results(stores: DerivationContext) -> None:
    def versions() -> dict[str, int]:
        beside = open_beside(stores, altered(stores.policy, ["curator.upvote=0.2"]))
        return {n: beside.projections.growing(n).table.version for n, spec in TABLES.items() if spec.grows}

    first = compared(stores, "curator.upvote=0.2")
    then = versions()
    again = compared(DerivationContext.open(stores.home.root), "curator.upvote=0.2")
    assert versions() == then
    for item, other in zip(_parts(first), _parts(again), strict=True):
        assert item == other


def _parts(what_if_result: WhatIf) -> list[Any]:
    scores = [(c.brier_held_ppm, c.brier_agreed_ppm, c.bands.to_pylist()) for c in what_if_result.calibration]
    return [
        what_if_result.tables,
        what_if_result.entries.to_pylist(),
        what_if_result.retrievals,
        what_if_result.active_counts,
        scores,
    ]


def test_a_comparison_of_some_golems_equals_their_part_of_all(stores: DerivationContext) -> None:
    golems = stores.life("GolemBorn")["golem_id"].to_pylist()
    golem = next(g for g in golems if stores.projections.growing("curation").read(golems=[g]).num_rows > 5)
    settings = [FADES]
    alone, everyone = compared(stores, *settings, golems=[golem]), compared(stores, *settings)
    own_entries = [row for row in everyone.entries.to_pylist() if row["golem_id"] == golem]
    assert alone.entries.to_pylist() == own_entries
    assert alone.golems == (golem,)
    assert not alone.adoptable
    with pytest.raises(DerivationError, match="1 golems alone"):
        adopt(stores, alone.name, "it is mine", now=NOW)
    with pytest.raises(QueryError, match="nobody"):
        compared(stores, *settings, golems=["nobody"])


def test_the_limit_of_derivations_is_enforced_until_a_drop(stores: DerivationContext) -> None:
    cramped = replace(stores, policy=Policy(care=CarePolicy(derivations_beside_max=1)))
    first = compared(cramped, "katabasis.quorum_votes=1")
    compared(cramped, "katabasis.quorum_votes=1")
    with pytest.raises(ConfigError, match=f"--drop {first.name}"):
        compared(cramped, "katabasis.quorum_votes=2")
    drop(cramped, first.name)
    assert not stores.home.derivation(first.name).exists()
    assert compared(cramped, "katabasis.quorum_votes=2").name != first.name
    with pytest.raises(DerivationError, match="in force"):
        drop(cramped, stores.derivation_id)
    with pytest.raises(DerivationError, match="no derivation nonsense"):
        drop(cramped, "nonsense")


@pytest.mark.row("X-10")
@pytest.mark.parametrize(
    "before",
    [
        pytest.param(False, id="built after the strike"),
        pytest.param(True, id="built before the strike"),
    ],
)
def test_an_adopted_derivation_equals_a_rebuild_from_the_log(stores: DerivationContext, before: bool) -> None:
    """Laws 3 and 4: an adopted derivation equals a rebuild, built before or after a strike."""
    policy = altered(stores.policy, [FADES, "curator.cluster_min=3"])
    beside = open_beside(stores, policy)
    struck: Callable[[], object] = lambda: strike(stores, _golem_with_decisions(stores), 20, "a test", now=NOW)  # noqa: E731
    if before:
        build(stores, beside, now=NOW)
        struck()
    else:
        struck()
        build(stores, beside, now=NOW)
    withdraw(stores, now=NOW)
    adopt(stores, beside.derivation_id, "it knows more", now=NOW)
    after = DerivationContext.open(stores.home.root)
    assert (after.derivation_id, after.policy) == (beside.derivation_id, policy)
    settle(after, now=NOW)
    tables = rebuild(after, now=NOW)
    assert [c.table for c in tables if not c.equal] == []
    assert sum(c.row_count for c in tables) > 100


def _golem_with_decisions(stores: DerivationContext) -> str:
    """A golem that lived past its first cycle and learned."""
    rows = stores.projections.growing("curation").read(["golem_id", "cycle"]).to_pylist()
    return min(row["golem_id"] for row in rows if row["cycle"] > 1)
