{# Keeps one row a key, the first in this order: a golem is born once and dies once, whatever was declared again. #}
{% macro first_of(key, order) -%}
    qualify row_number() over (partition by {{ key }} order by {{ order }}) = 1
{%- endmacro %}
