"""`python -m tests.crash`: kills in named windows, of commands and in exchanges of a clade, and power cuts.

A round depends on the seed, its number and the kills before it: `--seed` with the seed that was printed plays the same
rounds again.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.crash.command_kills import CommandKills
from tests.crash.exchanges.exchange_kills import ExchangeKills
from tests.crash.harness import Round
from tests.crash.outage import WORKLOADS, lost
from tests.crash.power import MODES
from tests.crash.syncs import lines_of, unneeded


def main() -> int:
    """Play rounds until enough processes were killed; return 0 if no record was lost, doubled, unreadable or broken."""
    asked = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    asked.add_argument("--kills", type=int, default=1_000, help="kills in all")
    asked.add_argument("--least", type=int, default=50, help="kills in each window")
    asked.add_argument("--seed", type=int, default=None, help="the seed that an earlier run printed")
    asked.add_argument("--folder", type=Path, default=None, help="folder of the homes; kept, with evidence of failures")
    asked.add_argument("--cuts", type=int, default=1_000, help="power cuts, simulated")
    asked.add_argument("--commands", type=int, default=200, help="kills of the commands in command_kills.py")
    asked.add_argument("--exchanges", type=int, default=200, help="kills of a relay and of homes that exchange")
    given = asked.parse_args()
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    folder = given.folder or Path(tempfile.mkdtemp(prefix="bardo-crash-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"seed {seed}, homes in {folder}", flush=True)
    rounds = Round(folder, seed)
    began = time.monotonic()
    while rounds.tally.left(given.kills, given.least):
        rounds.play()
        if rounds.tally.rounds % 10 == 0:
            print(f"{time.monotonic() - began:6.0f} s: {sum(rounds.tally.kills.values())} kills", flush=True)
    print(rounds.tally.table())
    print(f"seed {seed}, {rounds.tally.rounds} rounds, {time.monotonic() - began:.0f} s")
    for sentence in rounds.tally.messages:
        print(sentence, file=sys.stderr)
    if not rounds.tally.clean:
        print(f"evidence of failures: {folder}", file=sys.stderr)
        return 1
    faults = max(_kill_commands(folder, given.commands, seed), _kill_exchanges(folder, given.exchanges, seed))
    if given.folder is None and not faults:
        shutil.rmtree(folder)
    return max(faults, _cut(given.cuts, seed))


def _kill_commands(folder: Path, count: int, seed: int) -> int:
    """Kill commands that many times. Return 0 if each killed command lost nothing and can be repeated."""
    if not count:
        return 0
    began = time.monotonic()
    kills = CommandKills(folder, seed)
    kills.play(count)
    print(kills.tally.table())
    print(f"seed {seed}, {time.monotonic() - began:.0f} s")
    for sentence in kills.tally.messages:
        print(sentence, file=sys.stderr)
    return 1 if kills.tally.messages else 0


def _kill_exchanges(folder: Path, count: int, seed: int) -> int:
    """Kill a relay and homes that exchange that many times. Return 0 if nothing was lost, doubled or damaged."""
    if not count:
        return 0
    began = time.monotonic()

    def on_progress(kills: int) -> None:
        print(f"{time.monotonic() - began:6.0f} s: {kills} kills in exchanges", flush=True)

    exchanges = ExchangeKills(folder, seed)
    exchanges.play(count, on_progress)
    print(exchanges.tally.table())
    print(f"seed {seed}, {time.monotonic() - began:.0f} s")
    for sentence in exchanges.tally.messages:
        print(sentence, file=sys.stderr)
    return 1 if exchanges.tally.messages else 0


def _cut(count: int, seed: int) -> int:
    """Simulate power cuts at that many points. Return 0 if no acknowledged record is lost and each syncing line is
    needed.
    """
    if not count:
        return 0
    began, broken = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="bardo-power-") as folder:
        lives = []
        for workload in WORKLOADS:
            place = Path(folder) / workload.name
            place.mkdir()
            lives.append((workload, workload.record(place)))
        moments = [(w, life, cut, mode) for w, life in lives for cut in life.disk.cuts() for mode in MODES]
        chosen = random.Random(seed).sample(moments, min(count, len(moments)))
        for workload, life, cut, mode in chosen:
            for sentence in lost(life, cut, mode=mode, whole=workload.whole):
                broken += 1
                print(f"{workload.name}, cut {cut}, {mode}: {sentence}", file=sys.stderr)
        lines = lines_of(lives)
        idle = unneeded(lives, lines)
        for line in idle:
            print(f"no record is lost without this sync: {line}", file=sys.stderr)
    print(f"{len(chosen)} power cuts of {len(moments)}: {broken} times something was lost or broken; "
          f"{len(lines)} lines that sync, {len(idle)} of them for nothing; seed {seed}, "
          f"{time.monotonic() - began:.0f} s")  # fmt: skip
    return 1 if broken or idle else 0


if __name__ == "__main__":
    sys.exit(main())
