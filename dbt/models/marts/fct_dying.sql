select
    dying.golem_id, dying_phase, phase_number, golem.owner_id, golem.generation, deaths.cause, died_at,
    reserve_micros, {{ usd('reserve_micros') }} as reserve_usd,
    cost_micros, {{ usd('cost_micros') }} as cost_usd,
    spent_micros, {{ usd('spent_micros') }} as spent_usd,
    reserve_micros - spent_micros as left_micros, {{ usd('reserve_micros - spent_micros') }} as left_usd,
    max(means) over (partition by dying.golem_id) as means,
    reflection_micros, {{ usd('reflection_micros') }} as reflection_usd,
    compression_micros, {{ usd('compression_micros') }} as compression_usd,
    upload_micros, {{ usd('upload_micros') }} as upload_usd,
    indexing_micros, {{ usd('indexing_micros') }} as indexing_usd,
    as_of
from {{ ref('stg_dying') }} as dying
cross join {{ ref('stg_as_of') }}
left join (select golem_id, owner_id, generation from {{ ref('stg_births') }}) as golem using (golem_id)
left join (select golem_id, cause from {{ ref('stg_deaths') }}) as deaths using (golem_id)
order by died_at, dying.golem_id, phase_number
