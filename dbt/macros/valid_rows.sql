{# The rows of a growing table that no repair retracted. A retracted row stays in the file beside the row that retracts it. #}
{% macro valid_rows(rows, key) -%}
(
    select kept.* exclude (turn, because) from {{ rows }} as kept
    where kept.because is null and not exists (
        from {{ rows }} as back
        where back.because is not null and back.turn is not distinct from kept.turn
        {%- for name in key %} and back.{{ name }} = kept.{{ name }}{% endfor %}
    )
)
{%- endmacro %}
