{# Rows about a record of which one of these columns is NULL. #}
{% test of_records(model, columns) %}
select * from {{ model }}
where sort = 'record' and ({{ columns | join(' is null or ') }} is null)
{% endtest %}
