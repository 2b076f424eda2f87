{# A moment as TIMESTAMP in UTC: what an analyst reads must not depend on where the reader's clock stands. #}
{% macro utc(moment) -%} ({{ moment }} at time zone 'UTC') {%- endmacro %}
