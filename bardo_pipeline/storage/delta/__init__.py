"""Delta tables: append-only and replaceable tables, durable commits, Parquet files, compaction."""
