"""Failures of golems, and the scars that their clades learn from them.

A failure waits until the cycle that confirmed it is curated, because its confidence is the curator's. The scars of an
owner are a function of the set of the owner's failures. Source: KAT (Acheron), canon 46, 47.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.checkpoints import checkpoint_of
from bardo_pipeline.derivation.incremental.cycle_reader import CycleBatch
from bardo_pipeline.derivation.incremental.incremental_projection import RecomputedProjection, RederivedProjection
from bardo_pipeline.derivation.incremental.record_queries import (
    closed_records,
    cycle_of,
    last_cycle_by_golem,
    last_records,
    records_between,
    require_born,
    rows_derived,
    values_by_golem,
)
from bardo_pipeline.derivation.incremental.retraction_tracking import is_from_cycle
from bardo_pipeline.derivation.legacy.death_queries import curated_deaths, deaths_with_ticks, golem_owners
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.events.record.arrow_columns import rows_of_other_golems
from bardo_pipeline.grimoire.confidence import ppm
from bardo_pipeline.grimoire.entry_columns import query_tables
from bardo_pipeline.katabasis.action_outcomes import (
    ENDED_SCHEMA,
    OUTCOME_COLUMNS,
    OUTCOME_SCHEMA,
    checked_failures,
    failures_among,
    outcomes_of,
)
from bardo_pipeline.katabasis.scar_rules import (
    FAILURE_COLUMNS,
    FAILURE_SCHEMA,
    RULE_COLUMNS,
    failures_of,
    scar_confidence,
    scars_of,
)
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta.table_digest import Digest, Written
from bardo_pipeline.storage.projections.projections import GrowingTable

_NO_DEATHS = ENDED_SCHEMA.empty_table()
_DEATH = "death/"
"""Prefix of the transaction ids of failures that a death confirms. They are derived apart from their cycle, because a
full cycle may be derived before the death at its last tick is on record."""


class _Failures(RederivedProjection):
    name, sources, columns, caches = "failures", ("curation",), OUTCOME_COLUMNS, ("failures-rules",)

    def rows(self, context: DerivationContext, batch: CycleBatch, left_out: LeftOut) -> pa.Table:
        failures = context.projections.growing("failures")
        cycles = {golem_id: ((failures.done(golem_id) or 0) + 1, last) for golem_id, last in batch.upto.items()}
        return _failure_rows(context, _confirmed_failures(context, batch.records, cycles, left_out), left_out)

    def rows_again(
        self, context: DerivationContext, first: Mapping[str, int], upto: Mapping[str, int], left_out: LeftOut
    ) -> pa.Table:
        earlier = context.projections.growing("failures").read(["golem_id", "cycle"], golems=first)
        earlier = earlier.filter(pc.invert(is_from_cycle(earlier, first)))
        decisions = context.projections.growing("curation").read(list(RULE_COLUMNS), golems=first)
        return rederive_failures(context, first, upto, left_out, earlier=earlier, decisions=decisions)

    def derive(self, context: DerivationContext, left_out: LeftOut) -> list[Written]:
        """Append the failures of newly curated cycles, then those that deaths confirm."""
        written, failures = super().derive(context, left_out), context.projections.growing("failures")
        deaths = _deaths_to_settle(context, failures)
        if deaths.num_rows:
            rows = _failure_rows(context, _failures_at_death(context, deaths, left_out), left_out)
            upto = {_DEATH + golem_id: cycle for golem_id, cycle in last_cycle_by_golem(deaths).items()}
            written.append(failures.put(rows, upto))
        return written


def derive_failures(context: DerivationContext) -> list[Written]:
    """Derive the failures that curated cycles and deaths confirmed, and again those that a retraction touches."""
    return _Failures().update(context)


def rederive_failures(
    context: DerivationContext,
    first: Mapping[str, int],
    upto: Mapping[str, int],
    left_out: LeftOut,
    *,
    earlier: pa.Table,
    decisions: pa.Table,
) -> pa.Table:
    """Return the failures of each golem's cycles `first` to `upto` and of its death, without retracted records.

    Parameters
    ----------
    earlier : failures of these golems before `first`
    decisions : RULE_COLUMNS, the curator's decisions about these golems
    """
    failures = context.projections.growing("failures")
    cycles = {g: (cycle, upto[g]) for g, cycle in first.items()}
    records = closed_records(context, OUTCOME_COLUMNS, first, upto, left_out)
    deaths = curated_deaths(context)
    is_settled = [g in upto and failures.done(_DEATH + g) is not None for g in deaths["golem_id"].to_pylist()]
    outcomes = (
        _confirmed_failures(context, records, cycles, left_out),
        _failures_at_death(context, deaths.filter(pa.array(is_settled, pa.bool_())), left_out),
    )
    schema = OUTCOME_SCHEMA.append(pa.field("cycle", pa.int64()))
    combined = pa.concat_tables([rows.cast(schema) for rows in outcomes])
    return _failure_rows(context, combined, left_out, earlier=earlier, decisions=decisions)


def _confirmed_failures(
    context: DerivationContext, records: pa.Table, cycles: Mapping[str, tuple[int, int]], left_out: LeftOut
) -> pa.Table:
    """Return the failed outcomes that were confirmed in each golem's first to last cycle, with that cycle.

    records: OUTCOME_COLUMNS of these cycles; the failed decisions may be older.
    """
    failed = failures_among(outcomes_of(records, _NO_DEATHS, context.policy))
    ticks = checked_failures(records, context.policy)
    for golem_id, tick in zip(failed["golem_id"].to_pylist(), failed["tick"].to_pylist(), strict=True):
        first, last = ticks.get(golem_id, (tick, tick))
        ticks[golem_id] = min(first, tick), max(last, tick)
    surrounding = records_between(context, OUTCOME_COLUMNS, ticks, left_out)
    outcomes = failures_among(outcomes_of(surrounding, _NO_DEATHS, context.policy))
    cycle = cycle_of(outcomes["confirmed_tick"].to_numpy(), context.policy.curator.cycle_ticks)
    low, high = (np.array([cycles[g][i] for g in outcomes["golem_id"].to_pylist()], np.int64) for i in (0, 1))
    is_inside = pa.array((cycle >= low) & (cycle <= high), pa.bool_())
    return outcomes.append_column("cycle", pa.array(cycle)).filter(is_inside)


def _failures_at_death(context: DerivationContext, deaths: pa.Table, left_out: LeftOut) -> pa.Table:
    """Return the failed outcomes whose check a death (ENDED_SCHEMA) cut off, with the cycle of the death."""
    check_ticks = context.policy.prediction.check_ticks
    ticks = {g: (max(1, tick - check_ticks), tick) for g, tick in values_by_golem(deaths, "tick").items()}
    outcomes = outcomes_of(records_between(context, OUTCOME_COLUMNS, ticks, left_out), deaths, context.policy)
    outcomes = outcomes.filter(pc.equal(outcomes["confirmed"], "at_death"))
    cycle = cycle_of(outcomes["confirmed_tick"].to_numpy(), context.policy.curator.cycle_ticks)
    return outcomes.append_column("cycle", pa.array(cycle, pa.int64()))


def _failure_rows(
    context: DerivationContext,
    outcomes: pa.Table,
    left_out: LeftOut,
    *,
    earlier: pa.Table | None = None,
    decisions: pa.Table | None = None,
) -> pa.Table:
    """Return the rows (FAILURE_SCHEMA) of failed outcomes.

    earlier: the golems' earlier failures. decisions: the curator's decisions about them. By default all in the tables.
    """
    if not outcomes.num_rows:
        return FAILURE_SCHEMA.empty_table()
    ranges = outcomes.group_by("golem_id", use_threads=False).aggregate([("tick", "min"), ("tick", "max")])
    ticks = {row["golem_id"]: (row["tick_min"], row["tick_max"]) for row in ranges.to_pylist()}
    records = records_between(context, FAILURE_COLUMNS, ticks, left_out)
    if earlier is None:
        earlier = context.projections.growing("failures").read(["golem_id"], golems=list(ticks))
    if decisions is None:
        decisions = _situation_decisions(context)
    counts = earlier.select(["golem_id"]).group_by("golem_id", use_threads=False).aggregate([([], "count_all")])
    counts = counts.rename_columns(["golem_id", "known"])
    return failures_of(outcomes, records, decisions, golem_owners(context), counts, context.policy)


_NEW_AND_LAST_OLD = """
    with marked as (select rules.*, cycle > coalesce(done, 0) as is_new from rules left join reached using (golem_id))
    select * exclude (is_new) from marked
    qualify is_new or row_number() over (
        partition by golem_id, structure, is_new order by cycle desc, revision desc, seq desc) = 1
