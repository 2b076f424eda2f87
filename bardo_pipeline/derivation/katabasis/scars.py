"""Scarring: what hurt golems, cycle by cycle, and what their clades are told of it, at the cost of what is new.

A failure waits until the cycle in which it was confirmed is curated, as its confidence is the curator's. Which failures
become scars is a function of the set of an owner's failures. Source: KAT (Acheron), canon 46, 47.
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
from bardo_pipeline.derivation.incremental.incremental_projection import CycleProjection
from bardo_pipeline.derivation.incremental.record_queries import (
    curated_through,
    cycle_of,
    last_records,
    records_between,
)
from bardo_pipeline.derivation.incremental.retraction_tracking import is_from_cycle
from bardo_pipeline.derivation.katabasis.recorded_deaths import deaths_with_ticks, golem_owners
from bardo_pipeline.events.life.retractions import LeftOut
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

_NOBODY = ENDED_SCHEMA.empty_table()
_DEATH = "death/"
"""Apps of what a death confirmed: a cycle that ends with its fiftieth tick may be derived before its death is known."""


class _Failures(CycleProjection):
    name, after, columns, caches = "failures", ("curation",), OUTCOME_COLUMNS, ("failures-rules",)

    def rows(self, context: DerivationContext, batch: CycleBatch, left_out: LeftOut) -> pa.Table:
        failures = context.projections.growing("failures")
        cycles = {golem_id: ((failures.done(golem_id) or 0) + 1, last) for golem_id, last in batch.upto.items()}
        return _failures(context, _confirmed(context, batch.records, cycles, left_out), left_out)

    def rows_again(
        self, context: DerivationContext, first: Mapping[str, int], upto: Mapping[str, int], left_out: LeftOut
    ) -> pa.Table:
        earlier = context.projections.growing("failures").read(["golem_id", "cycle"], golems=first)
        earlier = earlier.filter(pc.invert(is_from_cycle(earlier, first)))
        decisions = context.projections.growing("curation").read(list(RULE_COLUMNS), golems=first)
        return rederive_failures(context, first, upto, left_out, before=earlier, decisions=decisions)

    def extend(self, context: DerivationContext, left_out: LeftOut) -> list[Written]:
        """Append the failures of newly curated cycles, then those that deaths left unchecked."""
        written, failures = super().extend(context, left_out), context.projections.growing("failures")
        deaths = _unsettled(context, failures)
        if deaths.num_rows:
            rows = _failures(context, _cut_off(context, deaths, left_out), left_out)
            written.append(failures.put(rows, {_DEATH + g: c for g, c in _cycles(context, deaths).items()}))
        return written


def derive_failures(context: DerivationContext) -> list[Written]:
    """Derive the failures that curated cycles and deaths confirmed, and again those that a retraction touches."""
    return _Failures().update(context)


def _confirmed(
    context: DerivationContext, records: pa.Table, cycles: Mapping[str, tuple[int, int]], left: LeftOut
) -> pa.Table:
    """What failed and was confirmed in these golems' cycles (first to last), with its cycle.

    records: OUTCOME_COLUMNS of those cycles. What they condemn may have been decided before them.
    """
    failed = failures_among(outcomes_of(records, _NOBODY, context.policy))
    ticks = checked_failures(records, context.policy)
    for golem_id, tick in zip(failed["golem_id"].to_pylist(), failed["tick"].to_pylist(), strict=True):
        first, last = ticks.get(golem_id, (tick, tick))
        ticks[golem_id] = min(first, tick), max(last, tick)
    surrounding = records_between(context, OUTCOME_COLUMNS, ticks, left)
    told = failures_among(outcomes_of(surrounding, _NOBODY, context.policy))
    cycle = cycle_of(told["confirmed_tick"].to_numpy(), context.policy.curator.cycle_ticks)
    low, high = (np.array([cycles[g][i] for g in told["golem_id"].to_pylist()], np.int64) for i in (0, 1))
    return told.append_column("cycle", pa.array(cycle)).filter(pa.array((cycle >= low) & (cycle <= high), pa.bool_()))


def _cut_off(context: DerivationContext, ended: pa.Table, left: LeftOut) -> pa.Table:
    """What was not checked yet when these golems died, and had hurt, with its cycle. ended: ENDED_SCHEMA."""
    check, died = context.policy.prediction.check_ticks, zip(*ended.select(["golem_id", "tick"]).columns, strict=True)
    ticks = {g.as_py(): (max(1, t.as_py() - check), t.as_py()) for g, t in died}
    told = outcomes_of(records_between(context, OUTCOME_COLUMNS, ticks, left), ended, context.policy)
    told = told.filter(pc.equal(told["confirmed"], "at_death"))
    cycle = cycle_of(told["confirmed_tick"].to_numpy(), context.policy.curator.cycle_ticks)
    return told.append_column("cycle", pa.array(cycle, pa.int64()))


def _failures(
    context: DerivationContext,
    told: pa.Table,
    left: LeftOut,
    *,
    before: pa.Table | None = None,
    decisions: pa.Table | None = None,
) -> pa.Table:
    """What these failures say. before: those of these golems that are told already; by default all that stand.

    decisions: the curator's about these golems; by default those on record.
    """
    if not told.num_rows:
        return FAILURE_SCHEMA.empty_table()
    golems = told["golem_id"].unique().to_pylist()
    by_golem = told.group_by("golem_id", use_threads=False).aggregate([("tick", "min"), ("tick", "max")]).to_pylist()
    ticks = {row["golem_id"]: (row["tick_min"], row["tick_max"]) for row in by_golem}
    records = records_between(context, FAILURE_COLUMNS, ticks, left)
    if before is None:
        before = context.projections.growing("failures").read(["golem_id"], golems=golems)
    if decisions is None:
        decisions = _rules(context)
    counted = before.select(["golem_id"]).group_by("golem_id", use_threads=False).aggregate([([], "count_all")])
    known = counted.rename_columns(["golem_id", "known"])
    return failures_of(told, records, decisions, golem_owners(context), known, context.policy)


_LAST_WORDS = """
    with told as (select rules.*, cycle > coalesce(done, 0) as is_new from rules left join told_to using (golem_id))
    select * exclude (is_new) from told
    qualify is_new or row_number() over (
        partition by golem_id, structure, is_new order by cycle desc, revision desc, seq desc) = 1
