"""A relay in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


_SERVED = """
import sys
from datetime import datetime
from pathlib import Path
from bardo_pipeline.clock import utc_now
from bardo_pipeline.relay.serve_relay import RelaySettings, serve_relay

database, port, registry, at = sys.argv[1:]
settings = RelaySettings(port=int(port), registry=Path(registry) if registry else None)
clock = (lambda: datetime.fromisoformat(at)) if at else utc_now
serve_relay(Path(database), settings, clock=clock, on_ready=lambda url: print(url, file=sys.stderr, flush=True))
"""


@contextmanager
def relay(
    database: Path, port: int = 0, clock: datetime | None = None, registry: Path | None = None, by_command: bool = False
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a relay over a database as `bardo relay` does; yield its address and its process, which is killed at the end.

    The process imports the relay alone, which takes a third of the command's time.

    Parameters
    ----------
    clock : the time that stands still for the relay; None for the wall clock
    registry : file of its verified authors
    by_command : run `bardo relay` itself
    """
    facts = (str(database), str(port), "" if registry is None else str(registry), clock.isoformat() if clock else "")
    words = [sys.executable, "-c", _SERVED, *facts]
    if by_command:
        words = [sys.executable, "-m", "bardo_pipeline.cli.app", "relay", str(database), "--port", str(port)]
        words += [] if registry is None else ["--registry", str(registry)]
    process = subprocess.Popen(
        words, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True, stdout=subprocess.DEVNULL
    )
    try:
        assert process.stderr is not None
        first = process.stderr.readline()
        address = re.search(r"http://\S+", first)
        assert address is not None, first + process.stderr.read()
        yield address[0], process
    finally:
        process.kill()
        process.wait()
