with reported as (
    select
        golem_id, tick as report_tick, {{ utc('observed_at') }} as reported_at, observation.protocol as domain,
        unnest(experiences) as experience, generate_subscripts(experiences, 1) as number
    from {{ source('home', 'fresh_cycles') }} as cycles
    where len(experiences) > 0 and not {{ left_out('cycles', source('home', 'left_out')) }}
),
acted as (
    select
        golem_id, experience.decision_tick as tick, (experience.decision_tick - 1) // cycle_ticks + 1 as cycle,
        report_tick, number, reported_at, domain,
        -- of a name that a sender repeats, the last value counts, as for the rules about reported actions
        map_from_entries(list_transform(
            list_filter(experience.conditions, lambda part, place: not list_contains(
                list_transform(experience.conditions[place + 1:], lambda later: later.name), part.name
            )),
            lambda part: struct_pack(k := part.name, v := part.value)
        )) as situation,
        experience.action, experience.reward_ppm, experience.alternatives,
        experience.verified, experience.ground_truth_source
    from reported
    cross join {{ ref('stg_policy') }}
)
select * from acted
where not {{ left_out('acted', source('home', 'left_out')) }}
