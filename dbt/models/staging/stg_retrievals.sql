with shown as (
    select
        golem_id, tick, (tick - 1) // cycle_ticks + 1 as cycle, {{ utc('observed_at') }} as shown_at,
        unnest(retrieved_entries) as entry, generate_subscripts(retrieved_entries, 1) as rank
    from {{ source('home', 'fresh_cycles') }} as cycles
    cross join {{ ref('stg_policy') }}
    where len(retrieved_entries) > 0 and not {{ left_out('cycles', source('home', 'left_out')) }}
)
select
    golem_id, tick, cycle, shown_at, rank, entry.entry_id, entry.kind, entry.score, entry.semantic, entry.recency,
    entry.importance, entry.affect
from shown
{{ first_of('golem_id, tick, entry.entry_id', 'rank') }}
