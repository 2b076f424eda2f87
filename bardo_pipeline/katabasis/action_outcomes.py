"""Outcomes: what became of what golems did: failed at once, failed after a while, recovered, or neither. Pure.

PnL is the act's own, in ppm of the position. At once it is the outcome's `pnl_impact_micros` over the `value_micros`
that the action moved; at the check, thirty ticks later, the verdict's `effect_ppm`: what acting was worth beside
holding, since an unnecessary act's cost is a failure even where price came back. Every act that was put on trial is
checked, also one that cost little at once. Source: KAT (outcome classification), canon 47.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.record.arrow_columns import one
from bardo_pipeline.grimoire.confidence import ppm
from bardo_pipeline.grimoire.entries import MOMENT
from bardo_pipeline.grimoire.entry_columns import query_tables
from bardo_pipeline.policy import Policy

OUTCOME_COLUMNS = ("golem_id", "tick", "observed_at", "actions", "outcome", "resolutions")
"""Columns of a record that outcomes rest on."""

CLASSES = ("revert", "slippage", "drawdown", "lasting", "recovered", "waiting", "passed")
"""The first four are failures. Hard at once: refused on inclusion, slipped beyond the limit, lost more than KAT's 2 %.
Lasting: 0.3 % down when checked. Recovered: that much down at once, not when checked. Waiting: not checked yet, or
never. Passed: no harm worth a name."""

CONFIRMATIONS = ("immediate", "deferred", "at_death")
"""When a failure is sure: as it happens, at the check, or at the death that came before the check (settlement closes
the position, so what the act cost at once is final)."""

LIMIT_PPM = 10**6

OUTCOME_SCHEMA = pa.schema(
    [
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("tick", pa.int64(), nullable=False),
        pa.field("action_type", pa.string(), nullable=False),
        pa.field("tool_name", pa.string(), nullable=False),
        pa.field("outcome_class", pa.string(), nullable=False),
        pa.field("slippage_ppm", pa.int64()),
        pa.field("gas_ppm", pa.int64()),
        pa.field("pnl_ppm", pa.int64()),
        pa.field("effect_ppm", pa.int64()),
        pa.field("confirmed", pa.string()),
        pa.field("confirmed_tick", pa.int64()),
        pa.field("confirmed_at", MOMENT),
    ]
)
"""One row per tick that sent something, about the act that failed first or hardest. gas_ppm: its gas in ppm
of what it moved. pnl_ppm: at once; null where no outcome is verified or nothing was moved. effect_ppm: at the check;
null before it. confirmed (CONFIRMATIONS) with its tick and moment: null for what is no failure. PnL, effect and gas are
within a million."""

ENDED_SCHEMA = pa.schema(
    [
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("tick", pa.int64(), nullable=False),
        pa.field("at", MOMENT, nullable=False),
    ]
)
"""Deaths: whose, at which tick, when."""

_OUTCOMES = """
    with tried as (
        select golem_id, tick, at_us, outcome, unnest(actions) as a, generate_subscripts(actions, 1) as place
        from records
    ),
    sent as (
        select golem_id, tick, at_us, a.action_type as action_type, a.tool_name as tool_name,
            a.status = 'reverted' as refused, coalesce(a.slippage_ppm > $slippage, false) as slipped, a.slippage_ppm,
            coalesce(outcome.verified, false) as known, a.value_micros::hugeint as stake,
            a.gas_cost_micros::hugeint * 1000000 as gas,
            if(known and stake > 0, outcome.pnl_impact_micros, null)::hugeint * 1000000 as lost
        from tried where a.status in ('executed', 'reverted')
        qualify row_number() over (partition by golem_id, tick order by refused desc, slipped desc, place) = 1
    ),
    judged as (select golem_id, tick, at_us, unnest(resolutions) as r from records),
    verdicts as (
        select golem_id, r.decision_tick as decided, r.action_type as act, r.effect_ppm as effect,
            tick as checked_tick, at_us as checked_us
        from judged where r.verified and r.chosen = 'act'
        qualify row_number() over (partition by golem_id, decided, act order by checked_tick, effect) = 1
    ),
    told as (
        select sent.*, effect, checked_tick, checked_us, ended.tick as died, ended.at_us as died_us,
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
        from told
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
        case confirmed when 'immediate' then at_us when 'deferred' then checked_us when 'at_death' then died_us end
            as confirmed_at
    from confirmed order by golem_id, tick
"""

_CHECKED = """
    select golem_id, min(r.decision_tick) as tick_from, max(tick) as tick_to
    from (select golem_id, tick, unnest(resolutions) as r from records)
    where r.verified and r.chosen = 'act' and r.effect_ppm <= -$least group by golem_id order by golem_id
"""


def outcomes_of(records: pa.Table, ended: pa.Table, policy: Policy) -> pa.Table:
    """What became of everything that these records sent (OUTCOME_SCHEMA), by golem and tick.

    records: OUTCOME_COLUMNS, any order; a verdict is found only where its record is among them. ended: ENDED_SCHEMA,
    the deaths by which open checks are cut off; without one, what waits goes on waiting.
    """
    plain = _busy(records)
    if not plain.num_rows:
        return OUTCOME_SCHEMA.empty_table()
    numbers = {
        "slippage": ppm(policy.cage.slippage_max),
        "most": ppm(policy.katabasis.drawdown_max),
        "least": ppm(policy.katabasis.loss_min),
        "check": policy.prediction.check_ticks,
        "limit": LIMIT_PPM,
    }
    deaths = ended.select(["golem_id", "tick"]).append_column("at_us", ended.column("at").cast(pa.int64()))
    answer = query_tables(_OUTCOMES, numbers, records=plain, ended=deaths)
    moments = answer.column("confirmed_at").cast(pa.int64()).cast(MOMENT)
    place = answer.schema.get_field_index("confirmed_at")
    return answer.set_column(place, "confirmed_at", moments).cast(OUTCOME_SCHEMA)


def checked_failures(records: pa.Table, policy: Policy) -> dict[str, tuple[int, int]]:
    """Golem to the ticks from the earliest decision that these records' checks condemn to the last such check.

    records: OUTCOME_COLUMNS. The decision itself may lie before them.
    """
    plain = _busy(records)
    if not plain.num_rows:
        return {}
    found = query_tables(_CHECKED, {"least": ppm(policy.katabasis.loss_min)}, records=plain).to_pylist()
    return {row["golem_id"]: (row["tick_from"], row["tick_to"]) for row in found}


def failures_among(outcomes: pa.Table) -> pa.Table:
    """The confirmed failures among these outcomes: what scars are made of."""
    return outcomes.filter(pc.is_valid(outcomes.column("confirmed")))


def _busy(records: pa.Table) -> pa.Table:
    """What outcomes rest on, of the records that sent or judged something."""
    lengths = [pc.list_value_length(one(records.column(n))) for n in ("actions", "resolutions")]
    plain = records.select([n for n in OUTCOME_COLUMNS if n != "observed_at"])
    plain = plain.append_column("at_us", records.column("observed_at").cast(pa.int64()))
    return plain.filter(pc.greater(pc.add(*lengths), 0))
