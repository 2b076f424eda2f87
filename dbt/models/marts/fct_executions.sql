select
    golem_id, execution_id, golem.owner_id, strategy_name, strategy_version, action_type, executed_at, settled_at,
    regime, volatility, gas_level,
    predicted_micros / 1e6 as predicted_usd, interval_low_micros / 1e6 as interval_low_usd,
    interval_high_micros / 1e6 as interval_high_usd, interval_level,
    realized_micros / 1e6 as realized_usd, fees_micros / 1e6 as fees_usd, gas_micros / 1e6 as gas_usd, slippage_bps,
    abs(realized_micros - predicted_micros) / greatest(abs(predicted_micros), 10000) as prediction_error,
    realized_micros between interval_low_micros and interval_high_micros as held,
    tx_hash, reflection is not null as has_reflection, as_of
from {{ ref('stg_executions') }}
cross join {{ ref('stg_as_of') }}
left join (select golem_id, owner_id from {{ ref('stg_births') }}) as golem using (golem_id)
order by golem_id, executed_at, execution_id
