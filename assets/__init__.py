"""Assets: one file a subject; each docstring says what the table is."""
