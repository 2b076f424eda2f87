with judged as (
    select golem_id, tick as judged_tick, {{ utc('observed_at') }} as judged_at, unnest(resolutions) as verdict
    from {{ source('home', 'fresh_cycles') }} as cycles
    where len(resolutions) > 0 and not {{ left_out('cycles', source('home', 'left_out')) }}
)
select
    golem_id, verdict.decision_tick as tick, verdict.tool_name, verdict.action_type, verdict.chosen, verdict.verified,
    verdict.value_micros, verdict.effect_ppm,
    round_even(verdict.effect_ppm * verdict.value_micros::double / 1e6, 0)::bigint as effect_micros,
    verdict.retrieved_entry_ids as entry_ids, judged_tick, judged_at
from judged
{{ first_of('golem_id, verdict.decision_tick, verdict.tool_name', 'judged_tick') }}
