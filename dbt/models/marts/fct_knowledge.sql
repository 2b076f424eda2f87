with paced as (
    -- bardo_pipeline/grimoire/confidence.py, half_life_us and floor_ppm. NULL: no decay.
    select
        entries.*,
        case decay_class
            when 'regime_conditional' then policy.regime_conditional_days
            when 'tactical' then policy.tactical_days
            when 'ephemeral' then policy.ephemeral_days
            when 'fact' then policy.fact_e_fold_days * ln(2.0::double)
                * greatest(1.0::double, ln(greatest(evidence_count, own_count, 1)::double))
        end * if(is_bloodstain, policy.bloodstain_multiplier, 1.0::double)
        * if(provenance = 'dream_counterfactual', policy.dreamt_multiplier, 1.0::double) as half_life_days,
        greatest(pinned_ppm, case
            when is_anti_knowledge then policy.anti_knowledge_floor_ppm
            when is_bloodstain then policy.bloodstain_floor_ppm
            else 0
        end) as floor_ppm
    from {{ ref('stg_entries') }} as entries cross join {{ ref('stg_policy') }} as policy
),
aged as (
    -- confidence_at: 2^(-t/h) from the anchor, at least min(floor, the anchor's confidence).
    select
        *,
        greatest(epoch_us(as_of) - epoch_us(anchor_at), 0) as age_us,
        round_even(half_life_days * 86400000000.0::double, 0)::bigint as half_life_us
    from paced cross join {{ ref('stg_as_of') }}
),
faded as (
    select
        *,
        greatest(
            round_even(confidence_ppm * coalesce(pow(2.0::double, -age_us / half_life_us), 1.0::double), 0)::bigint,
            least(floor_ppm, confidence_ppm)
        ) as confidence_now_ppm
    from aged
)
select
    golem_id, owner_id, entry_id, kind, source, category, domain, text,
    chain, protocol, pair, action_type, regime, anomaly_band, gas_band, metric,
    cause, effect, lag_ticks,
    provenance, origin_golem_id, generation, is_anti_knowledge, is_bloodstain,
    confidence_ppm as confidence_anchor_ppm,
    confidence_now_ppm as confidence_ppm,
    confidence_now_ppm / 1000000 as confidence,
    decay_class, half_life_days, floor_ppm::bigint as floor_ppm, pinned_ppm, anchor_at, fades_at,
    sign, effect_mean_ppm as effect_mean, effect_low_ppm as effect_low, effect_high_ppm as effect_high,
    case metric
        when 'gas_price' then 'thousandths of a gwei'
        when 'pool_volume' then 'dollars a tick'
        when 'gas_cost' then 'micro-dollars'
        else 'ppm'
    end as effect_unit,
    if(source = 'baseline' and level_p90 > 0, level_p10, null) as level_p10,
    if(source = 'baseline' and level_p90 > 0, level_p90, null) as level_p90,
    evidence_count, own_count, validations, contradictions, created_cycle, created_at, validated_at,
    as_of
from faded left join {{ ref('stg_owners') }} using (golem_id)
order by golem_id, entry_id
