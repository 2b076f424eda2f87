"""`bardo verify | backup | restore`: check the chain of custody, copy a home, restore it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import format_option, now, root_of
from bardo_pipeline.cli.output.tables import out, print_json, say
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal.segment_files import journal_depth
from bardo_pipeline.storage.operations.backup import back_up, restore
from bardo_pipeline.storage.verification.report import Report
from bardo_pipeline.storage.verification.verify import verify


def verify_home(
    home: opt.Home = None,
    expect: Annotated[
        str | None,
        typer.Option(help="Fleet digest of an earlier verify or backup; detects a shortened log."),
    ] = None,
    format: Annotated[str, format_option("text", "json", help="Output format: text or json.")] = "text",
) -> None:
    """Verify hash chains, signatures and files of the whole log; list breaks and exit 1."""
    report = verify(Home.open(root_of(home)), expect=expect)
    if format == "json":
        facts = {
            "clean": report.clean,
            "breaks": [{**asdict(broken), "count": report.counts[broken.kind]} for broken in report.breaks],
            "files": report.files,
            "facts": report.facts,
            "gaps": [gap._asdict() for gap in report.gaps],
            "digest": report.digest,
        }
        print_json(facts, indent=True)
    else:
        _print(report)
    if not report.clean:
        raise typer.Exit(1)


def _print(report: Report) -> None:
    for broken in report.breaks:
        more = f" (and {count - 1} more)" if (count := report.counts[broken.kind]) > 1 else ""
        out.print(f"[bold red]broken[/] {broken.kind}: ", broken.sentence(), more, sep="", soft_wrap=True)
    for name, value in report.facts.items():
        say(f"{name:<24} {value:,}")
    for gap in report.gaps:
        say(f"gap                      golem {gap.golem_id}: ticks {gap.tick_from} to {gap.tick_to}")
    say(f"digest of the fleet      {report.digest}")
    out.print("[bold]clean[/]" if report.clean else "[bold red]broken[/]")


Folder = Annotated[Path, typer.Argument(help="Folder of the backup.")]


def backup(folder: Folder, home: opt.Home = None) -> None:
    """Copy all data that cannot be derived again, while writers run; a repeated backup copies only new files.

    Contains log, journals, leases, spool, quarantine, bundles and conversations. Seal keys are excluded, because
    destroying a key must reach every copy; store them elsewhere. Keep the printed digest: `bardo verify --expect` uses
    it to detect a shortened log.
    """
    result = back_up(Home.open(root_of(home)), folder, now())
    say(f"copied {result.copied:,} files ({result.copied_bytes:,} bytes); {folder} holds {result.held:,}")
    say(f"digest of the fleet      {result.manifest.digest}")


def restore_home(folder: Folder, home: opt.Home = None) -> None:
    """Restore a backup into a missing or empty folder; every file's hash is checked."""
    restored, manifest = restore(folder, root_of(home), now())
    say(f"restored {len(manifest.files):,} files of {manifest.made_at:%Y-%m-%d %H:%M:%S} UTC")
    if waiting := journal_depth(restored).segments:
        say(f"{waiting} journal segments are not in the log yet: the next writer or `bardo drain` moves them")
    say("next: bardo verify, then bardo rebuild")
