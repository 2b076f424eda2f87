"""Runs a command and turns an error into one line. Exit codes: 0 success, 1 a check failed, 2 bad input or no home."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.markup import escape

from bardo_pipeline.cli.output.tables import err, use_lossy_streams
from bardo_pipeline.errors import BardoError
from bardo_pipeline.storage.home import typed_disk_errors


def run_to_exit(command: Callable[[], object]) -> None:
    """Run a command; print a BardoError, or an error of the disk, as one line and exit 2."""
    use_lossy_streams()
    try:
        with typed_disk_errors():
            command()
    except BardoError as error:
        err.print(f"[bold red]bardo:[/] {escape(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(2)
