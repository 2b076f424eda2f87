select
    golem_id, owner_id, tick, observed_at, regime, tier, has_action, has_outcome, phase, prediction_error, threshold,
    inference_micros, {{ usd('inference_micros') }} as inference_usd,
    gas_micros, {{ usd('gas_micros') }} as gas_usd,
    total_cost_micros, {{ usd('total_cost_micros') }} as total_cost_usd,
    pnl_impact_micros, {{ usd('pnl_impact_micros') }} as pnl_impact_usd,
    primary_emotion, cycle_seen, vitality,
    credits_micros, {{ usd('credits_micros') }} as credits_usd,
    as_of
from {{ ref('stg_cycles') }}
cross join {{ ref('stg_as_of') }}
left join {{ ref('stg_owners') }} using (golem_id)
{{ kept_rows() }}
order by golem_id, tick
