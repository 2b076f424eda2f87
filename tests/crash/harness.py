"""Kill processes that write into one home at named points, then open the home and count its records.

A round forks four writers and other roles, each with a kill point. Each process reports acknowledged records
through a pipe, and only those count as acknowledged. When all are dead, another process opens the home, drains it
and checks everything. The parent process has loaded every library and started no thread, so a fork costs milliseconds.
"""

from __future__ import annotations

import os
import random
import selectors
import shutil
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import orjson

from tests.crash.recovery import Faults, recover
from tests.crash.roles import ROLES, Stage, furnish
from tests.crash.windows import WINDOWS, Trap, Window

WRITERS = 4
SECONDS_MAX = 600.0
"""Silence after which a child counts as hung; a busy machine takes minutes to derive a home and its warehouse."""

ROUNDS_A_HOME = 5
_WRITING = ("writer", "batch")


@dataclass
class Ledger:
    """Reports of a home's writers: (golem, tick) sent and acknowledged, with the digest of the content."""

    sent: dict[tuple[str, int], str] = field(default_factory=dict)
    acknowledged: dict[tuple[str, int], str] = field(default_factory=dict)

    def take(self, line: str) -> None:
        """A line of a child: "sent GOLEM TICK DIGEST" or "kept GOLEM TICK DIGEST"."""
        word, golem, tick, digest = line.split(" ")
        (self.sent if word == "sent" else self.acknowledged)[golem, int(tick)] = digest


@dataclass
class Tally:
    """Counts by window."""

    kills: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    doubled: Counter[str] = field(default_factory=Counter)
    unreadable: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    messages: list[str] = field(default_factory=list)
    rounds: int = 0
    acknowledged: int = 0

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.lost or self.doubled or self.unreadable or self.broken or self.messages)

    def left(self, kills: int, least: int) -> bool:
        """Whether more kills are needed, in total and at each kill point. A failure ends the run."""
        return self.clean and (
            sum(self.kills.values()) < kills or any(self.kills[window.name] < least for window in WINDOWS)
        )

    def take(self, windows: Iterable[str], faults: Faults) -> None:
        """Count a round's findings under the windows in which processes died."""
        for name in set(windows):
            for counter, number in (
                (self.lost, len(faults.lost)),
                (self.doubled, len(faults.doubled)),
                (self.unreadable, len(faults.unreadable)),
                (self.broken, len(faults.broken)),
            ):
                if number:
                    counter[name] += number
        self.messages += faults.sentences()

    def table(self) -> str:
        """Return the table of counts, one line a window."""
        head = f"{'window':34} {'kills':>6} {'lost':>6} {'doubled':>8} {'unreadable':>11} {'verify':>8}"
        rows = [
            f"{w.name:34} {self.kills[w.name]:6} {self.lost[w.name]:6} {self.doubled[w.name]:8} "
            f"{self.unreadable[w.name]:11} {'broken' if self.broken[w.name] else 'clean':>8}"
            for w in WINDOWS
        ]
        total = f"{'all':34} {sum(self.kills.values()):6} {'':6} {'':8} {'':11} {self.acknowledged:,} acknowledged"
        return "\n".join([head, *rows, total])


@dataclass(frozen=True)
class Child:
    """A forked process: its role, its trap, and the pipe by which it reports."""

    pid: int
    pipe: int
    name: str
    window: Window | None


def fork(play: Callable[[Callable[[str], None]], None], others: Iterable[int] = ()) -> tuple[int, int]:
    """Run a function in a forked child and return its pid and report pipe. The child exits when the function
    returns.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _in_child(play, writing, [reading, *others])
    os.close(writing)
    return pid, reading


def _in_child(play: Callable[[Callable[[str], None]], None], writing: int, others: Iterable[int]) -> NoReturn:
    for handle in others:
        os.close(handle)

    def report(line: str) -> None:
        os.write(writing, line.encode() + b"\n")

    code = 1
    try:
        play(report)
        code = 0
    except BaseException:
        report("broken " + orjson.dumps(traceback.format_exc()).decode())
    finally:
        os._exit(code)


def spawn(root: Path, name: str, window: Window, seed: str, others: Iterable[int]) -> Child:
    """Start a process that plays the window's role, under its trap."""
    rng, parent = random.Random(seed), os.getpid()

    def over() -> bool:
        return _end_marker(root).exists() or os.getppid() != parent

    def play(report: Callable[[str], None]) -> None:
        point = rng.choice(window.points)
        Trap(Window(window.name, window.role, (point,)), rng.randint(1, window.passings_max), root).set()
        ROLES[window.role](Stage(root, name, rng, report, over))

    return Child(*fork(play, others), name, window)


def _end_marker(root: Path) -> Path:
    """Return the file that exists once all writers have ended."""
    return root.with_suffix(".over")


