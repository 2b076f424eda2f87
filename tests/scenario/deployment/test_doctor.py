"""`bardo init` makes a home, and `bardo doctor` finds each planted fault of a home; the cures that it prints help."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
from collections import namedtuple
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from bardo_pipeline.cli.operations import doctor_command
from bardo_pipeline.cli.operations.doctor_command import Finding, findings_of
from bardo_pipeline.clock import utc_now
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.operations.dagster_settings import prepare_dagster_home
from tests.conftest import copy_home
from tests.support.processes.bardo_command import bardo

pytestmark = pytest.mark.row("P-4")


@pytest.fixture(autouse=True)
def free_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at ports that no other test or program of this machine uses."""
    monkeypatch.setattr(doctor_command, "PORTS", ((_free_port(), "bardo serve --port 0"),))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def new_home(tmp_path: Path) -> Path:
    root = tmp_path / "home"
    bardo("init", str(root), home=tmp_path / "other")
    return root


@pytest.fixture
def lived(brief_home: Path, tmp_path: Path) -> Path:
    return copy_home(brief_home, tmp_path / "home")


def found(root: Path, check: str, at: datetime | None = None) -> Finding:
    """Return the finding of a check, the worst one if it has several."""
    findings = [f for f in findings_of(root, utc_now if at is None else lambda: at) if f.check == check]
    return max(findings, key=lambda finding: ("ok", "warning", "failed").index(finding.state))


def test_a_new_home_is_explained_and_healthy(new_home: Path) -> None:
    assert "0 born" in bardo("status", home=new_home)
    assert "0 keys, all valid" in bardo("config", "check", home=new_home)
    states = {row["check"]: row["state"] for row in json.loads(bardo("doctor", "--json", home=new_home))}
    assert {"home", "disk", "clock", "file system", "versions", "keys", "server", "dagster", "spool"} <= set(states)
    assert "failed" not in states.values()


def test_an_existing_home_or_backup_is_not_initialized_again(new_home: Path, tmp_path: Path) -> None:
    bardo("backup", str(tmp_path / "backup"), home=new_home)
    for folder, kind in ((new_home, "home"), (tmp_path / "backup", "backup")):
        refused = bardo("init", str(folder), home=new_home, expect=2)
        assert f"is a {kind} already: `bardo status --home {folder}` shows it" in refused
        bardo("status", "--home", str(folder), home=tmp_path / "other")


def test_init_keeps_a_configuration_that_is_there(tmp_path: Path) -> None:
    root = tmp_path / "home"
    root.mkdir()
    (root / "bardo.toml").write_text("[death]\nepisodes = 3\n")
    bardo("init", str(root), home=tmp_path / "other")
    assert "death.episodes\t64\t3" in bardo("config", "check", home=root)


def test_a_missing_home_fails_and_the_cure_makes_one(tmp_path: Path) -> None:
    root = tmp_path / "none"
    finding = found(root, "home")
    assert finding.state == "failed"
    assert finding.cure == f"`bardo init {root}` makes one"
    assert "failed" in bardo("doctor", home=root, expect=1)
    bardo("init", str(root), home=tmp_path)
    assert found(root, "home").state == "ok"


@pytest.mark.parametrize(("free", "state"), [(10**12, "ok"), (5 * 10**8, "warning"), (10**7, "failed")])
def test_a_full_disk_is_found(free: int, state: str, new_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(10**12, 0, free))
    assert found(new_home, "disk").state == state
    assert Policy().growth.free_bytes_min // 10 > 10**7


def test_a_clock_behind_the_newest_event_is_found(lived: Path) -> None:
    assert found(lived, "clock").state == "ok"
    behind = found(lived, "clock", datetime.fromisoformat("2026-01-01T00:00:00+00:00") - timedelta(days=3_000))
    assert behind.state == "failed"
    assert "ahead" in behind.fact
    instants = iter([utc_now(), utc_now() - timedelta(seconds=1), utc_now()])
    (backwards,) = [f for f in findings_of(lived, lambda: next(instants)) if f.check == "clock"]
    assert backwards.fact == "the clock runs backwards"


def test_a_file_system_without_writes_is_found() -> None:
    assert doctor_command.file_system(Path("/proc")).state == "failed"


