with records as (
    select
        golem_id, tick, {{ utc('observed_at') }} as decided_at, observation.chain, observation.protocol,
        observation.pair, regime, observation.anomaly_score, observation.gas_hour_ratio as gas_ratio, tier,
        coalesce(deliberation.decision, actions[1].action_type) as decision, deliberation.recommends_action,
        deliberation.confidence as certainty, actions[1] as action,
        len(list_filter(actions, lambda action: action.status = 'executed')) > 0 as is_executed,
        outcome.pnl_impact_micros, retrieved_entries
    from {{ source('home', 'fresh_cycles') }} as cycles
    where not {{ left_out('cycles', source('home', 'left_out')) }}
),
reported as (
    select *, row_number() over (partition by golem_id, tick, action order by report_tick, number) as turn
    from {{ ref('stg_experiences') }}
),
decided as (
    -- The first report about the action of a record is about the same decision.
    select records.*, reported.* exclude (golem_id, tick, cycle, action)
    from records
    left join reported on reported.golem_id = records.golem_id and reported.tick = records.tick and turn = 1
        and reported.action = coalesce(records.action.action_type, records.decision)
    where records.decision is not null
    union all by name
    select
        records.* replace (
            reported.action as decision, null as recommends_action, null as certainty, null as action,
            true as is_executed, null as pnl_impact_micros
        ),
        reported.* exclude (golem_id, tick, cycle, action), reported.action as reported_action
    from records
    join reported using (golem_id, tick)
    where (turn = 1 and reported.action = coalesce(records.action.action_type, records.decision)) is not true
),
warnings as (
    select golem_id, tick, list(entry_id order by rank) as warnings_shown
    from {{ ref('stg_retrievals') }} where kind = 'warning' group by golem_id, tick
)
select
    golem_id, tick,
    row_number() over (partition by golem_id, tick order by reported_action is not null, report_tick, number) as number,
    (tick - 1) // cycle_ticks + 1 as cycle, decided_at, chain, protocol, pair, regime, anomaly_score, gas_ratio,
    {{ band('anomaly', 'anomaly_score') }} as anomaly_band, {{ band('gas', 'gas_ratio') }} as gas_band,
    tier, decision, recommends_action, certainty, coalesce(action.action_type, reported_action) as action_type,
    action.tool_name, action.status as action_status, action.block_reason, is_executed,
    action.value_micros, action.gas_cost_micros, pnl_impact_micros,
    list_transform(retrieved_entries, lambda entry: entry.entry_id) as entries_shown,
    coalesce(warnings_shown, []) as warnings_shown,
    -- bardo_pipeline/heartbeat/refusals.py names the warning that stopped an action.
    nullif(regexp_extract(
        action.block_reason, '^a warning stands against acting here: (\S+)$', 1
    ), '') as blocking_entry_id,
    reported_action is null as is_of_record, situation, reward_ppm, alternatives as reported_alternatives, verified as is_measured, report_tick, reported_at
from decided
left join warnings using (golem_id, tick)
cross join {{ ref('stg_policy') }}
