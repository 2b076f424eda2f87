select
    dying.golem_id, dying_phase, phase_number, golem.owner_id, golem.generation, deaths.cause, died_at,
    reserve_micros, cost_micros, spent_micros, reserve_micros - spent_micros as left_micros,
    max(means) over (partition by dying.golem_id) as means,
    reflection_micros, compression_micros, upload_micros, indexing_micros,
    as_of
from {{ ref('stg_dying') }} as dying
cross join {{ ref('stg_as_of') }}
left join (select golem_id, owner_id, generation from {{ ref('stg_births') }}) as golem using (golem_id)
left join (select golem_id, cause from {{ ref('stg_deaths') }}) as deaths using (golem_id)
order by died_at, dying.golem_id, phase_number
