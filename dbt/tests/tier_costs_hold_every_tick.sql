-- The aggregates by day and tier equal those of fct_ticks, to the tick and the micro-dollar.
with ticks as (
    select golem_id, count(*) as ticks, sum(inference_micros) as inference, sum(gas_micros) as gas
    from {{ ref('fct_ticks') }} group by golem_id
),
costs as (
    select golem_id, sum(ticks) as ticks, sum(inference_micros) as inference, sum(gas_micros) as gas
    from {{ ref('fct_tier_costs') }} group by golem_id
)
select * from ticks full join costs using (golem_id)
where (ticks.ticks, ticks.inference, ticks.gas) is distinct from (costs.ticks, costs.inference, costs.gas)
