"""Live runs in processes of their own, and what they leave in their home."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import EventLog
from tests.support.processes.bardo_command import command
from tests.support.processes.forked_processes import CONTEXT

WAIT_SECONDS = 120.0


def awaited(condition: Callable[[], Any]) -> Any:
    """Return the first true answer."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (answer := condition()):
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.1)
    return answer


def _live(home: str, *words: str) -> None:
    os.environ["BARDO_HOME"] = home
    command("live", "--no-screen", *words)


def _live_alone(home: str, *words: str) -> None:
    os.environ["BARDO_HOME"] = home
    os.execv(sys.executable, [sys.executable, "-m", "bardo_pipeline.cli.entry", "live", "--no-screen", *words])


@contextmanager
def living(home: Path, *words: str, is_alone: bool = False) -> Iterator[BaseProcess]:
    """Let golems live in a process of their own until the block ends.

    is_alone: the process loads its libraries itself, as `bardo live` on a command line does
    """
    process = CONTEXT.Process(target=_live_alone if is_alone else _live, args=(str(home), *words))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def rows_of(home: Path) -> list[dict[str, Any]]:
    log = EventLog(Home.open(home))
    rows = log.read_cycles().sort_by([("golem_id", "ascending"), ("tick", "ascending")]).to_pylist()
    log.close()
    return rows
