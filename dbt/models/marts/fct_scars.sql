with repeated as (
    select
        scars.owner_id, scars.scar_id, count(*) as repeat_count, count(distinct failures.golem_id) as repeat_golem_count,
        max(failures.confirmed_at) as last_repeat_at
    from {{ ref('stg_scars') }} as scars
    join {{ ref('stg_failures') }} as failures
        on failures.owner_id = scars.owner_id and failures.structure = scars.structure
        and failures.mechanism = scars.mechanism and failures.scar_id <> scars.scar_id
    group by scars.owner_id, scars.scar_id
),
held as (
    select
        scars.owner_id, scars.scar_id, count(distinct entries.golem_id) as holder_count,
        count(distinct entries.golem_id) filter (entries.is_bloodstain) as bloodstain_holder_count
    from {{ ref('stg_scars') }} as scars
    join {{ ref('stg_owners') }} as owners using (owner_id)
    join {{ ref('stg_entries') }} as entries
        on entries.golem_id = owners.golem_id and entries.structure = scars.structure
    where entries.golem_id <> scars.golem_id
    group by scars.owner_id, scars.scar_id
),
aged as (
    -- bardo_pipeline/katabasis/scar_rules.py, scar_confidence.
    select
        scars.*, as_of, if(is_bloodstain, policy.bloodstain_floor_ppm, 0) as floor_ppm,
        policy.scar_half_life_days * if(is_bloodstain, policy.bloodstain_multiplier, 1.0::double) as half_life_days,
        greatest(epoch_us(as_of) - epoch_us(confirmed_at), 0) as age_us
    from {{ ref('stg_scars') }} as scars
    cross join {{ ref('stg_policy') }} as policy
    cross join {{ ref('stg_as_of') }}
),
losses as (
    select golem_id, tick, value_micros, pnl_impact_micros from {{ ref('fct_decisions') }} where number = 1
)
select
    scar_id, owner_id, golem_id, episode_id, tick, cycle, "at" as failed_at, confirmed, confirmed_tick, confirmed_at,
    outcome_class, mechanism, cause_variable, position_state, causal_narrative, chain, protocol, pair, tool_name,
    action_type, regime, market_regime, anomaly_band, gas_band, pnl_ppm, effect_ppm, value_micros,
    {{ usd('value_micros') }} as value_usd, pnl_impact_micros, {{ usd('pnl_impact_micros') }} as pnl_impact_usd,
    confidence_ppm as confidence_anchor_ppm,
    greatest(
        round_even(confidence_ppm * pow(
            2.0::double, -age_us / round_even(half_life_days * 86400000000.0::double, 0)::bigint
        ), 0)::bigint,
        least(floor_ppm, confidence_ppm)
    ) as confidence_ppm,
    half_life_days, novelty_ppm, seen_count, published, is_bloodstain,
    coalesce(holder_count, 0) as holder_count, coalesce(bloodstain_holder_count, 0) as bloodstain_holder_count,
    coalesce(repeat_count, 0) as repeat_count, coalesce(repeat_golem_count, 0) as repeat_golem_count, last_repeat_at,
    emotion, as_of
from aged
left join held using (owner_id, scar_id)
left join repeated using (owner_id, scar_id)
left join losses using (golem_id, tick)
order by owner_id, scar_id
