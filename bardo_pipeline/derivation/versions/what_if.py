"""Derive the same log under another policy and compare the results.

The log, and so the actions of golems, stay the same. Compared are the tables, the calibration of both grimoires, and
the entries that each would have retrieved at the recorded decisions. Published bundles are events and the same under
any policy. Source: X-3, X-10.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.judged_outcomes import calibration_of, judged_outcomes
from bardo_pipeline.derivation.versions.policy_diff import Setting, differences
from bardo_pipeline.derivation.versions.rebuild import derive_everything
from bardo_pipeline.derivation.versions.side_derivations import SOME, build, open_beside, unfit
from bardo_pipeline.errors import SchemaVersionError
from bardo_pipeline.events.record.arrow_columns import all_required, contiguous, rows_of_golems
from bardo_pipeline.events.record.row_digest import digest_column, row_digests
from bardo_pipeline.grimoire.confidence import DAY_US
from bardo_pipeline.grimoire.entry_columns import confidence_of, query_tables
from bardo_pipeline.heartbeat.entry_names import EntryNames
from bardo_pipeline.heartbeat.recall_history import Lookups, RecallHistory, RecallResults
from bardo_pipeline.policy import DecayPolicy, Policy
from bardo_pipeline.quality.calibration import JUDGED_SCHEMA, Calibration, calibration
from bardo_pipeline.storage.delta.table_specs import TABLES

NAMING = frozenset({"policy_hash", "bundle_hash", "cause_bundle", "derivation_id"})
"""Columns that identify the policy, or a bundle that names it; they differ even for equal content."""

_RETRIEVAL_COLUMNS = {
    "golem_id": "golem_id",
    "tick": "tick",
    "observed_at": "observed_at",
    "cycle_seen": "cycle_seen",
    "regime": "regime",
    "tier": "tier",
    "observation.anomaly_score": "anomaly_score",
    "observation.gas_hour_ratio": "gas_hour_ratio",
    "observation.protocol": "protocol",
    "prediction_error": "surprise",
    **{f"pad_before.{part}": part for part in ("pleasure", "arousal", "dominance")},
    "retrieved_entries": "retrieved_entries",
}


CHANGE_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "golem_id", "entry_id", "category", "text"),
        pa.field("kind_before", pa.string()),
        pa.field("kind_after", pa.string()),
        pa.field("before_ppm", pa.int64()),
        pa.field("after_ppm", pa.int64()),
    ]
)
"""One row per golem and entry that differs: null before means gained, null after means lost."""

_CHANGES = """
    select golem_id, entry_id, coalesce(after.category, before.category) as category,
        coalesce(after.text, before.text) as text, before.kind as kind_before, after.kind as kind_after,
        before.ppm as before_ppm, after.ppm as after_ppm
    from before full join after using (golem_id, entry_id)
    where before_ppm is distinct from after_ppm or kind_before is distinct from kind_after
    order by golem_id, entry_id