"""


def _rules(context: DerivationContext) -> pa.Table:
    """What the curator decided about situations (RULE_COLUMNS): all since the failures that are told, the last before.

    Brought up to the decisions on record, and kept beside the reader's place.
    """
    checkpoint, curation = checkpoint_of(context, "failures-rules"), context.projections.growing("curation")
    kept, version = checkpoint.load("rules"), curation.table.version
    if kept is not None and kept.version == version:
        return kept.rows
    since = None if kept is None else kept.version
    fresh = curation.read(list(RULE_COLUMNS), since_version=since, only=pc.field("source") == "pattern")
    rules = fresh if kept is None else pa.concat_tables([kept.rows, fresh])
    golems = rules["golem_id"].unique().to_pylist()
    done = [context.projections.growing("failures").done(g) or 0 for g in golems]
    told_to = pa.table({"golem_id": pa.array(golems, pa.string()), "done": pa.array(done, pa.int64())})
    rules = query_tables(_LAST_WORDS, rules=rules, told_to=told_to).cast(rules.schema)
    checkpoint.save(version, rules=rules)
    return rules


def _ended(context: DerivationContext) -> pa.Table:
    """Deaths on record of golems whose last cycle is curated (ENDED_SCHEMA and the cycle)."""
    deaths = deaths_with_ticks(context)
    keep = [(curated_through(context, g) or 0) >= c for g, c in _cycles(context, deaths).items()]
    return deaths.filter(pa.array(keep, pa.bool_()))


def _cycles(context: DerivationContext, deaths: pa.Table) -> dict[str, int]:
    return dict(zip(deaths["golem_id"].to_pylist(), deaths["cycle"].to_pylist(), strict=True))


def _unsettled(context: DerivationContext, failures: GrowingTable) -> pa.Table:
    """Deaths that cut off checks, as far as nobody looked: their golem's last cycle is told, but not what was open."""
    ended = _ended(context)
    keep = [
        (failures.done(g) or 0) >= c and failures.done(_DEATH + g) is None for g, c in _cycles(context, ended).items()
    ]
    return ended.filter(pa.array(keep, pa.bool_()))


