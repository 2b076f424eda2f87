"""The event log: append-only Delta tables of records, life events and vectors; admission, links, heads."""
