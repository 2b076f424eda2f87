with recorded as (
    select golem_id, count(*) as ticks_recorded, max(tick) as last_tick from {{ ref('fct_ticks') }} group by golem_id
),
known as (
    select golem_id, count(*) as entries from {{ ref('stg_entries') }} group by golem_id
),
golems as (
    select golem_id from {{ ref('stg_births') }} union select golem_id from recorded
),
ended as (
    -- The entries at death are final once the curator has closed the cycle of the death.
    select deaths.*, curated.cycle >= (deaths.tick - 1) // policy.cycle_ticks + 1 as is_curated
    from {{ ref('stg_deaths') }} as deaths
    cross join {{ ref('stg_policy') }} as policy
    left join {{ ref('stg_curated') }} as curated using (golem_id)
)
select
    golems.golem_id, births.owner_id, births.lineage_id, births.generation, births.predecessor_id,
    births.bundle_hash, bundles.bundle_hash as bundle_hash_left,
    births.born_at, ended.died_at, ended.golem_id is null as is_alive, ended.cause,
    births.lifespan_ticks,
    coalesce(ended.tick, recorded.last_tick, 0) as ticks_lived,
    coalesce(recorded.ticks_recorded, 0) as ticks_recorded,
    births.rebalance_threshold, births.range_half_width_ticks, births.forecast_memory,
    births.credits_micros, {{ usd('births.credits_micros') }} as credits_usd,
    births.reserve_micros, {{ usd('births.reserve_micros') }} as reserve_usd,
    births.capital_micros, {{ usd('births.capital_micros') }} as capital_usd,
    ended.earned_micros, {{ usd('ended.earned_micros') }} as earned_usd,
    coalesce(received.entry_count, 0) as knowledge_at_birth,
    case when ended.is_curated then coalesce(known.entries, 0) end as knowledge_at_death,
    births.market, births.policy_hash, births.derivation_id,
    as_of
from golems
cross join {{ ref('stg_as_of') }}
left join {{ ref('stg_births') }} as births using (golem_id)
left join recorded using (golem_id)
left join ended using (golem_id)
left join {{ ref('stg_received') }} as received using (golem_id)
left join (select * from {{ ref('stg_bundles') }} where is_published) as bundles using (golem_id)
left join known using (golem_id)
order by births.lineage_id, births.generation, golems.golem_id
