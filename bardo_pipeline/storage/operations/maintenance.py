"""The maintenance job: the only code that rewrites, moves or deletes files of a home; all other code only adds.

It compacts the log's tables and the append-only projections, writes checkpoints, deletes old commits, moves ticks past
the lookback to the cold tier, deletes unreferenced files after a grace period, and holds caches to their quotas. It
changes and loses no row while other processes write and read, and it is idempotent.
Source: EV-6, X-13; architecture ("One guarded maintenance job"); the quotas: CarePolicy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable
from bardo_pipeline.storage.delta.compaction import Compaction, Layout, below, closed_below
from bardo_pipeline.storage.delta.durable_commits import newest_checkpoint, point_to, put_checkpoint
from bardo_pipeline.storage.home import Home, sync_folder
from bardo_pipeline.storage.index.tick_index import TickIndex
from bardo_pipeline.storage.intake.quarantine import ITEMS_SCHEMA, RULINGS_SCHEMA
from bardo_pipeline.storage.log.checksum_manifest import Sums
from bardo_pipeline.storage.log.embedding_table import EMBEDDING_SCHEMA
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.protocol import CYCLES_SCHEMA, LIFE_LOG_SCHEMA, VECTORS_SCHEMA
from bardo_pipeline.storage.operations import retention
from bardo_pipeline.storage.operations.retention import Gone
from bardo_pipeline.storage.projections.derivation_folders import derivation_folders
from bardo_pipeline.storage.projections.projections import Projections
from bardo_pipeline.storage.projections.table_specs import TABLES

Lock = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Step:
    """One action on a table or cache, done or (in a dry run) planned. rows: rows rewritten unchanged."""

    name: str
    action: str
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    rows: int = 0


@dataclass
class MaintenanceReport:
    """The actions of one run. damaged: skipped files with the reason, to be checked by `bardo verify`."""

    steps: list[Step] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        """Whether the run did anything."""
        return bool(self.steps)


@dataclass(frozen=True)
class _Kept:
    """An append-only table under maintenance. sums: its checksum manifest, if it is a table of the log."""

    name: str
    table: AppendOnlyTable
    layout: Layout
    lock: Lock
    commits_kept: int
    sums: Sums | None = None


def maintain(
    home: Home, log: EventLog, policy: Policy, *, now: datetime, in_force: Collection[str], dry_run: bool = False
) -> MaintenanceReport:
    """Run all due maintenance of a home, after waiting for another run or a verification.

    Parameters
    ----------
    in_force : ids of derivations to maintain; they are kept at any age
    dry_run : only report the actions
    """
    report = MaintenanceReport()
    with home.lock("maintenance"):
        derivations = [path for path in derivation_folders(home) if path.name in in_force]
        for entry in _append_only_tables(home, log, policy, derivations):
            _maintain_table(entry, policy, report, now=now, dry_run=dry_run)
        for folder in derivations:
            _maintain_replaceable_tables(home, folder, policy, report, now=now, dry_run=dry_run)
        _prune(home, policy, report, now=now, in_force=in_force, dry_run=dry_run)
        if not dry_run and not report.damaged:
            _maintain_tick_index(home, log, report)
    return report


def _append_only_tables(home: Home, log: EventLog, policy: Policy, derivations: Sequence[Path]) -> Iterator[_Kept]:
    """Yield every append-only table: the log's, then those of the derivations in force."""
    care = policy.care
    deaths = _deaths(log)
    limits = closed_below(log.heads(), deaths, policy.curator.cycle_ticks, care.lookback_ticks)
    clustered = Layout(("bucket", "golem_id", "tick"), below(limits), ("golem_id", "tick"), checked=True)
    quarantine = home.quarantine
    for path, schema, stats, layout, lock in (
        (home.cycles, CYCLES_SCHEMA, ["golem_id", "tick"], clustered, "log"),
        (home.life, LIFE_LOG_SCHEMA, ["golem_id", "kind"], Layout(("golem_id", "observed_at", "event_id")), "log"),
        (home.vectors, VECTORS_SCHEMA, ["embedder", "text_hash"], Layout(("embedder", "text_hash")), "log"),
        (home.embedding, EMBEDDING_SCHEMA, ["embedder"], Layout(("number",)), "log"),
        (quarantine / "items", ITEMS_SCHEMA, ["taken_at"], Layout(("taken_at", "item_id")), "quarantine"),
        (quarantine / "rulings", RULINGS_SCHEMA, ["at"], Layout(("at", "item_id")), "quarantine"),
    ):
        if (path / "_delta_log").exists():
            sums = Sums(home, path)
            by_version = path == home.cycles
            table = AppendOnlyTable(path, schema, stats, policy=policy, sums=sums, by_version=by_version)
            name = path.relative_to(home.root).as_posix()
            yield _Kept(name, table, layout, _lock_of(home, lock), care.log_commits_kept, sums)
    for folder in derivations:
        projections = Projections(folder, home.bucket_count, policy)
        for name, spec in TABLES.items():
            if spec.grows and (folder / name / "_delta_log").exists():
                table = projections.growing(name).table
                lock_of = _lock_of(home, f"derive-{folder.name}")
                named = (folder / name).relative_to(home.root).as_posix()
                yield _Kept(named, table, Layout(spec.key), lock_of, care.projection_commits_kept)


def _lock_of(home: Home, name: str) -> Lock:
    return lambda: home.lock(name)


def _deaths(log: EventLog) -> Mapping[str, int]:
    events = log.life("DeathDeclared").select(["golem_id", "died"]).to_pylist()
    deaths: dict[str, int] = {}
    for row in events:
        deaths[row["golem_id"]] = min(row["died"]["tick"], deaths.get(row["golem_id"], row["died"]["tick"]))
    return deaths


