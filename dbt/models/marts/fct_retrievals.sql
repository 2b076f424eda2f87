with judged as (
    select
        golem_id, tick, action_type, bool_or(chosen = 'act') as is_acted,
        sum(effect_micros)::bigint as effect_micros, sum(effect_ppm) as effect_ppm,
        sum(if(chosen = 'act', effect_micros, -effect_micros))::bigint as gain_micros
    from {{ ref('stg_verdicts') }} where verified group by golem_id, tick, action_type
),
signed as (
    -- The sign that the entry had at the close of the last cycle before the tick.
    select shown.*, signs.sign, signs.action_type
    from {{ ref('stg_retrievals') }} as shown
    asof left join {{ ref('stg_signs') }} as signs
        on shown.golem_id = signs.golem_id and shown.entry_id = signs.entry_id and shown.cycle > signs.cycle
),
weighed as (
    select
        signed.*, judged.is_acted, judged.effect_micros, judged.gain_micros,
        case when signed.sign <> 0 then judged.is_acted = (signed.sign > 0) end as is_followed,
        signed.sign * judged.effect_micros as worth_micros,
        case when abs(judged.effect_ppm) >= effect_min_ppm and signed.sign <> 0
            then sign(judged.effect_ppm) * signed.sign end as agreement
    from signed
    cross join {{ ref('stg_policy') }}
    left join judged on judged.golem_id = signed.golem_id and judged.tick = signed.tick
        and judged.action_type = signed.action_type
)
select
    golem_id, owner_id, tick, cycle, entry_id, shown_at, rank, weighed.kind, known.text as entry_text,
    known.status as entry_status, known.provenance, known.origin_golem_id, known.generation as entry_generation,
    score, semantic, recency, importance, affect, weighed.sign, weighed.action_type, is_acted,
    coalesce(agreement > 0, false) as is_useful, coalesce(agreement < 0, false) as is_misleading,
    is_followed,
    effect_micros, {{ usd('effect_micros') }} as effect_usd, gain_micros, {{ usd('gain_micros') }} as gain_usd,
    worth_micros, {{ usd('worth_micros') }} as worth_usd, as_of
from weighed
cross join {{ ref('stg_as_of') }}
left join {{ ref('stg_known') }} as known using (golem_id, entry_id)
left join {{ ref('stg_owners') }} using (golem_id)
{{ kept_rows() }}
order by golem_id, tick, rank
