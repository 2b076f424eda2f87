{# Band of a value, as in the conditions of rules: the policy states the edges and the names of the bands. #}
{% macro band(kind, value) -%}
{{ kind }}_bands[1 + len(list_filter({{ kind }}_edges, lambda edge: edge <= {{ value }}))]
{%- endmacro %}
