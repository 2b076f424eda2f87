{# Condition on a record: it was struck, or a reorganisation of the chain removed it. #}
{% macro left_out(records, runs) -%}
exists (
    select 1 from {{ runs }} as left_out
    where left_out.golem_id = {{ records }}.golem_id
        and {{ records }}.tick between left_out.tick_from and left_out.tick_to
)
{%- endmacro %}
