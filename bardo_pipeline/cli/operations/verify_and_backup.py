"""The chain of custody at the door: `bardo verify`, `bardo keys`, `bardo backup` and `bardo restore`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console

from bardo_pipeline.cli.operations import keys_command
from bardo_pipeline.cli.options import HomeOption, now, root_of
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal.segment_files import journal_depth
from bardo_pipeline.storage.operations.backup import back_up, restore
from bardo_pipeline.storage.verification.report import Report
from bardo_pipeline.storage.verification.verify import verify

out = Console(soft_wrap=True, highlight=False)


def add_to(app: typer.Typer) -> None:
    """Put these commands into `bardo`."""
    app.command("verify")(verify_home)
    app.add_typer(keys_command.app, name="keys")
    app.command("backup")(backup)
    app.command("restore")(restore_home)


def verify_home(
    home: HomeOption = None,
    expect: Annotated[
        str | None,
        typer.Option(
            help="The digest of the fleet that an earlier run printed: a log that was shortened is found by it."
        ),
    ] = None,
    format: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
) -> None:
    """Walk the whole log as it lies on disk, chains, signatures, files; exit 1 and name what is broken."""
    if format not in ("text", "json"):
        raise ConfigError(f"--format {format!r}: text or json")
    report = verify(Home.open(root_of(home)), expect=expect)
    if format == "json":
        sys.stdout.buffer.write(orjson.dumps(as_json(report), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    else:
        _print(report)
    if not report.clean:
        raise typer.Exit(1)


def as_json(report: Report) -> dict[str, object]:
    """A report as `bardo verify --format json` gives it."""
    return {
        "clean": report.clean,
        "breaks": [{**asdict(broken), "count": report.counts[broken.kind]} for broken in report.breaks],
        "files": report.files,
        "facts": report.facts,
        "gaps": [gap._asdict() for gap in report.gaps],
        "digest": report.digest,
    }


def _print(report: Report) -> None:
    for broken in report.breaks:
        more = f" (and {count - 1} more)" if (count := report.counts[broken.kind]) > 1 else ""
        out.print(f"[bold red]broken[/] {broken.kind}: ", broken.sentence(), more, sep="", markup=True)
    for name, value in report.facts.items():
        out.print(f"{name:<24} {value:,}")
    for gap in report.gaps:
        out.print(
            f"gap                      golem {gap.golem_id}: ticks {gap.tick_from} to {gap.tick_to}", markup=False
        )
    out.print(f"digest of the fleet      {report.digest}")
    out.print("[bold]clean[/]" if report.clean else "[bold red]broken[/]")


Folder = Annotated[Path, typer.Argument(help="The folder of the backup.")]


def backup(folder: Folder, home: HomeOption = None) -> None:
    """Copy what cannot be made again to a folder, while writers run; again, only what is new since.

    Log, journals, leases, spool, quarantine, bundles, conversations. Seal keys are in no backup: destroying one must
    reach every copy, so keep them elsewhere if what they seal shall outlive this disk. Keep the digest, too: `bardo
    verify --expect` finds by it a log that was shortened.
    """
    done = back_up(Home.open(root_of(home)), folder, now())
    out.print(f"copied {done.copied:,} files ({done.copied_bytes:,} bytes); {folder} holds {done.held:,}", markup=False)
    out.print(f"digest of the fleet      {done.manifest.digest}", markup=False)


def restore_home(folder: Folder, home: HomeOption = None) -> None:
    """Make a home of a backup, in a folder that is missing or empty; every byte is checked on the way."""
    made, manifest = restore(folder, root_of(home), now())
    out.print(f"restored {len(manifest.files):,} files of {manifest.made_at:%Y-%m-%d %H:%M:%S} UTC", markup=False)
    if waiting := journal_depth(made).segments:
        out.print(f"{waiting} journal segments wait: the next writer, or `bardo drain`, takes them to the log")
    out.print("next: bardo verify, then bardo rebuild")
