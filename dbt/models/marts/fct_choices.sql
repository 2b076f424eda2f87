select
    golem_id, owner_id, tick, cycle, choice, taken, alternative, beside, horizon, regime, anomaly_score, anomaly_band,
    gas_ratio, gas_band, judged_tick, judged_at, verified as is_verified, ground_truth_source,
    value_micros, {{ usd('value_micros') }} as value_usd,
    effect_ppm, effect_micros, {{ usd('effect_micros') }} as effect_usd, as_of
from {{ ref('stg_trials') }}
cross join {{ ref('stg_as_of') }}
left join {{ ref('stg_owners') }} using (golem_id)
{{ kept_rows() }}
order by golem_id, tick, choice, alternative, beside, horizon
