select owner_id, scar_id, golem_id, structure, mechanism, {{ utc('confirmed_at') }} as confirmed_at
from {{ valid_rows(source('home', 'derived_failures'), ['golem_id', 'seq']) }}
