{%- set phases = [
    ('DeathAccepted', 'accepted', 'acceptance'), ('AffairsSettled', 'settled', 'settlement'),
    ('LifeReflected', 'reflected', 'reflection'), ('LegacyLeft', 'bequeathed', 'legacy'),
] -%}
{% for kind, said, name in phases -%}
select
    golem_id, '{{ name }}' as dying_phase, {{ loop.index0 }}::bigint as phase_number,
    {{ utc('observed_at') }} as died_at, {{ said }}.reserve_micros, {{ said }}.cost_micros, {{ said }}.spent_micros,
    {{ 'accepted.means' if said == 'accepted' else 'null::varchar' }} as means,
    {{ 'reflected.reflection_micros' if said == 'reflected' else 'null::bigint' }} as reflection_micros,
    {{ 'reflected.compression_micros' if said == 'reflected' else 'null::bigint' }} as compression_micros,
    {{ 'bequeathed.upload_micros' if said == 'bequeathed' else 'null::bigint' }} as upload_micros,
    {{ 'bequeathed.indexing_micros' if said == 'bequeathed' else 'null::bigint' }} as indexing_micros
from {{ source('home', 'log_life') }}
where kind = '{{ kind }}'
{{ 'union all' if not loop.last }}
{% endfor %}
