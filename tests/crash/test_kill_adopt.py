"""A killed adoption is complete or absent, and the next process completes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bardo_pipeline.derivation.active_derivation import adoptions_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.dreams.playbook_pages import pages_of
from bardo_pipeline.derivation.versions.policy_diff import altered
from bardo_pipeline.derivation.versions.rebuild import derive_everything, rebuild
from bardo_pipeline.derivation.versions.side_derivations import adopt, open_beside, settle
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.verification.verify import verify
from tests.conftest import NOW, copy_home
from tests.crash.windows import Point, Trap, Window
from tests.support.processes.forked_processes import CONTEXT

pytestmark = pytest.mark.row("X-10")

WARNED = altered(Policy(), ["curator.anomaly_edges=[0.8, 0.9, 0.95, 0.97]"])
LIFE_COMMIT = r"log/life/_delta_log/\d+\.json"
MOMENTS = {
    "episodes are shared": Point("rename", "before", r"derivations/.*episodes.*"),
    "the derivation is completed": Point("bardo_pipeline.storage.delta.replaceable_table:write_parquet", "before"),
    "before the event": Point("link", "before", LIFE_COMMIT),
    "after the event": Point("link", "after", LIFE_COMMIT),
}


def die_adopting(root: str, name: str, moment: str) -> None:
    """Build another derivation and adopt it; this process is killed at the named point."""
    Trap(Window(moment, "owner", (MOMENTS[moment],)), 1, Path(root)).set()
    stores = DerivationContext.open(Path(root))
    adopt(stores, name, "to be killed", now=NOW)


@pytest.mark.full
def test_a_killed_adoption_is_complete_or_absent_and_resumed(brief_home: Path, tmp_path: Path) -> None:
    """Each process in turn is killed at a later point than the one before."""
    root = copy_home(brief_home, tmp_path / "home")
    stores = DerivationContext.open(root)
    derive_everything(stores, now=NOW)
    beside = open_beside(stores, WARNED)
    with beside.deriving():
        pass  # its description exists, and no row is derived yet
    for moment in MOMENTS:
        killed = CONTEXT.Process(target=die_adopting, args=(str(root), beside.derivation_id, moment))
        killed.start()
        killed.join()
        assert killed.exitcode == -9, f"no process reached {moment!r}"
        again = DerivationContext.open(root)
        adopted = adoptions_of(again.log.life("DerivationAdopted"))
        assert len(adopted) == (moment == "after the event"), moment
        assert again.derivation_id == (beside.derivation_id if adopted else stores.derivation_id), moment

    after = DerivationContext.open(root)
    assert after.policy == WARNED
    settle(after, now=NOW)
    assert len(adoptions_of(after.log.life("DerivationAdopted"))) == 1
    pages = dict(pages_of(after.projections.read("playbooks"), after.projections.read("lessons")))
    assert {p.parent.name: p.read_text() for p in (root / "playbooks").glob("*/PLAYBOOK.md")} == pages
    assert all(table.equal for table in rebuild(after, now=NOW))
    assert verify(after.home).clean
