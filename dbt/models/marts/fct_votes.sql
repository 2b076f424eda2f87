with backed as (
    -- bardo_pipeline/katabasis/weighted_consensus.py: a death vote counts if its death is recorded, and
    -- the latest vote of a voter on a question replaces its earlier ones. The bands of one level share a question.
    select votes.*, not is_death_vote or coalesce(deaths.died_at = votes.voted_at, false) as is_valid
    from {{ ref('stg_votes') }} as votes
    left join {{ ref('stg_deaths') }} as deaths using (golem_id)
),
ranked as (
    select *, is_valid and row_number() over (
        partition by question_id, voter_id, is_valid order by voted_at desc, is_death_vote desc, vote_id desc
    ) = 1 as is_counted
    from backed
)
select
    vote_id, ranked.proposition_id, ranked.domain, ranked.claim, owner_id, golem_id, births.generation, cycle, entry_id,
    ranked.confidence_ppm, ranked.confidence_ppm / 1e6 as confidence, weight_tenths / 10 as weight, is_death_vote,
    is_counted, voted_at, consensus.weighted_mean_ppm as consensus_mean_ppm,
    ranked.confidence_ppm - consensus.weighted_mean_ppm as deviation_ppm, as_of
from ranked
cross join {{ ref('stg_as_of') }}
left join {{ ref('stg_consensus') }} as consensus using (proposition_id)
left join (select golem_id, generation from {{ ref('stg_births') }}) as births using (golem_id)
order by proposition_id, voted_at, vote_id
