"""`python -m tests.crash.dagster_kills`: Dagster's processes are killed while golems live and die, with both storages.

A golem's records and its death are dropped into the spool, and Dagster's sensors do the rest. The daemon, its code
server, or the process of a run is killed by SIGKILL at a random moment of a run, and only the daemon is started again.
At the end every dropped record must be on record once, every death completed once, and the marts must hold them.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import dagster as dg

from bardo_pipeline import birth
from bardo_pipeline.cli.fleet.fleet_commands import dagster_environment
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.unfinished_deaths import unfinished_deaths
from bardo_pipeline.derivation.reports.marts_lag import unbuilt_change
from bardo_pipeline.events.custody.hash_chain import content_of
from bardo_pipeline.events.life.events import Died, life_event
from bardo_pipeline.events.record.arrow_schema import to_models
from bardo_pipeline.events.record.model import DecisionCycleRecord, Vitality
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.quarantine import Quarantine
from bardo_pipeline.storage.intake.spool_folder import waiting
from bardo_pipeline.storage.keys.owner_signing_keys import OwnerKeys
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.verification.verify import verify
from jobs.run_requests import ACTIVE, LONGEST_PAUSE
from tests.support.homes.spool_homes import OWNER_KEY, PUBLIC, line_of, signed
from tests.support.processes.dagster_daemon import PATIENCE, below, kill, kill_all, start_daemon, until
from tests.support.processes.postgres import postgres, use_postgres
from tests.support.records.drawn_records import records

Storage = Literal["sqlite", "postgresql"]
Victim = Literal["daemon", "code server", "run"]

VICTIMS: tuple[Victim, ...] = ("run", "code server", "daemon", "run")
GOLEMS, TICKS = 3, 120
"""Golems dropped before each kill, and the ticks of each: two closed cycles and a part of one."""

DELAY_SECONDS_MAX = 15.0
"""Longest time between the look that finds a run and the kill: some runs end before it, and new golems are dropped."""

PAUSED_SECONDS_MAX = PATIENCE + LONGEST_PAUSE.total_seconds()
"""Longest wait for a run: many kills of one work lengthen its pause."""

SPENT = Vitality(economic=0.0, epistemic=0.5, stochastic=0.5, composite=0.0)
BEGINNING = datetime(2023, 11, 1, tzinfo=UTC)
"""When the golems are born: before their drawn records. A death before a birth would fail each build of the marts."""


@dataclass
class Tally:
    """Figures of one storage. runs: by status. faults: what was lost or done twice."""

    kills: Counter[Victim] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    golems: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)


class DagsterKills:
    """A home under Dagster's daemon, whose processes are killed one after another."""

    def __init__(self, root: Path, random: random.Random, *, server: Mapping[str, str] | None = None) -> None:
        self.home, self._random, self.tally = Home.create(root, Policy(), BEGINNING), random, Tally()
        with EventLog(self.home) as log:
            OwnerKeys(self.home, log).register("owner-1", PUBLIC, BEGINNING)
        if server is not None:
            use_postgres(self.home, server)
        self._log = root / "daemon.log"
        self._dropped: dict[str, int] = {}
        self._victims = self._order()

    def play(self, count: int) -> Tally:
        """Kill `count` processes, wait until nothing is due, and judge the home."""
        began = time.monotonic()
        settings = dagster_environment(self.home.root)["DAGSTER_HOME"]
        with dg.DagsterInstance.from_config(settings) as self._instance:
            process = start_daemon(self.home.root, self._log)
            try:
                while self.tally.kills.total() < count:
                    process = self._kill_one(process)
                until(self._is_done, "completed work", self._log, PAUSED_SECONDS_MAX)
            finally:
                kill_all(process)
            self.tally.runs.update(run.status.value.lower() for run in self._instance.get_runs())
        self.tally.faults += self._faults()
        self.tally.golems, self.tally.seconds = len(self._dropped), time.monotonic() - began
        return self.tally

    def _order(self) -> Iterator[Victim]:
        while True:
            yield from self._random.sample(VICTIMS, len(VICTIMS))

    def _kill_one(self, process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        """Drop golems, kill a process while a run works, and return the daemon that works then."""
        processes: list[int] = []

        def works() -> bool:
            if self._is_done():
                self._drop()
            processes[:] = below(process.pid)  # the code server before the processes of runs
            return len(processes) > 1 and self._has_started_runs()

        until(works, "a run", self._log, PAUSED_SECONDS_MAX)
        time.sleep(self._random.uniform(0.0, DELAY_SECONDS_MAX))
        if not works():  # the run has ended meanwhile
            return process
        victim = next(self._victims)
        pid = {"daemon": process.pid, "code server": processes[0], "run": processes[-1]}[victim]
        kill(pid)
        self.tally.kills[victim] += 1
        print(f"{sum(self.tally.kills.values()):3} {victim}", flush=True)
        if victim == "daemon":
            kill_all(process)
            return start_daemon(self.home.root, self._log)
        return process

    def _has_started_runs(self) -> bool:
        started = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED])
        return self._instance.get_runs_count(started) > 0

    def _is_done(self) -> bool:
        if waiting(self.home) or self._instance.get_runs_count(dg.RunsFilter(statuses=ACTIVE)):
            return False
        stores = DerivationContext.open(self.home.root)
        assert not Quarantine(self.home).open([]).num_rows, "a dropped line is in quarantine"
        known = stores.life("DeathDeclared")["golem_id"].to_pylist()
        is_dead = set(self._dropped) <= set(known) and not unfinished_deaths(stores)
        return is_dead and unbuilt_change(stores) is None

    def _drop(self) -> None:
        """Drop the records and the deaths of new golems into the spool."""
        at = len(self._dropped)
        for number in range(at, at + GOLEMS):
            golem = birth(self.home, owner="owner-1", lineage=f"kill/{number}", at=BEGINNING)
            table = records(TICKS, golems=1, tick=1, seed=number)
            lived = [m.model_copy(update={"golem_id": golem}) for m in to_models(table, DecisionCycleRecord)]
            self._put(f"{golem}.jsonl", [model.model_dump_json().encode() for model in lived])
            died = Died(cause="economic", tick=TICKS, phase="terminal", vitality=SPENT, credits_micros=0,
                        capital_micros=1_000_000, earned_micros=0)  # fmt: skip
            line = line_of(life_event(golem, lived[-1].observed_at, died))
            self._put(f"{golem}.life.jsonl", [line], [signed(golem, content_of(line), OWNER_KEY)])
            self._dropped[golem] = TICKS

    def _put(self, name: str, lines: list[bytes], signatures: list[bytes] | None = None) -> None:
        if signatures is not None:
            (self.home.spool / f"{name}.sig").write_bytes(b"\n".join(signatures))
        draft = self.home.spool / f".{name}"
        draft.write_bytes(b"\n".join(lines) + b"\n")
        draft.rename(self.home.spool / name)

    def _faults(self) -> Iterator[str]:
        stores = DerivationContext.open(self.home.root)
        ticks = stores.log.read_cycles(["golem_id", "tick"])
        counts = Counter(ticks["golem_id"].to_pylist())
        for golem, count in self._dropped.items():
            if counts[golem] != count:
                yield f"{golem}: {counts[golem]} of {count} records are on record"
        for kind in ("DeathDeclared", "LegacyLeft"):
            events = Counter(stores.life(kind)["golem_id"].to_pylist())
            for golem in self._dropped:
                if events[golem] != 1:
                    yield f"{golem}: {events[golem]} events {kind}"
        if not verify(self.home).clean:
            yield "verify finds breaks"


