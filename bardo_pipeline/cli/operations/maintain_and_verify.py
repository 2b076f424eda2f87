"""`bardo ticks | maintain | verify | backup | restore`: query the tick index; compact, check, copy, restore a home."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from rich.filesize import decimal
from rich.markup import escape
from typer import Argument, Exit, Option

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import format_option, now, open_log, root_of
from bardo_pipeline.cli.output.tables import out, print_json, print_records, print_table, say, spinner
from bardo_pipeline.derivation.active_derivation import in_force
from bardo_pipeline.derivation.home_maintenance import tend
from bardo_pipeline.storage.home import Home, local_folder
from bardo_pipeline.storage.index.tick_index import TickIndex
from bardo_pipeline.storage.journal.segment_files import journal_depth
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.owner_log import golems_in_view
from bardo_pipeline.storage.operations.backup import back_up, restore
from bardo_pipeline.storage.operations.inspected_home import inspected_home
from bardo_pipeline.storage.operations.maintenance import MaintenanceReport
from bardo_pipeline.storage.operations.retention import disk_bytes
from bardo_pipeline.storage.verification.report import Report
from bardo_pipeline.storage.verification.verify import verify

_WIDE = 110  # terminal columns from which error, cost, pnl and emotion are shown


def ticks(
    home: opt.Home = None,
    golem: Annotated[list[str] | None, Option(help="Only this golem; repeatable.")] = None,
    tier: Annotated[list[str] | None, Option(help="T0, T1, T2 or suppress; repeatable.")] = None,
    regime: Annotated[list[str] | None, Option(help="For example volatile; repeatable.")] = None,
    phase: Annotated[list[str] | None, Option(help="For example terminal; repeatable.")] = None,
    acted: Annotated[bool, Option(help="Only ticks with an action and its outcome.")] = False,
    last: Annotated[int, Option(min=1, help="Number of newest ticks.")] = 50,
    phases: Annotated[bool, Option(help="Count ticks by phase instead.")] = False,
    struck: Annotated[bool, Option(help="Include ticks removed by a strike or reorg.")] = True,
    format: opt.Format = "table",
) -> None:
    """Query the tick index, cold tier included: newest ticks by golem, tier, regime, phase or outcome."""
    with open_log(home) as log, EventLog(log.home) as whole:
        golems, index = golems_in_view(log, golem), TickIndex.open(log.home, whole)
        if phases:
            rows = index.phases(golems=golems, struck=struck)
        else:
            required = True if acted else None
            rows = index.ticks(
                golems=golems, tier=tier, regime=regime, phase=phase,
                has_action=required, has_outcome=required, limit=last, struck=struck,
            )  # fmt: skip
    records = rows.to_pylist()
    if format == "json":
        print_json(records)
    elif records:
        wide = out.width >= _WIDE
        print_records(None, records if phases else [_tick_cells(row, wide=wide) for row in records])
    else:
        out.print("no tick matches")


def maintain(
    home: opt.Home = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Show the steps; change nothing.")] = False,
    format: opt.Format = "table",
) -> None:
    """Compact the log, move old ticks to the cold tier, prune caches to the policy's quotas; no row changes."""
    opened = Home.open(root_of(home))
    before = disk_bytes(opened.root)
    with EventLog(opened) as log, spinner("maintaining the home", quiet=format == "json"):
        policy = in_force(log.life("DerivationAdopted")).policy
        report = tend(opened, log, policy, now=now(), dry_run=dry_run)
    after = disk_bytes(opened.root)
    if format == "json":
        facts: dict[str, Any] = {"steps": [asdict(s) for s in report.steps], "damaged": report.damaged}
        facts |= {"disk_bytes_before": before, "disk_bytes_after": after, "dry_run": dry_run}
        print_json(facts)
    else:
        _print_report(report, before, after, dry_run=dry_run)
    if report.damaged:
        raise Exit(1)


