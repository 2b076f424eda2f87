{# Values outside the list of their column. NULL passes. #}
{% test one_of(model, columns) %}
{% for name, values in columns.items() %}
select '{{ name }}' as column_name, {{ name }}::varchar as value from {{ model }}
where {{ name }} not in ('{{ values | join("', '") }}')
{% if not loop.last %} union all {% endif %}
{% endfor %}
{% endtest %}
