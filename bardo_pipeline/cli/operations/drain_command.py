"""`bardo drain`, and the entry point of the drainer process that a writer starts."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from rich.markup import escape
from typer import Exit, Option

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import now, root_of
from bardo_pipeline.cli.output.tables import out
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal.drainer import Drainer, DrainReport, only_drainer, serve
from bardo_pipeline.storage.log.event_log import EventLog


def drain(
    home: opt.Home = None, follow: Annotated[bool, Option("--follow/--once", help="Continue until Ctrl-C.")] = False
) -> None:
    """Move acknowledged records from the journals to the log; exit 1 if a segment is damaged."""
    opened, broken = Home.open(root_of(home)), False

    def show(report: DrainReport) -> None:
        nonlocal broken
        broken = broken or bool(report.faults)
        _print_report(report)

    with EventLog(opened, Policy()) as log:
        drainer = Drainer(opened, log, clock=now)
        if follow:
            with only_drainer(opened) as alone, suppress(KeyboardInterrupt):
                out.print(
                    f"draining {opened.journal}{'' if alone else ', as another drainer does'} (stop it with Ctrl-C)"
                )
                drainer.run(threading.Event(), show)
        else:
            show(drainer.once())
    if broken:
        raise Exit(1)


def _print_report(report: DrainReport) -> None:
    out.print(
        f"[bold]{report.records:,}[/] records from {report.segments:,} segments ({report.bytes:,} bytes) "
        f"in {report.seconds:.2f} s"
    )
    if report.oldest_seconds is not None:
        out.print(f"the oldest was accepted {report.oldest_seconds:,.1f} s ago")
    if report.torn:
        out.print(f"{report.torn:,} bytes of an unfinished frame by a dead writer were cut off")
    if report.refused:
        out.print(f"[bold red]{report.refused:,}[/] in quarantine: `bardo quarantine list`")
    for writer, error in report.faults:
        out.print(f"[bold red]{escape(writer)}:[/] {escape(str(error))}", soft_wrap=True)


if __name__ == "__main__":
    # Started by storage/journal/drainer.py as a process of its own.
    serve(Path(sys.argv[1]), Policy.model_validate_json(sys.argv[2]), now)
