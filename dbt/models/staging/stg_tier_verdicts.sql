with ticks as (
    select
        golem_id, tick, {{ utc('observed_at') }} as observed_at, regime, tier as recorded_tier, prediction_error,
        observation.net_asset_value_micros as worth_micros, cost.inference_micros, gating.composite,
        gating.boundary_t2.threshold as threshold_t2, gating.boundary_t1.threshold as threshold_t1,
        gating.boundary_t0.threshold as threshold_t0, gating.explored as is_explored, gating.found as has_found,
        spending.wanted_tier is not null or coalesce(cached_decision.result = 'hit', false) as is_lowered
    from {{ source('home', 'fresh_cycles') }} as cycles
    where gating is not null and not {{ left_out('cycles', source('home', 'left_out')) }}
),
chosen as (
    -- An explored tick counts with the tier that it would have had. A boundary did not decide a tick that the playbook
    -- settled, that a chain event woke, or that the daily
    -- budget lowered or the decision cache answered.
    select
        *, if(is_explored, if(composite > threshold_t0, 'T0', 'suppress'), recorded_tier) as tier,
        coalesce(
            threshold_t0 is not null and not is_lowered and not (recorded_tier = 'suppress' and composite > threshold_t0)
                and not (recorded_tier = 'T1' and composite <= threshold_t1 and not is_explored),
            false -- a foreign record may lack the composite or a threshold
        ) as is_decided
    from ticks
),
followed as (
    select
        chosen.*, tier in ('T1', 'T2') as thinks, window_ticks, count(*) over later as later_ticks,
        bool_or(tier in ('T1', 'T2') or is_explored) over later as is_met,
        max(prediction_error) over later >= event_error_min
            or max_by(worth_micros, tick) over later <= worth_micros * (1 - event_loss_min) as is_eventful,
        (tick + window_ticks + delta_ticks - 1) // delta_ticks * delta_ticks as judged_tick, delta_ticks,
        trial_effect_min_ppm
    from chosen cross join {{ ref('stg_policy') }}
    window later as (partition by golem_id order by tick range between 1 following and window_ticks following)
),
tried as (
    select
        followed.*, is_eventful and not is_met as is_restless, verdict.effect_ppm, verdict.judged_tick as tried_tick
    from followed
    semi join ticks as closing on closing.golem_id = followed.golem_id and closing.tick = followed.judged_tick
    left join ticks as next
        on next.golem_id = followed.golem_id and next.tick = followed.judged_tick + followed.delta_ticks
    left join {{ ref('stg_verdicts') }} as verdict
        on verdict.golem_id = followed.golem_id and verdict.tick = followed.tick
        and verdict.action_type = 'rebalance'
        and verdict.judged_tick <= coalesce(next.tick, followed.judged_tick)
    where later_ticks = window_ticks
),
scored as (
    -- A trial that closes after the judgement of its tick scores that tick again, at the next delta.
    select
        *, coalesce(tried_tick > judged_tick, false) as is_late,
        coalesce(not thinks and effect_ppm >= trial_effect_min_ppm, false) as is_paid,
        coalesce(tier = 'T2' and has_found and effect_ppm <= 0, false) as is_harmed,
        not thinks and ((is_explored and has_found) or is_restless) as is_missed
    from tried
)
select
    golem_id, tick, observed_at, regime, tier, composite, threshold_t2, threshold_t1, threshold_t0, is_decided,
    is_explored, has_found, is_restless, effect_ppm, inference_micros,
    case when is_missed or is_paid then 'missed' when is_harmed or (thinks and not has_found) then 'needless'
        else 'right' end as verdict,
    case
        when is_paid and not (is_late and is_missed) then 'gain'
        when is_missed and is_explored and has_found then 'exploration'
        when is_missed then 'event'
        when is_harmed then 'harm'
        when thinks then if(has_found, 'found', 'nothing')
        else 'quiet'
    end as verdict_reason,
    judged_tick, if(is_late and ((is_paid and not is_missed) or is_harmed), judged_tick + delta_ticks, null)
        as rescored_tick
from scored
