{# Amounts in dollars that are not the millionth part of the amount in micro-dollars, over all columns of a mart. #}
{% test dollars(model) %}
{% for column in adapter.get_columns_in_relation(model) if execute and column.name.endswith('_micros') %}
{% set dollars = column.name | replace('_micros', '_usd') %}
select '{{ dollars }}' as column_name, {{ column.name }} as micros, {{ dollars }} as usd from {{ model }}
where {{ dollars }} is distinct from {{ column.name }} / 1e6
union all
{% endfor %}
select null, null, null where false
{% endtest %}
