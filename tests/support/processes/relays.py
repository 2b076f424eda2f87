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


_STOPPED = """
import sys
from datetime import datetime
from pathlib import Path
from bardo_pipeline.relay.serve_relay import RelaySettings, serve_relay

at = datetime.fromisoformat(sys.argv[2])
serve_relay(
    Path(sys.argv[1]), RelaySettings(port=0), clock=lambda: at,
    on_ready=lambda url: print(url, file=sys.stderr, flush=True),
)
"""


@contextmanager
def relay(
    database: Path, port: int = 0, clock: datetime | None = None, registry: Path | None = None
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run `bardo relay` over a database; yield its address and its process, which is killed at the end.

    clock: the time that stands still for the relay; None for the wall clock. registry: file of its verified authors.
    """
    words = [sys.executable, "-m", "bardo_pipeline.cli.app", "relay", str(database), "--port", str(port)]
    words += [] if registry is None else ["--registry", str(registry)]
    if clock is not None:
        words = [sys.executable, "-c", _STOPPED, str(database), clock.isoformat()]
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
