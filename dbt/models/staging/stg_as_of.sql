-- What is said of the home as a whole (keys, configurations) comes by the operator's clock, not in event time.
select greatest(
    (select max({{ utc('observed_at') }}) from {{ source('home', 'log_cycles') }}),
    (select max({{ utc('observed_at') }}) from {{ source('home', 'log_life') }} where golem_id <> '*')
) as as_of
