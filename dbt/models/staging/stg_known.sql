from {{ source('home', 'derived_grimoire') }}
union all by name
from {{ source('home', 'derived_lessons') }}
