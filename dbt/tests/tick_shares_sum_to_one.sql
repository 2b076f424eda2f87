select golem_id, day, sum(tick_share) as shares from {{ ref('fct_tier_costs') }}
group by golem_id, day having abs(sum(tick_share) - 1) > 1e-9
