"""The event log: append-only Delta tables of records and life events, their admission, links and checksums."""
