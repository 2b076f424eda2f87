select table_name, golem_id, owner_id, row_name, because, event_kind, row_count, made_again, as_of
from {{ ref('stg_withdrawals') }}
cross join {{ ref('stg_as_of') }}
left join {{ ref('stg_owners') }} using (golem_id)
order by table_name, golem_id, row_name, because
