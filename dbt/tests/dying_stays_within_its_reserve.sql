-- The spent amount is the sum of the phases' costs, and at most the reserve.
with summed as (
    select *, sum(cost_micros) over (partition by golem_id order by phase_number) as costs from {{ ref('fct_dying') }}
)
select golem_id, dying_phase, reserve_micros, spent_micros, costs from summed
where spent_micros <> costs or spent_micros > reserve_micros
