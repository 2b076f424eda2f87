"""Owners are apart in every door: a command that works for one owner shows nothing of another."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from bardo_pipeline.cli.app import command, main
from bardo_pipeline.cli.output import tables
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.experience.reported_experience import record_of, report
from bardo_pipeline.events.life.events import life_event
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA, to_table
from bardo_pipeline.events.record.model import Trial
from bardo_pipeline.storage.warehouse.build import build_warehouse, query
from bardo_pipeline.storage.warehouse.owner_database import SHARED
from tests.conftest import NOW, copy_home
from tests.support.homes.tool_homes import tool_facts
from tests.support.homes.two_owners import CORAL, PEARL, Belongings, belongings

WHY = "--why test"
ENDS = "--no-follow"

SHOWS = {
    "ask": "{heir} pool",
    "bloodstain": "{golem}",
    "bundle export": "{bundle} {out}/b.tar.gz",
    "bundle show": "{bundle}",
    "conversation show": "{golem}",
    "conversation list": "",
    "golem credit": "{owner} 1 " + WHY,
    "golem death": "{golem}",
    "golem notices": "",
    "golem show": "{golem} --testament",
    "golem successions": "",
    "graveyard": "",
    "grimoire list": "{golem}",
    "grimoire show": "{golem} {entry}",
    "keys owner": "{owner} --public " + "ab" * 32,
    "library list": "",
    "lineage": "{entry}",
    "search": "pool",
    "similar": "pool",
    "sql": "from_dim_golem",
    "ticks": "",
    "watch": ENDS,
}
"""Commands that show something of their owner, with arguments; {names} stand for belongings of the owner."""

ACTS = {
    "accept-gap": "{heir} 1 2 " + WHY,
    "bundle checks": "",
    "bundle diff": "{bundle} {golem}",
    "bundle verify": "{bundle}",
    "eval negentropy": "--out {out}",
    "bundle consent": "{bundle} --to nobody " + WHY,
    "clade key": "{owner}",
    "clade members": "{owner}",
    "clade backup": "{owner} --relay http://127.0.0.1:9",
    "clade beliefs": "",
    "clade identity": "{owner}",
    "clade notes": "",
    "clade pheromones": "",
    "clade restore": "{owner} --relay http://127.0.0.1:9",
    "clade sync": "{owner} --relay http://127.0.0.1:9",
    "bundle give": "{bundle} --to {heir} --dry-run",
    "bundle rank": "{bundle} --for {heir}",
    "bundle sign": "",
    "bundle waive": "{bundle} nothing " + WHY,
    "config check": "",
    "config show": "--golem {golem}",
    "conversation append": "{golem} words",
    "conversation branch": "{golem} other",
    "conversation compact": "{golem} --summary words",
    "dreams": "{golem}",
    "golem birth": "{heir}",
    "golem due": "",
    "golem found": "--like {golem}",
    "golem phrase": "{golem} --dry-run",
    "golem successor": "{golem} --dry-run",
    "grimoire correct": "{heir} {entry} --note words " + WHY,
    "grimoire pin": "{heir} {entry} " + WHY,
    "grimoire retract": "{golem} {entry} --heirs " + WHY,
    "grimoire unpin": "{heir} {entry} " + WHY,
    "keys register": "{heir} --public " + "ab" * 32,
    "keys revoke": "{heir} " + WHY,
    "keys revoke-owner": "{owner} " + WHY,
    "keys revoke-token": "{owner}",
    "keys rotate": "{heir} --public " + "cd" * 32 + " " + WHY,
    "keys list": "",
    "keys token": "{owner}",
    "keys tokens": "",
    "library buy": "{bundle} " + WHY,
    "library equip": WHY,
    "library export": "{heir} {entry} " + WHY,
    "library pull": "{golem} {entry} " + WHY,
    "library show": "{entry}",
    "propose": "{heir} --dry-run",
    "remember": "{heir} words",
    "report": "{heir} swap 0.5",
    "reorg": "{heir} --chain synthetic --tick-from 1 --tick-to 2 --no-derive",
    "scars": "{golem} --failures",
    "seal make": "{heir}",
    "seal destroy": "{heir} " + WHY,
    "seal list": "",
    "seal open": "{heir} 1",
    "status": "",
    "steer": "{heir} hold",
    "strike": "{golem} 3 --no-derive " + WHY,
    "struck": "--withdrawn",
}
"""Commands of which only the absence of another owner is asked: they act, or may have nothing to show."""

WHOLE_HOME = {
    "adopt": "", "backup": "{out}/backup", "bundle import": "{out}/b.tar.gz --unsigned", "config adopt": WHY,
    "demo": "", "derive": "", "doctor": "", "drain": "", "drift": "", "golem observe": "", "live": "", "maintain": "",
    "quarantine drop": "x " + WHY, "quarantine list": "", "quarantine retry": "x", "quarantine show": "x",
    "rebuild": "", "reembed": "", "restore": "{out}/backup", "run": "", "spool take": "", "spool watch": "",
    "verify": "", "whatif": "--list",
}  # fmt: skip
"""Commands that act on the whole home: they refuse to work for one owner."""

SERVERS = {"serve", "ui"}
"""Commands that serve until they are stopped.

