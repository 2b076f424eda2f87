"""The command `bardo` in a process of its own, forked from a process with preloaded libraries."""

from __future__ import annotations

import os
import pty
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory

from tests.support.processes.forked_processes import CONTEXT

ROOT = Path(__file__).resolve().parents[3]


def bardo(*words: str, home: Path, expect: int = 0) -> str:
    """Run the command on a home, and return its output, standard error included."""
    environment = {**os.environ, "BARDO_HOME": str(home), "COLUMNS": "160"}
    done = run(words, environment)
    assert done.returncode == expect, f"bardo {' '.join(words)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def run(words: Sequence[str], environment: Mapping[str, str], *, given: str = "") -> CompletedProcess[str]:
    """Run `bardo` with these arguments in exactly this environment. given: its standard input."""
    with TemporaryDirectory() as folder:
        streams = [Path(folder) / name for name in ("in", "out", "err")]
        streams[0].write_text(given)
        process = CONTEXT.Process(target=_run_command, args=(list(words), dict(environment), os.getcwd(), streams))
        process.start()
        process.join()
        assert process.exitcode is not None
        return CompletedProcess(["bardo", *words], process.exitcode, *(path.read_text() for path in streams[1:]))


def on_terminal(words: Sequence[str], home: Path, *, columns: int = 80) -> str:
    """Run `bardo` on a pseudo terminal of this width, and return what the terminal would get."""
    child, terminal = pty.fork()
    if child == 0:
        shape = {"COLUMNS": str(columns), "TERM": "xterm"}
        environment = {**os.environ, **shape, "BARDO_HOME": str(home), "PYTHONPATH": str(ROOT)}
        os.execve(sys.executable, ["python", "-m", "bardo_pipeline.cli.app", *words], environment)
    parts = []
    try:
        while part := os.read(terminal, 65_536):
            parts.append(part)
    except OSError:  # the end of a pseudo terminal
        pass
    printed = b"".join(parts).decode()
    assert os.waitpid(child, 0)[1] == 0, printed
    return printed


def unstyled(printed: str) -> list[str]:
    """Return the lines that a terminal shows, without styles and spaces at their ends."""
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed).replace("\r", "\n").split("\n")]


def _run_command(words: list[str], environment: dict[str, str], folder: str, streams: list[Path]) -> None:
    """Become the command."""
    for number, path in enumerate(streams):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(handle, number)
        os.close(handle)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    command(*words)


def command(*words: str) -> None:
    """Run the command in this process."""
    sys.stdin, sys.stdout, sys.stderr = (open(n, mode, closefd=False) for n, mode in enumerate("rww"))  # noqa: SIM115
    sys.argv = ["bardo", *words]
    from bardo_pipeline.cli.app import main

    main()
