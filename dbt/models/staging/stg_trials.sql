with judged as (
    select golem_id, tick as judged_tick, {{ utc('observed_at') }} as judged_at, unnest(trials) as trial
    from {{ source('home', 'fresh_cycles') }} as cycles
    where len(trials) > 0 and not {{ left_out('cycles', source('home', 'left_out')) }}
),
tried as (
    select
        golem_id, trial.decision_tick as tick, (trial.decision_tick - 1) // cycle_ticks + 1 as cycle,
        trial.choice, trial.taken, trial.alternative, trial.beside, trial.horizon, trial.regime, trial.anomaly_score,
        {{ band('anomaly', 'trial.anomaly_score') }} as anomaly_band, trial.gas_ratio,
        {{ band('gas', 'trial.gas_ratio') }} as gas_band, trial.value_micros, trial.effect_ppm,
        round_even(trial.effect_ppm * trial.value_micros::double / 1e6, 0)::bigint as effect_micros,
        trial.verified, trial.ground_truth_source, judged_tick, judged_at
    from judged
    cross join {{ ref('stg_policy') }}
)
select * from tried
where not {{ left_out('tried', source('home', 'left_out')) }}
{{ first_of('golem_id, tick, choice, alternative, beside, horizon', 'judged_tick') }}
