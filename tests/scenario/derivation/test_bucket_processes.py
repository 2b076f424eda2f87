"""Processes that derive one hash bucket of golems each, at once: equal tables, also after one of them is killed."""

from __future__ import annotations

from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.versions.rebuild import derive_everything
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.projections.derivation_folders import HashBucket
from bardo_pipeline.storage.verification.check_projections import damaged_tables
from tests.conftest import NOW, copy_home, home_without_verdicts
from tests.crash.windows import Point, Trap, Window
from tests.property.derivation.test_laws import fingerprints, with_hashes
from tests.support.processes.forked_processes import CONTEXT

pytestmark = pytest.mark.row("P-2")

COUNT = 2
POINTS = {
    "decisions": Point("bardo_pipeline.storage.delta.append_only_table:write_parquet", "before"),
    "the grimoire": Point("bardo_pipeline.storage.delta.replaceable_table:write_parquet", "after"),
    "a commit of playbooks": Point("link", "before", r"derivations/.*/playbooks/_delta_log/0*[1-9]\d*\.json"),
    "a commit of crossings": Point("link", "after", r"derivations/.*/crossings/_delta_log/0*[1-9]\d*\.json"),
}


@pytest.fixture(scope="module")
def bare_home(small_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small home's log with nothing derived. Only for copying."""
    return home_without_verdicts(small_home, tmp_path_factory.mktemp("bare") / "home")


@pytest.fixture(scope="module")
def undisturbed(bare_home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    stores = with_hashes(DerivationContext.open(copy_home(bare_home, tmp_path_factory.mktemp("whole") / "home")))
    derive_everything(stores, now=NOW)
    return fingerprints(stores)


def derive_bucket(root: str, number: int, killed_at: str | None) -> None:
    """Derive one bucket; this process is killed at the named point if there is one."""
    if killed_at is not None:
        Trap(Window(killed_at, "owner", (POINTS[killed_at],)), 1, Path(root)).set()
    stores = with_hashes(DerivationContext.open(Path(root)))
    derive_everything(stores.in_bucket(HashBucket(number, COUNT)), now=NOW)


def started(root: Path, number: int, killed_at: str | None = None) -> ForkServerProcess:
    process: ForkServerProcess = CONTEXT.Process(target=derive_bucket, args=(str(root), number, killed_at))
    process.start()
    return process


def test_two_processes_derive_two_buckets_at_once_to_the_tables_of_one_derivation(
    bare_home: Path, undisturbed: dict[str, tuple[int, str]], tmp_path: Path
) -> None:
    root = copy_home(bare_home, tmp_path / "home")
    processes = [started(root, number) for number in range(COUNT)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    stores = with_hashes(DerivationContext.open(root))
    parts = [[g for g in stores.golem_ids() if part.holds(g)] for part in stores.by_bucket()]
    assert len(parts) == COUNT
    assert all(parts), f"a bucket without golems: {parts}"
    across = ("scars", "votes", "vote_causes", "consensus", "testaments", "candidates")
    by_golem = [name for name in TABLES if name not in across and "owner_id" not in TABLES[name].key]
    derived = fingerprints(stores)
    assert {name: derived[name] for name in by_golem} == {name: undisturbed[name] for name in by_golem}
    assert all(derived[name][0] for name in ("grimoire", "crossings", "episodes"))
    derive_everything(stores, now=NOW)
    assert fingerprints(stores) == undisturbed


@pytest.mark.parametrize(
    "killed_at", ["the grimoire", *(pytest.param(n, marks=pytest.mark.full) for n in POINTS if n != "the grimoire")]
)
def test_a_killed_process_leaves_the_other_buckets_whole_and_the_next_derivation_finishes(
    killed_at: str, bare_home: Path, undisturbed: dict[str, tuple[int, str]], tmp_path: Path
) -> None:
    root = copy_home(bare_home, tmp_path / "home")
    killed, other = started(root, 0, killed_at), started(root, 1)
    for process in (killed, other):
        process.join()
    assert (killed.exitcode, other.exitcode) == (-9, 0)
    stores = with_hashes(DerivationContext.open(root))
    assert list(damaged_tables(stores.projections)) == []
    whole = [g for g in sorted(stores.golem_ids()) if stores.in_bucket(HashBucket(1, COUNT)).holds(g)]
    assert all(stores.projections.replaceable("grimoire").done(g) for g in whole)
    derive_everything(stores, now=NOW)
    assert fingerprints(stores) == undisturbed
