"""Names and texts with terminal escapes: no command sends one of them to a terminal."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from assets.metadata import markdown_table
from bardo_pipeline.cli.output.tables import print_rows, print_table, show_log
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.derive_home import complete_deaths
from bardo_pipeline.derivation.versions.rebuild import derive_everything
from bardo_pipeline.errors import UnknownGolemError
from bardo_pipeline.events.life.events import Born, Died, LifeEvent, life_event
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.events.record.model import Part
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.warehouse.build import build_warehouse
from bardo_pipeline.visible_text import escaped, visible
from tests.conftest import NOW, copy_home, one_at_a_time
from tests.support.processes.bardo_command import bardo, on_terminal, run

ROOT = Path(__file__).resolve().parents[3]
EVIL = "\x1b]0;title\x07\x1b[2J\x9b31m[/]\u202e\u2066[link=http://evil]\x08\r\x7f"
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def hostile_home(session_folder: Path, brief_home: Path) -> Path:
    """A derived home whose golems, owners, markets and reasons have hostile names, without marts and bundles.

    Copy before writing.
    """
    root = session_folder / "hostile_home"
    with one_at_a_time(session_folder / "hostile_home.lock"):
        if not (root / "done").exists():
            shutil.rmtree(root, ignore_errors=True)
            home = Home.create(root, Policy(), NOW)
            with EventLog(Home.open(brief_home)) as lived, EventLog(home) as log:
                events = [e for e in lived.life().to_pylist() if e["kind"] in ("GolemBorn", "DeathDeclared")]
                founders = [e["golem_id"] for e in events if e["born"] and not e["born"]["predecessor_id"]]
                log.record([renamed(event) for event in events if event["golem_id"] in founders], NOW)
                records = lived.read_cycles(RECORD_SCHEMA.names, golems=founders)
                for name in ("golem_id", "gating_reason"):
                    texts = pc.binary_join_element_wise(records[name], pa.scalar(EVIL), "")
                    records = records.set_column(records.schema.get_field_index(name), RECORD_SCHEMA.field(name), texts)
                log.append(records.combine_chunks(), writer="w", segment=1, recorded_at=NOW)
            derive_everything(DerivationContext.open(root), now=NOW)
            (root / "done").touch()
    return root


@pytest.fixture(scope="module")
def hostile_marts(hostile_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hostile home with its bundles and marts."""
    root = copy_home(hostile_home, tmp_path_factory.mktemp("hostile") / "home")
    stores = DerivationContext.open(root)
    complete_deaths(stores, now=NOW)
    build_warehouse(stores.home, stores.derivation_id)
    return root


def renamed(event: dict[str, Any]) -> LifeEvent:
    """Return the event of the golem with a hostile name."""
    if event["born"]:
        hostile = {"owner_id": f"owner{EVIL}", "market": EVIL}
        payload: Part = Born.model_validate(event["born"] | hostile)
    else:
        payload = Died.model_validate(event["died"])
    return life_event(event["golem_id"] + EVIL, event["observed_at"], payload)


def names(home: Path) -> tuple[str, str, str]:
    """Return a dead golem, its bundle and an entry of it."""
    stores = DerivationContext.open(home)
    published = stores.life("BundlePublished").to_pylist()[0]
    entries = stores.projections.growing("curation").read(["golem_id", "entry_id"], golems=[published["golem_id"]])
    return published["golem_id"], published["published"]["bundle_hash"], entries["entry_id"][0].as_py()


def commands(golem: str, bundle: str, entry: str) -> list[tuple[str, ...]]:
    return [
        ("status",), ("graveyard",), ("golem", "show", golem), ("golem", "successions"),
        ("watch", "--no-follow", "--replay", "300"), ("ticks", "--last", "5"), ("ticks", "--phases"),
        ("sql", "from dim_golem"), ("sql", "from dim_golem", "--format", "csv"),
        ("ask", golem, "should I re-centre?"), ("search", "trend"),
        ("lineage", entry), ("grimoire", "list", golem), ("grimoire", "show", golem, entry),
        ("bundle", "show"), ("bundle", "show", bundle), ("bundle", "verify", bundle), ("keys", "list"),
        ("dreams", golem), ("scars",), ("bloodstain", golem), ("quarantine", "list"), ("verify",), ("config", "show"),
        ("golem", "successor", golem, "--dry-run"), ("golem", "due", "--dry-run"), ("spool", "take"), ("drain",),
        ("whatif", "--list"), ("maintain", "--dry-run"),
    ]  # fmt: skip


@pytest.mark.full
@pytest.mark.row("X-11")
def test_no_command_prints_a_control_character_of_a_name(hostile_marts: Path, tmp_path: Path) -> None:
    home = copy_home(hostile_marts, tmp_path / "home")
    (home / "spool" / f"{EVIL.replace('/', '')}.jsonl").write_bytes(orjson.dumps({"golem_id": EVIL}) + b"\n")
    showing = 0
    for words in sorted(commands(*names(home)), key=lambda w: w != ("spool", "take")):
        done = run(words, {**os.environ, "BARDO_HOME": str(home), "COLUMNS": "300"})
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        assert not (characters := FORBIDDEN.findall(done.stdout + done.stderr)), (words, characters)
        showing += "]0;title" in done.stdout
    assert showing > 12, "the names are printed without their control characters"