"""


@dataclass(frozen=True)
class TableDifference:
    """Row counts of a table in both derivations, and the numbers of rows that only one of them has."""

    table: str
    rows: int
    rows_beside: int
    only_in_force: int
    only_beside: int
    shared: bool = False


@dataclass(frozen=True)
class Retrievals:
    """Counts of recorded decisions, by a comparison of what the two grimoires would have retrieved.

    Parameters
    ----------
    reproduced : recorded entries equal those of the derivation in force
    differing : the five best entries differ
    warnings : the number of warnings among them differs
    blocks : only one of the grimoires would have blocked re-centring
    """

    decisions: int = 0
    reproduced: int = 0
    differing: int = 0
    warnings: int = 0
    blocks: int = 0
    blocked_in_force: int = 0
    blocked_beside: int = 0


_NO_CALIBRATION = calibration(JUDGED_SCHEMA.empty_table())


@dataclass(frozen=True)
class WhatIf:
    """Comparison of the derivation in force with a side derivation.

    Parameters
    ----------
    name : folder of the side derivation
    changed : settings that differ
    frozen : reason for which the one in force was not updated; None if it was
    entries : CHANGE_SCHEMA, confidence at `at`
    active_counts : active entries in force and in the side derivation
    adoptable : whether the side derivation may be adopted
    incomparable : reason for which the tables in force cannot be read; nothing is compared then
    """

    in_force: str
    name: str
    changed: tuple[Setting, ...]
    golems: tuple[str, ...] | None
    frozen: str | None
    at: datetime | None = None
    tables: tuple[TableDifference, ...] = ()
    entries: pa.Table = field(default_factory=CHANGE_SCHEMA.empty_table)
    active_counts: tuple[int, int] = (0, 0)
    calibration: tuple[Calibration, Calibration] = (_NO_CALIBRATION, _NO_CALIBRATION)
    retrievals: Retrievals = Retrievals()
    adoptable: bool = True
    incomparable: str | None = None

    @property
    def same(self) -> bool:
        """Whether all tables are equal."""
        return not any(t.only_in_force or t.only_beside for t in self.tables)


def what_if(
    context: DerivationContext,
    policy: Policy,
    *,
    now: datetime,
    golems: Sequence[str] | None = None,
    horizon_us: int = DAY_US,
    on_step: Callable[[str], None] = lambda _: None,
) -> WhatIf:
    """Derive the log under another policy, update both derivations, and compare them.

    Parameters
    ----------
    golems : derive and compare only these
    horizon_us : horizon after a close in which judged decisions count, microseconds

    Raises
    ------
    QueryError : a golem is unknown
    ConfigError : there are too many side derivations
    """
    if context.frozen is None:
        on_step("derivation in force")
        derive_everything(context, now=now)
    beside = open_beside(context, policy, golems=golems)
    shared: tuple[str, ...] = ()
    if golems is None and beside.derivation_id == context.derivation_id:
        beside, shared = context, tuple(TABLES)
    else:
        shared = build(context, beside, now=now, on_step=on_step)
    on_step("comparing")
    try:
        return compare(context, beside, shared=shared, horizon_us=horizon_us)
    except SchemaVersionError as error:
        if context.frozen is None:
            raise
        return WhatIf(**_compared_identities(context, beside), incomparable=str(error))


def _compared_identities(context: DerivationContext, beside: DerivationContext) -> dict[str, Any]:
    return {
        "in_force": context.derivation_id,
        "name": beside.projections.root.name,
        "changed": differences(context.policy, beside.policy),
        "golems": beside.description.golems,
        "frozen": context.frozen,
    }


def compare(
    context: DerivationContext, beside: DerivationContext, *, shared: Sequence[str] = (), horizon_us: int = DAY_US
) -> WhatIf:
    """Compare two derivations without updating them. shared: tables with the same files."""
    golems = beside.description.golems
    names = [n for n in TABLES if golems is None or n in SOME]
    at = _newest(context)
    before, after = (_read(s, "grimoire", golems) for s in (context, beside))
    at_us = 0 if at is None else pa.scalar(at, pa.timestamp("us", tz="UTC")).cast(pa.int64()).as_py()
    active = tuple(t.filter(pc.equal(t["status"], "active")).num_rows for t in (before, after))

    def calibrated(derivation: DerivationContext) -> Calibration:
        outcomes = judged_outcomes(derivation, golems)
        return calibration_of(derivation, outcomes, golems=golems, horizon_us=horizon_us)

    return WhatIf(
        **_compared_identities(context, beside),
        at=at,
        tables=tuple(_table(context, beside, n, golems, n in shared) for n in names),
        entries=entry_changes(before, after, at_us, context.policy.decay, beside.policy.decay),
        active_counts=(active[0], active[1]),
        calibration=(calibrated(context), calibrated(beside)),
        retrievals=retrievals(context, beside, golems),
        adoptable=beside.projections.root != context.projections.root
        and unfit(context, beside.projections.root.name) is None,
    )


def _newest(context: DerivationContext) -> datetime | None:
    """Return the time of the last closed cycle, at which confidence is compared."""
    closes = context.projections.growing("cycles").read(["closed_at"])
    return pc.max(closes["closed_at"]).as_py()


def _read(context: DerivationContext, name: str, golems: Sequence[str] | None) -> pa.Table:
    rows = context.projections.read(name)
    if golems is None or "golem_id" not in rows.column_names:
        return rows
    return rows_of_golems(rows, golems)


def _table(
    context: DerivationContext, beside: DerivationContext, name: str, golems: Sequence[str] | None, shared: bool
) -> TableDifference:
    if shared:
        count = context.projections.digest(name).rows
        return TableDifference(name, count, count, 0, 0, True)
    columns = [n for n in TABLES[name].schema.names if n not in NAMING]
    first, second = (digest_column(row_digests(_read(s, name, golems).select(columns))) for s in (context, beside))
    pairs = ((first, second), (second, first))
    only = tuple(pc.sum(pc.invert(pc.is_in(a, value_set=b))).as_py() or 0 for a, b in pairs)
    return TableDifference(name, len(first), len(second), only[0], only[1])


def entry_changes(
    before: pa.Table, after: pa.Table, at_us: int, decay_before: DecayPolicy, decay_after: DecayPolicy
) -> pa.Table:
    """Return the active entries that differ (CHANGE_SCHEMA) by golem and entry.

    Parameters
    ----------
    before, after : ENTRY_SCHEMA
    at_us : time at which confidence is compared, each side with its own half-lives
    """

    def known(entries: pa.Table, decay: DecayPolicy) -> pa.Table:
        active = entries.filter(pc.equal(entries["status"], "active"))
        names = ["golem_id", "entry_id", "category", "text", "kind"]
        return active.select(names).append_column("ppm", pa.array(confidence_of(active, at_us, decay), pa.int64()))

    return query_tables(_CHANGES, before=known(before, decay_before), after=known(after, decay_after)).cast(
        CHANGE_SCHEMA
    )


def retrievals(
    context: DerivationContext, beside: DerivationContext, golems: Sequence[str] | None = None
) -> Retrievals:
    """Compare the entries that both grimoires would have retrieved at the recorded decisions (tiers T1 and T2)."""
    records, has_retrieval = _situations(context, golems)
    rows, asked = records.filter(pa.array(has_retrieval)), Lookups.of(records).take(has_retrieval)
    if not rows.num_rows:
        return Retrievals()
    names = EntryNames()
    span = context.policy.curator.cycle_ticks
    current, other = (_recalled(s, asked, names, golems, span) for s in (context, beside))
    recorded = _recorded(rows, names, current.entries.shape[0])
    return Retrievals(
        decisions=rows.num_rows,
        reproduced=int((recorded == current.entries).all(axis=0).sum()),
        differing=int((current.entries != other.entries).any(axis=0).sum()),
        warnings=int((current.warnings != other.warnings).sum()),
        blocks=int((current.blocked != other.blocked).sum()),
        blocked_in_force=int(current.blocked.sum()),
        blocked_beside=int(other.blocked.sum()),
    )


def _situations(context: DerivationContext, golems: Sequence[str] | None) -> tuple[pa.Table, BoolArray]:
    """Return all records with the time of their recall table (`laid_out_us`), by golem and tick, and those that count.

    A record counts if it has a retrieval and was not retracted.
    """
    rows = context.log.read_cycles(list(_RETRIEVAL_COLUMNS), golems=golems).rename_columns(_RETRIEVAL_COLUMNS)
    rows = rows.sort_by([("golem_id", "ascending"), ("tick", "ascending")])
    span = context.policy.curator.cycle_ticks
    at_us, tick = rows["observed_at"].cast(pa.int64()).to_numpy(), rows["tick"].to_numpy()
    golem = pc.index_in(rows["golem_id"], value_set=rows["golem_id"].unique()).to_numpy().astype(np.int64)
    _, first, chunk = np.unique((golem << 40) | ((tick - 1) // span), return_index=True, return_inverse=True)
    rows = rows.append_column("laid_out_us", pa.array(at_us[first][chunk], pa.int64()))
    is_retracted = context.left_out().records(rows["golem_id"], tick)
    has_retrieval = pc.is_in(rows["tier"], value_set=pa.array(["T1", "T2"])).to_numpy(zero_copy_only=False)
    return rows, has_retrieval & ~is_retracted


def _recalled(
    context: DerivationContext, asked: Lookups, names: EntryNames, golems: Sequence[str] | None, recorded_span: int
) -> RecallResults:
    """Return the entries that a derivation would have retrieved; its cycles may have another length."""
    span = context.policy.curator.cycle_ticks
    if span != recorded_span:
        asked = replace(asked, cycle=(asked.tick - 1) // span)
    decisions, credits = (context.projections.growing(n).read(golems=golems) for n in ("curation", "credits"))
    return RecallHistory(decisions, credits, context.policy).recalled(asked, names)


def _recorded(rows: pa.Table, names: EntryNames, count: int) -> Int64Array:
    """Return the recorded entries in the form of `RecallResults.entries`."""
    lists = contiguous(rows["retrieved_entries"])
    ids = pc.struct_field(lists.values, "entry_id").to_pylist()
    codes, offsets = names.codes(ids), lists.offsets.to_numpy()
    entries = np.full((count, rows.num_rows), -1, np.int64)
    for place in range(count):
        exists = offsets[:-1] + place < offsets[1:]
        entries[place, exists] = codes[offsets[:-1][exists] + place]
    return -np.sort(-entries, axis=0)
