"""What if: the same log under another policy, beside what is in force: what is known apart, and who was right.

Nothing golems did changes by it: the log is what it is. What is compared is what would be known of it, how sure each
grimoire was beside what was judged afterwards, and what each would have put before a golem at its recorded decisions.
Published bundles are events; heirs begin with the same ones under any policy. Source: X-3, X-10.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.judged_outcomes import judged_outcomes
from bardo_pipeline.derivation.versions.policy_diff import Setting, differences
from bardo_pipeline.derivation.versions.rebuild import derive_everything
from bardo_pipeline.derivation.versions.side_derivations import SOME, build, open_beside, unfit
from bardo_pipeline.errors import SchemaVersionError
from bardo_pipeline.events.record.row_digest import digest_column, row_digests
from bardo_pipeline.grimoire.confidence import DAY_US
from bardo_pipeline.grimoire.entry_columns import contiguous
from bardo_pipeline.heartbeat.recall_history import Asked, History, Recalled
from bardo_pipeline.heartbeat.recall_table import EntryNames
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.calibration import (
    JUDGED_SCHEMA,
    Calibration,
    beliefs_at_closes,
    calibration,
    judge_beliefs,
)
from bardo_pipeline.quality.grimoire_differences import CHANGE_SCHEMA, entry_changes
from bardo_pipeline.storage.projections.table_specs import TABLES

NAMING = frozenset({"policy_hash", "bundle_hash", "cause_bundle", "derivation_id"})
"""Columns that only name the policy, or a bundle whose manifest does: they differ always, whatever the content."""

_LOOKED_UP = {
    "golem_id": "golem_id",
    "tick": "tick",
    "observed_at": "observed_at",
    "cycle_seen": "cycle_seen",
    "regime": "regime",
    "tier": "tier",
    "observation.anomaly_score": "anomaly_score",
    "observation.gas_hour_ratio": "gas_hour_ratio",
    "retrieved_entries": "retrieved_entries",
}


@dataclass(frozen=True)
class TableDifference:
    """A table of both derivations, by the content of its rows: how many each has, and has alone."""

    table: str
    rows: int
    rows_beside: int
    only_in_force: int
    only_beside: int
    shared: bool = False


@dataclass(frozen=True)
class Retrievals:
    """Recorded decisions, and what the two grimoires would have put before them.

    reproduced: those whose recorded entries are what the derivation in force gives, which tells how far the log was
    lived under it. differing: whose five best entries are not the same. warnings, blocks: where the number of warnings
    among them differs, and where one grimoire would have barred re-centring and the other not.
    """

    decisions: int = 0
    reproduced: int = 0
    differing: int = 0
    warnings: int = 0
    blocks: int = 0
    blocked_in_force: int = 0
    blocked_beside: int = 0


@dataclass(frozen=True)
class WhatIf:
    """Two derivations of one log. changed: the settings in which they differ.

    name: the folder of the one beside; adoptable: whether it may be put in force. frozen: why the one in force was not
    brought up to the log; incomparable: why its tables cannot be read by this version, nothing being compared then.
    entries: CHANGE_SCHEMA, confidence as of at. known: active entries in force and beside.
    """

    in_force: str
    name: str
    at: datetime | None
    changed: tuple[Setting, ...]
    golems: tuple[str, ...] | None
    frozen: str | None
    tables: tuple[TableDifference, ...]
    entries: pa.Table
    known: tuple[int, int]
    calibration: tuple[Calibration, Calibration]
    retrievals: Retrievals
    adoptable: bool = True
    incomparable: str | None = None

    @property
    def same(self) -> bool:
        """Whether nothing that is derived differs."""
        return not any(t.only_in_force or t.only_beside for t in self.tables)


def what_if(
    context: DerivationContext,
    policy: Policy,
    *,
    now: datetime,
    golems: Sequence[str] | None = None,
    horizon_us: int = DAY_US,
    tell: Callable[[str], None] = lambda _: None,
) -> WhatIf:
    """Derive the log under another policy beside what is in force, bring both up to it, and compare.

    golems: derive and compare only these. horizon_us: how long after a close decisions count that were judged.
    Raises QueryError for an unknown golem, ConfigError where there is no room for another derivation.
    """
    if context.frozen is None:
        tell("what is in force")
        derive_everything(context, now=now)
    beside = open_beside(context, policy, golems=golems)
    shared: tuple[str, ...] = ()
    if golems is None and beside.derivation_id == context.derivation_id:
        beside, shared = context, tuple(TABLES)
    else:
        shared = build(context, beside, now=now, tell=tell)
    tell("comparing")
    try:
        return compare(context, beside, shared=shared, horizon_us=horizon_us)
    except SchemaVersionError as error:
        if context.frozen is None:
            raise
        return _not_compared(context, beside, str(error))


def _not_compared(context: DerivationContext, beside: DerivationContext, why: str) -> WhatIf:
    changed, none = differences(context.policy, beside.policy), calibration(JUDGED_SCHEMA.empty_table())
    return WhatIf(
        context.derivation_id,
        beside.projections.root.name,
        None,
        changed,
        beside.description.golems,
        context.frozen,
        (),
        CHANGE_SCHEMA.empty_table(),
        (0, 0),
        (none, none),
        Retrievals(),
        incomparable=why,
    )


def compare(
    context: DerivationContext, beside: DerivationContext, *, shared: Sequence[str] = (), horizon_us: int = DAY_US
) -> WhatIf:
    """Compare two derivations as they stand. shared: tables that are the same files."""
    golems = beside.description.golems
    changed = differences(context.policy, beside.policy)
    names = [n for n in TABLES if golems is None or n in SOME]
    at = _newest(context)
    before, after = (_read(s, "grimoire", golems) for s in (context, beside))
    at_us = 0 if at is None else pa.scalar(at, pa.timestamp("us", tz="UTC")).cast(pa.int64()).as_py()
    active = tuple(t.filter(pc.equal(t["status"], "active")).num_rows for t in (before, after))
    return WhatIf(
        in_force=context.derivation_id,
        name=beside.projections.root.name,
        at=at,
        changed=changed,
        golems=golems,
        frozen=context.frozen,
        tables=tuple(_table(context, beside, n, golems, n in shared) for n in names),
        entries=entry_changes(before, after, at_us, context.policy.decay, beside.policy.decay),
        known=(active[0], active[1]),
        calibration=(_calibrated(context, golems, horizon_us), _calibrated(beside, golems, horizon_us)),
        retrievals=retrievals(context, beside, golems),
        adoptable=beside.projections.root != context.projections.root
        and unfit(context, beside.projections.root.name) is None,
    )


def _newest(context: DerivationContext) -> datetime | None:
    """The last close of a cycle: the moment as of which confidence is compared."""
    closes = context.projections.growing("cycles").read(["closed_at"])
    newest: datetime | None = pc.max(closes["closed_at"]).as_py()
    return newest


def _read(context: DerivationContext, name: str, golems: Sequence[str] | None) -> pa.Table:
    rows = context.projections.read(name)
    if golems is None or "golem_id" not in rows.column_names:
        return rows
    return rows.filter(pc.is_in(rows["golem_id"], value_set=pa.array(golems, pa.string())))


def _table(
    context: DerivationContext, beside: DerivationContext, name: str, golems: Sequence[str] | None, shared: bool
) -> TableDifference:
    if shared:
        count = context.projections.digest(name).rows
        return TableDifference(name, count, count, 0, 0, True)
    columns = [n for n in TABLES[name].schema.names if n not in NAMING]
    mine, other = (digest_column(row_digests(_read(s, name, golems).select(columns))) for s in (context, beside))
    alone = tuple(pc.sum(pc.invert(pc.is_in(a, value_set=b))).as_py() or 0 for a, b in ((mine, other), (other, mine)))
    return TableDifference(name, len(mine), len(other), alone[0], alone[1])


def _calibrated(context: DerivationContext, golems: Sequence[str] | None, horizon_us: int) -> Calibration:
    """How sure a derivation was at each close, beside what was judged after it."""
    decisions = context.projections.growing("curation").read(golems=golems)
    closes = context.projections.growing("cycles").read(["golem_id", "cycle", "closed_at"], golems=golems)
    beliefs = beliefs_at_closes(decisions, closes, context.policy.decay)
    return calibration(judge_beliefs(beliefs, judged_outcomes(context, golems), horizon_us=horizon_us))


def retrievals(
    context: DerivationContext, beside: DerivationContext, golems: Sequence[str] | None = None
) -> Retrievals:
    """What both grimoires would have put before golems at the decisions on record (T1 and T2: after the gate)."""
    rows = _looked_up(context, golems)
    if not rows.num_rows:
        return Retrievals()
    names = EntryNames()
    span = context.policy.curator.cycle_ticks
    mine, other = (_recalled(s, rows, names, golems, span) for s in (context, beside))
    recorded = _recorded(rows, names, mine.entries.shape[0])
    return Retrievals(
        decisions=rows.num_rows,
        reproduced=int((recorded == mine.entries).all(axis=0).sum()),
        differing=int((mine.entries != other.entries).any(axis=0).sum()),
        warnings=int((mine.warnings != other.warnings).sum()),
        blocks=int((mine.blocked != other.blocked).sum()),
        blocked_in_force=int(mine.blocked.sum()),
        blocked_beside=int(other.blocked.sum()),
    )


def _looked_up(context: DerivationContext, golems: Sequence[str] | None) -> pa.Table:
    """Records that retrieved, with the moment at which what their golem knew was laid out, by golem and tick."""
    rows = context.log.read_cycles(list(_LOOKED_UP), golems=golems).rename_columns(_LOOKED_UP)
    span = context.policy.curator.cycle_ticks
    at_us, tick = rows["observed_at"].cast(pa.int64()).to_numpy(), rows["tick"].to_numpy()
    golem = pc.index_in(rows["golem_id"], value_set=rows["golem_id"].unique()).to_numpy().astype(np.int64)
    chunk = (golem << 40) | ((tick - 1) // span)
    order = np.lexsort((tick, chunk))
    found, first = np.unique(chunk[order], return_index=True)
    laid_out = at_us[order][first][np.searchsorted(found, chunk)]
    rows = rows.append_column("laid_out_us", pa.array(laid_out, pa.int64()))
    out = context.left_out().records(rows["golem_id"], tick)
    asked = pc.is_in(rows["tier"], value_set=pa.array(["T1", "T2"])).to_numpy(zero_copy_only=False)
    return rows.filter(pa.array(asked & ~out)).sort_by([("golem_id", "ascending"), ("tick", "ascending")])


def _recalled(
    context: DerivationContext, rows: pa.Table, names: EntryNames, golems: Sequence[str] | None, recorded_span: int
) -> Recalled:
    """What one derivation would have given. Where its cycles have another length, others are the last closed ones."""
    asked, span = Asked.of(rows), context.policy.curator.cycle_ticks
    if span != recorded_span:
        asked = replace(asked, cycle=(asked.tick - 1) // span)
    decisions = context.projections.growing("curation").read(golems=golems)
    return History(decisions, context.policy).recalled(asked, names)


def _recorded(rows: pa.Table, names: EntryNames, most: int) -> np.ndarray:
    """The entries that records say were retrieved, as `Recalled.entries`."""
    lists = contiguous(rows["retrieved_entries"])
    ids = pc.struct_field(lists.values, "entry_id").to_pylist()
    codes, offsets = names.codes(ids), lists.offsets.to_numpy()
    out = np.full((most, rows.num_rows), -1, np.int64)
    for place in range(most):
        here = offsets[:-1] + place < offsets[1:]
        out[place, here] = codes[offsets[:-1][here] + place]
    return -np.sort(-out, axis=0)
