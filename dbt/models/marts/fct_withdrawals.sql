select table_name, golem_id, row_name, because, event_kind, row_count, made_again, as_of
from {{ ref('stg_withdrawals') }} cross join {{ ref('stg_as_of') }}
order by table_name, golem_id, row_name, because
