"""The event stream: every event of a home in one order, read from a cursor."""
