select
    vote_id, votes.proposition_id, votes.question_id, votes.domain, votes.claim, votes.voter_id,
    votes.confidence_ppm, votes.is_death_vote, votes.weight_tenths, {{ utc('votes."at"') }} as voted_at,
    causes.owner_id, causes.golem_id, causes.cycle, causes.entry_id
from {{ valid_rows(source('home', 'derived_votes'), ['vote_id']) }} as votes
join {{ valid_rows(source('home', 'derived_vote_causes'), ['vote_id']) }} as causes using (vote_id)
