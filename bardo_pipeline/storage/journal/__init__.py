"""The journal: durable acknowledgement of records, one process a journal, group commit, drained into the log."""
