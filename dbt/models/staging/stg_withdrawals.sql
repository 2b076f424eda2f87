-- The rows come from every table that withdraws some.
-- depends_on: {{ source('home', 'derived_episodes') }}
-- depends_on: {{ source('home', 'derived_votes') }}
select withdrawals.*, life.kind as event_kind
from {{ source('home', 'derived_withdrawals') }} as withdrawals
join {{ source('home', 'log_life') }} as life on life.event_id = withdrawals.because
