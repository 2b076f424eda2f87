-- Events of the whole home (keys, configurations) carry the operator's clock instead of event time.
select greatest(
    (select max({{ utc('observed_at') }}) from {{ source('home', 'log_cycles') }}),
    (select max({{ utc('observed_at') }}) from {{ source('home', 'log_life') }} where golem_id <> '*')
) as as_of
