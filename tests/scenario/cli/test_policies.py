"""An owner compares another policy on the same lives, and adopts it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.dreams.playbook_pages import pages_of
from bardo_pipeline.derivation.home_maintenance import tend
from bardo_pipeline.derivation.versions.policy_diff import altered
from bardo_pipeline.derivation.versions.rebuild import derive_everything, rebuild
from bardo_pipeline.derivation.versions.side_derivations import adopt, build, open_beside, settle
from bardo_pipeline.derivation.versions.what_if import what_if
from bardo_pipeline.errors import DerivationError
from bardo_pipeline.policy import Policy
from tests.conftest import LIVELY, NOW, copy_home
from tests.support.processes.bardo_command import bardo

WARNED = altered(LIVELY, ["curator.anomaly_edges=[0.8, 0.9, 0.95, 0.97]"])
"""Anomaly bands under which warnings raise the re-centring threshold, so that the playbooks differ."""
EDITION_READERS = ("active_derivation", "context", "versions.side_derivations")


@pytest.fixture
def home(lively_home: Path, tmp_path: Path) -> Path:
    """Return a home with the default policy whose golems lived under the LIVELY policy."""
    return copy_home(lively_home, tmp_path / "home")


def json_of(*words: str, home: Path) -> Any:
    return orjson.loads(bardo(*words, "--json", home=home))


def pages(stores: DerivationContext) -> dict[str, str]:
    """Return the page of each golem's newest derived playbook and its lessons."""
    return dict(pages_of(stores.projections.read("playbooks"), stores.projections.read("lessons")))


def files(root: Path) -> dict[str, str]:
    return {path.parent.name: path.read_text() for path in (root / "playbooks").glob("*/PLAYBOOK.md")}


@pytest.mark.full
@pytest.mark.row("X-3")
@pytest.mark.row("X-10")
def test_adopting_a_compared_policy_changes_derivation_playbooks_and_runs(home: Path, tmp_path: Path) -> None:
    (tmp_path / "warned.json").write_text(WARNED.content)
    result = json_of("whatif", "--policy", str(tmp_path / "warned.json"), home=home)
    gained = sum(row["gained"] for row in result["by_kind"])
    assert gained == sum(1 for row in result["entries"] if row["before_ppm"] is None) > 0
    assert result["active_entries"]["beside"] == result["active_entries"]["in_force"] + gained
    assert all(result["calibration"][side]["belief_count"] for side in ("in_force", "beside"))
    assert result["retrievals"]["decisions"] > 100
    assert {s["name"] for s in result["changed"]} >= {"curator.cluster_min", "gate.base_threshold"}
    before = files(home)
    assert before == pages(DerivationContext.open(home)), "a comparison changed a playbook"

    beside = result["beside"]
    assert json_of("adopt", "--list", home=home) == []
    assert "why" in bardo("adopt", beside, home=home, expect=2)
    assert "was built" in bardo("adopt", "nonsense", "--why", "x", home=home, expect=2)
    bardo("adopt", beside, "--why", "it knows more", home=home)
    assert "in force already" in bardo("adopt", beside, "--why", "again", home=home, expect=2)
    (adopted,) = json_of("adopt", "--list", home=home)
    assert (adopted["adopted"]["derivation_id"], adopted["adopted"]["why"]) == (beside, "it knows more")
    assert adopted["adopted"]["previous_derivation_id"] == result["in_force"]

    stores = DerivationContext.open(home)
    assert (stores.derivation_id, stores.policy) == (beside, WARNED)
    assert files(home) == pages(stores) != before
    state = orjson.loads(bardo("status", "--format", "json", home=home))
    assert (state["derivation_id"], state["adopted"], state["frozen"]) == (beside, "it knows more", None)
    assert "DIFFERENT" not in bardo("rebuild", home=home)
    known = set(stores.life("GolemBorn")["golem_id"].to_pylist())
    bardo("run", "--bars", "60", "--golems", "1", "--generations", "1", "--no-marts", home=home)
    births = DerivationContext.open(home).life("GolemBorn").to_pylist()
    (born,) = [event["born"] for event in births if event["golem_id"] not in known]
    assert (born["policy_hash"], born["derivation_id"]) == (WARNED.hash, beside)


@pytest.mark.full
@pytest.mark.row("X-10")
def test_maintenance_keeps_the_active_derivation_and_drops_old_derivations(home: Path) -> None:
    stores = DerivationContext.open(home)
    derive_everything(stores, now=NOW)
    beside = open_beside(stores, LIVELY)
    build(stores, beside, now=NOW)
    later = NOW + timedelta(days=3_650)
    assert stores.home.derivation(beside.derivation_id).exists()
    adopt(stores, beside.derivation_id, "to keep", now=NOW)
    tend(stores.home, stores.log, Policy(), now=later)
    assert beside.projections.root.exists(), "maintenance dropped the active derivation"
    assert not stores.projections.root.exists(), "maintenance kept an inactive derivation too long"
    assert DerivationContext.open(home).projections.read("grimoire").num_rows > 0


@pytest.mark.full
@pytest.mark.row("X-10")
def test_a_derivation_of_another_edition_is_read_only_until_an_adoption(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        for name in EDITION_READERS:
            older.setattr(f"bardo_pipeline.derivation.{name}.PASSES_EDITION", "an older one")
        stores = DerivationContext.open(home)
        build(stores, open_beside(stores, LIVELY), now=NOW)
        adopt(stores, open_beside(stores, LIVELY).derivation_id, "as it was then", now=NOW)
        before = DerivationContext.open(home)
        settle(before, now=NOW)

    stores = DerivationContext.open(home)
    assert (stores.derivation_id, stores.policy) == (before.derivation_id, LIVELY)
    assert stores.projections.read("grimoire").equals(before.projections.read("grimoire"))
    with pytest.raises(DerivationError, match="edition an older one"):
        derive_everything(stores, now=NOW)
    assert "bardo adopt" in bardo("status", home=home)
    result = what_if(stores, stores.policy, now=NOW)
    assert result.frozen is not None
    assert result.same, "equal passes of another edition must give equal rows"
    assert result.name != before.derivation_id
    adopt(stores, result.name, "the new passes", now=NOW)
    after = DerivationContext.open(home)
    assert (after.derivation_id, after.frozen) == (result.name, None)
    settle(after, now=NOW)
    assert all(table.equal for table in rebuild(after, now=NOW))
    with pytest.raises(DerivationError, match="cannot be adopted: edition an older one"):
        adopt(after, before.derivation_id, "back", now=NOW)
