with replays as (
    select golem_id, item.tick as tick, count(*) as replay_count
    from (select golem_id, unnest(replayed) as item from {{ ref('stg_dreams') }}) group by all
), of_records as (
    select *, 'record' as sort, "at" as observed_at from {{ ref('stg_episodes') }}
), of_texts as (
    -- bardo_pipeline/derivation/memory/free_texts.py, retained_until.
    select
        episode_id, golem_id, observed_at, sort, chain, pair, importance as importance_tier, tool, outcome,
        session, speaker, told_at at time zone 'UTC' as told_at, text, reflection,
        observed_at + to_microseconds((-86400e6 * ln(episode_retention_min) * case importance
            when 'routine' then routine_days when 'notable' then notable_days when 'critical' then critical_days
            else emergency_days end)::bigint) as may_go_at
    from {{ ref('stg_texts') }} cross join {{ ref('stg_policy') }}
)
select
    episode_id, sort, golem_id, owner_id, tick, cycle, observed_at, chain, protocol, pair, regime, tier, action_type,
    action_status, value_micros, {{ usd('value_micros') }} as value_usd,
    gas_cost_micros, {{ usd('gas_cost_micros') }} as gas_cost_usd,
    pnl_impact_micros, {{ usd('pnl_impact_micros') }} as pnl_impact_usd,
    curiosity, importance, importance_tier, may_go_at, pleasure, arousal, dominance, verified as is_verified,
    coalesce(replay_count, 0) as replay_count, tool, outcome, session, speaker, told_at, text, reflection, text_hash,
    embedder, as_of
from (from of_records union all by name from of_texts)
cross join {{ ref('stg_as_of') }}
left join {{ ref('stg_owners') }} using (golem_id)
left join replays using (golem_id, tick)
where golem_id in (select golem_id from {{ source('home', 'changed_golems') }})
{{ kept_rows() }}
order by golem_id, observed_at, tick, episode_id
