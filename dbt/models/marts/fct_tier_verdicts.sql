select
    golem_id, owner_id, tick, observed_at, regime, tier, composite, threshold_t2, threshold_t1, threshold_t0,
    is_decided, is_explored, has_found, is_restless, effect_ppm, verdict, verdict_reason, judged_tick, rescored_tick,
    inference_micros, {{ usd('inference_micros') }} as inference_usd, as_of
from {{ ref('stg_tier_verdicts') }}
cross join {{ ref('stg_as_of') }}
left join {{ ref('stg_owners') }} using (golem_id)
{{ kept_rows() }}
order by golem_id, tick
