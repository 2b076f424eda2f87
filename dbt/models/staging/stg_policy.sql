select * from {{ source('home', 'policy') }}
