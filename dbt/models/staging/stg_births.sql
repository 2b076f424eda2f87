select
    golem_id, {{ utc('observed_at') }} as born_at,
    born.owner_id, born.generation, born.lineage_id, born.predecessor_id, born.bundle_hash,
    born.lifespan_ticks, born.credits_micros, born.reserve_micros, born.capital_micros,
    born.traits.rebalance_threshold, born.traits.range_half_width_ticks, born.traits.forecast_memory,
    born.market, born.policy_hash, born.derivation_id
from {{ source('home', 'log_life') }}
where kind = 'GolemBorn'
{{ first_of('golem_id', 'observed_at, event_id') }}
