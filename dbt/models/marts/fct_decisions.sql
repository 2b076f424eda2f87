with judged as (
    select
        golem_id, tick, list(distinct action_type) as judged_actions, list(distinct if(chosen = 'act', 'hold', action_type))
            as judged_alternatives,
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
decided as (
    -- Verdicts and trials are about the decision of the record.
    select
        decisions.*, judged.* exclude (golem_id, tick), tried_alternatives,
        list_transform(reported_alternatives, lambda other: other.action) as other_actions,
        list_max(list_transform(reported_alternatives, lambda other: other.reward_ppm)) as best_other_ppm
    from {{ ref('stg_decisions') }} as decisions
    left join judged on judged.golem_id = decisions.golem_id and judged.tick = decisions.tick and is_of_record
    left join tried on tried.golem_id = decisions.golem_id and tried.tick = decisions.tick and is_of_record
),
warned as (
    -- A warning applies to a decision about the action that it warns of; an unknown entry applies to every action.
    -- A warning about a reported action applies in situations in which its conditions hold.
    select
        decided.golem_id, decided.tick, decided.number,
        list(warnings.entry_id order by warnings.entry_id) as warnings,
        bool_or(known.action_type is null or known.action_type = decided.action_type) as is_about_action,
        max(list_max(list_transform(
            list_filter(reported_alternatives, lambda other: other.action = known.action_type),
            lambda other: other.reward_ppm
        ))) as warned_ppm
    from (
        select golem_id, tick, number, unnest(warnings_shown) as entry_id from decided
        union
        select golem_id, tick, number, blocking_entry_id from decided where blocking_entry_id is not null
    ) as warnings
    join decided using (golem_id, tick, number)
    left join {{ ref('stg_known') }} as known on known.golem_id = warnings.golem_id and known.entry_id = warnings.entry_id
    where (
            known.action_type is null or known.action_type = decided.action_type
            or list_contains(judged_actions, known.action_type) or list_contains(other_actions, known.action_type)
        )
        and (
            situation is null or known.source is distinct from 'report'
            or known.protocol = decided.protocol and list_has_all(
                list_transform(map_entries(situation), lambda pair: {{ condition('pair') }}),
                if(known.cause is null, [], string_split(known.cause, '&'))
            )
        )
    group by decided.golem_id, decided.tick, decided.number
),
weighed as (
    select
        decided.* replace (
            coalesce(is_acted, is_executed) as is_acted, coalesce(is_verified, is_measured) as is_verified,
            coalesce(judged_tick, report_tick) as judged_tick, coalesce(judged_at, reported_at) as judged_at
        ),
        list_sort(list_distinct(list_concat(judged_alternatives, tried_alternatives, other_actions))) as alternatives,
        coalesce(warned.warnings, []) as warnings,
        coalesce(
            round_even(effect_micros * 1e6 / nullif(judged_value_micros, 0), 0)::bigint, reward_ppm - best_other_ppm
        ) as effect_ppm,
        -- of the action that a warning spoke against, compared with what was done
        coalesce(
            round_even(effect_micros * 1e6 / nullif(judged_value_micros, 0), 0)::bigint, warned_ppm - reward_ppm
        ) as warned_effect_ppm,
        case
            when blocking_entry_id is not null then 'blocked'
            when warned.warnings is null then 'none'
            when if(verdict_count is null and reward_ppm is not null, is_about_action,
                coalesce(decided.is_acted, is_executed))
                then 'ignored'
            else 'heeded'
        end as warning_effect
    from decided left join warned using (golem_id, tick, number)
),
paid as (
    select
        *, coalesce(is_verified, false) and warning_effect in ('blocked', 'heeded') as is_spared
    from weighed
)
select
    golem_id, owner_id, tick, number, cycle, decided_at, chain, protocol, pair, regime, anomaly_score, anomaly_band,
    gas_ratio, gas_band, tier, decision, alternatives, recommends_action, certainty,
    action_type, tool_name, action_status, block_reason, is_acted, entries_shown, warnings, blocking_entry_id,
    warning_effect, coalesce(verdict_count, 0) as verdict_count, judged_tick, judged_at, is_verified,
    reward_ppm, reward_ppm / 1e6 as reward,
    value_micros, {{ usd('value_micros') }} as value_usd,
    gas_cost_micros, {{ usd('gas_cost_micros') }} as gas_cost_usd,
    pnl_impact_micros, {{ usd('pnl_impact_micros') }} as pnl_impact_usd,
    effect_ppm,
    effect_micros, {{ usd('effect_micros') }} as effect_usd,
    gain_micros, {{ usd('gain_micros') }} as gain_usd,
    coalesce(if(is_spared, greatest(-warned_effect_ppm, 0), 0), 0) as prevented_loss_ppm,
    if(is_spared, greatest(-effect_micros, 0), 0) as prevented_loss_micros,
    {{ usd('if(is_spared, greatest(-effect_micros, 0), 0)') }} as prevented_loss_usd,
    coalesce(if(is_spared, greatest(warned_effect_ppm, 0), 0), 0) as missed_gain_ppm,
    if(is_spared, greatest(effect_micros, 0), 0) as missed_gain_micros,
    {{ usd('if(is_spared, greatest(effect_micros, 0), 0)') }} as missed_gain_usd,
    as_of
from paid
cross join {{ ref('stg_as_of') }}
left join {{ ref('stg_owners') }} using (golem_id)
{{ kept_rows() }}
order by golem_id, tick, number
