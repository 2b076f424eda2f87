"""Processes forked from one with preloaded libraries, which saves one to two seconds each."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import TextIO

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.support.processes.preloaded_imports"])


class Forked:
    """A process with pipes: its output can be read line by line from `out`, and its input is written to `input`."""

    def __init__(self, play: Callable[..., object], *words: str) -> None:
        """play: a function of a module; the new process calls it with these arguments, and ends when it returns."""
        stdin_end, stdin = CONTEXT.Pipe(duplex=False)
        stdout, stdout_end = CONTEXT.Pipe(duplex=False)
        self._process: ForkServerProcess = CONTEXT.Process(
            target=_play, args=(stdin_end, stdout_end, play, words), daemon=True
        )
        self._process.start()
        stdin_end.close()
        stdout_end.close()
        self.input, self.out = _file(stdin, "w"), _file(stdout, "r")

    @property
    def returncode(self) -> int | None:
        """None as long as it runs; minus the signal that killed it."""
        return self._process.exitcode

    def go(self) -> None:
        """Write a line to its standard input."""
        self.input.write("go\n")
        self.input.flush()

    def wait(self, seconds: float | None = None) -> int | None:
        """Return its exit code; None if it still runs after this many seconds."""
        self._process.join(seconds)
        return self.returncode

    def kill(self) -> None:
        """Kill it, if it is not dead."""
        self._process.kill()

    def rest(self) -> str:
        """Return the rest of its output."""
        rows = self.out.read()
        self.wait()
        return rows


def die() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def _file(end: Connection, mode: str) -> TextIO:
    with end:
        return os.fdopen(os.dup(end.fileno()), mode, encoding="utf-8")


def _play(stdin_end: Connection, stdout_end: Connection, play: Callable[..., object], words: tuple[str, ...]) -> None:
    os.dup2(stdin_end.fileno(), 0)
    os.dup2(stdout_end.fileno(), 1)
    stdin_end.close()
    stdout_end.close()
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    with suppress(BrokenPipeError):
        play(*words)
        sys.stdout.flush()
