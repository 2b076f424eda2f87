select
    golem_id, owner_id, tick, observed_at, regime, tier, has_action, has_outcome, phase, prediction_error, threshold,
    inference_micros, gas_micros, total_cost_micros, pnl_impact_micros, primary_emotion, cycle_seen, vitality,
    credits_micros, as_of
from {{ ref('stg_cycles') }}
cross join {{ ref('stg_as_of') }}
left join {{ ref('stg_owners') }} using (golem_id)
{{ kept_rows() }}
order by golem_id, tick
