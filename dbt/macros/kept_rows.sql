{# Rows of golems whose inputs have not changed, from the warehouse in force (bardo_pipeline/storage/warehouse/kept_rows.py). #}
{% macro kept_rows() -%}
{% set kept = adapter.get_relation(database='home', schema='kept', identifier=this.identifier) if execute else none -%}
{% if kept -%}
union all by name
select * replace ((select as_of from {{ ref('stg_as_of') }}) as as_of) from {{ kept }}
{%- endif %}
{%- endmacro %}
