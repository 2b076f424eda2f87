select * replace (
    {{ utc('anchor_at') }} as anchor_at, {{ utc('created_at') }} as created_at,
    {{ utc('validated_at') }} as validated_at, {{ utc('fades_at') }} as fades_at
)
from {{ ref('stg_known') }}
where status = 'active'
