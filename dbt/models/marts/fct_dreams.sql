select
    golem_id, owner_id, cycle, tick as closed_tick, "at" as dreamt_at, began_by,
    mortality_pressure_ppm / 1e6 as mortality_pressure, replay_budget, counterfactual_budget,
    len(replayed) as replayed_count, list_transform(replayed, lambda item: item.tick) as replayed_ticks,
    list_avg(list_transform(replayed, lambda item: item.arousal_before_ppm)) / 1e6 as arousal_before,
    list_avg(list_transform(replayed, lambda item: item.arousal_after_ppm)) / 1e6 as arousal_after,
    len(scars) as scar_count, episode_count, failure_count, branch_count, unlike_count,
    staged_count, confirmed_count, gone_count, as_of
from {{ ref('stg_dreams') }}
cross join {{ ref('stg_as_of') }}
left join {{ ref('stg_owners') }} using (golem_id)
order by golem_id, cycle
