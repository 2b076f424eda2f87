"""Changes of the tables of the marts since the newest build of the warehouse. Source: P-4, X-11."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.events.life.thanatopsis_events import PHASES_OF_DYING
from bardo_pipeline.storage.delta.durable_commits import commit_path
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.home import statuses
from bardo_pipeline.storage.warehouse.derived_sources import DERIVED

_AFTER_DEATH = ("BundleJudged", "BundlePublished", *PHASES_OF_DYING)
"""Kinds of life events that a job records between a death and the marts."""

_START = timedelta(milliseconds=100)
"""A build pins its tables later than this after its start: dbt needs a second to load."""


def built_at(context: DerivationContext) -> datetime | None:
    """Return the start of the newest build of the warehouse; None without a warehouse."""
    path = context.home.warehouse
    return datetime.fromtimestamp(path.stat().st_mtime, UTC) if path.exists() else None


def unbuilt_change(context: DerivationContext) -> datetime | None:
    """Return the time of the newest change that the marts lack: a commit of a table, or an event after a death.

    Records alone are no change: the marts are due when the records were derived. A home in which nothing was ever
    derived lacks nothing.
    """
    started, newest = built_at(context), max(_changes(context), default=None)
    is_built = newest is None or (started is not None and newest <= started + _START)
    return None if is_built else newest


def _changes(context: DerivationContext) -> Iterator[datetime]:
    folder, projections = context.home.derivation(context.derivation_id), context.projections
    for name in DERIVED:
        grows = TABLES[name].grows
        version = projections.growing(name).table.version if grows else projections.replaceable(name).version
        if version:  # commit 0 creates the table
            for _, status in statuses([commit_path(folder / name, version)]):
                yield datetime.fromtimestamp(status.st_mtime, UTC)
    for kind in _AFTER_DEATH:
        recorded_at = pc.max(context.life(kind)["recorded_at"]).as_py()
        if recorded_at is not None:
            yield recorded_at
