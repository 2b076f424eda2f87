with judged as (
    select
        golem_id, tick, list(distinct action_type) as judged_actions, list(distinct if(chosen = 'act', 'hold', action_type))
            as alternatives,
        bool_or(chosen = 'act') as is_acted, bool_and(verified) as is_verified, count(*) as verdict_count,
        sum(value_micros)::bigint as judged_value_micros, sum(effect_micros)::bigint as effect_micros,
        sum(if(chosen = 'act', effect_micros, -effect_micros))::bigint as gain_micros,
        max(judged_tick) as judged_tick, max(judged_at) as judged_at
    from {{ ref('stg_verdicts') }} group by golem_id, tick
),
tried as (
    select golem_id, tick, list(distinct state) as tried_alternatives
    from (select golem_id, tick, taken, unnest([alternative, beside]) as state from {{ ref('stg_trials') }})
    where state not in (taken, 'hold', 'stay', 'keep') group by golem_id, tick
),
warned as (
    -- A warning applies to a decision about the action that it warns of; an unknown entry applies to every action.
    select decisions.golem_id, decisions.tick, list(warnings.entry_id order by warnings.entry_id) as warnings
    from (
        select golem_id, tick, action_type, unnest(warnings_shown) as entry_id from {{ ref('stg_decisions') }}
        union
        select golem_id, tick, action_type, blocking_entry_id from {{ ref('stg_decisions') }}
        where blocking_entry_id is not null
    ) as warnings
    join {{ ref('stg_decisions') }} as decisions using (golem_id, tick)
    left join judged using (golem_id, tick)
    left join {{ ref('stg_known') }} as known on known.golem_id = warnings.golem_id and known.entry_id = warnings.entry_id
    where known.action_type is null or known.action_type = warnings.action_type
        or list_contains(judged.judged_actions, known.action_type)
    group by decisions.golem_id, decisions.tick
),
weighed as (
    select
        decisions.*, judged.* exclude (golem_id, tick, is_acted, alternatives),
        list_sort(list_distinct(list_concat(judged.alternatives, tried_alternatives))) as alternatives,
        coalesce(warned.warnings, []) as warnings,
        coalesce(judged.is_acted, decisions.is_executed) as is_acted,
        case
            when decisions.blocking_entry_id is not null then 'blocked'
            when warned.warnings is null then 'none'
            when coalesce(judged.is_acted, decisions.is_executed) then 'ignored'
            else 'heeded'
        end as warning_effect
    from {{ ref('stg_decisions') }} as decisions
    left join judged using (golem_id, tick)
    left join tried using (golem_id, tick)
    left join warned using (golem_id, tick)
),
paid as (
    select
        *, coalesce(is_verified, false) and warning_effect in ('blocked', 'heeded') as is_spared
    from weighed
)
select
    golem_id, owner_id, tick, cycle, decided_at, chain, protocol, pair, regime, anomaly_score, anomaly_band, gas_ratio,
    gas_band, tier, decision, alternatives, recommends_action, certainty,
    action_type, tool_name, action_status, block_reason, is_acted, entries_shown, warnings, blocking_entry_id,
    warning_effect, coalesce(verdict_count, 0) as verdict_count, judged_tick, judged_at, is_verified,
    value_micros, {{ usd('value_micros') }} as value_usd,
    gas_cost_micros, {{ usd('gas_cost_micros') }} as gas_cost_usd,
    pnl_impact_micros, {{ usd('pnl_impact_micros') }} as pnl_impact_usd,
    round_even(effect_micros * 1e6 / nullif(judged_value_micros, 0), 0)::bigint as effect_ppm,
    effect_micros, {{ usd('effect_micros') }} as effect_usd,
    gain_micros, {{ usd('gain_micros') }} as gain_usd,
    if(is_spared, greatest(-effect_micros, 0), 0) as prevented_loss_micros,
    {{ usd('if(is_spared, greatest(-effect_micros, 0), 0)') }} as prevented_loss_usd,
    if(is_spared, greatest(effect_micros, 0), 0) as missed_gain_micros,
    {{ usd('if(is_spared, greatest(effect_micros, 0), 0)') }} as missed_gain_usd,
    as_of
from paid
cross join {{ ref('stg_as_of') }}
left join {{ ref('stg_owners') }} using (golem_id)
{{ kept_rows() }}
order by golem_id, tick
