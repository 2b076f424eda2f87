"""Disk faults and killed processes: what remains of a commit or checkpoint, and that the log stays readable."""

from __future__ import annotations

import errno
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

from bardo_pipeline.errors import StoreError
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta import append_only_table, durable_commits
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import EventLog
from tests.doubles.memory_event_log import Log
from tests.support.records.drawn_records import records
from tests.support.records.log_queries import LATER, MINILM, NOW, accepted, append, head, on_record, ticks, vectors

# faults of the disk


@contextmanager
def largest_file(count: int) -> Iterator[None]:
    """Limit the size of new files, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def files_of(home: Home) -> set[str]:
    return {str(path.relative_to(home.root)) for path in home.cycles.parent.rglob("*") if path.is_file()}


@pytest.mark.row("EV-2", "EV-3")
def test_an_append_to_a_full_disk_raises_and_leaves_no_file(disk: EventLog, home: Home) -> None:
    append(disk, ticks(1))
    writes: list[Callable[[], object]] = [
        lambda: append(disk, records(500, golems=5, tick=2)),
        lambda: disk.record([accepted(9, 9)], NOW),
        lambda: disk.record_vectors(vectors(["a"])),
    ]
    before = files_of(home)
    for write, table in zip(writes, (home.cycles, home.life, home.vectors), strict=True):
        with largest_file(2_000), pytest.raises(StoreError, match=rf"{table} cannot be written .*: raise the limit"):
            write()
        assert files_of(home) == before
    assert (disk.version, disk.life_version, on_record(disk)) == (1, 0, [1])
    for write in writes:
        write()
    assert head(disk) == (101, 101, 0)
    assert [len(disk.life()), disk.vectors(MINILM, ["a"]).num_rows] == [1, 1]


@pytest.mark.row("EV-2", "EV-3")
@pytest.mark.parametrize("step", ["sync_file", "put_commit"])
def test_a_disk_failure_before_the_commit_leaves_no_row(
    disk: EventLog, home: Home, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(disk, ticks(1))
    before = files_of(home)

    def fail(*args: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(durable_commits if step == "put_commit" else append_only_table, step, fail)
        with pytest.raises(StoreError, match=r"No space left on device.*: free some space on its disk, then try again"):
            append(disk, ticks(2))
    assert files_of(home) == before
    assert append(disk, ticks(2)).written == 1


@pytest.mark.row("EV-2", "EV-3")
def test_a_disk_failure_after_the_commit_loses_nothing(
    disk: EventLog, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = append_only_table.sync_folder

    def fail(path: Path) -> None:
        if path.name == "_delta_log":
            raise OSError(errno.EIO, "Input/output error")
        sync(path)

    with monkeypatch.context() as patch:
        patch.setattr(append_only_table, "sync_folder", fail)
        with pytest.raises(StoreError, match=r"Input/output error.*: look at its disk"):
            append(disk, ticks(1), segment=1)
    for log in (disk, EventLog(home, Policy())):
        assert append(log, ticks(1), segment=1).repeated == 1
        assert on_record(log) == [1]


READ_ONLY = """
import os, sys
from datetime import UTC, datetime
from pathlib import Path
from bardo_pipeline.errors import StoreError
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import EventLog
from tests.support.records.drawn_records import records
home = Home.open(Path(sys.argv[1]))
log = EventLog(home)
if os.getuid() == 0:
    os.setgroups([])
    os.setegid(65534)
    os.seteuid(65534)
for write in (
    lambda: log.append(records(5), writer="w", segment=1, recorded_at=datetime.now(UTC)),
    lambda: EventLog(home),
):
    try:
        write()
    except StoreError as error:
        print(error)
