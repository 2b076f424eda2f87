"""Classifies the outcome of each action: immediate failure, lasting failure, recovered, waiting or passed. Pure.

PnL counts the action alone, in ppm of the position. The immediate PnL is `pnl_impact_micros` divided by the
`value_micros` that the action moved. The check 30 ticks later uses the verdict's `effect_ppm`, the value of acting
minus the value of holding, so the cost of an unnecessary action counts even if the price recovered.
Source: KAT (outcome classification), canon 47.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.record.arrow_columns import all_nullable, all_required, contiguous, required
from bardo_pipeline.grimoire.confidence import ppm
from bardo_pipeline.grimoire.entries import MOMENT
from bardo_pipeline.grimoire.entry_columns import query_tables
from bardo_pipeline.policy import Policy

OUTCOME_COLUMNS = ("golem_id", "tick", "observed_at", "actions", "outcome", "resolutions")
"""Record columns from which outcomes are computed."""

CLASSES = ("revert", "slippage", "drawdown", "lasting", "recovered", "waiting", "passed")
"""The first four are failures. revert: refused on inclusion. slippage: beyond the limit. drawdown: immediate loss above
2 % (KAT). lasting: at least 0.3 % down at the check. recovered: 0.3 % down immediately, but not at the check.
waiting: 0.3 % down and not checked. passed: none of these."""

CONFIRMATIONS = ("immediate", "deferred", "at_death")
"""When a failure is final: at the action, at the check, or at a death before the check (settlement closes the position,
so the immediate loss is final)."""

LIMIT_PPM = 10**6

OUTCOME_SCHEMA = pa.schema(
    [
        required("golem_id", pa.string()),
        required("tick", pa.int64()),
        *all_required(pa.string(), "action_type", "tool_name", "outcome_class"),
        *all_nullable(pa.int64(), "slippage_ppm", "gas_ppm", "pnl_ppm", "effect_ppm"),
        pa.field("confirmed", pa.string()),
        pa.field("confirmed_tick", pa.int64()),
        pa.field("confirmed_at", MOMENT),
    ]
)
"""One row per tick with a sent action; of several actions the reverted, then the slipped, then the first one counts.
gas_ppm: gas in ppm of the value moved. pnl_ppm: immediate PnL, null without a verified outcome or a moved value.
effect_ppm: null before the check. confirmed is one of CONFIRMATIONS; it, its tick and its time are null unless the
action failed. PnL and effect are clipped to +-1,000,000 ppm, gas to 1,000,000 ppm."""

ENDED_SCHEMA = pa.schema([required("golem_id", pa.string()), required("tick", pa.int64()), required("at", MOMENT)])
"""One row per death: golem, tick and event time."""

_OUTCOMES = """
    with attempts as (
        select golem_id, tick, observed_at, outcome, unnest(actions) as a, generate_subscripts(actions, 1) as place
        from records
    ),
    sent as (
        select golem_id, tick, observed_at, a.action_type as action_type, a.tool_name as tool_name,
            a.status = 'reverted' as refused, coalesce(a.slippage_ppm > $slippage, false) as slipped, a.slippage_ppm,
            coalesce(outcome.verified, false) as known, a.value_micros::hugeint as stake,
            a.gas_cost_micros::hugeint * 1000000 as gas,
            if(known and stake > 0, outcome.pnl_impact_micros, null)::hugeint * 1000000 as lost
        from attempts where a.status in ('executed', 'reverted')
        qualify row_number() over (partition by golem_id, tick order by refused desc, slipped desc, place) = 1
    ),
    resolved as (select golem_id, tick, observed_at, unnest(resolutions) as r from records),
    verdicts as (
        select golem_id, r.decision_tick as decided, r.action_type as act, r.effect_ppm as effect,
            tick as checked_tick, observed_at as checked_at
        from resolved where r.verified and r.chosen = 'act'
        qualify row_number() over (partition by golem_id, decided, act order by checked_tick, effect) = 1
    ),
    checked_actions as (
        select sent.*, effect, checked_tick, checked_at, ended.tick as died, ended."at" as died_at,
            coalesce(lost <= -$least * stake, false) as hurt
        from sent
        left join verdicts on sent.golem_id = verdicts.golem_id and tick = decided and action_type = act
        left join ended on sent.golem_id = ended.golem_id
    ),
    classed as (
        select *, case
            when refused then 'revert'
            when slipped and known then 'slippage'
            when lost < -$most * stake then 'drawdown'
            when effect <= -$least or (effect is null and hurt and died < tick + $check) then 'lasting'
            when hurt then if(effect is null, 'waiting', 'recovered')
            else 'passed' end as outcome_class
        from checked_actions
    ),
    confirmed as (
        select *, case
            when outcome_class in ('revert', 'slippage', 'drawdown') then 'immediate'
            when outcome_class = 'lasting' then if(effect is null, 'at_death', 'deferred') end as confirmed
        from classed
    )
    select golem_id, tick, action_type, tool_name, outcome_class, slippage_ppm,
        if(stake > 0, least($limit, gas // stake), null)::bigint as gas_ppm,
        if(lost is null, null, greatest(-$limit, least($limit, lost // stake)))::bigint as pnl_ppm,
        if(effect is null, null, greatest(-$limit, least($limit, effect)))::bigint as effect_ppm, confirmed,
        case confirmed when 'immediate' then tick when 'deferred' then checked_tick when 'at_death' then died end
            as confirmed_tick,
        case confirmed
            when 'immediate' then observed_at when 'deferred' then checked_at when 'at_death' then died_at end
            as confirmed_at
    from confirmed order by golem_id, tick
"""

_CHECKED = """
    select golem_id, min(r.decision_tick) as tick_from, max(tick) as tick_to
    from (select golem_id, tick, unnest(resolutions) as r from records)
    where r.verified and r.chosen = 'act' and r.effect_ppm <= -$least group by golem_id order by golem_id
"""


def outcomes_of(records: pa.Table, ended: pa.Table, policy: Policy) -> pa.Table:
    """Classify the sent actions of these records. Returns OUTCOME_SCHEMA sorted by golem and tick.

    Parameters
    ----------
    records : pa.Table, OUTCOME_COLUMNS in any order; a verdict counts only if its own record is included
    ended : pa.Table, ENDED_SCHEMA; a death before the check makes the immediate loss final
    """
    numbers = {
        "slippage": ppm(policy.cage.slippage_max),
        "most": ppm(policy.katabasis.drawdown_max),
        "least": ppm(policy.katabasis.loss_min),
        "check": policy.prediction.check_ticks,
        "limit": LIMIT_PPM,
    }
    deaths = ended.select(["golem_id", "tick", "at"])
    return query_tables(_OUTCOMES, numbers, records=_records_with_actions(records), ended=deaths).cast(OUTCOME_SCHEMA)


def checked_failures(records: pa.Table, policy: Policy) -> dict[str, tuple[int, int]]:
    """Return golem -> (tick of the earliest decision, tick of the last check) of the failures that checks confirmed.

    records: OUTCOME_COLUMNS; the decisions themselves may be in earlier records.
    """
    numbers = {"least": ppm(policy.katabasis.loss_min)}
    ranges = query_tables(_CHECKED, numbers, records=_records_with_actions(records)).to_pylist()
    return {row["golem_id"]: (row["tick_from"], row["tick_to"]) for row in ranges}


def failures_among(outcomes: pa.Table) -> pa.Table:
    """Return the confirmed failures among these outcomes; scars are made from them."""
    return outcomes.filter(pc.is_valid(outcomes.column("confirmed")))


def _records_with_actions(records: pa.Table) -> pa.Table:
    """Return the records with at least one action or resolution."""
    lengths = [pc.list_value_length(contiguous(records.column(n))) for n in ("actions", "resolutions")]
    return records.select(OUTCOME_COLUMNS).filter(pc.greater(pc.add(*lengths), 0))
