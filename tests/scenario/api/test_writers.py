"""Runtimes in other languages: the spool accepts the examples' files, and docs/writing.md describes the real
behaviour.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bardo_pipeline import errors
from bardo_pipeline.events.life.events import KeyRegistered, life_event
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA, to_models
from bardo_pipeline.events.record.model import DecisionCycleRecord
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.verification.verify import verify
from tests.conftest import NOW
from tests.support.homes.spool_homes import KEY, PUBLIC, Place, line_of, opened
from tests.support.processes.bardo_command import bardo
from tests.support.records.log_queries import died

pytestmark = pytest.mark.row("EV-4")
ROOT = Path(__file__).resolve().parents[3]
DOC = (ROOT / "docs" / "writing.md").read_text()
EXAMPLES = ROOT / "examples"
CRATES = [Path(os.environ.get("BARDO_CRATES", "/nowhere")), Path("/usr/share/cargo/registry")]
TICKS = 230


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return opened(tmp_path / "home", Policy())


def built(package: str, target: Path, *options: str) -> Path:
    """Compile one of the Rust examples, without a network; skips where that cannot be done."""
    if shutil.which("cargo") is None:
        pytest.skip("there is no cargo on PATH (apt-get install cargo)")
    done = subprocess.run(
        ["cargo", "build", "--offline", *options],
        cwd=shutil.copytree(EXAMPLES / package, target / package),
        env=os.environ | {"CARGO_TARGET_DIR": str(target / "made")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (name,) = re.findall(r'^name = "(.*)"', (EXAMPLES / package / "Cargo.toml").read_text(), re.MULTILINE)
    return target / "made" / "debug" / name


def lived(place: Place, command: list[str | Path]) -> None:
    """Check one life written by a writer: the log has every record in order, and verifies clean."""
    bardo("golem", "birth", "g-1", "--owner", "me", "--at", "2026-01-01", home=place.home.root)
    done = subprocess.run([*command, place.home.spool, "g-1", str(TICKS)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    taken = place.take()
    assert [file.quarantined for file in taken] == [0, 0, 0], place.refused()
    assert [file.file for file in taken] == [
        "g-1-00000100.jsonl",
        "g-1-00000200.jsonl",
        "g-1-00000230.jsonl",
    ]
    assert place.ticks("g-1") == list(range(1, TICKS + 1))
    assert place.log.life().column("kind").to_pylist() == ["GolemBorn"]
    models = to_models(place.log.read_cycles(RECORD_SCHEMA.names), DecisionCycleRecord)
    assert len({model.observation.price for model in models}) == TICKS
    assert verify(place.home).clean


def test_the_python_example_writes_a_life_without_dependencies(place: Place) -> None:
    writer = EXAMPLES / "python" / "write_spool.py"
    lived(place, [sys.executable, "-I", "-S", writer])  # no site-packages


def test_the_rust_example_writes_a_life_without_dependencies(place: Place, tmp_path: Path) -> None:
    lived(place, [built("rust", tmp_path)])


@pytest.mark.row("X-9")
def test_the_rust_signer_makes_signatures_that_the_spool_accepts(place: Place, tmp_path: Path) -> None:
    folder = next((path for path in CRATES if path.is_dir() and list(path.glob("ed25519-dalek-2*"))), None)
    if folder is None:
        pytest.skip(
            "no crates: apt-get install librust-ed25519-dalek-dev librust-sha2-dev (or name them in BARDO_CRATES)"
        )
    vendored = ['source.crates-io.replace-with="here"', f'source.here.directory="{folder}"']
    signer = built("rust-sign", tmp_path, *(word for setting in vendored for word in ("--config", setting)))
    place.log.record([life_event("g-1", NOW, KeyRegistered(key_id="key-1", public_key=PUBLIC, tick_from=1))], NOW)
    (tmp_path / "key").write_bytes(KEY.private_bytes_raw())
    drafts = tmp_path / "drafts"
    drafts.mkdir()
    writer = EXAMPLES / "python" / "write_spool.py"
    subprocess.run([sys.executable, writer, drafts, "g-1", "120"], check=True)
    for draft in sorted(drafts.iterdir()):
        done = subprocess.run([signer, tmp_path / "key", "key-1", "g-1", draft], capture_output=True, check=True)
        (place.home.spool / f"{draft.name}.sig").write_bytes(done.stdout)
        draft.rename(place.home.spool / draft.name)
    assert [file.written for file in place.take()] == [100, 20], place.refused()
    death = drafts / "g-1.life.jsonl"
    death.write_bytes(line_of(died(120, "g-1")) + b"\n")
    done = subprocess.run([signer, tmp_path / "key", "key-1", "g-1", death], capture_output=True, check=True)
    (place.home.spool / f"{death.name}.sig").write_bytes(done.stdout)
    death.rename(place.home.spool / death.name)
    assert [file.written for file in place.take()] == [1], place.refused()
    assert verify(place.home).clean


class TestDocument:
    def test_commands_of_the_document_run(self, tmp_path: Path) -> None:
        home = tmp_path / ".bardo"
        commands = re.findall(r"^\$ (.*?)(?: +#.*)?$", DOC, re.MULTILINE)
        ran = 0
        for command in commands:
            words = shlex.split(command.replace(".bardo/spool", str(home / "spool")))
            if words[0] == "bardo":
                bardo(*words[1:], home=home)
            elif words[0] == "python3":
                subprocess.run([sys.executable, *words[1:]], cwd=ROOT, check=True)
            else:
                assert words[0] in ("cargo", "sign-spool"), command
                continue
            ran += 1
        assert ran > 6
        with EventLog(Home.open(home)) as log:
            assert len(log.read_cycles(["tick"])) == 250

    def test_paths_commands_and_errors_exist(self, tmp_path: Path) -> None:
        for path in re.findall(r"`((?:bardo_pipeline|examples)/[\w/.-]*)`", DOC):
            assert (ROOT / path).exists(), path
        for name in re.findall(r"^\| `(\w+)` \|", DOC, re.MULTILINE):
            assert issubclass(getattr(errors, name), errors.BardoError)
        for words in {tuple(result.split()) for result in re.findall(r"`bardo ([a-z-]+(?: [a-z]+)?)", DOC)}:
            bardo(*words, "--help", home=tmp_path)

    def test_figures_of_the_document_equal_the_policy(self) -> None:
        writer = Policy().writer
        assert f"at most {writer.record_bytes_max // 2**20} MiB" in DOC
        assert f"blocks of {writer.spool_block_bytes // 2**20} MiB" in DOC
