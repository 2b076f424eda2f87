"""The thirteen memory tools: their table, their schemas, and the call of a tool by name."""
