"""The README and the guide do what they show: commands and snippets run, outputs have the shown form, paths exist.

Every shown output is compared line by line with a home of `bardo demo`: that of BARDO_DEMO_HOME, else one made here.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import bardo_pipeline
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.death_queries import owners_of
from bardo_pipeline.derivation.legacy.warning_waivers import bundle_failures
from bardo_pipeline.events.life.events import Born, life_event
from tests.conftest import NOW, copy_home
from tests.support.processes.bardo_command import bardo, on_terminal, unstyled

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
TEXT = "\n".join(page.read_text() for page in PAGES)
PAGE_COLUMNS = 100
"""Width of the terminal whose output the pages show."""

LONG = ("ui", "run", "live", "steer", "eval", "serve", "relay", "clade")
WRITERS = ("derive", "similar", "search", "ask", "drift", "bundle", "golem", "keys")
"""Commands that write an index, vectors, tokens or events: they run on one copy of the home, shared by all of them."""


@dataclass(frozen=True)
class Shown:
    """A command as a page shows it, with the output below it (without blank lines)."""

    page: str
    command: str
    output: tuple[str, ...]

    @property
    def headers(self) -> list[list[str]]:
        """The column names of the shown tables: the words above a line of dashes."""
        return [above.split() for above, line in zip(self.output, self.output[1:], strict=False) if _is_rule(line)]


def _is_rule(line: str) -> bool:
    return bool(line.strip()) and set(line.strip()) == {"─"}


def _shown() -> Iterator[Shown]:
    for page in PAGES:
        for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL):
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, *output = (line.rstrip() for line in part.splitlines())
                yield Shown(page.name, command, tuple(line for line in output if line.strip()))


SHOWN = list(_shown())
BARDO = list({shown.command: shown for shown in reversed(SHOWN) if shown.command.startswith("bardo ")}.values())[::-1]
QUICK = [shown for shown in BARDO if shown.command.split()[1] not in LONG]


def test_the_commands_on_the_pages_exist() -> None:
    commands = {shown.command for shown in SHOWN}
    assert {"make demo", "make test", "bardo ui"} <= commands
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {c.split()[1] for c in commands if c.startswith("make ")} <= targets
    assert set(re.findall(r"`make ([a-z-]+)`", TEXT)) <= targets
    assert all(c.split()[0] in ("bardo", "make", "export", "taskset") for c in commands)


@pytest.fixture(scope="module")
def written_home(asked_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For commands that write. It has no marts."""
    return copy_home(asked_home, tmp_path_factory.mktemp("written") / "home")


