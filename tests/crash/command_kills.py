"""Commands that are killed: rebuild, adopt, successor, import, and the build of the warehouse.

A command runs in a forked process on a copy of a prepared home. The process dies before its n-th system call that
changes a file, or at a moment of the clock, for what libraries do outside Python. Then another process opens the home
and checks it: the log verifies and lost nothing, and after a derivation each projection equals that of a home where the
command ended, or of a home where it never began. A repetition of the command ends as an undisturbed one.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import orjson

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.bundle_archives import export_bundle, import_bundle, read_bundle_files
from bardo_pipeline.derivation.legacy.bundle_store import published_bundles
from bardo_pipeline.derivation.legacy.death_queries import HeirRequest, dead_golem, heirs_of
from bardo_pipeline.derivation.succession.succeed import summon
from bardo_pipeline.derivation.versions.policy_diff import altered
from bardo_pipeline.derivation.versions.rebuild import derive_everything, rebuild
from bardo_pipeline.derivation.versions.side_derivations import adopt, open_beside, settle
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime.fleet_run import FleetRun
from bardo_pipeline.runtime.run_settings import Run
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.verification.verify import verify
from bardo_pipeline.storage.warehouse.build import build_warehouse, quoted
from tests.crash.harness import Child, fork, listen
from tests.crash.windows import Point, Trap, Window

NOW = datetime(2026, 11, 1, tzinfo=UTC)
LATER = datetime(2026, 11, 2, tzinfo=UTC)
CALLS = ("link", "replace", "rename", "fsync", "fdatasync", "unlink", "mkdir", "rmdir")
POINTS = tuple(Point(call, "before") for call in CALLS)
REPEATED = 4  # after each fourth kill the command is repeated
BY_CLOCK = 3  # each third kill comes at a moment of the clock
_NEVER = 10**9

State = dict[str, str]
"""Digest by part of a home: its records, each life event, its derivation, each projection, bundle and mart."""


@dataclass(frozen=True)
class Place:
    """A prepared home and what the commands are given: the other derivation, the dead golem, the archive."""

    root: Path
    derivation: str
    dead: str
    archive: Path


def _rebuild(place: Place) -> None:
    assert all(table.equal for table in rebuild(DerivationContext.open(place.root), now=LATER))


def _adopt(place: Place) -> None:
    context = DerivationContext.open(place.root)
    if context.derivation_id != place.derivation:
        adopt(context, place.derivation, "a comparison decided", now=LATER)
    settle(DerivationContext.open(place.root), now=LATER)


def _summon(place: Place) -> None:
    context = DerivationContext.open(place.root)
    dead = dead_golem(context, place.dead)
    summon(context, dead, HeirRequest(budget_micros=dead.born.capital_micros, force=True), now=LATER)


def _import(place: Place) -> None:
    import_bundle(DerivationContext.open(place.root), read_bundle_files(place.archive), public_key=None, now=LATER)


def _build(place: Place) -> None:
    context = DerivationContext.open(place.root)
    build_warehouse(context.home, context.derivation_id, context.policy)


COMMANDS: dict[str, Callable[[Place], None]] = {
    "rebuild": _rebuild,
    "adopt": _adopt,
    "golem successor": _summon,
    "bundle import": _import,
    "warehouse": _build,
}


def furnish(folder: Path, *, with_warehouse: bool) -> Place:
    """Create a home with two dead generations, a derivation beside the active one, and an archive of another home.

    with_warehouse: make a copy that has a warehouse. An adoption would build a warehouse of the home itself again.
    """
    for name, seed in (("other", 11), ("home", 7)):
        Home.create(folder / name, Policy(), NOW)
        context = DerivationContext.open(folder / name)
        market = synthetic_market(seed=seed, bars=300, start=datetime(2026, 1, 1, tzinfo=UTC))
        founding = Founding(lifespan_ticks=(100, 140))
        FleetRun(context, Run(name, market, golems=2, generations=2, founding=founding), lambda: NOW).live()
        derive_everything(context, now=NOW)
        if name == "other":
            bundle_hash = min(published_bundles(context).values())
            export_bundle(context, bundle_hash, folder / "bundle.tar.zst")
    beside = open_beside(context, altered(context.policy, ["curator.anomaly_edges=[0.8, 0.9, 0.95, 0.97]"]))
    with beside.deriving():
        pass  # its description exists, and no row is derived yet
    if with_warehouse:
        shutil.copytree(folder / "home", folder / "with warehouse")
        _build(Place(folder / "with warehouse", "", "", folder))
    heirless = (g for g in published_bundles(context) if not heirs_of(context, g))
    return Place(folder / "home", beside.derivation_id, max(heirless), folder / "bundle.tar.zst")


def state_of(root: Path, context: DerivationContext | None = None) -> State:
    """Derive the home and return the digest of each part. context: of this home, None to open it."""
    context = context or DerivationContext.open(root)
    derive_everything(context, now=LATER)
    records = context.log.read_cycles(["golem_id", "tick", "content_hash"]).sort_by(
        [("golem_id", "ascending"), ("tick", "ascending")]
    )
    state = {
        "records": hashlib.sha256(repr(records.to_pydict()).encode()).hexdigest(),
        "derivation": context.derivation_id,
    }
    state |= {f"event {event_id}": "recorded" for event_id in context.log.life()["event_id"].to_pylist()}
    state |= {f"table {name}": context.projections.digest(name).fingerprint for name in TABLES}
    bundles = context.home.bundles.glob("[!.]*/*")  # maintenance removes what a killed import left in .draft-*
    state |= {f"bundle {p.relative_to(root)}": hashlib.sha256(p.read_bytes()).hexdigest() for p in bundles}
    return state | _marts(context.home.warehouse)


def _marts(warehouse: Path) -> State:
    """Return the digest of each mart; none without a warehouse."""
    if not warehouse.exists():
        return {}
    with duckdb.connect(":memory:") as connection:
        connection.execute(f"attach {quoted(str(warehouse))} as warehouse (read_only)")
        listed = "select table_name from duckdb_tables() where schema_name = 'main' order by all"
        names = connection.execute(listed).fetchall()
        return {
            f"mart {name}": str(
                connection.execute(f'select count(*), bit_xor(hash(t)) from warehouse."{name}" t').fetchall()
            )
            for (name,) in names
        }


@dataclass
class CommandTally:
    """Counts by command: kills, and kills after which the command's effect was on record."""

    kills: Counter[str] = field(default_factory=Counter)
    effective: Counter[str] = field(default_factory=Counter)
    messages: list[str] = field(default_factory=list)

    def table(self) -> str:
        """Return the table of counts, one line a command."""
        head = f"{'command':34} {'kills':>6} {'took effect':>12} {'faults':>7}"
        faults = Counter(message.partition(":")[0] for message in self.messages)
        rows = [f"{n:34} {self.kills[n]:6} {self.effective[n]:12} {faults[n]:7}" for n in COMMANDS]
        return "\n".join([head, *rows])