def _maintain_table(kept: _Kept, policy: Policy, report: MaintenanceReport, *, now: datetime, dry_run: bool) -> None:
    """Compact one table, write its checkpoint, delete its old commits and unreferenced files."""
    compaction = Compaction(kept.table, kept.layout, kept.lock, policy.care, now)
    while (due := compaction.due()) is not None:
        before = kept.table.stored()
        if not dry_run:
            compaction.rewrite(due)
        after = kept.table.stored()
        rows, size = sum(f.rows for f in due.files), sum(f.size for f in due.files)
        spent = size + sum(f.size for f in after) - sum(f.size for f in before)
        made = len(due.files) + len(after) - len(before)
        report.steps.append(Step(kept.name, f"rewrote ({due.why})", len(due.files), made, size, spent, rows))
        if dry_run:
            break
    report.damaged |= {f"{kept.name}/{path}": why for path, why in compaction.damaged.items()}
    version = kept.table.version
    with kept.lock():
        if not dry_run and not compaction.damaged and _checkpoint(kept.table.path, version) and kept.sums is not None:
            kept.sums.catch_up()
    if not compaction.damaged:
        # Readers find rows behind the trimmed commits by their version column, which a damaged file may lack.
        _report_deletions(
            report,
            kept.name,
            "trimmed",
            retention.trim(kept.table.path, version, kept=kept.commits_kept, dry_run=dry_run),
        )
    with kept.lock():
        active = {unquote(file.path) for file in kept.table.stored()}
        _report_deletions(
            report, kept.name, "swept", _delete_unreferenced(kept.table.path, active, policy, now, dry_run)
        )


def _delete_unreferenced(path: Path, active: Collection[str], policy: Policy, now: datetime, dry_run: bool) -> Gone:
    before = now - timedelta(seconds=policy.care.grace_seconds)
    return retention.sweep(path, active, before=before, dry_run=dry_run)


def _report_deletions(report: MaintenanceReport, name: str, action: str, gone: Gone) -> None:
    if gone.files:
        report.steps.append(Step(name, action, gone.files, 0, gone.size, 0))


def _checkpoint(path: Path, version: int) -> bool:
    """Write a checkpoint of all commits up to a version. Returns whether it was missing."""
    if newest_checkpoint(path, version) == version:
        return False
    put_checkpoint(path, version, durable=True)
    sync_folder(path / "_delta_log")
    point_to(path, version)
    return True


def _maintain_replaceable_tables(
    home: Home, folder: Path, policy: Policy, report: MaintenanceReport, *, now: datetime, dry_run: bool
) -> None:
    """Delete the old files and old commits of a derivation's replaceable tables."""
    for name, spec in TABLES.items():
        path = folder / name
        if spec.grows or not (path / "_delta_log").exists():
            continue
        named = path.relative_to(home.root).as_posix()
        with home.lock(f"derive-{folder.name}"):
            try:
                table = DeltaTable(path)
            except TableNotFoundError:
                continue  # its creation is in progress or was killed; the next derivation creates it
            if not dry_run:
                _checkpoint(path, int(table.version()))
            kept = policy.care.projection_commits_kept
            _report_deletions(
                report, named, "trimmed", retention.trim(path, int(table.version()), kept=kept, dry_run=dry_run)
            )
            paths = pa.table(table.get_add_actions(flatten=True))["path"].to_pylist()
            _report_deletions(
                report, named, "swept", _delete_unreferenced(path, {unquote(p) for p in paths}, policy, now, dry_run)
            )


def _prune(
    home: Home,
    policy: Policy,
    report: MaintenanceReport,
    *,
    now: datetime,
    in_force: Collection[str],
    dry_run: bool,
) -> None:
    """Delete derivations, index versions and drafts beyond their quotas; all of them can be built again."""
    care = policy.care
    abandoned = now - timedelta(seconds=care.leftover_seconds)
    gone, names = retention.drop_derivations(
        home.derivations,
        in_force,
        superseded=now - timedelta(days=care.superseded_days),
        abandoned=abandoned,
        dry_run=dry_run,
    )
    _report_deletions(report, f"derivations {', '.join(names)}", "dropped", gone)
    present = home.derivations.iterdir() if home.derivations.exists() else ()
    owners = {path.name for path in present} - set(names)
    _report_deletions(
        report, "index/episodes", "dropped", retention.drop_orphans(home.index / "episodes", owners, dry_run=dry_run)
    )
    for index in sorted((home.index / "episodes").glob("*/*")):
        if (index / "watermark.json").exists():
            with home.lock(f"index-{index.parent.name}"):
                gone = retention.prune_versions(
                    index,
                    kept=timedelta(seconds=care.grace_seconds),
                    versions_max=care.index_versions_max,
                    dry_run=dry_run,
                )
            _report_deletions(report, index.relative_to(home.root).as_posix(), "pruned", gone)
    drafts = [
        home.root / "warehouse.draft",
        *home.index.glob(".heads.*"),
        *(home.index / "ticks").glob(".*"),
        *(path for folder in derivation_folders(home) for path in retention.drafts_of_readers(folder)),
        *home.root.glob(".*.json.*"),
    ]
    _report_deletions(report, "drafts", "dropped", retention.drop_drafts(drafts, before=abandoned, dry_run=dry_run))


def _maintain_tick_index(home: Home, log: EventLog, report: MaintenanceReport) -> None:
    """Bring the tick index up to the log; build it again if its file's bytes have changed."""
    index = TickIndex.open(home, log)
    if index.damaged():
        index.drop()
        report.steps.append(Step("index/ticks", "made again", rows=index.refresh()))
