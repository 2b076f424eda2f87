with replays as (
    select golem_id, item.tick as tick, count(*) as replay_count
    from (select golem_id, unnest(replayed) as item from {{ ref('stg_dreams') }}) group by all
)
select
    episode_id, golem_id, owner_id, tick, cycle, "at" as observed_at, chain, protocol, pair, regime, tier, action_type,
    action_status, value_micros, {{ usd('value_micros') }} as value_usd,
    gas_cost_micros, {{ usd('gas_cost_micros') }} as gas_cost_usd,
    pnl_impact_micros, {{ usd('pnl_impact_micros') }} as pnl_impact_usd,
    curiosity, importance, importance_tier, may_go_at, pleasure, arousal, dominance, verified as is_verified,
    coalesce(replay_count, 0) as replay_count, text, text_hash, embedder, as_of
from {{ ref('stg_episodes') }}
cross join {{ ref('stg_as_of') }}
left join {{ ref('stg_owners') }} using (golem_id)
left join replays using (golem_id, tick)
order by golem_id, tick
