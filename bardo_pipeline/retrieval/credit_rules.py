"""Credits retrieved entries with the verdicts on the decisions that used them. Pure, set-based over records.

A retrieved entry was useful if its sign agrees with the verdict on the decision, and misleading if it disagrees. The
sign is taken as of the last cycle closed before the decision.
Source: HB S13 (Loop 1: which knowledge contributed, and was the decision good?), MEM (reinforcement on retrieval),
canon 21 (an access is an event).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.events.record.arrow_columns import all_required, contiguous, listed, required
from bardo_pipeline.grimoire.entries import MOMENT
from bardo_pipeline.grimoire.entry_columns import query_tables
from bardo_pipeline.policy import CuratorPolicy

CREDIT_COLUMNS = ("golem_id", "tick", "observed_at", "retrieved_entries", "resolutions")
"""Record columns from which credits are computed."""

CREDIT_SCHEMA = pa.schema(
    [
        required("golem_id", pa.string()),
        required("cycle", pa.int64()),
        required("entry_id", pa.string()),
        *all_required(pa.int64(), "retrieved", "useful", "misled"),
        pa.field("last_access_at", MOMENT),
        listed("cause_ticks", pa.int64()),
    ]
)
"""One row per golem, cycle and entry that was retrieved or judged in the cycle. retrieved: number of ticks that
retrieved the entry; last_access_at: time of the last one, null without any. useful, misled: decisions judged in this
cycle that had retrieved the entry, and whose effect agreed or disagreed with its sign. cause_ticks: source ticks."""

SIGN_SCHEMA = pa.schema(
    [*all_required(pa.string(), "golem_id", "entry_id", "action_type"), *all_required(pa.int64(), "cycle", "sign")]
)
"""One row per cycle in which an entry's sign changed: 1 the action pays, -1 it harms, 0 undecided."""

_SIGNS = """
    with latest as (
        select golem_id, entry_id, action_type, cycle, sign from decisions where action_type is not null
        qualify row_number() over (partition by golem_id, entry_id, cycle order by revision desc, seq desc) = 1
    ),
    signs as (select * from latest union all select golem_id, entry_id, action_type, cycle, sign from earlier)
    select golem_id, entry_id, action_type, cycle, sign from signs
    qualify sign is distinct from lag(sign) over (partition by golem_id, entry_id order by cycle)
    order by golem_id, entry_id, cycle
"""

_CREDITS = """
    with retrievals as (
        select distinct golem_id, cycle, tick, observed_at,
            unnest(list_transform(retrieved_entries, lambda e: e.entry_id)) as entry_id
        from records
    ),
    resolved as (select golem_id, cycle, tick, unnest(resolutions) as r from records),
    judged as (
        select golem_id, cycle, tick, r.action_type as action_type, (r.decision_tick - 1) // $span + 1 as decided,
            sign(r.effect_ppm) as side, unnest(list_distinct(r.retrieved_entry_ids)) as entry_id
        from resolved where r.verified and abs(r.effect_ppm) >= $least
    ),
    agreements as (
        select j.*, s.sign * j.side as agreed from judged j asof join signs s
        on j.golem_id = s.golem_id and j.entry_id = s.entry_id and j.action_type = s.action_type
            and j.decided > s.cycle
    ),
    uses as (
        select golem_id, cycle, entry_id, tick, observed_at, 1 as retrieved, 0 as useful, 0 as misled from retrievals
        union all
        select golem_id, cycle, entry_id, tick, null, 0, (agreed > 0)::int, (agreed < 0)::int
        from agreements where agreed <> 0
    )
    select golem_id, cycle, entry_id, sum(retrieved)::bigint as retrieved, sum(useful)::bigint as useful,
        sum(misled)::bigint as misled, max(observed_at) as last_access_at,
        list_sort(list_distinct(list(tick))) as cause_ticks
    from uses group by all order by all
"""


def signs_of(decisions: pa.Table, earlier: pa.Table | None = None) -> pa.Table:
    """Return the cycles in which each entry's sign changed (SIGN_SCHEMA).

    earlier: signs of the decisions before `decisions` (DECISION_SCHEMA).
    """
    names = ["golem_id", "entry_id", "action_type", "cycle", "sign", "revision", "seq"]
    earlier = SIGN_SCHEMA.empty_table() if earlier is None else earlier
    return query_tables(_SIGNS, decisions=decisions.select(names), earlier=earlier).cast(SIGN_SCHEMA)


def credits_of(records: pa.Table, cycle: Int64Array, signs: pa.Table, policy: CuratorPolicy) -> pa.Table:
    """Count retrievals and verdicts per golem, cycle and entry (CREDIT_SCHEMA).

    Verdicts with an effect below `effect_min_ppm` are ignored.

    Parameters
    ----------
    records : pa.Table, CREDIT_COLUMNS, whole cycles of each golem
    cycle : Int64Array, cycle of each record
    signs : pa.Table, SIGN_SCHEMA, at least through the cycle before the last
    """
    lengths = [pc.list_value_length(contiguous(records.column(n))) for n in ("retrieved_entries", "resolutions")]
    is_relevant = pc.greater(pc.add(*lengths), 0)
    relevant = records.select(CREDIT_COLUMNS).append_column("cycle", pa.array(cycle, pa.int64())).filter(is_relevant)
    numbers = {"span": policy.cycle_ticks, "least": policy.effect_min_ppm}
    return query_tables(_CREDITS, numbers, records=relevant, signs=signs).cast(CREDIT_SCHEMA)


def totals(credits: pa.Table) -> pa.Table:
    """Sum credits over cycles: golem_id, entry_id, useful, misled, last_us (0 for entries never accessed)."""
    last = pc.fill_null(credits.column("last_access_at").cast(pa.int64()), 0)
    summed = (
        credits.append_column("last_us", last)
        .group_by(["golem_id", "entry_id"], use_threads=False)
        .aggregate([("useful", "sum"), ("misled", "sum"), ("last_us", "max")])
    )
    return summed.rename_columns(["golem_id", "entry_id", "useful", "misled", "last_us"])
