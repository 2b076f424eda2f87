select
    golem_id, execution_id, owner_id, strategy_name, strategy_version, action_type, executed_at, settled_at,
    regime, volatility, gas_level,
    {{ usd('predicted_micros') }} as predicted_usd, {{ usd('interval_low_micros') }} as interval_low_usd,
    {{ usd('interval_high_micros') }} as interval_high_usd, interval_level,
    {{ usd('realized_micros') }} as realized_usd, {{ usd('fees_micros') }} as fees_usd,
    {{ usd('impermanent_loss_micros') }} as impermanent_loss_usd, {{ usd('unrealized_micros') }} as unrealized_usd,
    {{ usd('gas_micros') }} as gas_usd, slippage_bps,
    -- bardo_pipeline/tools/executions.py, prediction_error.
    abs(realized_micros - predicted_micros) / greatest(abs(predicted_micros), prediction_floor_micros)
        as prediction_error,
    realized_micros between interval_low_micros and interval_high_micros as held,
    tx_hash, reflection is not null as has_reflection, as_of
from {{ ref('stg_executions') }}
cross join {{ ref('stg_policy') }}
cross join {{ ref('stg_as_of') }}
left join {{ ref('stg_owners') }} using (golem_id)
order by golem_id, executed_at, execution_id
