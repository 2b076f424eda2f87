"""Delta tables: append-only and replaceable tables, their schemas, durable commits, checksums, compaction."""
