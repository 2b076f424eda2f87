with known as (
    select
        *, list_reverse_sort(list_distinct(
            list_transform(
                list_filter(alternatives, lambda other: other.reward_ppm is not null),
                lambda other: struct_pack(reward_ppm := other.reward_ppm, action := other.action)
            )
        )) as others
    from {{ ref('stg_experiences') }}
)
select
    golem_id, owner_id, tick, cycle, report_tick, number, reported_at, domain, situation, action,
    reward_ppm, reward_ppm / 1e6 as reward,
    list_sort(list_distinct(list_transform(alternatives, lambda other: other.action))) as alternatives,
    others[1].action as best_alternative, others[1].reward_ppm as best_alternative_reward_ppm,
    others[1].reward_ppm / 1e6 as best_alternative_reward,
    greatest(others[1].reward_ppm - reward_ppm, if(len(others) > 0, 0, null)) / 1e6 as regret,
    verified as is_verified, ground_truth_source, as_of
from known
cross join {{ ref('stg_as_of') }}
left join {{ ref('stg_owners') }} using (golem_id)
{{ kept_rows() }}
order by golem_id, report_tick, number
