"""Commands that a running server answers print the same as without one, and the others are left to the command."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bardo_pipeline.cli.app import command
from bardo_pipeline.cli.entry import _ANSWERED, answered
from bardo_pipeline.cli.output.rendering import SHOWN
from bardo_pipeline.client import Client
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.record_overrides import correct, grimoire_of, pin
from bardo_pipeline.derivation.legacy.death_queries import commit_credit
from bardo_pipeline.derivation.library.library_queries import refresh_library
from bardo_pipeline.derivation.memory.derive_episodes import derive_episodes, refresh_index
from bardo_pipeline.derivation.strikes_and_reorgs import strike
from bardo_pipeline.errors import ServerError
from bardo_pipeline.server.reading import REPORTS
from tests.conftest import NOW
from tests.support.homes.dreaming_homes import home_of, long_lives
from tests.support.homes.served_homes import Served, served
from tests.support.homes.server_routes import compare as compare_answer
from tests.support.homes.story_of_g9b2d import OWNER, SECOND, THIRD, story_home
from tests.support.processes.bardo_command import run

PINNED, NOTED = 0, 1
"""Ranks of the entries of the living golem that its owner pins and corrects."""

CASES = {
    "ask": f"{THIRD} 'what does gas usually cost?'; {THIRD} 'should I re-centre?' --k 2 --clade --json",
    "bloodstain": f"{SECOND}; {SECOND} --public; {SECOND} --format json; {SECOND} --public --format json",
    "bundle checks": f"; {SECOND}; --format json",
    "bundle show": f"; {SECOND}; --format json; {SECOND} --format json",
    "clade beliefs": "; --json",
    "clade notes": "; --json",
    "clade pheromones": "; --json",
    "dreams": f"; {SECOND}; --limit 2; --json",
    "golem death": SECOND,
    "golem due": "--dry-run; --dry-run --json",
    "golem notices": "",
    "golem show": f"{SECOND}; {SECOND} --testament; {SECOND} --json; {THIRD}",
    "golem successions": "; --json",
    "graveyard": f"; --limit 1 --lineage {SECOND}; --json",
    "grimoire list": f"{SECOND}; {THIRD} --status all --limit 4 --confidence-min 0.3; {THIRD} --format json --pinned",
    "grimoire show": f"{SECOND} ENTRY; {THIRD} NOTED; {THIRD} NOTED --format json",
    "library list": "; --channel death --kind insight --text gas --limit 2; --format json",
    "library show": f"ENTRY; {SECOND}; ENTRY --format json; {SECOND} --format json",
    "lineage": f"ENTRY; ENTRY --golem {SECOND} --format json",
    "scars": f"; {SECOND} --failures; --format json",
    "search": "gas; gas --json --limit 3",
    "similar": f"'gas spiked'; 'gas spiked' --golem {SECOND} --limit 2; 'gas spiked' --format json",
    "status": "; --format json",
}
"""Command -> its words after it, in every format; the first tier runs the first. ENTRY and NOTED stand for entries."""

_LIGHT = """
import sys
from bardo_pipeline.cli.entry import answered
for line in {lines!r}:
    assert answered(line, {{"BARDO_HOME": {home!r}}}), line
    sys.stdout.flush()
    print("\\0", end="", flush=True)
