select withdrawals.*, life.kind as event_kind
from {{ source('home', 'derived_withdrawals') }} as withdrawals
join {{ source('home', 'log_life') }} as life on life.event_id = withdrawals.because