def listen(
    children: list[Child], on_line: Callable[[Child, str], None], gone: Callable[[Child], None] = lambda _: None
) -> dict[str, int]:
    """Read the reports of all children until they end, and return their exit statuses; kill a child that is silent for
    long.

    gone: called with each child that ended.
    """
    rest = {child.pipe: b"" for child in children}
    by_pipe = {child.pipe: child for child in children}
    with selectors.DefaultSelector() as waiting:
        for child in children:
            waiting.register(child.pipe, selectors.EVENT_READ)
        while waiting.get_map():
            ready = waiting.select(SECONDS_MAX)
            if not ready:
                for pipe in list(waiting.get_map()):
                    os.kill(by_pipe[pipe].pid, signal.SIGABRT)
                raise TimeoutError(f"hung: {[by_pipe[p].name for p in waiting.get_map()]}")
            for key, _ in ready:
                content = os.read(key.fd, 1 << 16)
                *lines, rest[key.fd] = (rest[key.fd] + content).split(b"\n")
                for line in lines:
                    on_line(by_pipe[key.fd], line.decode())
                if not content:
                    waiting.unregister(key.fd)
                    os.close(key.fd)
                    gone(by_pipe[key.fd])
    return {child.name: os.waitpid(child.pid, 0)[1] for child in children}


class Round:
    """Rounds on one home after another. seed: selects the process and point of each kill; timing between points is not
    fixed.
    """

    def __init__(self, folder: Path, seed: int, windows: tuple[Window, ...] = WINDOWS) -> None:
        self.folder, self.seed, self.windows = folder, seed, windows
        self.tally = Tally()
        self._ledger = Ledger()
        self._root = folder / "home-0"

    def play(self) -> None:
        """Play one round: start all processes, wait until each is killed or done, then check the home."""
        number = self.tally.rounds
        self.tally.rounds += 1
        if number % ROUNDS_A_HOME == 0:
            self._move(number)
        children: list[Child] = []
        _end_marker(self._root).unlink(missing_ok=True)
        for name, window in self._assign_windows(random.Random(f"{self.seed}/{number}")):
            seed = f"{self.seed}/{number}/{name}"
            children.append(spawn(self._root, name, window, seed, [c.pipe for c in children]))
        writing = {child.name for child in children if child.window and child.window.role in _WRITING}

        def gone(child: Child) -> None:
            writing.discard(child.name)
            if not writing:
                _end_marker(self._root).touch()

        ends = listen(children, self._take_line, gone)
        struck = []
        for child in children:
            assert child.window is not None
            if os.WIFSIGNALED(ends[child.name]) and os.WTERMSIG(ends[child.name]) == signal.SIGKILL:
                self.tally.kills[child.window.name] += 1
                struck.append(child.window.name)
        result = self._check_home()
        self.tally.take(struck, result)
        if result.sentences():
            shutil.copytree(self._root, self.folder / f"evidence-{number}", dirs_exist_ok=True)

    def _move(self, number: int) -> None:
        """Begin a new home, so that a complete check stays cheap."""
        shutil.rmtree(self._root, ignore_errors=True)
        self._root, self._ledger = self.folder / f"home-{number}", Ledger()
        pid, pipe = fork(lambda _: furnish(self._root, WRITERS))
        self._finish(Child(pid, pipe, "furnish", None))

    def _assign_windows(self, rng: random.Random) -> list[tuple[str, Window]]:
        """Select four writers and one process of each other role, each under its role's window with the fewest
        kills.
        """
        roles = list(dict.fromkeys(window.role for window in self.windows))
        of_role = {role: [w for w in self.windows if w.role == role] for role in roles}
        writing = [w for w in self.windows if w.role in _WRITING]
        cast = []
        promised: Counter[str] = Counter(self.tally.kills)
        slots = [(f"w{k}", writing) for k in range(WRITERS if writing else 0)]
        slots += [(role, of_role[role]) for role in roles if role not in _WRITING]
        for name, choice in slots:
            least = min(promised[w.name] for w in choice)
            window = rng.choice([w for w in choice if promised[w.name] == least])
            promised[window.name] += 1
            cast.append((name, window))
        return cast

    def _take_line(self, child: Child, line: str) -> None:
        if line.startswith("broken "):
            self.tally.messages.append(f"{child.name} ({child.window and child.window.name}): {orjson.loads(line[7:])}")
        else:
            self._ledger.take(line)
            self.tally.acknowledged += line.startswith("kept ")

    def _check_home(self) -> Faults:
        rows: list[str] = []

        def look(report: Callable[[str], None]) -> None:
            report("found " + recover(self._root, self._ledger.sent, self._ledger.acknowledged).packed())

        child = Child(*fork(look), "recovery", None)
        ends = listen([child], lambda _, line: rows.append(line))
        first_match = next((line for line in rows if line.startswith("found ")), None)
        if ends["recovery"] != 0 or first_match is None:
            return Faults(broken=[f"recovery ended with {ends['recovery']}: {rows}"])
        return Faults.unpacked(first_match[6:])

    def _finish(self, child: Child) -> None:
        rows: list[str] = []
        if listen([child], lambda _, line: rows.append(line))[child.name] != 0:
            raise RuntimeError(f"{child.name}: {rows}")