def test_a_file_system_that_ignores_modes_is_found(new_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(new_home, "file system").state == "ok"
    plain = doctor_command.replace_file

    def readable(path: Path, content: bytes) -> None:
        plain(path, content)
        path.chmod(0o777)

    monkeypatch.setattr(doctor_command, "replace_file", readable)
    assert "mode 777" in found(new_home, "file system").fact
    assert not list(new_home.glob(".doctor-*"))


@pytest.mark.full
def test_an_open_key_file_is_found_and_the_cure_closes_it(lived: Path) -> None:
    bardo("keys", "owner", "owner-1", home=lived)
    (file,) = (lived / "keys").glob("owner-*.key")
    file.chmod(0o644)
    finding = found(lived, "keys")
    assert finding.state == "failed"
    subprocess.run(finding.cure, shell=True, check=True)
    assert found(lived, "keys").state != "failed"
    file.write_bytes(bytes(32))
    assert "does not hold key" in found(lived, "keys").fact


@pytest.mark.full
def test_a_lost_seal_key_is_found(lived: Path) -> None:
    golem = DerivationContext.open(lived).life("GolemBorn")["golem_id"][0].as_py()
    bardo("seal", "make", golem, home=lived)
    assert found(lived, "keys").state != "failed"
    (file,) = set((lived / "keys").glob("*.key")) - set((lived / "keys").glob("owner-*.key"))
    file.unlink()
    assert found(lived, "keys").state == "failed"


def test_owners_without_a_key_are_named_and_the_cure_gives_them_one(lived: Path) -> None:
    while (finding := found(lived, "keys")).state == "warning":
        words = finding.cure.split("`")[1].split()
        assert words[:3] == ["bardo", "keys", "owner"]
        bardo(*words[1:], home=lived)
    assert finding.state == "ok"
    assert "owners sign" in finding.fact


def test_a_taken_port_is_found_with_its_program(new_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(doctor_command, "PORTS", ((port, "bardo serve --port 0"),))
        finding = found(new_home, f"port {port}")
    assert finding.state == "warning"
    assert f"process {os.getpid()}" in finding.fact
    assert found(new_home, f"port {port}").state == "ok"


def test_a_server_that_does_not_answer_is_found(new_home: Path) -> None:
    assert found(new_home, "server").fact == "none runs"
    (new_home / "locks").mkdir(exist_ok=True)
    facts = {"url": f"http://127.0.0.1:{_free_port()}", "token": "t", "pid": 1, "instance": "i"}
    (new_home / "server.json").write_text(json.dumps(facts))
    with (new_home / "locks" / "server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        finding = found(new_home, "server")
    assert finding.state == "failed"
    assert "stop process 1, then start it again by `bardo serve`" in finding.cure


def test_settings_of_dagster_without_monitoring_are_found_and_the_cure_helps(new_home: Path) -> None:
    file = new_home / "dagster" / "dagster.yaml"
    for wrong in ("telemetry: {enabled: false}\n", "- a list\n", "a: [\n"):
        file.write_text(wrong)
        finding = found(new_home, "dagster")
        assert finding.state == "warning"
        assert finding.cure.startswith(f"delete {file}")
    file.unlink()
    assert found(new_home, "dagster").state == "ok"
    prepare_dagster_home(Home.open(new_home))
    assert "has run monitoring, retries and pools" in found(new_home, "dagster").fact


def test_a_file_in_the_spool_that_is_never_taken_is_found(new_home: Path) -> None:
    (new_home / "spool" / "records.json").write_text("{}\n")
    finding = found(new_home, "spool")
    assert finding.state == "warning"
    assert "records.json" in finding.fact
    (new_home / "spool" / "records.json").rename(new_home / "spool" / "records.jsonl")
    assert found(new_home, "spool").state == "ok"


def test_versions_other_than_the_locked_ones_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = doctor_command.version_of

    def versions_with(name: str, version: str) -> Iterator[Finding]:
        monkeypatch.setattr(doctor_command, "version_of", lambda asked: version if asked == name else plain(asked))
        return doctor_command.versions()

    (unfit,) = versions_with("duckdb", "0.9")
    assert unfit.state == "failed"
    assert "duckdb 0.9, needed" in unfit.fact
    (other,) = versions_with("duckdb", "2.9")
    assert other.state == "warning"
    assert "duckdb 2.9, locked 2." in other.fact
