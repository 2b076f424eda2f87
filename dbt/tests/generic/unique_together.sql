{# Rows whose key is not theirs alone, or lacks a part. #}
{% test unique_together(model, columns) %}
select {{ columns | join(', ') }}, count(*) as times from {{ model }}
group by all having count(*) > 1 or {{ columns | join(' is null or ') }} is null
{% endtest %}
