"""Maintenance of a home that respects the derivation in force and the fill level of the disk."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from datetime import datetime

import pyarrow.compute as pc

from bardo_pipeline.derivation.active_derivation import derivation_id, in_force
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.checksums import checked_json
from bardo_pipeline.storage.embedding.embedders import EMBEDDERS, embedder_version
from bardo_pipeline.storage.home import Home, children
from bardo_pipeline.storage.index.episode_index import EpisodeIndex
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.operations.maintenance import MaintenanceReport, Step, maintain
from bardo_pipeline.storage.operations.retention import disk_bytes
from bardo_pipeline.storage.projections.projections import Projections


def tend(home: Home, log: EventLog, policy: Policy, *, now: datetime, dry_run: bool = False) -> MaintenanceReport:
    """Run `maintain`, keeping the derivation in force, or those of all embedders without an adoption.

    On a full disk it deletes superseded derivations sooner and drops expired episodes from the indexes. It never
    deletes rows of the log or of projections.
    """
    adoptions = log.life("DerivationAdopted")
    kept = {derivation_id(policy, embedder_version(name)) for name in EMBEDDERS}
    if adoptions.num_rows:
        kept = {in_force(adoptions).derivation_id}
    if not is_pressed(home, policy):
        return maintain(home, log, policy, now=now, in_force=kept, dry_run=dry_run)
    care = policy.care.model_copy(update={"superseded_days": policy.growth.pressed_superseded_days})
    pressed = policy.model_copy(update={"care": care})
    report = maintain(home, log, pressed, now=now, in_force=kept, dry_run=dry_run)
    report.steps += _lighten(home, log, policy, kept, dry_run=dry_run)
    return report


def is_pressed(home: Home, policy: Policy) -> bool:
    """Return whether the home, without its models, exceeds the limits of size or free disk space (policy.growth)."""
    models = home.root / "models"
    used = disk_bytes(home.root) - (disk_bytes(models) if models.is_dir() and not models.is_symlink() else 0)
    free = shutil.disk_usage(home.root).free
    return used > policy.growth.home_bytes_max or free < policy.growth.free_bytes_min


def _lighten(home: Home, log: EventLog, policy: Policy, kept: Collection[str], *, dry_run: bool) -> list[Step]:
    """Drop expired episodes from the indexes."""
    at = pc.max(log.read_cycles(["observed_at"])["observed_at"]).as_py()
    steps: list[Step] = []
    for folder in [path for owner in children(home.index / "episodes") for path in children(owner)]:
        name, mark = folder.parent.name, folder / "watermark.json"
        if at is None or name not in kept or not mark.exists():
            continue
        watermark = checked_json(mark)
        index = EpisodeIndex(folder.parent, watermark["embedder"], watermark["dimension"], policy.growth)
        episodes = Projections(home.derivation(name), home.bucket_count, policy).growing("episodes")
        with home.lock(f"index-{name}"):
            if not (leaving := index.leaving(episodes, at)):
                continue
            size = disk_bytes(folder)
            if not dry_run:
                index.refresh(episodes, gone_before=at)
        where = folder.relative_to(home.root).as_posix()
        steps.append(Step(where, "removed expired episodes", 0, 0, size, disk_bytes(folder), leaving))
    return steps
