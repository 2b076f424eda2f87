{# Keeps the first row of each key in the given order. Repeated births and deaths of a golem do not count. #}
{% macro first_of(key, order) -%}
    qualify row_number() over (partition by {{ key }} order by {{ order }}) = 1
{%- endmacro %}
