with paced as (
    -- Ticks of a whole day at the pace of the day's recorded ticks; NULL for a single one.
    select
        golem_id, observed_at::date as day,
        (count(*) - 1) * 86400 / nullif(epoch(max(observed_at) - min(observed_at)), 0) as ticks_per_day
    from {{ ref('fct_ticks') }}
    group by all
),
counted as (
    -- A suppressed tick is counted with T0 (canon 28).
    select
        golem_id, owner_id, observed_at::date as day, if(tier = 'suppress', 'T0', tier) as tier,
        count(*) as ticks,
        count(*) filter (tier = 'suppress') as ticks_suppressed,
        sum(inference_micros)::bigint as inference_micros,
        sum(gas_micros)::bigint as gas_micros,
        sum(total_cost_micros)::bigint as total_cost_micros
    from {{ ref('fct_ticks') }}
    group by all
)
select
    golem_id, owner_id, day, tier, ticks, ticks_suppressed,
    ticks / sum(ticks) over (partition by golem_id, day) as tick_share,
    ticks_per_day, {{ usd('inference_micros') }} / ticks as call_usd,
    ticks_per_day * tick_share * call_usd as daily_inference_usd,
    inference_micros, {{ usd('inference_micros') }} as inference_usd,
    gas_micros, {{ usd('gas_micros') }} as gas_usd,
    total_cost_micros, {{ usd('total_cost_micros') }} as total_cost_usd,
    as_of
from counted join paced using (golem_id, day) cross join {{ ref('stg_as_of') }}
order by golem_id, day, tier
