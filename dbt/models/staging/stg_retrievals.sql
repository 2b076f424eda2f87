with shown as (
    select
        golem_id, tick, (tick - 1) // cycle_ticks + 1 as cycle, {{ utc('observed_at') }} as shown_at,
        unnest(retrieved_entries) as entry, generate_subscripts(retrieved_entries, 1) as rank
    from {{ source('home', 'fresh_cycles') }} as cycles
    cross join {{ ref('stg_policy') }}
    where len(retrieved_entries) > 0 and not {{ left_out('cycles', source('home', 'left_out')) }}
),
named as (
    select *, entry.entry_id as entry_id from shown {{ first_of('golem_id, tick, entry.entry_id', 'rank') }}
)
select
    named.golem_id, tick, named.cycle, shown_at, rank, named.entry_id,
    -- bardo_pipeline/events/experience/reported_experience.py: a report names an entry by its id alone.
    if(entry.kind = 'unstated', coalesce(signs.kind, known.kind, entry.kind), entry.kind) as kind,
    entry.score, entry.semantic, entry.recency, entry.importance, entry.affect
from named
asof left join {{ ref('stg_signs') }} as signs
    on named.golem_id = signs.golem_id and named.entry_id = signs.entry_id and named.cycle > signs.cycle
left join {{ ref('stg_known') }} as known on named.golem_id = known.golem_id and named.entry_id = known.entry_id
