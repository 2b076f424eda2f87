"""Maintenance, backup and status of a home whose files come and go while they are walked."""

from __future__ import annotations

import os
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bardo_pipeline.clock import utc_now
from bardo_pipeline.derivation.active_derivation import in_force
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.derive_home import derive_home
from bardo_pipeline.derivation.home_maintenance import is_pressed, tend
from bardo_pipeline.derivation.reports.home_health import health_of
from bardo_pipeline.storage.home import Home, all_below, children, files_below, remove_tree, statuses
from bardo_pipeline.storage.intake.spool_folder import waiting
from bardo_pipeline.storage.journal.event_writer import EventWriter
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.operations.backup import back_up
from tests.conftest import NOW, copy_home
from tests.support.processes.forked_processes import Forked
from tests.support.records.writer_records import line

PLACES = ("", "spool", "spool/g-1", "conversations/g-1", "index", "index/ticks", "index/episodes/d/e",
          "derivations/x.rebuild/readers/r", "derivations/y/_delta_log", "journal/w", "bundles/.draft-x")  # fmt: skip


def churn(root: str) -> None:
    """Create and remove files and folders of a home, until the input ends."""
    while True:
        for place in PLACES:
            folder = Path(root, place, "passing", "deep")
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(4):
                (folder / f".{number}.parquet.tmp").write_bytes(b"x")
                (Path(root, place) / f"{number}.passing.jsonl").write_bytes(b"x")
            for number in range(4):
                (Path(root, place) / f"{number}.passing.jsonl").unlink(missing_ok=True)
            shutil.rmtree(folder.parent, ignore_errors=True)
            if place.startswith(("derivations", "index/ep")):
                shutil.rmtree(Path(root, *Path(place).parts[:2]), ignore_errors=True)


@pytest.mark.full
@pytest.mark.row("X-13")
def test_files_that_vanish_do_not_stop_a_pass(brief_home: Path, tmp_path: Path) -> None:
    stores = DerivationContext.open(copy_home(brief_home, tmp_path / "home"))
    home, busy = stores.home, Forked(churn, str(stores.home.root))
    try:
        for number in range(2):
            tend(home, stores.log, stores.policy, now=utc_now() + number * timedelta(days=30))
            is_pressed(home, stores.policy)
            waiting(home)
            health_of(stores, utc_now())
            back_up(home, tmp_path / "backup", NOW)
    finally:
        busy.kill()
    assert busy.wait() is not None


def write_records(root: str) -> None:
    with EventWriter.open(Home.open(Path(root)), "golem-0000", clock=utc_now) as writer:
        for tick in range(1, 1_000_000):
            writer.append(line(tick))


def derive_repeatedly(root: str) -> None:
    while True:
        with DerivationContext.open(Path(root)).log as log:
            derive_home(DerivationContext.open(Path(root)), clock=utc_now, marts=False)
            assert log.version >= 0


@pytest.mark.full
@pytest.mark.row("X-13")
def test_thirteen_of_thirteen_passes_succeed_while_a_home_is_written_and_derived(
    brief_home: Path, tmp_path: Path
) -> None:
    root = copy_home(brief_home, tmp_path / "home")
    workers = [Forked(work, str(root)) for work in (write_records, derive_repeatedly)]
    try:
        for _ in range(13):
            with EventLog(Home.open(root)) as log:
                policy = in_force(log.life("DerivationAdopted")).policy
                care = policy.care.model_copy(update={"grace_seconds": 0.0, "leftover_seconds": 600.0})
                tend(log.home, log, policy.model_copy(update={"care": care}), now=utc_now())
        assert [worker.returncode for worker in workers] == [None, None], "both still work"
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def test_a_walk_leaves_out_what_is_gone_and_raises_other_errors(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"12")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    gone = tmp_path / "gone"
    assert [path.name for path in all_below(tmp_path)] == ["a", "b", "file", "link"]
    assert [(path.name, status.st_size) for path, status in files_below(tmp_path)] == [("file", 2)]
    assert [*statuses([gone, gone / "deep"]), *files_below(gone), *children(gone), *children(tmp_path / "link")] == []
    remove_tree(gone)
    remove_tree(tmp_path / "a")
    remove_tree(tmp_path / "link")
    assert children(tmp_path) == []


@pytest.mark.row("X-13")
def test_a_folder_that_is_written_while_it_is_removed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "old").write_bytes(b"x")
    unlink = os.unlink

    def writing_unlink(*args: Any, **options: Any) -> None:
        unlink(*args, **options)
        (tmp_path / "draft" / "new").write_bytes(b"y")

    monkeypatch.setattr(os, "unlink", writing_unlink)
    remove_tree(tmp_path / "draft")
    assert [path.name for path in children(tmp_path / "draft")] == ["new"]
