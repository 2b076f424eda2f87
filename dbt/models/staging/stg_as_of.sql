select greatest(
    (select max({{ utc('observed_at') }}) from {{ source('home', 'log_cycles') }}),
    (select max({{ utc('observed_at') }}) from {{ source('home', 'log_life') }})
) as as_of
