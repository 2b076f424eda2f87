"""Backups: each contains every record acknowledged before it began, and a restore is complete or fails."""

from __future__ import annotations

import shutil
from pathlib import Path

import orjson
import pytest

from bardo_pipeline.errors import ConfigError, CustodyError, SchemaVersionError
from bardo_pipeline.storage.conversations.conversations import Conversations
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal.drainer import drain_once
from bardo_pipeline.storage.journal.segment_files import journal_depth
from bardo_pipeline.storage.keys.golem_seal_keys import SealKeys
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.operations.backup import MANIFEST, back_up, read_manifest, restore
from bardo_pipeline.storage.verification.verify import verify
from tests.support.homes import tampered_homes
from tests.support.homes.tampered_homes import ARROW, NOW, WAITING, append, commits, data_files


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tampered_homes.make(tmp_path_factory.mktemp("backup") / "home").root


@pytest.fixture
def home(kept: Path, tmp_path: Path) -> Home:
    shutil.copytree(kept, tmp_path / "home")
    return Home.open(tmp_path / "home")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "backup"


def contents(root: Path) -> dict[str, bytes]:
    """Return the files that a restore must bring back: all except locks and caches."""
    files = (path for path in root.rglob("*") if path.is_file())
    named = {path.relative_to(root).as_posix(): path.read_bytes() for path in files}
    return {
        name: content
        for name, content in named.items()
        if not name.startswith(("locks/", "index/")) and "/lock" not in name
    }


def objects(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "objects").rglob("*") if path.is_file())


@pytest.mark.row("X-9")
def test_a_restored_home_equals_the_original_byte_for_byte(home: Home, folder: Path, tmp_path: Path) -> None:
    (home.spool / "golem-1").mkdir(parents=True)
    (home.spool / "golem-1" / "late.jsonl").write_bytes(b"{}\n")
    with EventLog(home) as log:
        Conversations(home, log).append(ARROW, "owner", "hold", NOW)
    done = back_up(home, folder, NOW)
    made, manifest = restore(folder, tmp_path / "again", NOW)
    assert contents(made.root) == contents(home.root)
    assert manifest == done.manifest
    assert (made.conversations.stat().st_mode & 0o777) == 0o700
    report = verify(made, expect=done.manifest.digest)
    assert report.clean, [broken.sentence() for broken in report.breaks]
    assert report.digest == verify(home).digest


@pytest.mark.row("X-9")
def test_a_restored_journal_is_drained_into_the_restored_log(home: Home, folder: Path, tmp_path: Path) -> None:
    back_up(home, folder, NOW)
    made, _ = restore(folder, tmp_path / "again", NOW)
    with EventLog(made) as log:
        assert drain_once(made, log, clock=tampered_homes.clock).records == 4
        assert sorted(log.read_cycles(["tick"], golems=[WAITING])["tick"].to_pylist()) == [1, 2, 3, 4]
    assert verify(made).clean
    assert journal_depth(made).segments == 0


@pytest.mark.full
@pytest.mark.row("X-9", "EV-3")
def test_a_backup_during_writes_contains_every_record_acknowledged_before_it(
    home: Home, folder: Path, tmp_path: Path
) -> None:
    with tampered_homes.busy_writer(home) as acknowledged:
        for number in range(3):
            before = acknowledged(50 + 900 * number)
            back_up(home, folder, NOW)
            made, _ = restore(folder, tmp_path / f"again-{number}", NOW)
            report = verify(made)
            assert report.clean, [broken.sentence() for broken in report.breaks]
            with EventLog(made) as log:
                drain_once(made, log, clock=tampered_homes.clock)
                ticks = sorted(log.read_cycles(["tick"], golems=["busy-0000"])["tick"].to_pylist())
            assert ticks == list(range(1, len(ticks) + 1))
            assert len(ticks) >= before, (
                f"tick {before} was acknowledged before, and {ticks[-1]} is the last restored tick"
            )
            assert verify(made).clean


@pytest.mark.row("X-9")
def test_a_second_backup_copies_only_new_objects(home: Home, folder: Path, tmp_path: Path) -> None:
    first = back_up(home, folder, NOW)
    assert first.copied == len(objects(folder))
    assert back_up(home, folder, NOW).copied == 0
    with EventLog(home) as log:
        append(log, 13)
    known = {path: path.stat().st_mtime_ns for path in objects(folder)}
    second = back_up(home, folder, NOW)
    assert second.copied_bytes < first.copied_bytes / 2
    still = {path: path.stat().st_mtime_ns for path in objects(folder) if path in known}
    assert still == {path: moment for path, moment in known.items() if path in still}, (
        "existing objects are not touched"
    )
    assert {path.name for path in objects(folder)} == {file.hash for file in second.manifest.files}
    assert verify(restore(folder, tmp_path / "again", NOW)[0], expect=second.manifest.digest).clean


