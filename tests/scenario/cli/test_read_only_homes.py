"""A home that cannot be written, and a backup, are inspected without a byte written to them."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import ReadOnlyError
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.operations.backup import back_up
from bardo_pipeline.storage.warehouse.build import build_warehouse
from tests.conftest import NOW, copy_home
from tests.support.homes.full_disks import MOUNT_ALLOWED
from tests.support.processes.bardo_command import bardo

ROOT = Path(__file__).resolve().parents[3]
WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all", "--")
READ_ONLY_MOUNT = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" "$0"; mount -o remount,bind,ro "$0"; exec "$@"')
needs_mount = pytest.mark.skipif(not MOUNT_ALLOWED, reason="changing rights and mounts needs a privileged user")


def tree(folder: Path) -> str:
    """Hash names, kinds, contents and times of all below a folder."""
    total = hashlib.sha256()
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        total.update(f"{path.relative_to(folder)} {status.st_mode} {status.st_mtime_ns} {status.st_size}\n".encode())
        total.update(path.read_bytes() if path.is_file() else b"")
    return total.hexdigest()


@pytest.fixture
def whole(brief_home: Path, tmp_path: Path) -> Home:
    home = Home.open(copy_home(brief_home, tmp_path / "home"))
    stores = DerivationContext.open(home.root)
    build_warehouse(home, stores.derivation_id)
    stores.log.close()
    return home


@pytest.fixture
def without_marts(brief_home: Path, tmp_path: Path) -> Home:
    """The brief home without marts."""
    return Home.open(copy_home(brief_home, tmp_path / "home"))


def commands(home: Path) -> list[list[str]]:
    """The commands that inspect a home."""
    stores = DerivationContext.open(home)
    row = stores.projections.growing("curation").read(["golem_id", "entry_id"]).to_pylist()[0]
    return [
        ["status"], ["ask", row["golem_id"], "should I re-centre?"], ["search", "trend"], ["lineage", row["entry_id"]],
        ["verify"], ["sql", "from dim_golem"],
    ]  # fmt: skip


def run(words: list[str], home: Path, *wrapper: str) -> subprocess.CompletedProcess[str]:
    """Run `bardo` under a wrapper in a process of its own."""
    return subprocess.run(
        [*wrapper, sys.executable, "-m", "bardo_pipeline.cli.app", *words],
        env={**os.environ, "BARDO_HOME": str(home), "COLUMNS": "160", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


def forbid_writing(home: Path) -> None:
    for path in (home, *home.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)


@needs_mount
@pytest.mark.full
@pytest.mark.row("X-11")
@pytest.mark.parametrize("means", ["rights", "mount"])
def test_a_home_that_cannot_be_written_is_inspected(whole: Home, means: str) -> None:
    inspecting = commands(whole.root)
    expected = {words[0]: bardo(*words, home=whole.root) for words in inspecting}
    if means == "rights":
        forbid_writing(whole.root)
    wrapper = WITHOUT_RIGHTS if means == "rights" else (*READ_ONLY_MOUNT, str(whole.root))
    before = tree(whole.root)
    for words in inspecting:
        done = run(words, whole.root, *wrapper)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        if words[0] in ("sql", "lineage", "verify"):
            assert done.stdout == expected[words[0]]
    for words in (["derive"], ["spool", "take"], ["golem", "credit", "owner-1", "5", "--why", "test"], ["maintain"]):
        done = run(words, whole.root, *wrapper)
        assert done.returncode == 2, (words, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        assert re.search("let this user (read and )?write there|mount its disk for writing", done.stderr), done.stderr
    assert tree(whole.root) == before


@pytest.mark.row("X-9")
def test_a_backup_is_inspected_and_not_changed(without_marts: Home, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    digest = back_up(without_marts, backup, NOW).manifest.digest
    before = tree(backup)
    verified = bardo("verify", "--expect", digest, home=backup)
    assert "clean" in verified
    assert digest in verified
    assert str(backup) in bardo("status", home=backup)
    assert "no text was found" in bardo("search", "trend", home=backup)
    assert "`bardo restore` makes a home of it" in bardo("derive", home=backup, expect=2)
    with pytest.raises(ReadOnlyError, match="is a backup"):
        Home.open(backup)
    assert tree(backup) == before


@pytest.mark.row("X-9")
def test_a_home_that_no_disk_holds_is_a_typed_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for folder, cure in ((file / "home", "name a folder"), (Path("/proc/home"), "name another folder")):
        refused = bardo("golem", "birth", "g-1", "--owner", "me", "--at", "2026-01-01", home=folder, expect=2)
        assert f"bardo: {folder} cannot be written" in refused
        assert cure in refused