Their content is tested elsewhere: tests/definitions/test_owner_views.py and tests/scenario/server/test_server.py.
"""

HOMELESS = {
    "init",
    "relay",
    "schema",
    "eval gate",
    "eval cache",
    "eval clade",
    "eval lineage",
    "eval bottleneck",
    "eval memory",
    "eval recall",
}
"""Commands that open no home; init makes a new one."""

EMPTY = ("scars", "dreams", "golem phrase")
"""Commands that may succeed with another owner's golem, because they only say that they have nothing."""

QUICK = ("ask", "bundle show", "lineage", "search", "sql")
"""Commands of the first tier; the full tier enters every other one."""


def commands(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with the words that call it."""
    inside = getattr(group, "commands", {})
    for word, part in inside.items():
        yield from commands(part, f"{name} {word}".strip())
    if not inside:
        yield name, group


def words(door: str, arguments: str, own: Belongings, out: Path) -> list[str]:
    """The command line of a door with an owner's belongings."""
    names = {name: getattr(own, name) for name in ("owner", "golem", "heir", "entry", "bundle")}
    filled = [part.format(**names, out=out).replace("from_dim_golem", "from dim_golem") for part in arguments.split()]
    return [*door.split(), *filled]


@dataclass
class Entered:
    """A command that ran: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def output(self) -> str:
        return self.out + self.err


class Doors:
    """Runs commands in this process, each for an owner, named by BARDO_OWNER as BARDO_HOME names the home."""

    def __init__(self, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self._patch, self._capture = patch, capture
        patch.setattr(tables.out, "_width", 400)

    def enter(self, home: Path, line: list[str], owner: str | None) -> Entered:
        """Run a command; the variable is unset for no owner."""
        self._patch.setenv("BARDO_HOME", str(home))
        self._patch.setenv("BARDO_OWNER", owner or "")
        self._patch.setattr(sys, "argv", ["bardo", *line])
        self._capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Entered(int(ended.value.code or 0), *self._capture.readouterr())


@pytest.fixture
def doors(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Doors:
    """The commands of bardo."""
    return Doors(monkeypatch, capfd)


def test_every_command_has_a_case() -> None:
    tree = dict(commands(command()))
    cases = sorted([*SHOWS, *ACTS, *WHOLE_HOME, *HOMELESS, *SERVERS])
    assert sorted(tree) == cases, "a new command needs a case here: what does it show of owners?"
    for name, door in tree.items():
        options = {option for parameter in door.params for option in parameter.opts}
        assert ("--home" in options) == (name not in HOMELESS), name
        assert ("--owner" in options) == (name not in HOMELESS), name


@pytest.mark.row("X-12")
def test_a_door_shows_its_owner_and_nothing_of_another(two_owners_home: Path, doors: Doors, tmp_path: Path) -> None:
    home = copy_home(two_owners_home, tmp_path / "home")
    coral, pearl = belongings(home, CORAL), belongings(home, PEARL)
    for door in QUICK:
        _enter_apart(doors, home, door, words(door, (SHOWS | ACTS)[door], coral, tmp_path), coral, pearl)


@pytest.mark.full
@pytest.mark.row("X-12")
@pytest.mark.parametrize("door", [door for door in (SHOWS | ACTS) if door not in QUICK])
def test_every_other_door_shows_its_owner_and_nothing_of_another(
    door: str, two_owners_home: Path, doors: Doors, tmp_path: Path
) -> None:
    home = copy_home(two_owners_home, tmp_path / "home")
    coral, pearl = belongings(home, CORAL), belongings(home, PEARL)
    _enter_apart(doors, home, door, words(door, (SHOWS | ACTS)[door], coral, tmp_path), coral, pearl)


def _enter_apart(doors: Doors, home: Path, door: str, line: list[str], coral: Belongings, pearl: Belongings) -> None:
    done = doors.enter(home, line, CORAL)
    assert pearl.traces(done.output) == [], f"bardo {' '.join(line)} shows another owner:\n{done.output}"
    if door in SHOWS:
        assert done.code == 0, done.output
        assert coral.traces(done.output) != [], f"bardo {' '.join(line)} shows nothing of its owner:\n{done.output}"


@pytest.mark.full
@pytest.mark.row("X-12")
@pytest.mark.parametrize("door", [door for door, given in (SHOWS | ACTS).items() if "{" in given.replace("{out}", "")])
def test_no_door_takes_the_belongings_of_another_owner(
    door: str, two_owners_home: Path, doors: Doors, tmp_path: Path
) -> None:
    home = copy_home(two_owners_home, tmp_path / "home")
    _enter_with_anothers(doors, home, door, tmp_path)


def test_a_door_refuses_the_golem_and_the_bundle_of_another_owner(
    two_owners_home: Path, doors: Doors, tmp_path: Path
) -> None:
    home = copy_home(two_owners_home, tmp_path / "home")
    for door in ("ask", "bundle show", "golem credit"):
        _enter_with_anothers(doors, home, door, tmp_path)


def _enter_with_anothers(doors: Doors, home: Path, door: str, folder: Path) -> None:
    pearl, before = belongings(home, PEARL), DerivationContext.open(home, owner=PEARL).log.life().num_rows
    line = words(door, (SHOWS | ACTS)[door], pearl, folder)
    done = doors.enter(home, line, CORAL)
    assert pearl.traces(done.output, given=" ".join(line)) == [], f"bardo {' '.join(line)}:\n{done.output}"
    assert done.code in (1, 2) or door in EMPTY, done.output
    assert DerivationContext.open(home, owner=PEARL).log.life().num_rows == before, "the door wrote for another owner"


@pytest.mark.parametrize("door", ["maintain", "verify", "quarantine list"])
def test_a_command_of_the_whole_home_refuses_to_work_for_one_owner(
    door: str, two_owners_home: Path, doors: Doors, tmp_path: Path
) -> None:
    line = words(door, WHOLE_HOME[door], belongings(two_owners_home, CORAL), tmp_path)
    for done in (
        doors.enter(two_owners_home, line, CORAL),
        doors.enter(two_owners_home, [*line, "--owner", CORAL], None),
    ):
        assert (done.code, done.out) == (2, "")
        assert "acts on the whole home" in done.err


@pytest.mark.full
def test_every_command_of_the_whole_home_refuses_to_work_for_one_owner(
    two_owners_home: Path, doors: Doors, tmp_path: Path
) -> None:
    for door, arguments in WHOLE_HOME.items():
        done = doors.enter(two_owners_home, words(door, arguments, belongings(two_owners_home, CORAL), tmp_path), CORAL)
        assert (done.code, done.out) == (2, ""), (door, done)
        assert "acts on the whole home" in done.err, (door, done)


def test_the_option_overrides_the_environment_and_an_unknown_owner_learns_no_name(
    two_owners_home: Path, doors: Doors
) -> None:
    done = doors.enter(two_owners_home, ["graveyard", "--owner", PEARL], CORAL)
    assert belongings(two_owners_home, PEARL).golem in done.out
    assert belongings(two_owners_home, CORAL).traces(done.out) == []
    unknown = doors.enter(two_owners_home, ["search", "pool"], "amber")
    assert unknown.code == 2
    assert "no owner of this home is called 'amber'" in unknown.err
    assert not re.search("coral|pearl", unknown.err)


# SQL


ESCAPES = (
    "attach '{home}/warehouse.duckdb' as other",
    "from '{home}/warehouse.duckdb'.dim_golem",
    "from read_parquet('{home}/log/life/*.parquet')",
    "from read_text('{home}/home.json')",
    "from glob('{home}/*')",
    "from glob('.tmp/*')",
    "set enable_external_access = true",
    "set lock_configuration = false",
    "reset enable_external_access",
    "copy dim_golem to '{home}/stolen.csv'",
    "export database '{home}/stolen'",
    "from warehouse.dim_golem",
    "use warehouse",
    "install httpfs",
    "load '{home}/x.duckdb_extension'",
    "create view other as from read_parquet('{home}/log/life/*.parquet')",
)
LISTS = ("from duckdb_databases()", "from duckdb_tables()", "from information_schema.tables", "from duckdb_settings()",
         "from pragma_storage_info('dim_golem')", "from dim_golem", "from fct_knowledge", "from fct_consensus",
         "from duckdb_views()", "show all tables")  # fmt: skip


@pytest.mark.row("X-12")
def test_sql_for_an_owner_reaches_only_the_rows_of_that_owner(two_owners_home: Path) -> None:
    from bardo_pipeline.storage.warehouse.owner_database import query_of_owner

    stores, pearl = DerivationContext.open(two_owners_home, owner=CORAL), belongings(two_owners_home, PEARL)
    propositions = stores.projections.read("consensus")["proposition_id"].to_pylist()
    for escape in ESCAPES:
        with pytest.raises(QueryError):
            query_of_owner(stores.home, CORAL, propositions, escape.format(home=two_owners_home))
    for sql in LISTS:
        names, rows = query_of_owner(stores.home, CORAL, propositions, sql)
        assert names
        assert pearl.traces(repr(rows)) == [], sql
    assert not (two_owners_home / "stolen.csv").exists()
    _, rows = query_of_owner(stores.home, CORAL, propositions, "select owner_id, text from fct_knowledge")
    assert rows == [(CORAL, "coral text")]


ONE_SIDED = {
    "fct_equipped": "no lineage of this home is equipped from a library",
    "fct_scars": "no failure of these lives became a scar",
    "fct_tier_verdicts": "these golems have no learned gate",
    "fct_withdrawals": "no record is struck, so nothing is withdrawn",
}
"""Marts without rows of both owners in this home, each with the reason."""


@pytest.mark.full
@pytest.mark.row("X-12")
def test_every_mart_names_the_owner_of_its_rows(two_owners_home: Path, doors: Doors, tmp_path: Path) -> None:
    home = copy_home(two_owners_home, tmp_path / "home")
    stores, pearl = DerivationContext.open(home), belongings(home, PEARL)
    for owner in (CORAL, PEARL):
        _report(stores, owner, belongings(home, owner).heir)
    marts = build_warehouse(stores.home, stores.derivation_id, stores.policy).rows
    one_sided = set()
    for mart in marts:
        done = doors.enter(home, ["sql", f"from {mart}", "--format", "json"], CORAL)
        assert done.code == 0, done.err
        assert pearl.traces(done.out) == [], mart
        if mart == SHARED:
            continue
        shares = dict(query(stores.home, f"select owner_id, count(*) from {mart} group by all")[1])
        assert len(json.loads(done.out)) == shares.get(CORAL, 0), mart
        if shares.keys() != {CORAL, PEARL}:
            one_sided.add(mart)
    assert one_sided == ONE_SIDED.keys()
    counts = doors.enter(home, ["sql", "select count(*) from fct_ticks", "--format", "csv"], CORAL)
    records = DerivationContext.open(home, owner=CORAL).log.read_cycles(["tick"]).num_rows
    assert int(counts.out.split()[-1]) == records > 0


def _report(stores: DerivationContext, owner: str, golem: str) -> None:
    """Record an experience, a judged choice, and a strategy with an execution; their texts carry the owner's name."""
    log = stores.log
    tick = log.head_of(golem).highest + 1
    lived = log.read_cycles(["golem_id", "observed_at"])
    moment = pc.max(lived.filter(pc.equal(lived["golem_id"], golem))["observed_at"]).as_py() + timedelta(minutes=5)
    trial = Trial(
        decision_tick=tick - 1, choice="presence", taken="out", alternative="enter", beside="hold", horizon="30_ticks",
        regime="volatile", anomaly_score=0.5, gas_ratio=1.0, value_micros=5_000_000, effect_ppm=100, verified=True,
        ground_truth_source=f"{owner}-shadow",
    )  # fmt: skip
    acted = report({"pool": f"{owner}-pool"}, f"{owner}-swap", 0.5, alternatives={f"{owner}-rest": 0.25})
    record = record_of(golem, tick, moment, [acted], domain=f"{owner}-tools", trials=(trial,))
    log.append(to_table([record], RECORD_SCHEMA), writer=f"{owner} reports", segment=1, recorded_at=NOW)
    strategy, execution, outcome = tool_facts()
    facts = (strategy.model_copy(update={"description": f"{owner} strategy"}), execution, outcome)
    log.record([life_event(golem, moment, fact) for fact in facts], NOW)
