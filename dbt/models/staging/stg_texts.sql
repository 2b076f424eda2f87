select event_id as episode_id, golem_id, {{ utc('observed_at') }} as observed_at, unnest(text_stored)
from {{ source('home', 'log_life') }}
where kind = 'TextStored' and text_stored.sort <> 'insight'
{{ first_of('event_id', 'recorded_at') }}