def _print_report(report: MaintenanceReport, before: int, after: int, *, dry_run: bool) -> None:
    rows = [
        (s.name, s.action, s.rows, f"{s.files_before:,} → {s.files_after:,}", _change(s.bytes_before, s.bytes_after))
        for s in report.steps
    ]
    if rows:
        print_table("Steps" if dry_run else None, ["what", "done", "rows", "files", "bytes"], rows)
    else:
        out.print("nothing to do")
    if not dry_run:
        out.print(f"on disk: {_change(before, after)}")
    for path, why in report.damaged.items():
        say(f"damaged, left unchanged: {path}: {why}")


def _change(before: int, after: int) -> str:
    return f"{decimal(before)} → {decimal(after)}"


def _tick_cells(row: dict[str, Any], *, wide: bool) -> dict[str, object]:
    did = "acted" if row["has_action"] else ""
    shown: dict[str, object] = {
        "tick": f"{row['golem_id']}:{row['tick']}",
        "when": f"{row['observed_at']:%Y-%m-%d %H:%M}",
        "tier": row["tier"],
        "regime": row["regime"],
        "phase": row["phase"],
        "did": f"{did}, outcome" if row["has_outcome"] else did,
    }
    if wide:
        shown |= {"error": row["prediction_error"], "cost": row["total_cost_micros"], "pnl": row["pnl_impact_micros"]}
        shown |= {"emotion": row["primary_emotion"]}
    return shown


def verify_home(
    home: opt.Home = None,
    expect: Annotated[
        str | None, Option(help="Fleet digest of an earlier verify or backup; detects a shortened log.")
    ] = None,
    format: Annotated[str, format_option("text", "json", help="Output format: text or json.")] = "text",
) -> None:
    """Verify hash chains, signatures and files of the whole log; list breaks and exit 1."""
    report = verify(Home.open(inspected_home(root_of(home))), expect=expect)
    if format == "json":
        facts = {
            "clean": report.clean,
            "breaks": [{**asdict(broken), "count": report.counts[broken.kind]} for broken in report.breaks],
            "files": report.files,
            "facts": report.facts,
            "gaps": [gap._asdict() for gap in report.gaps],
            "unaccepted": report.unaccepted,
            "digest": report.digest,
        }
        print_json(facts, indent=True)
    else:
        _print(report)
    if not report.clean:
        raise Exit(1)


def _print(report: Report) -> None:
    for broken in report.breaks:
        more = f" (and {count - 1} more)" if (count := report.counts[broken.kind]) > 1 else ""
        out.print(f"[bold red]broken[/] {broken.kind}: ", escape(broken.sentence()), more, sep="", soft_wrap=True)
    for name, value in report.facts.items():
        say(f"{name:<24} {value:,}")
    for gap in report.gaps:
        say(f"gap                      golem {gap.golem_id}: ticks {gap.tick_from} to {gap.tick_to}")
    for event in report.unaccepted:
        say(f"not accepted today       {event}")
    say(f"digest of the fleet      {report.digest}")
    out.print("[bold]clean[/]" if report.clean else "[bold red]broken[/]")


Folder = Annotated[Path, Argument(help="Folder of the backup.")]


def backup(folder: Folder, home: opt.Home = None) -> None:
    """Copy all data that cannot be derived again, while writers run; a repeated backup copies only new files.

    Contains log, journals, leases, spool, quarantine, bundles and conversations. Seal keys are excluded, because
    destroying a key must reach every copy; store them elsewhere. Keep the printed digest: `bardo verify --expect` uses
    it to detect a shortened log.
    """
    result = back_up(Home.open(root_of(home)), local_folder(folder), now())
    say(f"copied {result.copied:,} files ({result.copied_bytes:,} bytes); {folder} holds {result.held:,}")
    say(f"digest of the fleet      {result.manifest.digest}")


def restore_home(folder: Folder, home: opt.Home = None) -> None:
    """Restore a backup into a missing or empty folder; every file's hash is checked."""
    restored, manifest = restore(local_folder(folder), root_of(home), now())
    say(f"restored {len(manifest.files):,} files of {manifest.made_at:%Y-%m-%d %H:%M:%S} UTC")
    if waiting := journal_depth(restored).segments:
        say(f"{waiting} journal segments are not in the log yet: the next writer or `bardo drain` moves them")
    say("next: bardo verify, then bardo rebuild")
