"""Commands on a disk that is really full: one typed line, no traceback, and nothing lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from bardo_pipeline.derivation.legacy.bundle_archives import pack_archive
from bardo_pipeline.errors import DiskFullError, ReadOnlyError
from bardo_pipeline.storage.home import Home, typed_disk_errors
from bardo_pipeline.storage.log.event_log import EventLog
from tests.conftest import copy_home
from tests.support.homes.full_disks import MOUNT_ALLOWED
from tests.support.knowledge.handmade_bundles import bundle_of
from tests.support.knowledge.handmade_grimoires import entry

ROOT = Path(__file__).resolve().parents[3]


Tried = Callable[..., dict[str, tuple[int, str]]]


@pytest.fixture
def tried(brief_home: Path, tmp_path: Path) -> Tried:
    """Return a function that runs commands on a full disk, and returns the exit code and output of each."""
    if not MOUNT_ALLOWED:
        pytest.skip("mounting a small file system needs the rights to do so")
    source, disk, archive = copy_home(brief_home, tmp_path / "source"), tmp_path / "disk", tmp_path / "archive.tar.gz"
    disk.mkdir()
    with EventLog(Home.open(source)) as log:
        published = log.life("BundlePublished").to_pylist()[0]["golem_id"]
    archive.write_bytes(pack_archive(bundle_of(entry(about="w", kind="warning", sign=-1, is_anti_knowledge=True))))

    def run(*commands: str, left: int) -> dict[str, tuple[int, str]]:
        words = [sys.executable, "-m", "tests.support.homes.full_disks", source, disk, left]
        filled = [word.format(disk=disk, golem=published, archive=archive) for word in commands]
        done = subprocess.run(
            ["unshare", "--mount", *map(str, words), *filled], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-3_000:]
        return {words: (code, output) for words, code, output in orjson.loads(done.stdout.splitlines()[-1])}

    return run


WRITING = (
    "spool take", "derive", "derive --no-marts", "rebuild", "maintain", "backup {disk}/backup",
    "bundle export {golem} {disk}/one.tar.gz", "bundle import {archive} --unsigned",
    "golem successor {golem}", "golem found --like {golem}", "golem credit owner-9 5 --why test", "keys owner owner-1",
    "quarantine drop --all --why test", "quarantine retry --all", "conversation append {golem} hello",
    "accept-gap {golem} 1 2 --why test", "strike {golem} 5 --why test", "grimoire list {golem}", "status",
)  # fmt: skip


def checked(results: dict[str, tuple[int, str]]) -> int:
    """Check that each command succeeded or named the full disk; return the number that failed."""
    failed = 0
    for words, (code, output) in results.items():
        assert "Traceback" not in output, (words, output)
        assert code in (0, 1) or (code == 2 and "bardo: " in output), (words, code, output)
        failed += "free some space" in output
    return failed


@pytest.mark.full
@pytest.mark.row("X-9")
def test_a_full_disk_is_named_by_the_commands_that_write(tried: Tried) -> None:
    assert checked(tried("spool take", "backup {disk}/backup", left=0)) == 2


@pytest.mark.full
@pytest.mark.row("X-9")
@pytest.mark.parametrize("left", [0, 40_000, 400_000])
def test_every_command_names_a_full_disk_and_loses_nothing(tried: Tried, left: int) -> None:
    assert checked(tried(*WRITING, left=left)) >= (8 if not left else 3)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(28, "No space left on device"), DiskFullError),
        (RuntimeError("lance error: IO: No space left on device (os error 28), /rustc/x.rs"), DiskFullError),
        (OSError(122, "Disk quota exceeded"), DiskFullError),
        (PermissionError(13, "Permission denied"), ReadOnlyError),
        (ValueError("another fault"), None),
    ],
)
def test_an_error_of_any_library_is_translated_by_its_cause(error: Exception, kind: type | None) -> None:
    outer = KeyError("outer")
    outer.__cause__ = error
    for seen in (error, outer):
        with pytest.raises(kind or type(seen)), typed_disk_errors():
            raise seen
