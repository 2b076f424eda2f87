-- All marts come from the same log: they carry the same as_of, and no event is later.
with moments as (
    select as_of from {{ ref('dim_golem') }}
    union select as_of from {{ ref('fct_ticks') }}
    union select as_of from {{ ref('fct_deaths') }}
    union select as_of from {{ ref('fct_tier_costs') }}
    union select as_of from {{ ref('fct_tier_verdicts') }}
    union select as_of from {{ ref('fct_knowledge') }}
    union select as_of from {{ ref('fct_consensus') }}
    union select as_of from {{ ref('fct_withdrawals') }}
    union select as_of from {{ ref('fct_dying') }}
    union select as_of from {{ ref('fct_library') }}
    union select as_of from {{ ref('fct_equipped') }}
    union select as_of from {{ ref('fct_decisions') }}
    union select as_of from {{ ref('fct_choices') }}
    union select as_of from {{ ref('fct_experiences') }}
    union select as_of from {{ ref('fct_retrievals') }}
    union select as_of from {{ ref('fct_votes') }}
    union select as_of from {{ ref('fct_scars') }}
    union select as_of from {{ ref('fct_dreams') }}
    union select as_of from {{ ref('fct_episodes') }}
    union select as_of from {{ ref('fct_executions') }}
    union select as_of from {{ ref('fct_strategies') }}
)
select 'marts differ' as why, count(*) as times from moments having count(*) > 1
union all
select 'ticks after as_of', count(*) from {{ ref('fct_ticks') }} where observed_at > as_of having count(*) > 0
