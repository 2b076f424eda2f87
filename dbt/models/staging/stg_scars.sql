select * replace ({{ utc('"at"') }} as "at", {{ utc('confirmed_at') }} as confirmed_at)
from {{ source('home', 'derived_scars') }}
