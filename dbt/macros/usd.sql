{# Micro-dollars in dollars. #}
{% macro usd(micros) -%} (({{ micros }}) / 1e6) {%- endmacro %}
