select * exclude (vector) replace ({{ utc('"at"') }} as "at", {{ utc('may_go_at') }} as may_go_at)
from {{ valid_rows(source('home', 'derived_episodes'), ['episode_id']) }}