def main() -> int:
    """Kill processes with each storage; print a table; return 0 if nothing was lost or done twice."""
    asked = argparse.ArgumentParser(prog="python -m tests.crash.dagster_kills", description=__doc__)
    asked.add_argument("--kills", type=int, default=25, help="kills with each storage")
    asked.add_argument("--storage", choices=("sqlite", "postgresql"), nargs="*", default=["sqlite", "postgresql"])
    asked.add_argument("--seed", type=int, default=None, help="the seed that an earlier run printed")
    given = asked.parse_args()
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    folder = Path(tempfile.mkdtemp(prefix="bardo-kills-"))
    print(f"seed {seed}, homes in {folder}", flush=True)
    tallies: dict[Storage, Tally] = {}
    for storage in given.storage:
        with ExitStack() as stack:
            server = stack.enter_context(postgres()) if storage == "postgresql" else None
            tallies[storage] = tally = DagsterKills(folder / storage, random.Random(seed), server=server).play(
                given.kills
            )
        print(f"{storage}: {tally.golems} golems, kills {dict(tally.kills)}, runs {dict(tally.runs)}, "
              f"{len(tally.faults)} faults, {tally.seconds:.0f} s", flush=True)  # fmt: skip
    faults = [f"{storage}: {fault}" for storage, tally in tallies.items() for fault in tally.faults]
    for fault in faults:
        print(fault, file=sys.stderr)
    if not faults:
        shutil.rmtree(folder)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
