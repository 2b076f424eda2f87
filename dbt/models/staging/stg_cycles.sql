select
    golem_id, tick, {{ utc('observed_at') }} as observed_at, regime, tier,
    len(actions) > 0 as has_action,
    outcome is not null as has_outcome,
    phase, prediction_error, deliberation_threshold as threshold, primary_emotion, cycle_seen,
    cost.inference_micros, cost.gas_micros, cost.total_micros as total_cost_micros,
    outcome.pnl_impact_micros,
    vitality.composite as vitality, credits_micros
from {{ source('home', 'fresh_cycles') }} as cycles
where not {{ left_out('cycles', source('home', 'left_out')) }}
