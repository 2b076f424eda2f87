select * replace (
    {{ utc('first_at') }} as first_at, {{ utc('last_at') }} as last_at, {{ utc('anchor_at') }} as anchor_at,
    {{ utc('created_at') }} as created_at, {{ utc('validated_at') }} as validated_at
)
from {{ source('home', 'derived_library') }}
