{# A condition of a situation as in the column `cause` of an entry (bardo_pipeline/grimoire/conditions.py). #}
{% macro condition(pair) -%}
{{ escaped_word(pair ~ '.key') }} || '=' || {{ escaped_word(pair ~ '.value') }}
{%- endmacro %}
{% macro escaped_word(word) -%}
replace(replace(replace({{ word }}, '%', '%25'), '&', '%26'), '=', '%3D')
{%- endmacro %}