print(len(log.read_cycles()))
"""


@pytest.mark.row("EV-2", "EV-3")
def test_a_read_only_folder_is_named_in_the_error(home: Home, tmp_path: Path) -> None:
    with EventLog(home, Policy()) as log:
        append(log, ticks(1, 3))
    for path in (tmp_path, *tmp_path.parents[:3]):
        if path.owner() == tmp_path.owner() and path != Path("/"):
            path.chmod(0o755)
    for path in (home.root, *home.root.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    output = subprocess.run(
        [sys.executable, "-c", READ_ONLY, str(home.root)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert len(output) == 3
    for sentence in output[:2]:
        assert re.search(rf"{home.root}\S* cannot be written .*: let this user write there, then try again", sentence)
    assert output[2] == "3", "recorded rows can still be read"


@pytest.mark.row("EV-2")
def test_a_clock_that_steps_back_changes_nothing(log: Log) -> None:
    for tick, moment in ((1, LATER), (2, NOW), (3, LATER)):
        assert log.append(ticks(tick), writer="w", segment=tick, recorded_at=moment).written == 1
    assert log.record([accepted(4, 4)], LATER) == 1
    assert log.record([accepted(6, 6)], NOW) == 1
    repeated = log.append(ticks(1, 3), writer="w", segment=4, recorded_at=NOW)
    assert (repeated.written, repeated.repeated, head(log)) == (0, 3, (4, 3, 0))
    moments = {row["tick"]: row["recorded_at"] for row in log.read_cycles(["tick", "recorded_at"]).to_pylist()}
    assert moments == {1: LATER, 2: NOW, 3: LATER}


# checkpoints


@pytest.mark.row("EV-3")
def test_a_log_is_read_with_a_missing_or_damaged_checkpoint_hint(disk: EventLog, home: Home) -> None:
    for tick in range(1, 24):
        append(disk, ticks(tick))
    log = home.cycles / "_delta_log"
    assert (log / f"{20:020}.checkpoint.parquet").exists()
    hint = log / "_last_checkpoint"
    assert orjson.loads(hint.read_bytes())["version"] == 20
    for content in (hint.read_bytes(), b"", bytes(40), b'{"version":21}'):
        hint.write_bytes(content)
        assert on_record(EventLog(home, Policy())) == list(range(1, 24))
        hint.unlink(missing_ok=True)
        assert on_record(EventLog(home, Policy())) == list(range(1, 24))


@pytest.mark.row("EV-3")
def test_a_checkpoint_is_renamed_only_after_it_is_synced(
    disk: EventLog, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tick in range(1, 21):
        append(disk, ticks(tick))
    log, synced = home.cycles / "_delta_log", []
    replace = os.replace

    def watched(source: Path, target: Path) -> None:
        if target.name.endswith(".checkpoint.parquet"):
            synced.append(Path(source).read_bytes())
        replace(source, target)

    known: dict[int, bytes] = {}
    fsync = os.fsync

    def noted(handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").resolve()
        known[path.stat().st_ino] = path.read_bytes() if path.is_file() else b""
        fsync(handle)

    monkeypatch.setattr(os, "replace", watched)
    monkeypatch.setattr(os, "fsync", noted)
    append(disk, ticks(21))
    checkpoint = log / f"{20:020}.checkpoint.parquet"
    assert synced == [checkpoint.read_bytes()] == [known[checkpoint.stat().st_ino]]


@pytest.mark.row("EV-3")
def test_a_log_ignores_the_unfinished_checkpoint_of_a_killed_process(disk: EventLog, home: Home) -> None:
    append(disk, ticks(1))
    leftover = home.cycles / ".checkpoint-killed" / "_delta_log"
    leftover.mkdir(parents=True)
    (leftover / f"{1:020}.checkpoint.parquet").write_bytes(b"PAR1")
    (home.cycles / "_delta_log" / "_commit_killed.json.tmp").write_bytes(b'{"add":')
    (home.cycles / "_delta_log" / "_last_checkpoint.killed.tmp").write_bytes(b"{")
    (home.cycles / "part-00000-killed-c000.zstd.parquet").write_bytes(b"PAR1")
    (home.cycles.parent / ".cycles-killed" / "_delta_log").mkdir(parents=True)
    log = EventLog(home, Policy())
    for tick in range(2, 24):
        append(log, ticks(tick))
    assert on_record(EventLog(home, Policy())) == on_record(disk) == list(range(1, 24))