heavy = {{"pyarrow", "duckdb", "deltalake", "numpy", "pydantic", "dagster", "typer", "bardo_pipeline.derivation"}}
assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with deaths, dreams, scars, bundles, a library, orders and credit, of which everything is derived."""
    stores = story_home(tmp_path_factory.mktemp("answered") / "home")
    entries = grimoire_of(stores, THIRD).entries["entry_id"].to_pylist()
    pin(stores, THIRD, entries[PINNED], "it is sure", now=NOW)
    correct(stores, THIRD, entries[NOTED], "seen by hand", now=NOW, note="look again")
    commit_credit(stores, OWNER, 9_000_000, "for heirs", now=NOW)
    refresh_library(stores)
    refresh_index(stores)
    stores.log.close()
    return stores.home.root


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Served]:
    with served(home) as running:
        yield running


@pytest.fixture(scope="module")
def named(home: Path) -> dict[str, str]:
    stores = DerivationContext.open(home)
    (entry, *_), (_, noted, *_) = (grimoire_of(stores, g).entries["entry_id"].to_pylist() for g in (SECOND, THIRD))
    stores.log.close()
    return {"ENTRY": entry[:12], "NOTED": noted[:12]}


def test_every_report_and_answered_command_has_a_case() -> None:
    assert CASES.keys() == _ANSWERED.keys(), "a new command needs a case here"
    assert {name.replace(" ", "-") for name in CASES} >= REPORTS.keys()
    assert SHOWN.keys() == CASES.keys() - {"search"}


def test_each_option_of_an_answered_command_is_known_or_left_to_the_command() -> None:
    left = {"--check", "--embedder", "--home", "--owner", "--suite", "--post", "--json", "--format", "--help"}
    for name, words in _ANSWERED.items():
        door = command()  # type: ignore[var-annotated]
        for word in name.split():
            door = door.commands[word]  # type: ignore[attr-defined]
        options = {option for parameter in door.params for option in parameter.opts if option.startswith("--")}
        known = {*words.options, *words.switches, *words.flags, *words.needed}
        assert options - left == known, name
        assert ("--json" in options) == (words.has_json and not words.formats), name


@pytest.mark.row("X-13")
@pytest.mark.parametrize("name", CASES)
def test_a_command_uses_the_running_server_and_prints_the_same(
    server: Served, home: Path, named: dict[str, str], name: str
) -> None:
    compare(home, named, name, CASES[name].partition(";")[0])


@pytest.mark.full
@pytest.mark.row("X-13")
@pytest.mark.parametrize("name", CASES)
def test_every_format_of_a_command_is_the_same_with_a_server(
    server: Served, home: Path, named: dict[str, str], name: str
) -> None:
    compare(home, named, name, CASES[name])


@pytest.mark.full
@pytest.mark.row("X-13")
@pytest.mark.parametrize("name", CASES)
def test_a_command_prints_the_same_on_a_terminal(server: Served, home: Path, named: dict[str, str], name: str) -> None:
    compare(home, named, name, CASES[name], on_terminal=True)


def compare(home: Path, named: dict[str, str], name: str, cases: str, *, on_terminal: bool = False) -> None:
    """Check that a process without heavy imports prints what the command prints for each of these words."""
    environ = {**os.environ, "COLUMNS": "160", "BARDO_HOME": str(home)}
    if on_terminal:
        environ |= {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    filled = re.sub("ENTRY|NOTED", lambda found: named[found[0]], cases)
    lines = [[*name.split(), *shlex.split(words)] for words in filled.split(";")]
    lines = [line for line in lines if not (on_terminal and {"json", "--json"} & {*line})]
    code = _LIGHT.format(lines=lines, home=str(home))
    light = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, timeout=120)
    assert light.returncode == 0, light.stderr.decode()
    *outputs, rest = light.stdout.decode().split("\0")
    assert rest == ""
    for line, output in zip(lines, outputs, strict=True):
        if on_terminal:  # a forked process has the colours of its parent
            fresh = [sys.executable, "-m", "bardo_pipeline.cli.app", *line]
            alone = subprocess.run(fresh, env=environ, capture_output=True, text=True, timeout=120)
        else:
            alone = run(line, environ)
        assert alone.returncode == 0, alone.stderr
        assert settled(output) == settled(alone.stdout), line
        assert output, line


def settled(output: str) -> str:
    """Return an output without what `bardo status` measures by the clock."""
    kept = [line for line in output.splitlines(keepends=True) if not re.match(r"(\x1b\S*?m)?(taken|log) ", line)]
    return re.sub(r'[\d,]+ s\b|\d+\.\d{2,}|"(at|value|\w*seconds)":("[^"]*"|[\d.]+)', "MEASURED", "".join(kept))


@pytest.mark.row("X-13")
@pytest.mark.parametrize(
    "words",
    ["ask g-nobody gas", f"ask {THIRD}", f"ask {THIRD} gas --embedder minilm", f"ask {THIRD} gas --at yesterday",
     "ask --help", "search gas --limit 0", "lineage none", "status --check", "status --format xml",
     "golem show g-nobody", f"golem show {THIRD} --no-testament", "golem due", "golem due --json", "golem", "",
     "dreams g-nobody", "dreams --limit 0", f"bloodstain {THIRD}", f"golem death {THIRD}", "golem notices --post",
     f"grimoire list {SECOND} --status none", f"grimoire list {SECOND} --confidence-min nan",
     f"grimoire show {SECOND} 00ff", f"grimoire pin {SECOND} 00ff", "bundle show no-bundle",
     "bundle checks --suite", "bundle checks --check", "library list --channel none", "library show none",
     "similar ''", "similar gas --golem g-nobody", "status --owner ''", "graveyard --owner nobody"],
)  # fmt: skip
def test_what_the_server_cannot_answer_is_left_to_the_command(
    server: Served, home: Path, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not answered(shlex.split(words), {"BARDO_HOME": str(home)})
    assert capsys.readouterr().out == ""


def test_a_path_of_a_bundle_is_left_to_the_command(
    server: Served, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert answered(["bundle", "show", SECOND], {"BARDO_HOME": str(home)})
    (tmp_path / SECOND).mkdir()
    assert not answered(["bundle", "show", SECOND], {"BARDO_HOME": str(home)})


@pytest.mark.full
@pytest.mark.row("X-13")
def test_a_report_never_derives_and_leaves_that_to_the_command(tmp_path: Path) -> None:
    home_of(long_lives(120), tmp_path / "home").log.close()
    stores = DerivationContext.open(tmp_path / "home")
    (golem,), root = stores.golem_ids(), stores.home.root
    grimoire, environ = stores.projections.replaceable("grimoire"), {"BARDO_HOME": str(root)}
    doors = [["grimoire", "list", golem], ["library", "list"], ["similar", "gas"]]
    names: list[tuple[str, dict[str, str]]] = [
        ("grimoire-list", {"golem": golem}), ("library-list", {}), ("similar", {"text": "gas"}),
    ]  # fmt: skip
    with served(root) as running, Client(running.url, running.tokens[None]) as client:
        for (name, parameters), door in zip(names, doors, strict=True):
            derive_episodes(stores, now=NOW)
            with pytest.raises(ServerError) as refused:
                client.report(name, **parameters)
            assert (refused.value.status, refused.value.error) == (409, "DerivationDueError")
            assert (refused.value.cure or "").startswith("`bardo derive`")
            assert not answered(door, environ)
            assert grimoire.done(golem) == (None if name == "grimoire-list" else 2), "the report derived"
            assert run(door, {**os.environ, **environ}).returncode == 0
            assert answered(door, environ)
            assert list(client.report(name, **parameters))
        struck = stores.projections.growing("episodes").read(["tick"])["tick"][0].as_py()
        strike(stores, golem, struck, "it is wrong", now=NOW)
        assert not answered(doors[0], environ), "a retraction waits for the curator"
        assert answered(doors[2], environ)
        assert derive_episodes(stores, now=NOW), "the struck tick has an episode"
        assert not answered(doors[2], environ), "the index holds the retracted episode"
    stores.log.close()


@pytest.mark.row("X-13")
def test_each_row_of_a_report_has_the_stated_fields_and_no_other(server: Served, named: dict[str, str]) -> None:
    stated: dict[str, Any] = httpx.get(f"{server.url}/openapi.json", trust_env=False, timeout=60).json()
    asked = [
        ("bloodstain", f"golem={SECOND}"), ("bloodstain", f"golem={SECOND}&public=true"), ("dreams", ""),
        ("bundle-show", f"target={SECOND}"), ("golem-notices", ""), ("graveyard", ""), ("similar", "text=gas"),
        ("grimoire-list", f"golem={THIRD}"), ("grimoire-show", f"golem={THIRD}&entry={named['NOTED']}"),
        ("library-list", ""), ("library-show", f"entry={SECOND}"), ("library-show", f"entry={named['ENTRY']}"),
        ("scars", "failures=true"),
    ]  # fmt: skip
    with httpx.Client(base_url=server.url, headers=server.headers(None), trust_env=False, timeout=60) as client:
        for name, query in asked:
            answer = client.get(f"/v1/reports/{name}?{query}")
            compare_answer(answer, stated["paths"][f"/v1/reports/{name}"]["get"], stated)
            assert [] not in (answer.json().get(field) for field in ("rows", "dreams", "entries", "scars")), name


def test_a_reader_that_ends_early_gets_no_traceback(server: Served, home: Path) -> None:
    command = [Path(sys.executable).with_name("bardo"), "grimoire", "list", SECOND, "--home", home]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ended:
        assert ended.stdout is not None
        assert ended.stderr is not None
        ended.stdout.close()
        assert (ended.stderr.read(), ended.wait(60)) == ("", 1)


def test_a_home_without_a_server_is_left_to_the_command(server: Served, home: Path) -> None:
    assert answered(["golem", "due", "--dry-run"], {"BARDO_HOME": str(home)})
    assert not answered(["golem", "due", "--dry-run"], {"BARDO_HOME": str(home.parent)})
