-- The first record of a version counts.
select golem_id, {{ utc('observed_at') }} as stored_at, unnest(strategy)
from {{ source('home', 'log_life') }}
where kind = 'StrategyStored'
{{ first_of('golem_id, strategy.strategy_name, strategy.version', 'recorded_at, event_id') }}
