-- The first record of an execution and its first outcome count; a later outcome only adds a reflection.
with outcomes as (
    select golem_id, event_id, recorded_at, observed_at, settled_outcome as outcome,
        last_value(settled_outcome.reflection ignore nulls) over (
            partition by golem_id, settled_outcome.execution_id order by recorded_at, event_id
            rows between unbounded preceding and unbounded following
        ) as reflection
    from {{ source('home', 'log_life') }}
    where kind = 'OutcomeRecorded'
    {{ first_of('golem_id, settled_outcome.execution_id', 'recorded_at, event_id') }}
)
select
    said.golem_id, said.execution.execution_id, said.execution.strategy_name, said.execution.strategy_version,
    said.execution.action_type, {{ utc('said.observed_at') }} as executed_at, said.execution.regime,
    said.execution.volatility, said.execution.gas_level, said.execution.predicted_micros,
    said.execution.interval_low_micros, said.execution.interval_high_micros, said.execution.interval_level,
    said.execution.tx_hash, {{ utc('outcomes.observed_at') }} as settled_at, outcomes.outcome.realized_micros,
    outcomes.outcome.fees_micros, outcomes.outcome.impermanent_loss_micros, outcomes.outcome.unrealized_micros,
    outcomes.outcome.gas_micros, outcomes.outcome.slippage_bps, outcomes.reflection
from {{ source('home', 'log_life') }} as said
left join outcomes
    on outcomes.golem_id = said.golem_id and outcomes.outcome.execution_id = said.execution.execution_id
where said.kind = 'ExecutionRecorded'
{{ first_of('said.golem_id, said.execution.execution_id', 'said.recorded_at, said.event_id') }}