@pytest.mark.row("X-9")
def test_an_altered_log_file_fails_the_backup_and_keeps_the_previous_backup(
    home: Home, folder: Path, tmp_path: Path
) -> None:
    back_up(home, folder, NOW)
    with EventLog(home) as log:
        append(log, 13)
    manifest, path = (folder / MANIFEST).read_bytes(), data_files(home)[-1]
    content = path.read_bytes()
    path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    with pytest.raises(CustodyError, match=path.name):
        back_up(home, folder, NOW)
    assert (folder / MANIFEST).read_bytes() == manifest
    made, _ = restore(folder, tmp_path / "again", NOW)
    assert verify(made).clean
    assert made.root.exists()
    assert not list(home.root.glob(".backup-*")), "temporary links are removed after a failure too"


@pytest.mark.row("X-9")
def test_a_backup_of_a_shortened_log_is_refused(home: Home, folder: Path) -> None:
    with EventLog(home) as log:
        append(log, 13)
    back_up(home, folder, NOW)
    last = commits(home)[-1]
    for add in tampered_homes.adds(last):
        (home.cycles / add["path"]).unlink()
    last.unlink()
    (home.index / "heads.arrow").unlink()
    with pytest.raises(CustodyError, match="up to link 5"):
        back_up(home, folder, NOW)


@pytest.mark.row("X-7", "X-9")
def test_a_backup_contains_no_seal_keys(home: Home, folder: Path) -> None:
    secret = b"a secret of 32 bytes, no byte less"[:32]
    with EventLog(home) as log:
        SealKeys(home).make(log, ARROW, secret, NOW)
    done = back_up(home, folder, NOW)
    assert not any(secret in path.read_bytes() for path in objects(folder))
    assert not any(file.path.startswith("keys") for file in done.manifest.files)


@pytest.mark.row("X-9")
@pytest.mark.parametrize("damage", ["flip", "lose", "manifest", "escape"])
def test_restore_names_the_damaged_file_and_creates_nothing(
    home: Home, folder: Path, tmp_path: Path, damage: str
) -> None:
    back_up(home, folder, NOW)
    path = objects(folder)[7]
    content, statement = path.read_bytes(), (folder / MANIFEST).read_bytes()
    if damage == "flip":
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    elif damage == "lose":
        path.unlink()
    elif damage == "manifest":
        (folder / MANIFEST).write_bytes(statement.replace(b"arrow-0000", b"arrow-0002"))
    else:
        (folder / MANIFEST).write_bytes(statement.replace(b'"home.json"', b'"../h.json"'))
    with pytest.raises(CustodyError, match=path.name if damage in ("flip", "lose") else MANIFEST):
        restore(folder, tmp_path / "again", NOW)
    assert not (tmp_path / "again").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"home", "backup"}


def test_restore_refuses_a_folder_that_is_not_empty(home: Home, folder: Path, tmp_path: Path) -> None:
    back_up(home, folder, NOW)
    with pytest.raises(ConfigError, match="not empty"):
        restore(folder, home.root, NOW)
    (tmp_path / "empty").mkdir()
    assert restore(folder, tmp_path / "empty", NOW)[0].root == tmp_path / "empty"


def test_backup_refuses_a_folder_with_other_contents_or_another_home(home: Home, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="inside the home itself"):
        back_up(home, home.root / "backup", NOW)
    folder.mkdir()
    (folder / "letters.txt").write_text("mine")
    with pytest.raises(ConfigError, match="something else"):
        back_up(home, folder, NOW)
    with pytest.raises(ConfigError, match="holds no backup"):
        read_manifest(folder)
    other = tampered_homes.make(tmp_path / "other")
    back_up(other, tmp_path / "theirs", NOW)
    with pytest.raises(ConfigError, match="another home"):
        back_up(home, tmp_path / "theirs", NOW)


def test_restore_refuses_a_backup_of_a_newer_format(home: Home, folder: Path, tmp_path: Path) -> None:
    back_up(home, folder, NOW)
    document = orjson.loads((folder / MANIFEST).read_bytes())
    (folder / MANIFEST).write_bytes(orjson.dumps(document | {"format": 2}))
    with pytest.raises(SchemaVersionError, match="upgrade"):
        restore(folder, tmp_path / "again", NOW)
