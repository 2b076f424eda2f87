{# A moment as TIMESTAMP in UTC, so that query results do not depend on the time zone of the session. #}
{% macro utc(moment) -%} ({{ moment }} at time zone 'UTC') {%- endmacro %}