def rederive_failures(
    context: DerivationContext,
    first: Mapping[str, int],
    upto: Mapping[str, int],
    left: LeftOut,
    *,
    before: pa.Table,
    decisions: pa.Table,
) -> pa.Table:
    """Failures of these golems' cycles, from one to another, without what is left out; those of their deaths, too.

    before: their earlier failures. decisions: the curator's about these golems.
    """
    span, failures = context.policy.curator.cycle_ticks, context.projections.growing("failures")
    ticks = {g: ((cycle - 1) * span + 1, upto[g] * span) for g, cycle in first.items()}
    cycles = {g: (cycle, upto[g]) for g, cycle in first.items()}
    told = [_confirmed(context, records_between(context, OUTCOME_COLUMNS, ticks, left), cycles, left)]
    ended = _ended(context)
    mine = [g in upto and failures.done(_DEATH + g) is not None for g in ended["golem_id"].to_pylist()]
    told.append(_cut_off(context, ended.filter(pa.array(mine, pa.bool_())), left))
    schema = OUTCOME_SCHEMA.append(pa.field("cycle", pa.int64()))
    together = pa.concat_tables([part.cast(schema) for part in told])
    return _failures(context, together, left, before=before, decisions=decisions)


def derive_scars(context: DerivationContext) -> list[Written]:
    """Choose anew what the clades are told whose failures changed, or of which somebody died."""
    with context.deriving():
        failures, checkpoint = context.projections.growing("failures"), checkpoint_of(context, "scars")
        version, deaths = failures.table.version, deaths_with_ticks(context)
        kept = checkpoint.load("dead")
        since = None if kept is None else kept.version
        touched = failures.table.read(["owner_id"], since)["owner_id"].unique().to_pylist() if version != since else []
        known = pa.array([], pa.string()) if kept is None else kept.rows["golem_id"].combine_chunks()
        newly = deaths.filter(pc.invert(pc.is_in(deaths["golem_id"], value_set=known)))
        owned = {*touched, *newly["owner_id"].to_pylist()}
        written = []
        if owned:
            table = context.projections.replaceable("scars")
            buckets = table.buckets(owned)
            told = scars_of(failures.read(only=pc.field("owner_id").isin(sorted(owned))), deaths, context.policy)
            standing = table.read(buckets)
            others = standing.filter(pc.invert(pc.is_in(standing["owner_id"], value_set=pa.array(sorted(owned)))))
            rows = pa.concat_tables([others, told])
            if Digest.of(rows) != Digest.of(standing):
                written.append(table.replace(rows, buckets))
        checkpoint.save(version, dead=deaths.select(["golem_id"]))
        return written


def failures_with_scars(context: DerivationContext, golem_id: str | None) -> list[dict[str, Any]]:
    """Failures of a golem or of all as they were confirmed, each with whether it is a scar.

    A scar has the columns of its row and its confidence at its golem's newest tick (confidence_now_ppm); any other
    failure has in `because` which criterion it does not meet.
    """
    only = None if golem_id is None else [golem_id]
    told = context.projections.growing("failures").read(golems=only).to_pylist()
    owned = sorted({row["owner_id"] for row in told})
    rows = context.projections.replaceable("scars").read(only=owned)
    whose = rows["golem_id"].to_pylist()
    ends = last_records(context, ("golem_id", "tick", "observed_at"), set(whose))
    newest = dict(zip(ends["golem_id"].to_pylist(), ends["observed_at"].cast(pa.int64()).to_pylist(), strict=True))
    at_us = np.array([newest[g] for g in whose], np.int64)
    now = scar_confidence(rows, at_us, context.policy).tolist()
    scars = {row["scar_id"]: row | {"confidence_now_ppm": c} for row, c in zip(rows.to_pylist(), now, strict=True)}
    ordered = sorted(told, key=lambda row: (row["confirmed_at"], row["golem_id"], row["seq"]))
    return [row | scars.get(row["scar_id"], {}) | _why(row, scars, context.policy) for row in ordered]


def _why(row: Mapping[str, Any], scars: Mapping[str, Any], policy: Policy) -> dict[str, Any]:
    """Whether a failure is a scar, and if not, why."""
    if row["scar_id"] in scars:
        return {"is_scar": True, "because": None}
    if not row["is_clear"]:
        return {"is_scar": False, "because": "nothing on record says why it hurt"}
    least = ppm(policy.katabasis.scar_confidence_min)
    if row["confidence_ppm"] < least:
        said = f"its cause is {row['confidence_ppm'] / 1e4:.0f} % sure, {least / 1e4:.0f} % are needed"
        return {"is_scar": False, "because": said}
    return {"is_scar": False, "because": "the clade knew it"}
