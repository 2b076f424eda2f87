"""The maintenance job: the only code that rewrites, moves or deletes files of a home; all other code only adds.

It compacts the log's tables and the append-only projections, writes checkpoints, deletes old commits, moves ticks past
the lookback to the cold tier, deletes unreferenced files after a grace period, and holds caches to their quotas. It
changes and loses no row while other processes write and read, and it is idempotent.
Source: EV-6, X-13; architecture ("One guarded maintenance job"); the quotas: CarePolicy.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import unquote

from deltalake.exceptions import TableNotFoundError

from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable
from bardo_pipeline.storage.delta.checksum_manifest import Sums
from bardo_pipeline.storage.delta.compaction import Compaction, Layout, below, closed_below, tier_of
from bardo_pipeline.storage.delta.durable_commits import (
    StoredFile,
    newest_checkpoint,
    opened,
    point_to,
    put_checkpoint,
    stored_files,
)
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.home import Home, children, sync_folder
from bardo_pipeline.storage.index.tick_index import TickIndex
from bardo_pipeline.storage.intake.quarantine import ITEMS_SCHEMA, RULINGS_SCHEMA
from bardo_pipeline.storage.log.embedding_table import EMBEDDING_SCHEMA
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.protocol import CYCLES_SCHEMA, LIFE_LOG_SCHEMA, VECTORS_SCHEMA
from bardo_pipeline.storage.operations import retention
from bardo_pipeline.storage.operations.retention import Gone
from bardo_pipeline.storage.projections.derivation_folders import derivation_folders
from bardo_pipeline.storage.projections.projections import Projections


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


def maintain(
    home: Home, log: EventLog, policy: Policy, *, now: datetime, in_force: Collection[str], dry_run: bool = False
) -> MaintenanceReport:
    """Run all due maintenance of a home, after waiting for another run or a verification.

    Parameters
    ----------
    in_force : ids of derivations to maintain; they are kept at any age
    dry_run : only report the actions
    """
    run = _Run(home, log, policy, now, dry_run)
    with home.lock("maintenance"):
        derivations = [path for path in derivation_folders(home) if path.name in in_force]
        run.maintain_log()
        for folder in derivations:
            run.maintain_growing(folder)
        for folder in derivations:
            run.maintain_replaceable(folder)
        run.prune(in_force)
        if not dry_run and not run.report.damaged:
            run.maintain_tick_index()
    return run.report


def merge_life_files(home: Home, policy: Policy, *, now: datetime) -> int:
    """Merge the appended files of life events if they are more than `care.life_files_max`; return their number, else 0.

    Each process that opens a home opens all these files. The merged ones remain until `maintain` deletes them.
    """
    table, limit = _life_table(home, policy), policy.care.life_files_max
    if len(_appended(table)) <= limit:
        return 0
    with home.lock("maintenance"):
        compaction = Compaction(table, _LIFE_LAYOUT, lambda: home.lock("log"), policy.care, now)
        merged = 0
        while len(_appended(table)) > limit and (due := compaction.due()) is not None:
            files, _ = due
            compaction.rewrite(files)
            merged += len(files)
    return merged


_LIFE_LAYOUT = Layout(("golem_id", "observed_at", "event_id"))


def _life_table(home: Home, policy: Policy) -> AppendOnlyTable:
    sums = Sums(home, home.life)
    return AppendOnlyTable(home.life, LIFE_LOG_SCHEMA, ["golem_id", "kind"], policy=policy, sums=sums)


def _appended(table: AppendOnlyTable) -> list[StoredFile]:
    return [file for file in table.stored() if tier_of(file.path) == "fresh"]


@dataclass(frozen=True)
class _Run:
    """One run of maintenance."""

    home: Home
    log: EventLog
    policy: Policy
    now: datetime
    dry_run: bool
    report: MaintenanceReport = field(default_factory=MaintenanceReport)

    def maintain_log(self) -> None:
        """Maintain the tables of the log."""
        home, care = self.home, self.policy.care
        died = self.log.life("DeathDeclared").select(["golem_id", "died"]).to_pylist()
        deaths = {row["golem_id"]: row["died"]["tick"] for row in died}
        limits = closed_below(self.log.heads(), deaths, self.policy.curator.cycle_ticks, care.lookback_ticks)
        clustered = Layout(("bucket", "golem_id", "tick"), below(limits), checked=True)
        items, rulings = home.quarantine / "items", home.quarantine / "rulings"
        for path, schema, stats, layout, lock in (
            (home.cycles, CYCLES_SCHEMA, ["golem_id", "tick"], clustered, "log"),
            (home.life, LIFE_LOG_SCHEMA, ["golem_id", "kind"], _LIFE_LAYOUT, "log"),
            (home.vectors, VECTORS_SCHEMA, ["embedder", "text_hash"], Layout(("embedder", "text_hash")), "log"),
            (home.embedding, EMBEDDING_SCHEMA, ["embedder"], Layout(("number",)), "log"),
            (items, ITEMS_SCHEMA, ["taken_at"], Layout(("taken_at", "item_id")), "quarantine"),
            (rulings, RULINGS_SCHEMA, ["at"], Layout(("at", "item_id")), "quarantine"),
        ):
            if (path / "_delta_log").exists():
                sums, by_version = Sums(home, path), path == home.cycles
                table = AppendOnlyTable(path, schema, stats, policy=self.policy, sums=sums, by_version=by_version)
                self._maintain_table(table, layout, lock, care.log_commits_kept, sums)

    def maintain_growing(self, folder: Path) -> None:
        """Maintain the append-only projections of a derivation."""
        projections = Projections(folder, self.home.bucket_count, self.policy)
        for name, spec in TABLES.items():
            if spec.grows and (folder / name / "_delta_log").exists():
                table, lock = projections.growing(name).table, f"derive-{folder.name}"
                if table.columns.is_earlier:
                    continue  # this version writes other columns, and nothing is appended to it
                self._maintain_table(table, Layout(spec.key), lock, self.policy.care.projection_commits_kept, None)

    def _maintain_table(
        self, table: AppendOnlyTable, layout: Layout, lock: str, commits_kept: int, sums: Sums | None
    ) -> None:
        """Compact one table, write its checkpoint, delete its old commits and unreferenced files."""
        name = self._place(table.path)
        compaction = Compaction(table, layout, lambda: self.home.lock(lock), self.policy.care, self.now)
        while (due := compaction.due()) is not None:
            (files, why), before = due, table.stored()
            if not self.dry_run:
                compaction.rewrite(files)
            after = table.stored()
            rows, size = sum(f.rows for f in files), sum(f.size for f in files)
            spent = size + sum(f.size for f in after) - sum(f.size for f in before)
            made = len(files) + len(after) - len(before)
            self.report.steps.append(Step(name, f"rewrote ({why})", len(files), made, size, spent, rows))
            if self.dry_run:
                break
        self.report.damaged.update({f"{name}/{path}": why for path, why in compaction.damaged.items()})
        version = table.version
        with self.home.lock(lock):
            if not self.dry_run and not compaction.damaged and _checkpoint(table.path, version) and sums is not None:
                sums.catch_up()
        if not compaction.damaged:
            # Without old commits, readers find new rows by the column `version`, which a damaged file may lack.
            self._trim(table.path, version, commits_kept)
        with self.home.lock(lock):
            self._sweep(table.path, table.stored())

    def maintain_replaceable(self, folder: Path) -> None:
        """Delete the old files and old commits of a derivation's replaceable tables."""
        for name, spec in TABLES.items():
            path = folder / name
            if spec.grows or not (path / "_delta_log").exists():
                continue
            with self.home.lock(f"derive-{folder.name}"):
                try:
                    table = opened(path)
                except TableNotFoundError:
                    continue  # its creation is in progress or was killed; the next derivation creates it
                if not self.dry_run:
                    _checkpoint(path, int(table.version()))
                self._trim(path, int(table.version()), self.policy.care.projection_commits_kept)
                self._sweep(path, stored_files(table))

    def _trim(self, path: Path, version: int, kept: int) -> None:
        gone = retention.trim(path, version, kept=kept, dry_run=self.dry_run)
        self._note(self._place(path), "trimmed", gone)

    def _sweep(self, path: Path, files: Sequence[StoredFile]) -> None:
        before = self.now - timedelta(seconds=self.policy.care.grace_seconds)
        gone = retention.sweep(path, {unquote(file.path) for file in files}, before=before, dry_run=self.dry_run)
        self._note(self._place(path), "swept", gone)

    def prune(self, in_force: Collection[str]) -> None:
        """Delete derivations, index versions and drafts beyond their quotas; all of them can be built again."""
        home, care, dry_run = self.home, self.policy.care, self.dry_run
        abandoned = self.now - timedelta(seconds=care.leftover_seconds)
        superseded = self.now - timedelta(days=care.superseded_days)
        gone, names = retention.drop_derivations(
            home.derivations, in_force, superseded=superseded, abandoned=abandoned, dry_run=dry_run
        )
        self._note(f"derivations {', '.join(names)}", "dropped", gone)
        owners = {path.name for path in children(home.derivations)} - set(names)
        indexes = home.index / "episodes"
        self._note("index/episodes", "dropped", retention.drop_orphans(indexes, owners, dry_run=dry_run))
        kept = timedelta(seconds=care.grace_seconds)
        for index in [path for owner in children(indexes) for path in children(owner)]:
            if (index / "watermark.json").exists():
                with home.lock(f"index-{index.parent.name}"):
                    gone = retention.prune_versions(
                        index, kept=kept, versions_max=care.index_versions_max, dry_run=dry_run
                    )
                self._note(self._place(index), "pruned", gone)
        drafts = [
            *home.root.glob("warehouse.draft*"),
            *(path for path in children(home.index) if path.name.startswith(".heads.")),
            *(path for path in children(home.index / "ticks") if path.name.startswith(".")),
            *(path for folder in derivation_folders(home) for path in retention.drafts_of_readers(folder)),
            *retention.drafts_of_bundles([home.bundles, *(path / "bundles" for path in derivation_folders(home))]),
            *home.root.glob(".*.json.*"),
        ]
        self._note("drafts", "dropped", retention.drop_drafts(drafts, before=abandoned, dry_run=dry_run))

    def maintain_tick_index(self) -> None:
        """Bring the tick index up to the log; build it again if its file's bytes have changed."""
        index = TickIndex.open(self.home, self.log)
        if index.damaged():
            index.drop()
            self.report.steps.append(Step("index/ticks", "made again", rows=index.refresh()))

    def _note(self, name: str, action: str, gone: Gone) -> None:
        if gone.files:
            self.report.steps.append(Step(name, action, gone.files, 0, gone.size, 0))

    def _place(self, path: Path) -> str:
        return path.relative_to(self.home.root).as_posix()


def _checkpoint(path: Path, version: int) -> bool:
    """Write a checkpoint of all commits up to a version. Returns whether it was missing."""
    if newest_checkpoint(path, version) == version:
        return False
    put_checkpoint(path, version, durable=True)
    sync_folder(path / "_delta_log")
    point_to(path, version)
    return True
