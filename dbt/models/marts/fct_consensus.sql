select
    proposition_id, domain, claim, confidence_ppm, weighted_mean_ppm,
    total_weight_tenths / 10 as total_weight,
    vote_count, death_vote_count, quorum_met, contradicted,
    variance_ppm2 / 1e12::double as variance,
    first_vote_at, last_vote_at, votes_hash, as_of
from {{ ref('stg_consensus') }} cross join {{ ref('stg_as_of') }}
order by proposition_id
