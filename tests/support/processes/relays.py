"""A relay in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


@contextmanager
def relay(database: Path, port: int = 0) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run `bardo relay` over a database; yield its address and its process, which is killed at the end."""
    words = [sys.executable, "-m", "bardo_pipeline.cli.app", "relay", str(database), "--port", str(port)]
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