"""


def _situation_decisions(context: DerivationContext) -> pa.Table:
    """Return the curator's decisions about situations (RULE_COLUMNS) that new failures may need.

    These are all decisions of cycles without derived failures, and each situation's last earlier decision. They are
    saved with a checkpoint, so each decision is read once.
    """
    checkpoint, curation = checkpoint_of(context, "failures-rules"), context.projections.growing("curation")
    saved, version = checkpoint.load("rules"), curation.table.version
    if saved is not None and saved.version == version:
        return saved.rows
    since = None if saved is None else saved.version
    rules = curation.read(list(RULE_COLUMNS), since_version=since, only=pc.field("source") == "pattern")
    rules = rows_derived(context, rules)
    if saved is not None:
        rules = pa.concat_tables([saved.rows, rules])
    golems = rules["golem_id"].unique().to_pylist()
    done = [context.projections.growing("failures").done(g) or 0 for g in golems]
    reached = pa.table({"golem_id": pa.array(golems, pa.string()), "done": pa.array(done, pa.int64())})
    rules = query_tables(_NEW_AND_LAST_OLD, rules=rules, reached=reached).cast(rules.schema)
    checkpoint.save(version, rules=rules)
    return rules


def _deaths_to_settle(context: DerivationContext, failures: GrowingTable) -> pa.Table:
    """Return deaths that confirm failures which are not derived yet; the last cycles of their golems are derived."""
    deaths = rows_derived(context, curated_deaths(context))
    is_due = [
        (failures.done(g) or 0) >= cycle and failures.done(_DEATH + g) is None
        for g, cycle in values_by_golem(deaths, "cycle").items()
    ]
    return deaths.filter(pa.array(is_due, pa.bool_()))


class _Scars(RecomputedProjection):
    def write(self, context: DerivationContext) -> list[Written]:
        """Replace the scars of owners with changed failures or new deaths."""
        failures, checkpoint = context.projections.growing("failures"), checkpoint_of(context, "scars")
        version, deaths = failures.table.version, deaths_with_ticks(context)
        saved = checkpoint.load("dead")
        since = None if saved is None else saved.version
        changed = failures.table.read(["owner_id"], since)["owner_id"].unique().to_pylist() if version != since else []
        new_deaths = deaths if saved is None else rows_of_other_golems(deaths, saved.rows["golem_id"].to_pylist())
        owners = sorted({*changed, *new_deaths["owner_id"].to_pylist()})
        written = []
        if owners:
            table = context.projections.replaceable("scars")
            scars = scars_of(failures.read(only=pc.field("owner_id").isin(owners)), deaths, context.policy)
            if Digest.of(scars) != Digest.of(table.read(only=owners)):
                written.append(table.replace_keys(scars, owners))
        checkpoint.save(version, dead=deaths.select(["golem_id"]))
        return written


def derive_scars(context: DerivationContext) -> list[Written]:
    """Replace the scars of owners with changed failures or new deaths."""
    return _Scars().update(context)


def failures_with_scars(
    context: DerivationContext, golem_id: str | None, *, only_scars: bool = False
) -> list[dict[str, Any]]:
    """Return the failures of one golem or of all, by time of confirmation, each with `is_scar`.

    A scar has the columns of its row and confidence_now_ppm, its confidence at its golem's newest tick. For any other
    failure `because` gives the criterion that it does not meet. Raises UnknownGolemError for an unknown golem.
    """
    if golem_id is not None:
        require_born(context, golem_id)
    golems = None if golem_id is None else [golem_id]
    failures = context.projections.growing("failures").read(golems=golems).to_pylist()
    rows = context.projections.replaceable("scars").read(only=sorted({row["owner_id"] for row in failures}))
    golem_ids = rows["golem_id"].to_pylist()
    last = last_records(context, ("golem_id", "tick", "observed_at"), set(golem_ids))
    newest_us = values_by_golem(last.append_column("at_us", last["observed_at"].cast(pa.int64())), "at_us")
    now_ppm = scar_confidence(rows, np.array([newest_us[g] for g in golem_ids], np.int64), context.policy).tolist()
    scars = {row["scar_id"]: row | {"confidence_now_ppm": c} for row, c in zip(rows.to_pylist(), now_ppm, strict=True)}
    failures.sort(key=lambda row: (row["confirmed_at"], row["golem_id"], row["seq"]))
    return [
        row | scars.get(row["scar_id"], {}) | _scar_status(row, scars, context.policy)
        for row in failures
        if not only_scars or row["scar_id"] in scars
    ]


def _scar_status(row: Mapping[str, Any], scars: Mapping[str, Any], policy: Policy) -> dict[str, Any]:
    """Return whether a failure is a scar, and the reason if it is none."""
    if row["scar_id"] in scars:
        return {"is_scar": True, "because": None}
    required_ppm = ppm(policy.katabasis.scar_confidence_min)
    if not row["is_clear"]:
        reason = "nothing on record says why it hurt"
    elif row["confidence_ppm"] < required_ppm:
        reason = f"its cause is {row['confidence_ppm'] / 1e4:.0f} % sure, {required_ppm / 1e4:.0f} % are needed"
    else:
        reason = "the clade knew it"
    return {"is_scar": False, "because": reason}
