{# Rows whose key is repeated or contains NULL. #}
{% test unique_together(model, columns) %}
select {{ columns | join(', ') }}, count(*) as times from {{ model }}
group by all having count(*) > 1 or {{ columns | join(' is null or ') }} is null
{% endtest %}
