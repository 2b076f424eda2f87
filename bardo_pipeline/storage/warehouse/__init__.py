"""The warehouse: the DuckDB file that dbt builds for analysts."""