@pytest.fixture(scope="module")
def living_home(half_lived: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_home(half_lived, tmp_path_factory.mktemp("living") / "home")


def is_first(shown: Shown) -> bool:
    """Return whether the first tier runs the command: it stands in the README and needs neither marts nor a rebuild."""
    return shown.page == "README.md" and shown.command.split()[1] not in ("sql", "rebuild")


@pytest.mark.parametrize("shown", [pytest.param(s, id=s.command) for s in QUICK if is_first(s)])
def test_a_quick_command_of_the_readme_runs_and_prints_the_shown_tables(
    shown: Shown, asked_home: Path, written_home: Path, living_home: Path, tmp_path: Path
) -> None:
    _run_shown(shown, asked_home, written_home, living_home, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("shown", [pytest.param(s, id=s.command) for s in QUICK if not is_first(s)])
def test_a_shown_command_runs_and_prints_the_shown_tables(
    shown: Shown, marts_home: Path, written_home: Path, living_home: Path, tmp_path: Path
) -> None:
    _run_shown(shown, marts_home, written_home, living_home, tmp_path)


def _run_shown(shown: Shown, asked_home: Path, written_home: Path, living_home: Path, tmp_path: Path) -> None:
    words = [word.replace("/srv/", f"{tmp_path}/") for word in shlex.split(shown.command)[1:]]
    if "--home" in words:  # the page's home; the test has its own
        del words[words.index("--home") : words.index("--home") + 2]
    home = written_home if words[0] in WRITERS else asked_home
    if words[0] == "grimoire":  # owners override entries of living golems only
        home = living_home
        words[2] = DerivationContext.open(home).life("GolemBorn")["golem_id"][0].as_py()
        known = bardo("grimoire", "list", words[2], "--format", "json", home=home)
        words[3:4] = words[3:4] if words[1] == "list" else [json.loads(known)["entries"][0]["entry_id"][:9]]
    if words[0] == "reembed":  # it changes the active model
        home = copy_home(asked_home, tmp_path / "home")
    if words[0] in ("bundle", "golem"):
        words = _with_a_bundle(words, home, tmp_path)
    if words[0] in ("bloodstain", "ask"):
        kind = "DeathDeclared" if words[0] == "bloodstain" else "GolemBorn"
        words[1] = DerivationContext.open(home).life(kind)["golem_id"][0].as_py()
    if words[0] == "lineage":
        words[1] = min(DerivationContext.open(home).projections.read("grimoire")["entry_id"].to_pylist())[:10]
    printed = bardo(*words, home=home)
    assert printed.strip()
    lines = [line.split() for line in printed.splitlines()]
    assert all(header in lines for header in shown.headers)


def _with_a_bundle(words: list[str], home: Path, folder: Path) -> list[str]:
    """Replace golems, files and keys of a command by ones of this home."""
    dead = DerivationContext.open(home).life("BundlePublished")["golem_id"].to_pylist()
    golems = iter(dead)
    words = [next(golems) if re.fullmatch(r"g-[0-9a-f]{8}", w) else w for w in words]
    if words[1] == "give":  # to a living golem
        context = DerivationContext.open(home)
        birth = context.life("GolemBorn", [words[2]]).to_pylist()[0]
        founder = birth["born"] | {"generation": 0, "predecessor_id": None, "bundle_hash": None}
        context.log.record([life_event("g-new", birth["observed_at"], Born.model_validate(founder))], NOW)
        words[4] = "g-new"
    if words[1] == "consent":
        owners = owners_of(DerivationContext.open(home))
        words[2] = next(golem for golem in dead if owners[golem] == "owner-1")
    if words[1] == "waive":
        warning = bundle_failures(DerivationContext.open(home))[0]
        words[2:4] = [warning.golem_id, warning.expectation]
    words = [str(folder / w) if w.endswith(".tar.gz") else w for w in words]
    if words[1] == "import":
        bardo("bundle", "export", dead[0], words[2], home=home)
        words[3:] = ["--unsigned"]
    return words


@pytest.mark.parametrize("shown", [s for s in BARDO if s not in QUICK], ids=lambda shown: shown.command)
def test_an_option_of_a_long_command_exists(shown: Shown, tmp_path: Path) -> None:
    words = shlex.split(shown.command)[1:]
    named = words[:2] if words[0] in ("eval", "clade") else words[:1]
    offered = bardo(*named, "--help", home=tmp_path)
    assert all(w in offered for w in words if w.startswith("--"))


def test_options_and_paths_named_in_prose_exist(tmp_path: Path) -> None:
    offered = " ".join(
        bardo(*c.split(), "--help", home=tmp_path)
        for c in (
            "run",
            "rebuild",
            "sql",
            "ask",
            "lineage",
            "status",
            "verify",
            "whatif",
            "adopt",
            "eval memory",
            "eval lineage",
            "clade sync",
            "clade restore",
            "library equip",
            "bundle checks",
            "golem observe",
            "golem notices",
            "golem successor",
            "live",
            "steer",
            "serve",
        )
    )
    named = set(re.findall(r"`(--[a-z-]+)", TEXT))
    assert len(named) > 20
    assert named <= set(re.findall(r"--[a-z-]+", offered))
    for path in re.findall(r"`((?:dbt|benchmarks|tests)/[\w/.]+)`", TEXT):
        assert (ROOT / path).exists() or path in ("benchmarks/results.json", "benchmarks/cost.png")


def test_relative_links_of_the_documents_lead_to_files_and_headings() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    broken = []
    for page in pages:
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if "://" not in target and not (file.exists() and (not anchor or anchor in _anchors(file))):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken


def _anchors(page: Path) -> set[str]:
    text = page.read_text()
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    slugs = {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", h).strip().lower()) for h in headings}
    return slugs | set(re.findall(r'<a id="([\w-]+)">', text))


@pytest.mark.full
@pytest.mark.parametrize("number", range(len(re.findall(r"```python\n", TEXT))))
def test_a_snippet_runs(number: int, tmp_path: Path) -> None:
    snippet = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)[number]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # snippets call `bardo`, as in an active environment
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(
        [sys.executable, "-c", snippet], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "open_home" not in snippet or (tmp_path / ".bardo" / "home.json").exists()


def test_the_guide_shows_every_public_name() -> None:
    snippets = " ".join(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL))
    public = set(bardo_pipeline.__all__) - {"Home"}  # the type of what open_home returns
    assert not {name for name in public if not re.search(rf"\b{name}\b", snippets)}


def test_the_readme_shows_deaths_of_several_causes_and_dreams() -> None:
    shown = {s.command.split()[1]: s.output for s in SHOWN if s.page == "README.md"}
    causes = [line.split() for line in shown["sql"][2:]]
    assert len(causes) > 1
    assert all(int(count) > 0 for _, count, _ in causes)
    rows = {line.split()[0]: line.split()[1] for line in shown["rebuild"] if len(line.split()) == 5}
    assert int(rows["dreams"].replace(",", "")) > 0
    assert int(rows["hypotheses"].replace(",", "")) > 0


@pytest.fixture(scope="module")
def demo_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the demo, unless BARDO_DEMO_HOME names its home. The file `printed` beside the home has its output."""
    if "BARDO_DEMO_HOME" in os.environ:
        return Path(os.environ["BARDO_DEMO_HOME"]).resolve()
    home = tmp_path_factory.mktemp("demo") / "home"
    (home.parent / "printed").write_text(on_terminal(("demo",), home, columns=PAGE_COLUMNS))
    return home


@pytest.mark.full
@pytest.mark.row("P-4")
@pytest.mark.parametrize("shown", [s for s in SHOWN if s.output], ids=lambda s: f"{s.page}: {s.command}")
def test_a_shown_output_equals_that_of_the_demo(
    shown: Shown, demo_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if shown.command == "make demo":
        file = demo_home.parent / "printed"
        if not file.exists():
            pytest.skip("the demo ran before")
        text = file.read_text()
    else:
        assert shown.command.startswith("bardo ")
        text = on_terminal(shlex.split(shown.command)[1:], demo_home, columns=PAGE_COLUMNS)
    printed = iter(unstyled(text))
    missing = [line for line in shown.output if line != "…" and line not in printed]
    assert not missing
