"""The TypeScript client of the Model Context Protocol drives the memory tools of `bardo serve` over both transports."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.keys.owner_tokens import OwnerTokens
from bardo_pipeline.tools.catalogue import TOOLS
from tests.conftest import NOW, copy_home
from tests.support.homes.served_homes import served
from tests.support.homes.two_owners import CORAL, belongings
from tests.support.processes.node_modules import EXAMPLE, node_modules, run_node

PROGRAM = (EXAMPLE / "drive_tools.mjs").read_text()
COMMAND = (sys.executable, "-m", "bardo_pipeline.cli.entry", "serve")
OPEN = {"BARDO_MEMORY_ENABLED": "true"}
WRITTEN = {
    "InsightManaged", "EpisodesConsolidated", "StrategyStored", "ExecutionRecorded", "OutcomeRecorded",
    "ArchiveImported",
}  # fmt: skip
"""Life events of the tools that write."""


@pytest.fixture(scope="session")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed packages of the example."""
    return node_modules(tmp_path_factory.mktemp("node"))


@contextmanager
def serving(home: Path) -> Iterator[str]:
    """Run `bardo serve` on a free port until the block ends; its address."""
    process = subprocess.Popen(
        [*COMMAND, "--home", str(home), "--port", "0"],
        env={**os.environ, **OPEN, "COLUMNS": "200"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if address := re.search(r"Bardo serves (\S+)", line):
                yield address[1]
                break
        else:
            raise AssertionError(f"the server did not start: {''.join(lines)}")
    finally:
        process.terminate()
        process.communicate(timeout=60)


def assert_all_tools_answered(done: subprocess.CompletedProcess[str], home: Path, golem: str) -> None:
    """Check that the program has an answer of each tool, and that the log has the events of the tools that write."""
    assert done.returncode == 0, done.stdout + done.stderr
    answered = dict(re.findall(r"^(memory_\w+): (\d+) answered$", done.stdout, re.MULTILINE))
    assert set(answered) == set(TOOLS)
    assert re.search(r"^refused: .*memory_search.*limit", done.stdout, re.MULTILINE)
    stores = DerivationContext.open(home)
    for kind in WRITTEN:
        assert golem in stores.life(kind)["golem_id"].to_pylist(), f"no {kind} is in the log"
    stores.log.close()


def test_the_example_calls_each_tool_and_its_lock_pins_each_package_without_a_registry() -> None:
    assert set(re.findall(r'tool: "(memory_\w+)"', PROGRAM)) == set(TOOLS)
    lock = json.loads((EXAMPLE / "package-lock.json").read_text())
    root = lock["packages"].pop("")
    assert root["dependencies"] == json.loads((EXAMPLE / "package.json").read_text())["dependencies"]
    assert len(lock["packages"]) > 50
    assert [name for name, package in lock["packages"].items() if "sha512-" not in package.get("integrity", "")] == []
    assert [name for name, package in lock["packages"].items() if "resolved" in package] == []


@pytest.mark.full
@pytest.mark.row("MEM-17", "MEM-21", "X-13")
def test_the_typescript_client_drives_the_thirteen_tools_over_stdio(
    two_owners_home: Path, tmp_path: Path, modules: Path
) -> None:
    home = copy_home(two_owners_home, tmp_path / "home")
    heir = belongings(home, CORAL).heir
    server = (*COMMAND, "--mcp-stdio", "--home", str(home), "--owner", CORAL, "--golem", heir)
    done = run_node(PROGRAM, "stdio", *server, modules=modules, folder=tmp_path, environment=OPEN)
    assert_all_tools_answered(done, home, heir)


@pytest.mark.full
@pytest.mark.row("MEM-17", "MEM-21", "X-13")
def test_the_typescript_client_drives_the_thirteen_tools_over_http(
    two_owners_home: Path, tmp_path: Path, modules: Path
) -> None:
    home = copy_home(two_owners_home, tmp_path / "home")
    heir = belongings(home, CORAL).heir
    token = OwnerTokens(Home.open(home)).issue(CORAL, "secret of coral", NOW)
    with serving(home) as url:
        given = {"BARDO_TOKEN": token, "BARDO_GOLEM": heir}
        done = run_node(PROGRAM, "http", url, modules=modules, folder=tmp_path, environment=given)
    assert_all_tools_answered(done, home, heir)


@pytest.mark.full
@pytest.mark.row("MEM-21")
def test_the_example_fails_if_the_tools_are_closed(two_owners_home: Path, tmp_path: Path, modules: Path) -> None:
    home = copy_home(two_owners_home, tmp_path / "home")
    server = (*COMMAND, "--mcp-stdio", "--home", str(home), "--owner", CORAL)
    closed = {"BARDO_MEMORY_ENABLED": "false"}
    done = run_node(PROGRAM, "stdio", *server, modules=modules, folder=tmp_path, environment=closed)
    assert done.returncode == 1
    assert "the server lists these thirteen tools" in done.stderr
    assert done.stdout == ""


@pytest.mark.full
@pytest.mark.row("MEM-21", "X-13")
def test_the_typescript_program_of_the_guide_stores_and_finds_a_text(
    two_owners_home: Path, tmp_path: Path, modules: Path
) -> None:
    home = copy_home(two_owners_home, tmp_path / "home")
    page = (Path(__file__).parents[3] / "docs" / "guide" / "server.md").read_text()
    (program,) = re.findall(r"```typescript\n(.*?)```", page, re.DOTALL)
    program = program.replace("[0].content", '.map((hit) => hit.content).join("|")')
    with served(home, CORAL) as server:
        heir, token = belongings(home, CORAL).heir, server.tokens[CORAL]
        given = {"BARDO_URL": server.url, "BARDO_TOKEN": token, "BARDO_GOLEM": heir}
        done = run_node(program, modules=modules, folder=tmp_path, environment=given)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{len(TOOLS)} ")
    assert "Swaps after 22:00 UTC cost half the gas." in done.stdout
