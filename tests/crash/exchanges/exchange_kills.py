"""Exchanges that are killed: parcels, notes and posts between two homes of one owner, through a relay.

Each round copies both homes and the relay's database from a stage of an undisturbed exchange, and lets both homes
exchange at the same time. One of the relay, the sending home and the receiving home dies: before its n-th call that
changes a file, or at a moment of the clock. SQLite changes the relay's database outside of Python, so the relay dies
before its n-th statement, or in the middle of a write. Then all is started again, and both homes exchange until nothing
is left to send. The homes and the relay must hold what they hold without a kill.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from bardo_pipeline.errors import NoServerError, ServerError
from tests.crash.command_kills import POINTS, State
from tests.crash.exchanges.exchange_homes import (
    HOMES,
    die_at_size,
    exchange_once,
    furnish,
    is_quiet,
    opened,
    refusals,
    serve,
    state_of_home,
    state_of_relay,
)
from tests.crash.harness import Child, fork, listen
from tests.crash.windows import Point, Trap, Window

RELAY, SENDER, RECEIVER = VICTIMS = ("relay", "sending home", "receiving home")
WAYS = ("call", "clock")
"""Ways to die, in turn for each victim."""

TURNS = ("first", "second", "first", "second")
"""Homes that exchange one after the other in the undisturbed exchange; a stage precedes each turn."""

WINDOWS_MAX = 10
CHECK = "check"
PROGRESS = 10
"""Kills between two lines of progress."""

_NEVER = 10**9
_PARTS_STATED = 12
_STATEMENTS = (Point("tests.crash.exchanges.exchange_homes:statement", "before"),)
_DATABASE = ("relay.db", "relay.db-wal")


@dataclass(frozen=True)
class Stage:
    """A moment of the undisturbed exchange.

    Parameters
    ----------
    folder : both homes and the relay's database at this moment
    sender, receiver : the home whose turn it is, and the other one
    window : of public posts
    """

    folder: Path
    sender: str
    receiver: str
    window: int


@dataclass(frozen=True)
class Whole:
    """An exchange of both homes from a stage to its end without a kill.

    Parameters
    ----------
    calls, seconds : of each victim
    sizes : of the relay's largest file before and after it
    """

    calls: dict[str, int]
    seconds: float
    sizes: tuple[int, int]


@dataclass
class ExchangeTally:
    """Counts by victim and way: kills, and kills after which the victim had changed its files."""

    kills: Counter[tuple[str, str]] = field(default_factory=Counter)
    effective: Counter[tuple[str, str]] = field(default_factory=Counter)
    messages: list[str] = field(default_factory=list)

    def table(self) -> str:
        """Return the table of counts, one line a victim and way."""
        head = f"{'killed in an exchange':34} {'kills':>6} {'took effect':>12} {'faults':>7}"
        faults = Counter(message.partition(":")[0] for message in self.messages)
        rows = [
            f"{f'{victim}, by {way}':34} {self.kills[victim, way]:6} {self.effective[victim, way]:12} "
            f"{faults[f'{victim}, by {way}']:7}"
            for victim in VICTIMS
            for way in WAYS
        ]  # fmt: skip
        return "\n".join([head, *rows])


class ExchangeKills:
    """Kills of each victim in turn. seed: draws the stage and the moment of each kill."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed, self._work = folder / "exchanges", seed, folder / "exchanges" / "work"
        self.tally = ExchangeTally()
        self._folder.mkdir()
        _in_process("furnish", lambda _: furnish(self._folder))
        self._stages = self._play_turns()
        self._whole: dict[Path, Whole] = {}
        self._copy(self._stages[0])
        self._expected, faults = self._recovered()
        self.tally.messages += [f"no kill: {fault}" for fault in faults]

    def play(self, count: int, on_progress: Callable[[int], None] = lambda _: None) -> None:
        """Kill until `count` processes died, all victims equally often. A fault ends the run."""
        number = 0
        while sum(self.tally.kills.values()) < count and not self.tally.messages:
            before = sum(self.tally.kills.values())
            self._round(number)
            number += 1
            if (kills := sum(self.tally.kills.values())) > before and kills % PROGRESS == 0:
                on_progress(kills)

    def _play_turns(self) -> list[Stage]:
        """Let the homes exchange one after the other; keep a copy before each turn."""
        stages: list[Stage] = []
        self._work.mkdir()
        for name in (*HOMES, "registry.json"):
            (self._folder / name).rename(self._work / name)
        for number, name in enumerate(TURNS):
            (other,) = HOMES.keys() - {name}
            stages.append(Stage(self._folder / f"stage {number}", name, other, number // len(HOMES)))
            _copied(self._work, stages[-1].folder)
            relay = Relay(self._work)
            first = Restarted(self._work / name, relay.address)
            first.order(str(stages[-1].window))
            first.answer()
            first.end()
            relay.end()
        return stages

    def _copy(self, stage: Stage) -> None:
        """Begin again from a stage."""
        shutil.rmtree(self._work, ignore_errors=True)
        _copied(stage.folder, self._work)

    def _round(self, number: int) -> None:
        kills = sum(self.tally.kills.values())
        victim, way = VICTIMS[kills % len(VICTIMS)], WAYS[kills // len(VICTIMS) % len(WAYS)]
        rng = random.Random(f"{self._seed}/{number}")
        stage = rng.choice(self._stages)
        if stage.folder not in self._whole:
            self._copy(stage)
            self._whole[stage.folder] = self._play_undisturbed(stage)
        self._copy(stage)
        before = self._sizes(victim, stage)
        if not self._killed(victim, way, stage, rng):
            return
        self.tally.kills[victim, way] += 1
        self.tally.effective[victim, way] += self._sizes(victim, stage) != before
        state, faults = self._recovered()
        faults += _differences(state, self._expected)
        self.tally.messages += [f"{victim}, by {way}: round {number}, {stage.folder.name}: {each}" for each in faults]
        if faults:
            shutil.copytree(self._work, self._folder / f"evidence-{number}")

    def _sizes(self, victim: str, stage: Stage) -> dict[str, int]:
        """Return the sizes of a victim's files."""
        if victim == RELAY:
            files = [self._work / name for name in _DATABASE]
        else:
            files = sorted((self._work / (stage.sender if victim == SENDER else stage.receiver)).rglob("*"))
        return {str(path): path.stat().st_size for path in files if path.is_file()}

    def _play_undisturbed(self, stage: Stage) -> Whole:
        """Let both homes exchange from a stage without a kill."""
        began, sizes = time.monotonic(), [self._database_size()]
        calls: dict[str, int] = {}
        relay = Relay(self._work, Trap(Window(RELAY, "exchange", _STATEMENTS), _NEVER, self._work))

        def count(child: Child, line: str) -> None:
            calls[child.name] = int(line)

        listen(self._homes(stage, relay, {}), count)
        calls[RELAY] = relay.calls()
        sizes.append(self._database_size())
        return Whole(calls, time.monotonic() - began, (sizes[0], sizes[1]))

    def _database_size(self) -> int:
        return max(((self._work / n).stat().st_size for n in _DATABASE if (self._work / n).exists()), default=0)

    def _homes(self, stage: Stage, relay: Relay, passings: dict[str, int]) -> list[Child]:
        """Start the exchange of both homes; the receiving one exchanges until the sending one has ended."""
        over = self._work / "over"

        def sending(report: Callable[[str], None]) -> None:
            trap = self._trap(SENDER, stage.sender, passings)
            context = opened(self._work / stage.sender)
            with suppress(ServerError):
                exchange_once(context, relay.address, stage.window)
            over.touch()
            report(str(_NEVER - trap.left))

        def receiving(report: Callable[[str], None]) -> None:
            trap, is_last = self._trap(RECEIVER, stage.receiver, passings), False
            context = opened(self._work / stage.receiver)
            with suppress(ServerError):
                while not is_last:
                    is_last = over.exists() or os.getppid() != parent
                    exchange_once(context, relay.address, stage.window)
            report(str(_NEVER - trap.left))

        parent = os.getpid()
        first = Child(*fork(sending), SENDER, None)
        return [first, Child(*fork(receiving, [first.pipe]), RECEIVER, None)]

    def _trap(self, victim: str, name: str, passings: dict[str, int]) -> Trap:
        trap = Trap(Window(victim, "exchange", POINTS), passings.get(victim, _NEVER), self._work / name)
        trap.set()
        return trap

    def _killed(self, victim: str, way: str, stage: Stage, rng: random.Random) -> bool:
        """Let both homes exchange while the victim dies; return False if it did not."""
        whole = self._whole[stage.folder]
        is_by_call, is_in_write = way == "call", rng.random() < 0.5  # in the middle of a write, or before a statement
        passing, delay = rng.randint(1, max(whole.calls[victim], 1)), rng.uniform(0.05, 1.0) * whole.seconds
        size = rng.randint(min(whole.sizes[0] + 1, whole.sizes[1]), whole.sizes[1])
        is_relay = victim == RELAY
        trap = None
        if is_relay and is_by_call and not is_in_write:
            trap = Trap(Window(RELAY, "exchange", _STATEMENTS), passing, self._work)
        relay = Relay(self._work, trap, size if is_relay and is_by_call and is_in_write else None)
        if relay.address == "":  # it died at its start
            return relay.end()
        homes = self._homes(stage, relay, {victim: passing} if is_by_call and not is_relay else {})
        over, killers = self._work / "over", list[int]()
        pids = {child.name: child.pid for child in homes} | {RELAY: relay.child.pid}
        if way == "clock":
            killers.append(os.fork())
            if killers[-1] == 0:
                time.sleep(delay)
                os.kill(pids[victim], signal.SIGKILL)
                os._exit(0)
        try:
            broken: list[str] = []
            ends = listen(homes, lambda _, line: broken.append(line), lambda child: over.touch())
        finally:
            for pid in killers:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            is_relay_dead = relay.end()
        over.unlink(missing_ok=True)
        if lines := [line for line in broken if line.startswith("broken ")]:
            raise RuntimeError(f"an exchange failed instead of being killed: {orjson.loads(lines[0][7:])}")
        return is_relay_dead if is_relay else os.WIFSIGNALED(ends[victim])

    def _recovered(self) -> tuple[State, list[str]]:
        """Start all again, and exchange until both homes have nothing to do. Return what they and the relay hold."""
        relay, faults, window = Relay(self._work), list[str](), len(TURNS) // len(HOMES)
        homes = {name: Restarted(self._work / name, relay.address) for name in HOMES}
        is_quiet = False
        while not is_quiet and window < WINDOWS_MAX:
            answers = _asked(homes, str(window))
            is_quiet = all(quiet for quiet, _ in answers.values())
            faults += [f"{name}: {sentence}" for name, (_, sentences) in answers.items() for sentence in sentences]
            window += 1
        if not is_quiet:
            faults.append(f"the homes still exchange after {WINDOWS_MAX} windows")
        found = _asked(homes, CHECK)
        for home in homes.values():
            home.end()
        relay.end()
        (line,) = _in_process(RELAY, _checking_relay(self._work / "relay.db"))
        found[RELAY] = orjson.loads(line)
        state: State = {}
        for name, (parts, sentences) in found.items():
            state |= {f"{name}: {part}": value for part, value in parts.items()}
            faults += [f"{name}: {sentence}" for sentence in sentences]
        return state, faults


class Relay:
    """A relay in a process of its own.

    Parameters
    ----------
    folder : of its database
    trap : kills it at a statement
    size : the offset of a file at which a write kills it
    """

    def __init__(self, folder: Path, trap: Trap | None = None, size: int | None = None) -> None:
        self.address = ""

        def play(report: Callable[[str], None]) -> None:
            def stop(*_: object) -> None:
                report(str(0 if trap is None else _NEVER - trap.left))
                os._exit(0)

            signal.signal(signal.SIGUSR1, stop)
            if trap is not None:
                trap.set()
            if size is not None:
                die_at_size(size)
            serve(folder, report)

        self.child = Child(*fork(play), RELAY, None)
        self._pipe = os.fdopen(self.child.pipe)
        self.address = self._pipe.readline().strip()

    def calls(self) -> int:
        """End the relay; return the number of its statements."""
        os.kill(self.child.pid, signal.SIGUSR1)
        (line,) = self._pipe.read().split()
        os.waitpid(self.child.pid, 0)
        return int(line)

    def end(self) -> bool:
        """End the relay; return whether it was dead."""
        done, _ = os.waitpid(self.child.pid, os.WNOHANG)
        if done == 0:
            os.kill(self.child.pid, signal.SIGKILL)
            os.waitpid(self.child.pid, 0)
        self._pipe.close()
        return done != 0


def _copied(folder: Path, place: Path) -> None:
    """Copy a folder; the large files of models, which never change, are links to the same content."""

    def copy(source: str, target: str) -> None:
        if source.endswith(".onnx"):
            os.link(source, target)
        else:
            shutil.copy2(source, target)

    shutil.copytree(folder, place, copy_function=copy)


class Restarted:
    """A home that is opened again in a process of its own: it exchanges in each window that it is told.

    It answers the order `CHECK` with its state.
    """

    def __init__(self, root: Path, address: str) -> None:
        reading, self._orders = os.pipe()

        def play(report: Callable[[str], None]) -> None:
            os.close(self._orders)
            context = opened(root)
            with os.fdopen(reading) as orders:
                for order in iter(lambda: orders.readline().strip(), ""):
                    if order == CHECK:
                        report(orjson.dumps(state_of_home(context)).decode())
                        continue
                    try:
                        done = exchange_once(context, address, int(order))
                    except NoServerError:  # a busy machine answers late; the next window repeats the exchange
                        report(orjson.dumps([False, []]).decode())
                    else:
                        report(orjson.dumps([is_quiet(*done), refusals(*done)]).decode())

        pid, pipe = fork(play)
        os.close(reading)
        self._pid, self._answers = pid, os.fdopen(pipe)

    def order(self, words: str) -> None:
        """Send an order."""
        os.write(self._orders, f"{words}\n".encode())

    def answer(self) -> tuple[Any, list[str]]:
        """Wait for the answer. Raises RuntimeError if the home failed."""
        line = self._answers.readline()
        if not line or line.startswith("broken "):
            raise RuntimeError(f"a home failed after its restart: {orjson.loads(line[7:]) if line else 'no answer'}")
        first, sentences = orjson.loads(line)
        return first, sentences

    def end(self) -> None:
        """End the process."""
        self.order("")  # another home may hold the pipe open
        os.close(self._orders)
        os.waitpid(self._pid, 0)
        self._answers.close()


def _asked(homes: dict[str, Restarted], order: str) -> dict[str, tuple[Any, list[str]]]:
    """Give all homes an order, which they follow at the same time; return their answers."""
    for home in homes.values():
        home.order(order)
    return {name: home.answer() for name, home in homes.items()}


def _checking_relay(database: Path) -> Callable[[Callable[[str], None]], None]:
    return lambda report: report(orjson.dumps(state_of_relay(database)).decode())


def _in_process(name: str, play: Callable[[Callable[[str], None]], None]) -> list[str]:
    """Run a function in a forked process; return the lines that it reported."""
    lines: list[str] = []
    if listen([Child(*fork(play), name, None)], lambda _, line: lines.append(line))[name] != 0:
        raise RuntimeError(f"{name}: {lines}")
    return lines


def _differences(state: State, expected: State) -> list[str]:
    """Return a sentence for each part that was lost, doubled, added or altered."""
    sentences = []
    for part in sorted(state.keys() | expected.keys()):
        found, wanted = state.get(part), expected.get(part)
        if found == wanted:
            continue
        if found is None:
            word = "was lost"
        elif wanted is None:
            word = "exists only after the kill"
        elif found.isdigit() and wanted.isdigit() and len(found) < 9:
            word = f"exists {found} times, not {wanted}"
        else:
            word = "differs"
        sentences.append(f"{part} {word}")
    return sentences[:_PARTS_STATED]