@pytest.mark.row("X-11")
def test_json_keeps_a_name_whole_without_its_control_characters(hostile_home: Path) -> None:
    assert not FORBIDDEN.findall(bardo("status", "--format", "json", home=hostile_home))
    for line in bardo("watch", "--no-follow", "--replay", "9", "--format", "json", home=hostile_home).splitlines():
        assert not FORBIDDEN.findall(line)
        assert EVIL in orjson.loads(line)["golem_id"]


@pytest.mark.full
@pytest.mark.row("X-11")
def test_sql_keeps_a_name_whole_without_its_control_characters(hostile_marts: Path) -> None:
    output = bardo("sql", "from dim_golem", "--format", "json", home=hostile_marts)
    assert not FORBIDDEN.findall(output)
    assert all(EVIL in row["golem_id"] for row in orjson.loads(output))


@pytest.mark.row("X-11")
def test_a_name_with_a_newline_forges_no_row_of_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(None, ["golem"], [("g-\nall is\tclean",)])
    assert capsys.readouterr().out == "golem\ng- all is clean\n"


@pytest.mark.row("X-11")
def test_a_name_of_a_csv_column_has_no_control_character(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(["owner", EVIL], [(EVIL, 1)], "csv")
    printed = capsys.readouterr().out.replace("\r\n", "\n")  # the ends of lines of CSV
    assert not FORBIDDEN.findall(printed), "`pivot` makes columns of golem ids"


def test_an_error_shows_no_control_character(hostile_home: Path) -> None:
    output = bardo("ask", EVIL, "why?", home=hostile_home, expect=2)
    assert "golem" in output
    assert not FORBIDDEN.findall(output)


@pytest.mark.row("X-4")
@pytest.mark.parametrize("word", ["--\u202eevil\x1b[31m", "more\u202eevil\x1b[31m"])
def test_a_usage_error_shows_no_control_character_of_a_word(word: str, tmp_path: Path) -> None:
    output = bardo("status", word, home=tmp_path, expect=2)
    assert "evil" in output
    assert not FORBIDDEN.findall(output)


def test_a_terminal_gets_the_commands_colours_but_not_those_of_a_name(hostile_home: Path) -> None:
    golem_id = DerivationContext.open(hostile_home).life("GolemBorn")["golem_id"][0].as_py()
    shown = on_terminal(["golem", "show", golem_id], hostile_home)
    assert "\x1b[1m" in shown, "bold, by the command"
    assert not re.search("\x1b\\]|\x1b\\[2J|\x9b|\u202e", shown)


@pytest.mark.row("X-11")
def test_a_log_line_and_the_trace_of_an_error_show_no_control_character() -> None:
    assert str(UnknownGolemError(f"golem {EVIL}")) == f"golem {visible(EVIL)}"
    failing = f"try: 1 / 0\nexcept ZeroDivisionError: logging.getLogger('bardo.server').exception({EVIL!r} + '%s', 1)"
    program = (
        f"import logging\nfrom bardo_pipeline.cli.output.tables import {show_log.__name__} as show\nshow()\n{failing}"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stderr
    assert shown.startswith(f"ERROR: {visible(EVIL)}1\nTraceback")
    assert not FORBIDDEN.findall(shown)


@pytest.mark.row("X-11")
def test_a_table_in_dagster_shows_a_name_without_control_characters_links_and_tags() -> None:
    text = markdown_table([{"golem": f"{EVIL}<img src=x>![x](http://evil)\\|\n| forged |"}]).value or ""
    assert not FORBIDDEN.findall(text)
    assert re.sub(r"\\\\|\\[|<[]", "", text.splitlines()[-1]).count("|") == 2, "one cell"
    assert not re.search(r"(?<!\\)[<[]", text)


def test_only_the_terminal_module_writes_to_the_standard_streams() -> None:
    allowed = {"tables.py": {"print", "Console"}}
    for path in (ROOT / "bardo_pipeline" / "cli").rglob("*.py"):
        tree = ast.parse(path.read_text())
        called = {
            node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert called & {"print", "echo", "secho", "Console"} <= allowed.get(path.name, set()), path


def test_visible_and_escaped_texts() -> None:
    assert visible("a\tb\nc é 😀") == "a\tb\nc é 😀"
    assert visible(EVIL) == "]0;title[2J31m[/][link=http://evil]"
    assert not FORBIDDEN.findall(visible("".join(map(chr, range(0x2100)))))
    assert orjson.loads(escaped(orjson.dumps([EVIL]).decode())) == [EVIL]
