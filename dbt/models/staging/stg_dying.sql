{%- set phases = [
    ('DeathAccepted', 'accepted', 'acceptance'), ('AffairsSettled', 'settled', 'settlement'),
    ('LifeReflected', 'reflected', 'reflection'), ('LegacyLeft', 'bequeathed', 'legacy'),
] -%}
select
    golem_id,
    case kind {% for kind, said, name in phases %}when '{{ kind }}' then '{{ name }}' {% endfor %}end as dying_phase,
    case kind {% for kind, said, name in phases %}when '{{ kind }}' then {{ loop.index0 }} {% endfor %}end::bigint as phase_number,
    {{ utc('observed_at') }} as died_at,
    {% for cost in ['reserve_micros', 'cost_micros', 'spent_micros'] -%}
    coalesce({% for kind, said, name in phases %}{{ said }}.{{ cost }}{{ ', ' if not loop.last }}{% endfor %}) as {{ cost }},
    {% endfor -%}
    accepted.means, reflected.reflection_micros, reflected.compression_micros, bequeathed.upload_micros,
    bequeathed.indexing_micros
from {{ source('home', 'log_life') }}
where kind in ({% for kind, said, name in phases %}'{{ kind }}'{{ ', ' if not loop.last }}{% endfor %})
