with performance as (
    -- bardo_pipeline/tools/execution_queries.py, performance_by_strategy; here of each version.
    select
        golem_id, strategy_name, strategy_version as version, count(*) as execution_count,
        count(realized_micros) as settled_count, {{ usd('avg(realized_micros)') }} as pnl_mean_usd,
        count_if(realized_micros > 0) / nullif(count(realized_micros), 0) as win_rate,
        avg(realized_micros) / nullif(stddev_samp(realized_micros), 0) as sharpe_ratio
    from {{ ref('stg_executions') }} group by all
)
select
    golem_id, strategy_name, version, owner_id, stored_at,
    version = max(version) over (partition by golem_id, strategy_name) as is_newest,
    description, parameters, chains, token_pairs, from_golem_id,
    coalesce(execution_count, 0) as execution_count, coalesce(settled_count, 0) as settled_count,
    pnl_mean_usd, win_rate, sharpe_ratio, as_of
from {{ ref('stg_strategies') }}
cross join {{ ref('stg_as_of') }}
left join performance using (golem_id, strategy_name, version)
left join {{ ref('stg_owners') }} using (golem_id)
order by golem_id, strategy_name, version
