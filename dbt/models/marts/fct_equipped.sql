select owner_id, number, ordered_at, golem_id, equipped_at, bundle_hash, entry_count, why, as_of
from {{ ref('stg_kit_orders') }} cross join {{ ref('stg_as_of') }}
order by owner_id, number
