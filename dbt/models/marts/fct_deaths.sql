with heirs as (
    select predecessor_id, golem_id as successor_id from {{ ref('stg_births') }}
    where predecessor_id is not null
    {{ first_of('predecessor_id', 'born_at, golem_id') }}
)
select
    deaths.golem_id, golem.owner_id, golem.lineage_id, golem.generation, deaths.died_at, deaths.cause,
    deaths.tick, golem.lifespan_ticks, deaths.tick / nullif(golem.lifespan_ticks, 0) as hayflick_ratio, deaths.phase,
    deaths.vitality_economic, deaths.vitality_epistemic, deaths.vitality_stochastic,
    deaths.credits_micros, {{ usd('deaths.credits_micros') }} as credits_usd,
    deaths.capital_micros, {{ usd('deaths.capital_micros') }} as capital_usd,
    deaths.earned_micros, {{ usd('deaths.earned_micros') }} as earned_usd,
    golem.knowledge_at_birth, golem.knowledge_at_death,
    testament.divergence, testament.low_divergence, testament.novel_count::bigint as novel_entries,
    testament.invalidated_count::bigint as invalidated_entries, testament.forgotten_count::bigint as forgotten_entries,
    testament.gap_count::bigint as gaps, testament.question_ratio,
    bundles.bundle_hash, bundles.passed as bundle_passed,
    bundles.failed_expectations::bigint as bundle_failed_expectations,
    bundles.entry_count as bundle_entries, heirs.successor_id,
    as_of
from {{ ref('stg_deaths') }} as deaths
cross join {{ ref('stg_as_of') }}
left join (select * exclude (as_of) from {{ ref('dim_golem') }}) as golem using (golem_id)
left join {{ ref('stg_bundles') }} as bundles using (golem_id)
left join {{ ref('stg_testaments') }} as testament using (golem_id)
left join heirs on heirs.predecessor_id = deaths.golem_id
order by deaths.died_at, deaths.golem_id
