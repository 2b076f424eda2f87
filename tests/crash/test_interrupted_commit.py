"""A derivation that is cut off between two of its commits is finished by the next one, to the same content."""

from __future__ import annotations

from pathlib import Path

import pytest

from bardo_pipeline.curator.state.decision_log import fold
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.dreams.playbook_pages import pages_of
from bardo_pipeline.runtime.fleet_run import FleetRun
from bardo_pipeline.storage.delta.replaceable_table import ReplaceableTable
from bardo_pipeline.storage.projections.projections import GrowingTable
from tests.conftest import NOW, copy_home, home_without_verdicts
from tests.scenario.derivation.test_succession import run_of, succeeded  # noqa: F401 - a fixture

CURATED = ("curation", "cycles", "playbooks", "grimoire")


class PowerCut(Exception):
    """The interruption during the commit."""


@pytest.fixture(scope="module")
def bare_home(small_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small home's log with nothing derived. Only for copying."""
    return home_without_verdicts(small_home, tmp_path_factory.mktemp("bare") / "home")


@pytest.fixture(scope="module")
def undisturbed(bare_home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    stores = DerivationContext.open(copy_home(bare_home, tmp_path_factory.mktemp("whole") / "home"))
    derive_curation(stores)
    return {name: stores.projections.digest(name) for name in CURATED}


@pytest.mark.row("P-2", "MEM-6")
@pytest.mark.parametrize(
    ("cut_before", "same_process"),
    [
        ("playbooks", False),
        ("grimoire", True),
        *(pytest.param(name, False, marks=pytest.mark.full) for name in CURATED if name != "playbooks"),
    ],
)
def test_a_derivation_interrupted_before_any_commit_is_completed(
    cut_before: str, same_process: bool, bare_home: Path, undisturbed: dict[str, object], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    root = copy_home(bare_home, tmp_path / "home")
    with monkeypatch.context() as patch:
        kind, method = (ReplaceableTable, "upsert") if cut_before == "grimoire" else (GrowingTable, "append")
        honest = getattr(kind, method)

        def cut(table: GrowingTable | ReplaceableTable, *args: object, **more: object) -> object:
            if table.name == cut_before:
                raise PowerCut(cut_before)
            return honest(table, *args, **more)

        patch.setattr(kind, method, cut)
        interrupted = DerivationContext.open(root)
        with pytest.raises(PowerCut):
            derive_curation(interrupted)
    stores = interrupted if same_process else DerivationContext.open(root)
    derive_curation(stores)
    assert {name: stores.projections.digest(name) for name in CURATED} == undisturbed
    folded = fold(stores.projections.read("curation"))
    assert folded.equals(stores.projections.read("grimoire").cast(folded.schema))


@pytest.mark.full
@pytest.mark.row("EV-2")
def test_an_interrupted_repeat_of_a_run_changes_no_projection(succeeded: Path, tmp_path: Path) -> None:  # noqa: F811
    root = copy_home(succeeded, tmp_path / "home")
    stores = DerivationContext.open(root)
    before = {name: stores.projections.digest(name) for name in CURATED}

    def stop(progress: object) -> None:
        if getattr(progress, "ticks_done", 0) >= 200:
            raise PowerCut("half way")

    again = DerivationContext.open(root)
    with pytest.raises(PowerCut):
        FleetRun(again, run_of(), lambda: NOW).live(stop)
    derive_curation(again)
    assert {name: again.projections.digest(name) for name in CURATED} == before


def test_the_newest_playbooks_are_files_of_the_home(small_home: Path) -> None:
    stores = DerivationContext.open(small_home)
    newest = dict(pages_of(stores.projections.read("playbooks"), stores.projections.read("lessons")))
    assert newest
    assert {g: (small_home / "playbooks" / g / "PLAYBOOK.md").read_text() for g in newest} == newest
