"""Bardo: the memory of mortal agents, derived from append-only decision records."""
