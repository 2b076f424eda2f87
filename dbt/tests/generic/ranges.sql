{# Values outside [low, high], by column; either bound may be null. NULL is in range. #}
{% test ranges(model, columns) %}
{% for name, (low, high) in columns.items() %}
select '{{ name }}' as column_name, {{ name }}::varchar as value from {{ model }}
where false
    {% if low is not none %} or {{ name }} < {{ low }} {% endif %}
    {% if high is not none %} or {{ name }} > {{ high }} {% endif %}
{% if not loop.last %} union all {% endif %}
{% endfor %}
{% endtest %}
