select * replace ({{ utc('"at"') }} as "at")
from {{ valid_rows(source('home', 'derived_dreams'), ['golem_id', 'cycle']) }}