class CommandKills:
    """Kills of each command in turn. seed: draws the moment of each kill."""

    def __init__(self, folder: Path, seed: int, names: tuple[str, ...] = tuple(COMMANDS)) -> None:
        self._folder, self._rng, self._names = folder, random.Random(seed), names
        self.tally = CommandTally()
        self._work = folder / "work"
        with_warehouse = "warehouse" in names
        (line,) = _in_process("furnish", lambda report: report(_packed(furnish(folder, with_warehouse=with_warehouse))))
        self._place = _unpacked(line)
        self._before: dict[str, State] = {}
        self._after: dict[str, State] = {}
        self._calls: dict[str, int] = {}
        self._seconds: dict[str, float] = {}
        for name in names:
            self._play_undisturbed(name)

    def play(self, count: int) -> None:
        """Kill commands until `count` processes died, all commands equally often. A fault ends the run."""
        while sum(self.tally.kills.values()) < count and not self.tally.messages:
            self._round(min(self._names, key=lambda name: self.tally.kills[name]))

    def _play_undisturbed(self, name: str) -> None:
        """Run the command to its end; keep its calls, its duration, and the state before and after it."""
        place = self._copied(name)
        self._before[name], _ = _checked(place)
        began = time.monotonic()

        def play(report: Callable[[str], None]) -> None:
            trap = Trap(Window(name, "command", POINTS), _NEVER, place.root)
            trap.set()
            COMMANDS[name](place)
            report(str(_NEVER - trap.left))

        (line,) = _in_process(name, play)
        self._calls[name], self._seconds[name] = int(line), time.monotonic() - began
        self._after[name], _ = _checked(place)

    def _round(self, name: str) -> None:
        place, before, after = self._copied(name), self._before[name], self._after[name]
        if not self._killed(name, place):
            return
        self.tally.kills[name] += 1
        state, faults = _checked(place)
        if state == after != before:
            self.tally.effective[name] += 1
        parts = sorted(state.keys() | before.keys() | after.keys())
        faults += [
            f"{part} is neither that before nor that after the command"
            for part in parts
            if state.get(part) not in (before.get(part), after.get(part))
        ]
        if self.tally.kills[name] % REPEATED == 1:
            _in_process(name, lambda _: COMMANDS[name](place))
            state, _ = _checked(place)
            faults += [f"{part} differs after a repetition" for part in parts if state.get(part) != after.get(part)]
        self.tally.messages += [f"{name}: {fault}" for fault in faults]

    def _killed(self, name: str, place: Place) -> bool:
        """Run the command in a process that dies; return False if it ended before."""
        by_clock = self.tally.kills[name] % BY_CLOCK == BY_CLOCK - 1
        passing = _NEVER if by_clock else self._rng.randint(1, self._calls[name])
        delay = self._rng.uniform(0.1, 1.0) * self._seconds[name]

        def play(_: Callable[[str], None]) -> None:
            if by_clock:
                threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
            Trap(Window(name, "command", POINTS), passing, place.root).set()
            COMMANDS[name](place)

        lines: list[str] = []
        end = listen([Child(*fork(play), name, None)], lambda _, line: lines.append(line))[name]
        if lines or (end and not os.WIFSIGNALED(end)):
            raise RuntimeError(f"{name} failed instead of being killed: {lines}")
        return os.WIFSIGNALED(end)

    def _copied(self, name: str) -> Place:
        """Return a fresh copy of the home from which the command starts."""
        while self._work.exists():  # dbt of a killed build may still write
            with suppress(OSError):
                shutil.rmtree(self._work)
        source = self._folder / "with warehouse" if name == "warehouse" else self._place.root
        shutil.copytree(source, self._work)
        return replace(self._place, root=self._work)


def _checked(place: Place) -> tuple[State, list[str]]:
    """Verify and derive a home in a process of its own; return its state and the sentences of its faults."""

    def check(report: Callable[[str], None]) -> None:
        faults = [f"verify: {each.sentence()}" for each in verify(Home.open(place.root)).breaks]
        report(orjson.dumps([state_of(place.root), faults]).decode())

    (line,) = _in_process("check", check)
    state, faults = orjson.loads(line)
    return state, faults


def _in_process(name: str, play: Callable[[Callable[[str], None]], object]) -> list[str]:
    """Run a function in a forked process and return the lines that it reported."""
    lines: list[str] = []

    def run(report: Callable[[str], None]) -> None:
        play(report)

    if listen([Child(*fork(run), name, None)], lambda _, line: lines.append(line))[name] != 0:
        raise RuntimeError(f"{name}: {lines}")
    return lines


def _packed(place: Place) -> str:
    return orjson.dumps([str(place.root), place.derivation, place.dead, str(place.archive)]).decode()


def _unpacked(line: str) -> Place:
    root, derivation, dead, archive = orjson.loads(line)
    return Place(Path(root), derivation, dead, Path(archive))
