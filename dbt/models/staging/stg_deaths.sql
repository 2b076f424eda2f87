select
    golem_id, {{ utc('observed_at') }} as died_at,
    died.cause, died.tick, died.phase,
    died.vitality.economic as vitality_economic,
    died.vitality.epistemic as vitality_epistemic,
    died.vitality.stochastic as vitality_stochastic,
    died.credits_micros, died.capital_micros, died.earned_micros
from {{ source('home', 'log_life') }}
where kind = 'DeathDeclared'
{{ first_of('golem_id', 'died.tick, event_id') }}
