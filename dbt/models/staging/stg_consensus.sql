select * replace ({{ utc('first_vote_at') }} as first_vote_at, {{ utc('last_vote_at') }} as last_vote_at)
from {{ source('home', 'derived_consensus') }}
