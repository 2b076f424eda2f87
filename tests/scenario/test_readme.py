"""The README does what it says: its commands run, its snippet runs, its paths exist."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.warning_waivers import bundle_failures
from bardo_pipeline.events.life.events import Born, life_event
from tests.conftest import NOW, copy_home
from tests.support.bardo_command import bardo

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = [
    line[2:]
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
]
LONG = ("ui", "run", "eval")


def test_the_readme_shows_the_commands_it_promises() -> None:
    assert "make demo" in COMMANDS
    assert "make test" in COMMANDS
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {c.split()[1] for c in COMMANDS if c.startswith("make ")} <= targets


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("bardo ") and c.split()[1] not in LONG])
def test_a_command_of_the_readme_runs(command: str, asked_home: Path, half_lived: Path, tmp_path: Path) -> None:
    words = shlex.split(command)[1:]
    if words[0] == "grimoire":  # its owner speaks of one that lives
        asked_home = copy_home(half_lived, tmp_path / "home")
        words[2] = DerivationContext.open(asked_home).life("GolemBorn")["golem_id"][0].as_py()
        known = bardo("grimoire", "list", words[2], "--format", "json", home=asked_home)
        words[3:4] = words[3:4] if words[1] == "list" else [json.loads(known)["entries"][0]["entry_id"][:9]]
    if words[0] in (
        "similar",
        "search",
        "ask",
        "drift",
        "reembed",
    ):  # they write an index, vectors, or what is in force
        asked_home = copy_home(asked_home, tmp_path / "home")
    if words[0] in ("bundle", "golem"):
        asked_home = copy_home(asked_home, tmp_path / "home")
        words = _with_a_bundle(words, asked_home, tmp_path)
    if words[0] == "bloodstain":
        words[1] = DerivationContext.open(asked_home).life("DeathDeclared")["golem_id"][0].as_py()
    if words[0] == "ask":
        words[1] = DerivationContext.open(asked_home).life("GolemBorn")["golem_id"][0].as_py()
    if words[0] == "lineage":
        ids = bardo("sql", "select entry_id from fct_knowledge order by 1 limit 1", "--format", "csv", home=asked_home)
        words[1] = ids.splitlines()[1][:10]
    assert bardo(*words, home=asked_home).strip()


def _with_a_bundle(words: list[str], home: Path, folder: Path) -> list[str]:
    """The same words about golems, files and keys that are there."""
    dead = DerivationContext.open(home).life("BundlePublished")["golem_id"].to_pylist()
    golems = iter(dead)
    words = [next(golems) if re.fullmatch(r"g-[0-9a-f]{8}", w) else w for w in words]
    if words[1] == "give":  # to one that lives
        stores = DerivationContext.open(home)
        birth = stores.life("GolemBorn").to_pylist()[0]
        said = birth["born"] | {"generation": 0, "predecessor_id": None, "bundle_hash": None}
        stores.log.record([life_event("g-new", birth["observed_at"], Born.model_validate(said))], NOW)
        words[4] = "g-new"
    if words[1] == "waive":
        told = bundle_failures(DerivationContext.open(home))[0]
        words[2:4] = [told.golem_id, told.expectation]
    words = [str(folder / w) if w.endswith(".tar.gz") else w for w in words]
    if words[1] == "import":
        bardo("bundle", "export", dead[0], words[2], home=home)
        words[3:] = ["--unsigned"]
    return words


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("bardo ") and c.split()[1] in LONG])
def test_an_option_of_a_long_command_exists(command: str, tmp_path: Path) -> None:
    words = shlex.split(command)[1:]
    named = words[:2] if words[0] == "eval" else words[:1]
    offered = bardo(*named, "--help", home=tmp_path)
    assert all(w in offered for w in words if w.startswith("--"))


def test_options_and_paths_named_in_prose_exist(tmp_path: Path) -> None:
    offered = " ".join(
        bardo(*c.split(), "--help", home=tmp_path)
        for c in (
            "run",
            "rebuild",
            "sql",
            "lineage",
            "status",
            "verify",
            "whatif",
            "adopt",
            "eval memory",
            "eval lineage",
            "library equip",
            "bundle checks",
            "golem observe",
            "golem notices",
            "golem successor",
        )
    )
    named = set(re.findall(r"`(--[a-z-]+)", README))
    assert named
    assert named <= set(re.findall(r"--[a-z-]+", offered))
    for path in re.findall(r"`((?:dbt|benchmarks)/[\w/.]+)`", README):
        assert (ROOT / path).exists() or path in ("benchmarks/results.json", "benchmarks/cost.png")


def test_the_snippet_runs(tmp_path: Path) -> None:
    snippet = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert snippet is not None
    done = subprocess.run([sys.executable, "-c", snippet[1]], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".bardo" / "home.json").exists()
