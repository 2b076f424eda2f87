select
    golem_id, tick, (tick - 1) // cycle_ticks + 1 as cycle, {{ utc('observed_at') }} as decided_at,
    observation.chain, observation.protocol, observation.pair, regime,
    observation.anomaly_score, observation.gas_hour_ratio as gas_ratio,
    {{ band('anomaly', 'observation.anomaly_score') }} as anomaly_band,
    {{ band('gas', 'observation.gas_hour_ratio') }} as gas_band,
    tier, coalesce(deliberation.decision, action.action_type) as decision,
    deliberation.recommends_action, deliberation.confidence as certainty,
    action.action_type, action.tool_name, action.status as action_status, action.block_reason,
    len(list_filter(actions, lambda action: action.status = 'executed')) > 0 as is_executed,
    action.value_micros, action.gas_cost_micros, outcome.pnl_impact_micros,
    list_transform(retrieved_entries, lambda entry: entry.entry_id) as entries_shown,
    list_transform(
        list_filter(retrieved_entries, lambda entry: entry.kind = 'warning'), lambda entry: entry.entry_id
    ) as warnings_shown,
    -- bardo_pipeline/heartbeat/refusals.py names the warning that stopped an action.
    nullif(regexp_extract(
        action.block_reason, '^a warning stands against acting here: (\S+)$', 1
    ), '') as blocking_entry_id
from (select *, actions[1] as action from {{ source('home', 'fresh_cycles') }}) as cycles
cross join {{ ref('stg_policy') }}
where (deliberation is not null or len(actions) > 0) and not {{ left_out('cycles', source('home', 'left_out')) }}
