"""The DuckDB file that dbt builds for analysts."""
